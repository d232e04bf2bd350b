//! Packed weights in a checkpoint.
//!
//! The tensor `packed` of a file holds an [`Arena`] as the CPU reads it. Sessions map it instead of packing
//! weights, so that all processes of a machine share its memory. Beside the weights of the policy it saves the time of
//! packing. Without them ([`Layout::alone`]) it also saves their memory.
//!
//! A file is mapped if this CPU and this version of the library would have packed the same words ([`Layout::cpu`],
//! [`Layout::source`]). Otherwise the weights of the file are packed.
//!
//! The arena is of the widest type, so it is the first tensor of the file, and begins at a cache line. Its digest also
//! covers the manifest, so that a mapped file needs no pass over its other tensors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use sconce_realtime::{Arena, Format, LINE_BYTES, Packed, Record, cpu};
use serde::{Deserialize, Serialize};

use super::numbers::{Stored, Tensor};
use super::{Manifest, Snapshot, VERSION, metadata, opened, parse, signed};
use crate::header::PREFIX;
use crate::{Error, Result};

/// The name of the tensor.
const NAME: &str = "packed";
/// Digest of the source code that decides where packed weights lie and in which form, set by `build.rs`.
const SOURCE: &str = env!("SCONCE_PACKED");

/// The description of packed weights in the manifest of a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Layout {
    /// The requested format of the matrices.
    pub format: Format,
    /// The features of the CPU that the words are for.
    pub cpu: String,
    /// The digest of the code that packed.
    pub source: String,
    /// Fewest bits of a weight that was packed: those of codes, or 32.
    pub bits: u32,
    /// Whether the file has no other weights.
    pub alone: bool,
    /// The matrices, in the order of the arena.
    pub matrices: Vec<Record>,
    /// SHA-256 of the manifest's text with empty digests, and of the arena.
    pub sha256: String,
}

impl Layout {
    /// Words that this library packs on this CPU.
    pub(crate) fn here(format: Format, bits: u32, matrices: &[Packed], alone: bool) -> Self {
        let matrices = matrices.iter().map(Record::from).collect();
        let (cpu, source, sha256) = (cpu(), SOURCE.into(), String::new());
        Layout { format, cpu, source, bits, alone, matrices, sha256 }
    }

    /// What a CPU and a version of the library need to be to read the words.
    fn target(&self) -> String {
        target(&self.cpu, &self.source)
    }

    /// Removes the arena from the tensors of a file, so that those of weights remain.
    ///
    /// # Errors
    /// `NotFound` if the file has no arena, `Unavailable` if it has no other weights.
    pub(super) fn leave_out(
        &self,
        what: &str,
        tensors: &mut BTreeMap<String, &TensorInfo>,
    ) -> Result<()> {
        tensors.remove(NAME).ok_or_else(|| Error::not_found(format!("{NAME} in {what}")))?;
        match self.alone {
            false => Ok(()),
            true => Err(alone(what)),
        }
    }
}

/// The error of a call that needs the weights of a file that has packed ones only.
pub(crate) fn alone(what: &str) -> Error {
    let reason = "the file has packed weights only".into();
    Error::Unavailable { what: format!("weights of {what}"), reason }
}

fn target(cpu: &str, source: &str) -> String {
    format!("{cpu}, layout {source}")
}

/// The CPU and the layout of packed weights that this library writes and maps.
pub fn here() -> String {
    target(&cpu(), SOURCE)
}

impl Snapshot {
    /// Adds packed weights. Drops all other weights if they stand alone. Nothing may change the manifest afterwards.
    pub(crate) fn with_packed(mut self, arena: &Arena, layout: Layout) -> Result<Self> {
        self.arena = arena.read(|numbers| Arc::from(numbers))?;
        if layout.alone {
            self.tensors.clear();
            self.manifest.codes.clear();
            self.manifest.two_four.clear();
            self.manifest.factors.clear();
        }
        self.manifest.version = VERSION;
        self.manifest.packed = Some(layout.clone());
        let sha256 = arena.sha256(signed(&self.manifest, "")?.as_bytes())?;
        self.manifest.packed = Some(Layout { sha256, ..layout });
        Ok(self)
    }

    /// The tensor of the arena, if the file gets one.
    pub(super) fn packed(&self) -> Option<(String, Tensor<'_>)> {
        self.manifest.packed.as_ref()?;
        let (dtype, dims) = (Dtype::U64, vec![self.arena.len() / 2]);
        Some((NAME.into(), Tensor { dtype, dims, values: Stored::F32(&self.arena) }))
    }
}

/// Appends spaces to the header of a file, so that its first tensor begins at a cache line.
pub(super) fn align(bytes: &mut Vec<u8>) {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return };
    let length = u64::from_le_bytes(*prefix) as usize;
    let end = (PREFIX + length).min(PREFIX + rest.len());
    let spaces = end.next_multiple_of(LINE_BYTES) - end;
    bytes.splice(end..end, std::iter::repeat_n(b' ', spaces));
    bytes.splice(..PREFIX, ((length + spaces) as u64).to_le_bytes());
}

/// Maps the packed weights of a file and checks their digest. `None` for a file without packed weights, and for one whose
/// packed weights are for another CPU or version of the library, if it has others.
///
/// # Errors
/// `Mismatch` for packed weights of another CPU or version without others. `Corrupt` for a damaged file; damage in the
/// weights beside the packed ones is found when they are read.
pub fn open(path: &Path) -> Result<Option<(Manifest, Layout, Arena)>> {
    let what = path.display().to_string();
    let (file, header, bytes) = opened(path)?;
    let (text, raw) = metadata(&what, &header)?;
    let digests = [&raw["sha256"], &raw["packed"]["sha256"]].map(|of| of.as_str().unwrap_or(""));
    let digests = digests.iter().filter(|of| !of.is_empty());
    let unsigned = digests.fold(text.to_owned(), |text, digest| text.replacen(digest, "", 1));
    let mut manifest = parse(&what, raw.clone())?;
    let Some(layout) = manifest.packed.take() else { return Ok(None) };
    // The words of a file are little-endian.
    if layout.target() != here() || cfg!(target_endian = "big") {
        return match layout.alone {
            false => Ok(None),
            true => {
                Err(Error::mismatch(format!("packed weights of {what}"), here(), layout.target()))
            }
        };
    }
    let arena = Arena::of_file(file, place(&what, &header, bytes.len())?)?;
    match arena.sha256(unsigned.as_bytes())? == layout.sha256 {
        true => Ok(Some((manifest, layout, arena))),
        false => Err(Error::corrupt(what, "damaged: its bytes are not those that were written")),
    }
}

/// The bytes of the arena in a file whose tensors begin at byte `body`.
fn place(what: &str, header: &Metadata, body: usize) -> Result<std::ops::Range<usize>> {
    let info = header.info(NAME).ok_or_else(|| Error::not_found(format!("{NAME} in {what}")))?;
    if info.dtype != Dtype::U64 {
        let got = format!("{:?}", info.dtype);
        return Err(Error::mismatch(format!("{NAME} in {what}"), "U64", got));
    }
    let (start, end) = info.data_offsets;
    Ok(body + start..body + end)
}
