//! The index: which tensors there are, and where their blocks are stored.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `SCSTORE2`: the format of the index and of the blocks |
//! | 8..16 | generation, u64: one more at each commit |
//! | 16..20 | the number of the next pack, u32 |
//! | .. | packs: count u32, then each number u32 and end u64 |
//! | .. | blocks: count u32, then each digest (16), pack u32, offset u64, bytes u32, stored bytes u32, codec u8, width u8, checksum u32 |
//! | .. | tensors: count u32, then each name (u16 length, UTF-8), type u8 (with the highest bit set if it may lose something), rank u8, sizes u64, bytes of a block u64, count of blocks u32, blocks u32 |
//! | last 4 | CRC-32 of all bytes before |
//!
//! All numbers are little-endian.

use std::collections::HashSet;

use super::{Digest, Stored};
use crate::codec::Codec;
use crate::tensor::{Dtype, MAX_BLOCK, Tensor};

const NAME: &[u8; 7] = b"SCSTORE";
/// The format of the index and of the blocks.
const VERSION: u8 = b'2';
/// A former format, which is read too.
const FORMER: u8 = b'1';
/// Most bytes of an index: some ten million tensors.
pub const MAX_INDEX: u64 = 1 << 30;
/// Most bytes of all packs.
const MAX_BYTES: u64 = 1 << 60;
/// Most bytes of a name.
pub const MAX_NAME: usize = 512;
/// The bit of a type that says that blocks of the tensor may lose something.
const LOSSY: u8 = 1 << 7;
/// Bytes of a block's row.
const BLOCK_ROW: usize = 42;

/// The contents of an index. The blocks of a tensor are places in `blocks`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// One more at each commit.
    pub generation: u64,
    /// The number of the next pack.
    pub next_pack: u32,
    /// Each pack and the end of its last block.
    pub packs: Vec<(u32, u64)>,
    /// The blocks.
    pub blocks: Vec<Stored>,
    /// The tensors by name.
    pub tensors: Vec<(String, Tensor)>,
}

impl Index {
    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.blocks.len() * BLOCK_ROW);
        bytes.extend_from_slice(NAME);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.next_pack.to_le_bytes());
        let count =
            |bytes: &mut Vec<u8>, n: usize| bytes.extend_from_slice(&(n as u32).to_le_bytes());
        count(&mut bytes, self.packs.len());
        for (pack, end) in &self.packs {
            bytes.extend_from_slice(&pack.to_le_bytes());
            bytes.extend_from_slice(&end.to_le_bytes());
        }
        count(&mut bytes, self.blocks.len());
        for block in &self.blocks {
            bytes.extend_from_slice(&block.digest.0);
            bytes.extend_from_slice(&block.pack.to_le_bytes());
            bytes.extend_from_slice(&block.offset.to_le_bytes());
            bytes.extend_from_slice(&block.raw.to_le_bytes());
            bytes.extend_from_slice(&block.stored.to_le_bytes());
            bytes.extend_from_slice(&[block.codec.code(), block.width]);
            bytes.extend_from_slice(&block.crc.to_le_bytes());
        }
        count(&mut bytes, self.tensors.len());
        for (name, tensor) in &self.tensors {
            bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
            let dtype = tensor.dtype.code() | if tensor.lossy { LOSSY } else { 0 };
            bytes.extend_from_slice(&[dtype, tensor.shape.len() as u8]);
            for size in tensor.shape.iter().chain([&tensor.block]) {
                bytes.extend_from_slice(&size.to_le_bytes());
            }
            count(&mut bytes, tensor.blocks.len());
            for block in &tensor.blocks {
                bytes.extend_from_slice(&block.to_le_bytes());
            }
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// The fault of bytes that are not an index.
    pub fn of_bytes(bytes: &[u8]) -> Result<Index, String> {
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or("an index that is cut off")?;
        let (found, expected) = (crc32fast::hash(body), u32::from_le_bytes(*sum));
        match body.strip_prefix(NAME).and_then(<[u8]>::first) {
            None => return Err("no index of a store".into()),
            _ if found != expected => {
                return Err(format!("checksum {found:08x}, expected {expected:08x}"));
            }
            Some(version) if !(FORMER..=VERSION).contains(version) => {
                let (found, own) = (version.escape_ascii(), VERSION.escape_ascii());
                return Err(format!("version {found} of the format, expected {own}"));
            }
            Some(_) => {}
        }
        let mut from = Reader(body.get(NAME.len() + 1..).unwrap_or_default());
        let (generation, next_pack) = (from.u64()?, from.u32()?);
        let packs = from.list(12, |from| Ok((from.u32()?, from.u64()?)))?;
        let blocks = from.list(BLOCK_ROW, stored)?;
        let tensors = from.list(16, tensor)?;
        if !from.0.is_empty() {
            return Err("bytes behind the tensors".into());
        }
        let index = Index { generation, next_pack, packs, blocks, tensors };
        index.check()?;
        Ok(index)
    }

    /// Finds what contradicts itself.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut ends = std::collections::HashMap::new();
        for (pack, end) in &self.packs {
            if *pack >= self.next_pack || ends.insert(*pack, *end).is_some() {
                return Err(format!("pack {pack} of no such number"));
            }
        }
        let sum = self.packs.iter().try_fold(0_u64, |sum, (_, end)| sum.checked_add(*end));
        if sum.is_none_or(|sum| sum > MAX_BYTES) || self.next_pack == u32::MAX {
            return Err("more bytes than there may be".into());
        }
        for (at, block) in self.blocks.iter().enumerate() {
            let fault = match block.fault() {
                Some(fault) => Some(fault),
                None if ends.get(&block.pack).is_none_or(|end| block.end() > *end) => {
                    Some("a block outside of its pack")
                }
                None => None,
            };
            if let Some(fault) = fault {
                return Err(format!("block {at}: {fault}"));
            }
        }
        let mut names = HashSet::new();
        self.tensors.iter().try_for_each(|(name, tensor)| {
            let fault = match self.fault(tensor) {
                None if !names.insert(name) => Some("a name that was there before"),
                fault => fault,
            };
            fault.map_or(Ok(()), |fault| Err(format!("tensor {name:?}: {fault}")))
        })
    }

    fn fault(&self, tensor: &Tensor) -> Option<&'static str> {
        let (Some(_), 1..=MAX_BLOCK) = (tensor.checked_bytes(), tensor.block) else {
            return Some("a size of no tensor");
        };
        if tensor.num_blocks() != tensor.blocks.len() as u64 {
            return Some("another number of blocks than its shape needs");
        }
        let fits = |(at, id): (usize, &u32)| {
            let block = self.blocks.get(*id as usize);
            block.is_some_and(|block| u64::from(block.raw) == tensor.block_bytes(at as u64))
        };
        match tensor.blocks.iter().enumerate().all(fits) {
            true => None,
            false => Some("a block of another size than its shape needs"),
        }
    }
}

fn stored(from: &mut Reader) -> Result<Stored, String> {
    let digest = Digest(from.array()?);
    let (pack, offset, raw, stored) = (from.u32()?, from.u64()?, from.u32()?, from.u32()?);
    let [codec, width] = from.array()?;
    let codec = Codec::of(codec).ok_or_else(|| format!("codec {codec}"))?;
    Ok(Stored { digest, pack, offset, raw, stored, codec, width, crc: from.u32()? })
}

fn tensor(from: &mut Reader) -> Result<(String, Tensor), String> {
    let name = from.name()?;
    let [dtype, rank] = from.array()?;
    let lossy = dtype & LOSSY != 0;
    let dtype = dtype & !LOSSY;
    let dtype = Dtype::of(dtype).ok_or_else(|| format!("type {dtype}"))?;
    let shape = (0..rank).map(|_| from.u64()).collect::<Result<Vec<_>, _>>()?;
    let block = from.u64()?;
    let blocks = from.list(4, Reader::u32)?;
    Ok((name, Tensor { dtype, shape, lossy, block, blocks }))
}

/// The bytes that are left.
pub(super) struct Reader<'b>(pub(super) &'b [u8]);

impl<'b> Reader<'b> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'b [u8], String> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("an index that is cut off")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("an index that is cut off")?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn name(&mut self) -> Result<String, String> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let name = self.bytes(length)?;
        let name = str::from_utf8(name).map_err(|_| "a name that is not UTF-8")?.to_owned();
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(format!("a name of {} bytes", name.len()));
        }
        Ok(name)
    }

    /// A list whose entries have at least `least` bytes each.
    pub(super) fn list<T>(
        &mut self,
        least: usize,
        entry: impl Fn(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let count = self.u32()? as usize;
        if count > self.0.len() / least {
            return Err(format!("a list of {count} entries"));
        }
        (0..count).map(|_| entry(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Index {
        let stored = |at: u8, raw: u32| Stored {
            digest: Digest([at; 16]),
            pack: 3,
            offset: 40 + u64::from(at) * 1000,
            raw,
            stored: raw / 2,
            codec: Codec::Bits,
            width: 4,
            crc: 7,
        };
        let mut tensor = Tensor::new("a", Dtype::named("f32").unwrap(), vec![6, 25], 400).unwrap();
        tensor.blocks = vec![0, 1];
        tensor.lossy = true;
        let empty = Tensor::new("b", Dtype::named("u8").unwrap(), vec![0], 400).unwrap();
        Index {
            generation: 5,
            next_pack: 4,
            packs: vec![(3, 5000)],
            blocks: vec![stored(0, 400), stored(1, 200)],
            tensors: vec![("a".into(), tensor), ("b".into(), empty)],
        }
    }

    #[test]
    fn an_index_reads_back() {
        assert_eq!(Index::of_bytes(&index().to_bytes()), Ok(index()));
        assert_eq!(Index::of_bytes(&Index::default().to_bytes()), Ok(Index::default()));
    }

    #[test]
    fn an_index_of_another_version_is_named() {
        let mut bytes = index().to_bytes();
        bytes[7] = b'3';
        let end = bytes.len() - 4;
        let sum = crc32fast::hash(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        let reason = Index::of_bytes(&bytes).unwrap_err();
        assert_eq!(reason, "version 3 of the format, expected 2");
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = index().to_bytes();
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(Index::of_bytes(&damaged).is_err(), "bit {at}");
        }
        assert!((0..bytes.len()).all(|n| Index::of_bytes(&bytes[..n]).is_err()));
    }

    #[test]
    fn indices_that_contradict_themselves_are_refused_with_a_valid_checksum() {
        type Change = fn(&mut Index);
        let changes: [Change; 9] = [
            |i| i.packs[0].1 = 1100,
            |i| i.next_pack = 3,
            |i| i.packs.push((3, 1)),
            |i| i.packs[0].1 = u64::MAX,
            |i| i.blocks[0].raw = 404,
            |i| i.blocks[0].stored = 401,
            |i| i.tensors[0].1.blocks = vec![0, 2],
            |i| i.tensors[0].1.shape = vec![1 << 40, 1 << 40],
            |i| i.tensors[1].0 = "a".into(),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut wrong = index();
            change(&mut wrong);
            assert!(Index::of_bytes(&wrong.to_bytes()).is_err(), "change {at}");
        }
    }
}
