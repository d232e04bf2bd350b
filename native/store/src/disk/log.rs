//! The log: what each commit has changed since the index was written whole.
//!
//! A record of the log:
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | `SCLG` |
//! | 4..8 | bytes of the body, u32 |
//! | body | generation of the index that the log continues, u64; removed names: count u32, then each u16 length and UTF-8; and an [`Index`] of the tensors that were put, with all of their blocks and the packs that have grown |
//! | last 4 | CRC-32 of all bytes before |
//!
//! A record whose base is another index is a remainder of an older log, and ends the log, as a damaged one does. There are
//! two logs of the same records, so that a damaged record loses nothing.

use std::collections::{BTreeMap, HashMap};

use super::Stored;
use super::index::{Index, Reader};
use crate::tensor::Tensor;

const MAGIC: &[u8; 4] = b"SCLG";
/// Bytes of a record around its body.
const FRAME: usize = 12;

/// The changes of one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The generation of the index that the log continues.
    pub base: u64,
    /// The tensors that were removed.
    pub removed: Vec<String>,
    /// The tensors that were put, and their blocks. The generation is that of the commit.
    pub put: Index,
}

impl Change {
    /// The bytes of the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let put = self.put.to_bytes();
        let names: usize = self.removed.iter().map(|name| name.len() + 2).sum();
        let body = 12 + names + put.len();
        let mut bytes = Vec::with_capacity(body + FRAME);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(body as u32).to_le_bytes());
        bytes.extend_from_slice(&self.base.to_le_bytes());
        bytes.extend_from_slice(&(self.removed.len() as u32).to_le_bytes());
        for name in &self.removed {
            bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes.extend_from_slice(&put);
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The first record of the bytes, and its length.
    ///
    /// # Errors
    /// The fault of bytes that are no record.
    pub fn first(bytes: &[u8]) -> Result<(Change, usize), String> {
        Change::read(bytes).map_err(|flaw| flaw.reason)
    }

    fn read(bytes: &[u8]) -> Result<(Change, usize), Flaw> {
        let cut = || Flaw::from("a record that is cut off".to_owned());
        let mut from = Reader(bytes);
        if from.bytes(4)? != MAGIC {
            return Err("no record of a log".to_owned().into());
        }
        let length = from.u32()? as usize + FRAME;
        let record = bytes.get(..length).ok_or_else(cut)?;
        let (record, sum) = record.split_last_chunk::<4>().ok_or_else(cut)?;
        let (found, expected) = (crc32fast::hash(record), u32::from_le_bytes(*sum));
        let mut from = Reader(record.get(8..).unwrap_or_default());
        let base = from.u64()?;
        if found != expected {
            let reason = format!("checksum {found:08x}, expected {expected:08x}");
            return Err(Flaw { reason, base: Some(base) });
        }
        let removed = from.list(2, Reader::name)?;
        let put = Index::of_bytes(from.0)?;
        Ok((Change { base, removed, put }, length))
    }
}

/// The fault of bytes that are no record.
struct Flaw {
    reason: String,
    /// The base that a record of full length names, if its checksum is wrong.
    base: Option<u64>,
}

impl From<String> for Flaw {
    fn from(reason: String) -> Flaw {
        Flaw { reason, base: None }
    }
}

/// The index after two logs of the same records.
#[derive(Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The index after the commits.
    pub index: Index,
    /// The fault of the first or the second log, if the other one was read instead.
    pub fault: Option<(usize, String)>,
    /// The fault of a record that is damaged in both logs. Commits are missing from there on.
    pub lost: Option<String>,
}

/// Applies the commits of two logs of the same records.
///
/// # Errors
/// The fault of records that contradict the index.
pub fn replayed(index: Index, logs: [&[u8]; 2]) -> Result<Replayed, String> {
    let (base, mut fault, mut lost, mut at) = (index.generation, None, None, 0);
    let mut merged: Option<Merged> = None;
    loop {
        let records = logs.map(|log| Change::read(log.get(at..).unwrap_or_default()));
        let latest = merged.as_ref().map_or(base, |merged| merged.generation);
        let fits =
            |(change, _): &(Change, usize)| change.base == base && change.put.generation > latest;
        let [first, second] = records.map(|record| match record {
            Ok(own) if fits(&own) => Ok(own),
            Ok(_) => Err("an old record".to_owned().into()),
            Err(flaw) => Err(flaw),
        });
        let (from, flaw, (change, length)) = match (first, second) {
            (Ok(own), Ok(_)) => (0, None, own),
            (Ok(own), Err(flaw)) => (1, Some(flaw), own),
            (Err(flaw), Ok(own)) => (0, Some(flaw), own),
            // The second log is written when the first record is durable. So a power cut damages one of them, and the
            // other one has nothing there, or the rest of an older log.
            (Err(first), Err(second)) => {
                if (first.base, second.base) == (Some(base), Some(base)) {
                    lost = Some(first.reason);
                }
                break;
            }
        };
        // Anything else may be the rest of an older log, behind which a killed process wrote nothing.
        if let (Some(Flaw { reason, base: Some(_) }), None) = (flaw, &fault) {
            fault = Some((from, reason));
        }
        merged.get_or_insert_with(|| Merged::of(&index)).apply(change)?;
        at += length;
    }
    let Some(merged) = merged else { return Ok(Replayed { index, fault, lost }) };
    let index = merged.into_index();
    index.check()?;
    Ok(Replayed { index, fault, lost })
}

/// An index to which changes are applied.
struct Merged {
    generation: u64,
    next_pack: u32,
    packs: BTreeMap<u32, u64>,
    tensors: BTreeMap<String, (Tensor, Vec<Stored>)>,
}

impl Merged {
    fn of(index: &Index) -> Merged {
        let mut merged = Merged {
            generation: index.generation,
            next_pack: index.next_pack,
            packs: index.packs.iter().copied().collect(),
            tensors: BTreeMap::new(),
        };
        merged.put(index);
        merged
    }

    fn put(&mut self, index: &Index) {
        for (name, tensor) in &index.tensors {
            let stored = |at: &u32| index.blocks.get(*at as usize).copied();
            let blocks = tensor.blocks.iter().filter_map(stored).collect();
            let tensor = Tensor { blocks: vec![], ..tensor.clone() };
            self.tensors.insert(name.clone(), (tensor, blocks));
        }
    }

    fn apply(&mut self, change: Change) -> Result<(), String> {
        let Change { removed, put, .. } = change;
        if put.next_pack < self.next_pack {
            return Err("a record of an older pack".into());
        }
        (self.generation, self.next_pack) = (put.generation, put.next_pack);
        self.packs.extend(put.packs.iter().copied());
        for name in removed {
            self.tensors.remove(&name);
        }
        self.put(&put);
        Ok(())
    }

    /// The index, whose blocks have the order of the names.
    fn into_index(self) -> Index {
        let mut places: HashMap<Stored, u32> = HashMap::new();
        let mut index = Index {
            generation: self.generation,
            next_pack: self.next_pack,
            packs: self.packs.into_iter().collect(),
            ..Index::default()
        };
        for (name, (tensor, blocks)) in self.tensors {
            let place = |block: Stored| {
                *places.entry(block).or_insert_with(|| {
                    index.blocks.push(block);
                    index.blocks.len() as u32 - 1
                })
            };
            let blocks = blocks.into_iter().map(place).collect();
            index.tensors.push((name, Tensor { blocks, ..tensor }));
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::disk::Digest;
    use crate::tensor::Dtype;

    /// Commit `generation` puts a tensor of one block.
    fn change(base: u64, generation: u64, name: &str, removed: &[&str]) -> Change {
        let stored = Stored {
            digest: Digest([generation as u8; 16]),
            pack: 1,
            offset: 100 * generation,
            raw: 40,
            stored: 40,
            codec: Codec::Raw,
            width: 4,
            crc: 9,
        };
        let mut tensor = Tensor::new(name, Dtype::named("f32").unwrap(), vec![10], 4096).unwrap();
        tensor.blocks = vec![0];
        let put = Index {
            generation,
            next_pack: 2,
            packs: vec![(1, 100 * generation + 40)],
            blocks: vec![stored],
            tensors: vec![(name.into(), tensor)],
        };
        Change { base, removed: removed.iter().map(|name| name.to_string()).collect(), put }
    }

    fn names(index: &Index) -> Vec<&str> {
        index.tensors.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn base() -> Index {
        Index { generation: 7, next_pack: 2, ..Index::default() }
    }

    #[test]
    fn records_are_applied_in_order_until_one_of_another_index() {
        let records = [
            change(7, 8, "b", &[]),
            change(7, 10, "a", &["none"]),
            change(7, 11, "c", &["b"]),
            change(6, 12, "old", &[]),
        ];
        let log = records.each_ref().map(Change::to_bytes).concat();
        let Replayed { index, fault, .. } = replayed(base(), [&log, &log]).unwrap();
        assert_eq!((names(&index), index.generation, fault), (vec!["a", "c"], 11, None));
        assert_eq!(index.packs, vec![(1, 1140)]);
        assert_eq!(index.blocks.len(), 2);
        assert_eq!(Index::of_bytes(&index.to_bytes()), Ok(index));
        // The second log lacks the latest record: its writer was killed before.
        let short = log.len() - 300;
        let Replayed { index, fault, .. } = replayed(base(), [&log, &log[..short]]).unwrap();
        assert_eq!((names(&index).len(), fault), (2, None));
        let none = Replayed { index: base(), fault: None, lost: None };
        assert_eq!(replayed(base(), [&[], &[]]), Ok(none));
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_found() {
        let bytes = change(7, 8, "b", &["gone"]).to_bytes();
        assert_eq!(Change::first(&bytes), Ok((change(7, 8, "b", &["gone"]), bytes.len())));
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(Change::first(&damaged).is_err(), "bit {at}");
            let Replayed { index, fault, lost } = replayed(base(), [&damaged, &bytes]).unwrap();
            assert_eq!((names(&index), lost), (vec!["b"], None));
            // Behind the mark and the length, the damage cannot be the rest of an older log.
            assert!(at < 64 || fault.is_some_and(|(log, _)| log == 0), "bit {at}");
        }
        assert!((0..bytes.len()).all(|n| Change::first(&bytes[..n]).is_err()));
    }

    #[test]
    fn the_rest_of_an_older_log_is_no_fault_and_damage_in_both_logs_is_a_loss() {
        let new = change(7, 8, "b", &[]).to_bytes();
        let old = [change(6, 7, "a", &["c"]).to_bytes(), vec![9; 400]].concat();
        for rest in [old.clone(), vec![9; 400], vec![], new[..90].to_vec()] {
            let Replayed { index, fault, lost } = replayed(base(), [&new, &rest]).unwrap();
            assert_eq!((names(&index), fault, lost), (vec!["b"], None, None));
        }
        // A write that a power cut has torn, over the rest of an older log.
        let torn = [&new[..90], &old[90..]].concat();
        for rest in [&old[..], &[], &torn[..90], &old[..9]] {
            let replayed = replayed(base(), [&torn, rest]).unwrap();
            assert_eq!(replayed, Replayed { index: base(), fault: None, lost: None });
        }
        let [mut first, mut second] = [new.clone(), new.clone()];
        first[40] ^= 1;
        second[50] ^= 1;
        assert!(replayed(base(), [&first, &second]).unwrap().lost.is_some());
    }

    #[test]
    fn records_that_contradict_the_index_are_refused() {
        let newer = Index { next_pack: 3, ..base() };
        let log = change(7, 8, "b", &[]).to_bytes();
        assert!(replayed(newer, [&log, &log]).is_err());
        // A pack that has become shorter than its blocks.
        let mut second = change(7, 9, "c", &[]);
        second.put.packs[0].1 = 940;
        let mut first = change(7, 8, "b", &[]);
        first.put.blocks[0].offset = 5000;
        first.put.packs[0].1 = 6000;
        let log = [first.to_bytes(), second.to_bytes()].concat();
        assert!(replayed(base(), [&log, &log]).is_err());
    }
}
