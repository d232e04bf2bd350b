//! Parses and encodes safetensors files, including inconsistent ones.

use sconce_tensor::digest::sha256;

use crate::bytes;
use crate::json::{self, Node};
use crate::rng::Rng;

/// Key of Sconce's text in the header's metadata.
const KEY: &str = "sconce";
const SIGNATURE: &str = "\"sha256\":\"\"";

pub struct File {
    pub header: Node,
    pub data: Vec<u8>,
}

impl File {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (header, data) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        Some(File { header: Node::parse(header)?, data: data.to_vec() })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut header = self.header.write();
        // Packed weights are mapped only where they begin at a cache line.
        let length = (8 + header.len()).next_multiple_of(64) - 8;
        header.extend(std::iter::repeat_n(' ', length - header.len()));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &self.data].concat()
    }

    /// Sconce's metadata text in the header, as a JSON tree.
    pub fn text(&self) -> Option<Node> {
        match self.header.get("__metadata__")?.get(KEY)? {
            Node::Text(text) => Node::parse(text.as_bytes()),
            _ => None,
        }
    }

    /// The bytes of a tensor.
    pub fn tensor(&self, name: &str) -> &[u8] {
        let offset = |node: &Node| match node {
            Node::Raw(text) => text.parse::<usize>().ok(),
            _ => None,
        };
        let range = || match self.header.get(name)?.get("data_offsets")? {
            Node::List(ends) => self.data.get(offset(ends.first()?)?..offset(ends.get(1)?)?),
            _ => None,
        };
        range().unwrap_or_default()
    }

    pub fn set_text(&mut self, text: String) {
        if let Some(metadata) = self.header.get_mut("__metadata__") {
            metadata.set(KEY, Node::Text(text));
        }
    }

    /// Updates the digests of a checkpoint to match the contents.
    pub fn sign(&mut self) {
        let Some(mut text) = self.text() else { return };
        text.set("sha256", Node::Text(String::new()));
        if let Some(packed) = text.get_mut("packed") {
            packed.set("sha256", Node::Text(String::new()));
            let digest = sha256([text.write().as_bytes(), self.tensor("packed")]);
            if let Some(packed) = text.get_mut("packed") {
                packed.set("sha256", Node::Text(digest));
            }
        }
        let unsigned = text.write();
        let mut names = match &self.header {
            Node::Map(entries) => entries.iter().map(|(name, _)| name.as_str()).collect(),
            _ => vec![],
        };
        names.retain(|name| *name != "__metadata__");
        names.sort_unstable();
        names.dedup();
        let parts =
            [unsigned.as_bytes()].into_iter().chain(names.iter().map(|name| name.as_bytes()));
        let digest = sha256(parts.chain([self.data.as_slice()]));
        self.set_text(unsigned.replacen(SIGNATURE, &format!("\"sha256\":\"{digest}\""), 1));
    }
}

/// Mutates a safetensors file: its tensor entries, Sconce's text, or the data.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let Some(mut file) = File::parse(bytes) else { return bytes::mutate(rng, bytes) };
    for _ in 0..1 + rng.up_to(2) {
        match rng.below(8) {
            0..4 => match file.text() {
                Some(mut text) => {
                    json::mutate(rng, &mut text);
                    file.set_text(text.write());
                }
                None => json::mutate(rng, &mut file.header),
            },
            4..6 => json::mutate(rng, &mut file.header),
            6 => numbers(rng, &mut file.data),
            _ => bytes::mutate(rng, &mut file.data),
        }
    }
    *bytes = file.encode();
    if rng.one_in(16) {
        // Changes only the length of the header.
        let length = rng.pick(&bytes::ODD).to_le_bytes();
        bytes.iter_mut().zip(length).for_each(|(byte, new)| *byte = new);
    }
}

/// Replaces one value with a value that often breaks readers.
pub fn numbers(rng: &mut Rng, data: &mut [u8]) {
    const ODD: [f32; 8] =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, 1e30, -0.0];
    let (chunks, _) = data.as_chunks_mut();
    let at = rng.below(chunks.len());
    if let Some(chunk) = chunks.get_mut(at) {
        *chunk = rng.pick(&ODD).to_le_bytes();
    }
}
