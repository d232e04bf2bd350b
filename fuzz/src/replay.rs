//! Parses and encodes replays (`.slp`): a UBJSON map of `raw`, which holds a table of payload sizes and the
//! events, and `metadata`.

use crate::bytes;
use crate::rng::Rng;

const HEAD: &[u8] = b"{U\x03raw[$U#l";
const METADATA: &[u8] = b"U\x08metadata";
const PAYLOADS: u8 = 0x35;

/// UBJSON as a tree.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// A value with its type, verbatim.
    Raw(Vec<u8>),
    Map(Vec<(Vec<u8>, Node)>),
    List(Vec<Node>),
    /// Nested levels that are never closed: the bytes that open a level, and the count of levels.
    Deep(Vec<u8>, usize),
}

impl Node {
    pub fn text(text: &str) -> Node {
        Node::Raw([&b"SU"[..], &[text.len() as u8], text.as_bytes()].concat())
    }

    pub fn int(number: i32) -> Node {
        Node::Raw([&b"l"[..], &number.to_be_bytes()].concat())
    }

    pub fn map(entries: Vec<(&str, Node)>) -> Node {
        Node::Map(entries.into_iter().map(|(key, node)| (key.as_bytes().to_vec(), node)).collect())
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Node::Raw(bytes) => out.extend(bytes),
            Node::Map(entries) => {
                out.push(b'{');
                for (key, node) in entries {
                    out.extend([b'U', key.len() as u8]);
                    out.extend(key);
                    node.write(out);
                }
                out.push(b'}');
            }
            Node::List(list) => {
                out.push(b'[');
                list.iter().for_each(|node| node.write(out));
                out.push(b']');
            }
            Node::Deep(level, times) => {
                out.extend(std::iter::repeat_n(level, *times).flatten());
            }
        }
    }

    fn count(&self) -> usize {
        1 + match self {
            Node::Map(entries) => entries.iter().map(|(_, node)| node.count()).sum(),
            Node::List(list) => list.iter().map(Node::count).sum(),
            _ => 0,
        }
    }

    /// Node `at` in writing order.
    fn nth(&mut self, at: &mut usize) -> Option<&mut Node> {
        if *at == 0 {
            return Some(self);
        }
        *at -= 1;
        match self {
            Node::Map(entries) => entries.iter_mut().find_map(|(_, node)| node.nth(at)),
            Node::List(list) => list.iter_mut().find_map(|node| node.nth(at)),
            _ => None,
        }
    }
}

/// Metadata as recorders write it.
pub fn metadata() -> Node {
    let names = |name: &str| {
        let names = Node::map(vec![("netplay", Node::text(name)), ("code", Node::text("A#1"))]);
        Node::map(vec![("names", names), ("characters", Node::map(vec![("2", Node::int(300))]))])
    };
    Node::map(vec![
        ("startAt", Node::text("2020-08-01T19:47:21Z")),
        ("lastFrame", Node::int(-100)),
        ("players", Node::map(vec![("0", names("one")), ("1", names("two"))])),
        ("playedOn", Node::text("dolphin")),
    ])
}

#[derive(Debug, Clone)]
pub struct Replay {
    /// The length of `raw` in the header; `None` writes the real length.
    pub length: Option<u32>,
    pub sizes: Vec<(u8, u16)>,
    pub events: Vec<(u8, Vec<u8>)>,
    pub metadata: Option<Node>,
    /// Bytes after `metadata`, or after `raw` if `metadata` is `None`.
    pub rest: Vec<u8>,
}

impl Replay {
    /// Parses a replay. Metadata is not parsed, but kept in `rest`.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (length, body) = bytes.strip_prefix(HEAD)?.split_first_chunk()?;
        let (raw, rest) = body.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let (table, mut events) = raw.split_at_checked(1 + usize::from(*raw.get(1)?))?;
        let sizes: Vec<(u8, u16)> = table
            .get(2..)?
            .chunks_exact(3)
            .map(|entry| (entry[0], u16::from_be_bytes([entry[1], entry[2]])))
            .collect();
        let mut replay =
            Replay { length: None, sizes, events: vec![], metadata: None, rest: rest.to_vec() };
        while let Some((code, payload)) = events.split_first() {
            let size = replay.sizes.iter().find(|(of, _)| of == code)?.1;
            let (payload, rest) = payload.split_at_checked(usize::from(size))?;
            replay.events.push((*code, payload.to_vec()));
            events = rest;
        }
        Some(replay)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut raw = vec![PAYLOADS, (1 + 3 * self.sizes.len()) as u8];
        for (code, size) in &self.sizes {
            raw.push(*code);
            raw.extend(size.to_be_bytes());
        }
        for (code, payload) in &self.events {
            raw.push(*code);
            raw.extend(payload);
        }
        let mut out = HEAD.to_vec();
        out.extend(self.length.unwrap_or(raw.len() as u32).to_be_bytes());
        out.extend(raw);
        if let Some(metadata) = &self.metadata {
            out.extend(METADATA);
            metadata.write(&mut out);
        }
        out.extend(&self.rest);
        out
    }
}

pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let Some(mut replay) = Replay::parse(bytes) else { return bytes::mutate(rng, bytes) };
    (0..1 + rng.up_to(3)).for_each(|_| change(rng, &mut replay));
    *bytes = replay.encode();
}

fn change(rng: &mut Rng, replay: &mut Replay) {
    let (at, to) = (rng.below(replay.events.len()), rng.below(replay.events.len()));
    let any = !replay.events.is_empty();
    match rng.below(12) {
        0 if any => drop(replay.events.remove(at)),
        1 if any => replay.events.swap(at, to),
        2 if any => {
            let copies = vec![replay.events[at].clone(); 1 + rng.up_to(64)];
            replay.events.splice(to..to, copies);
        }
        3 if any => replay.events[at].0 = replay.events[to].0,
        4 if any => frame_number(rng, &mut replay.events[at].1),
        5 if any => bytes::mutate(rng, &mut replay.events[at].1),
        // Mutates a payload without changing its size.
        6..8 if any => {
            let size = replay.events[at].1.len();
            bytes::mutate(rng, &mut replay.events[at].1);
            replay.events[at].1.resize(size, 0);
        }
        8 => sizes(rng, replay),
        9 if rng.one_in(4) => replay.length = Some(*rng.pick(&bytes::ODD) as u32),
        9 if any => replay.events.truncate(at),
        _ => {
            let metadata = replay.metadata.get_or_insert_with(|| {
                replay.rest = b"}".to_vec();
                metadata()
            });
            odd_metadata(rng, metadata);
        }
    }
}

/// Changes the first four bytes, which hold the frame number.
fn frame_number(rng: &mut Rng, payload: &mut [u8]) {
    if let Some(number) = payload.first_chunk_mut() {
        let old = i32::from_be_bytes(*number);
        let step = *rng.pick(&[1, -1, 2, 1000, i32::MAX, i32::MIN]);
        *number = old.wrapping_add(step).to_be_bytes();
    }
}

/// Changes the size of an event in the table, with or without resizing its payloads.
fn sizes(rng: &mut Rng, replay: &mut Replay) {
    let at = rng.below(replay.sizes.len());
    match rng.below(4) {
        0 if !replay.sizes.is_empty() => drop(replay.sizes.remove(at)),
        1 => replay.sizes.push((rng.next() as u8, rng.next() as u16)),
        _ if replay.sizes.is_empty() => {}
        _ => {
            let (code, size) = &mut replay.sizes[at];
            let odd = *rng.pick(&[0, 1, 2, 4, 0x7FFF, 0xFFFF]);
            *size = *rng.pick(&[size.wrapping_add(1), size.wrapping_sub(1), odd]);
            let fits = rng.one_in(2).then_some((*code, usize::from(*size)));
            for (of, payload) in &mut replay.events {
                if let Some((_, size)) = fits.filter(|(code, size)| code == of && *size < 1 << 12) {
                    payload.resize(size, 0);
                }
            }
        }
    }
}

fn odd_metadata(rng: &mut Rng, root: &mut Node) {
    let deep = 1 + rng.up_to(100_000);
    let mut at = rng.below(root.count());
    let Some(node) = root.nth(&mut at) else { return };
    *node = match rng.below(12) {
        0 => Node::Deep(b"{U\x01a".to_vec(), deep),
        1 => Node::Deep(b"[".to_vec(), deep),
        2 => Node::Deep(b"[[{U\x00".to_vec(), deep / 3),
        3 => Node::Raw(b"Sl\x7f\xff\xff\xff".to_vec()),
        4 => Node::Raw(b"SL\x7f\xff\xff\xff\xff\xff\xff\xff".to_vec()),
        5 => Node::Raw(b"[$U#l\x7f\xff\xff\xff".to_vec()),
        6 => Node::Raw(b"{$Z#L\x7f\xff\xff\xff\xff\xff\xff\xff".to_vec()),
        7 => Node::Raw(b"Sl\xff\xff\xff\xff".to_vec()),
        8 => Node::Raw([&b"SU\xff"[..], &[0xC3; 255]].concat()),
        9 => Node::Raw(vec![rng.next() as u8, rng.next() as u8]),
        10 => Node::List(vec![Node::int(1); rng.up_to(1000)]),
        _ => Node::map((0..rng.up_to(100)).map(|_| ("a", Node::text("b"))).collect()),
    };
}
