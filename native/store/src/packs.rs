//! The packs and the log of a store that is open for writing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sconce_tensor::{Error, Result};

use crate::disk::index::Index;
use crate::disk::{Disk, HEADER, Stored};

/// The name of the limit in errors.
pub(crate) const ON_DISK: &str = "bytes on disk";
/// A pack of this many bytes gets no more blocks.
const PACK_BYTES: u64 = 64 << 20;

/// The end of the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log {
    /// The generation of the index that it continues.
    pub(crate) base: u64,
    pub(crate) end: u64,
    /// Bytes at which the index is written whole.
    pub(crate) most: u64,
}

/// The packs of a store that is open for writing.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) generation: u64,
    pub(crate) next_pack: u32,
    /// The pack that gets the next block.
    pub(crate) current: Option<u32>,
    /// The end of each pack.
    pub(crate) ends: BTreeMap<u32, u64>,
    /// Packs with bytes that may be lost in a power cut.
    pub(crate) dirty: Vec<u32>,
    /// Packs that have grown since the last commit.
    pub(crate) grown: BTreeSet<u32>,
    /// Names that were put or deleted since the last commit.
    pub(crate) touched: BTreeSet<Arc<str>>,
    /// The log behind the index. `None` if the next commit writes the index whole.
    pub(crate) log: Option<Log>,
    /// The failure after which nothing may be acknowledged any more.
    pub(crate) failed: Option<String>,
}

impl Writer {
    /// Continues behind the blocks of an index. A killed process may have left packs that the index does not name, and
    /// bytes behind the ends of others.
    ///
    /// # Errors
    /// `Corrupt` if there are packs and no index, of which a new store has one before its first pack.
    pub(crate) fn open(disk: &dyn Disk, index: &Index) -> Result<Writer> {
        let ends: BTreeMap<u32, u64> = index.packs.iter().copied().collect();
        let packs = disk.packs()?;
        if index.generation == 0 && !packs.is_empty() {
            let what = disk.path().display().to_string();
            return Err(Error::corrupt(what, "packs without an index"));
        }
        let mut next_pack = index.next_pack;
        for pack in packs {
            next_pack = next_pack.max(pack.saturating_add(1));
            match ends.get(&pack) {
                Some(end) => disk.shorten(pack, *end)?,
                None => disk.remove(pack)?,
            }
        }
        Ok(Writer {
            generation: index.generation,
            next_pack,
            current: None,
            ends,
            dirty: vec![],
            grown: BTreeSet::new(),
            touched: BTreeSet::new(),
            // Records of a killed process may lie behind the last whole one.
            log: None,
            failed: None,
        })
    }

    pub(crate) fn check(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(Error::Unavailable {
                what: "writing to the store until it is opened again".into(),
                reason: reason.clone(),
            }),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.ends.values().sum()
    }

    /// Appends a block to the current pack.
    pub(crate) fn append(
        &mut self,
        disk: &dyn Disk,
        most: Option<u64>,
        block: Stored,
        stored: &[u8],
    ) -> Result<Stored> {
        let length = (HEADER + stored.len()) as u64;
        if let Some(most) = most
            && self.bytes() + length > most
        {
            let all = (self.bytes() + length) as f64;
            return Err(Error::out_of_range(ON_DISK, all, 0.0, most as f64));
        }
        let pack = match self.current {
            Some(pack) if self.end(pack) < PACK_BYTES => pack,
            _ => {
                let pack = self.next_pack;
                self.next_pack = pack.checked_add(1).ok_or_else(|| {
                    Error::out_of_range("packs", f64::from(pack), 0.0, f64::from(pack))
                })?;
                self.current = Some(pack);
                pack
            }
        };
        let end = self.end(pack);
        let at = Stored { pack, offset: end + HEADER as u64, ..block };
        // After a failure the end stays, so the next block overwrites the rest of this one.
        disk.write(pack, end, &[&at.header()[..], stored].concat())?;
        self.ends.insert(pack, end + length);
        self.grown.insert(pack);
        if !self.dirty.contains(&pack) {
            self.dirty.push(pack);
        }
        Ok(at)
    }

    fn end(&self, pack: u32) -> u64 {
        self.ends.get(&pack).copied().unwrap_or_default()
    }
}
