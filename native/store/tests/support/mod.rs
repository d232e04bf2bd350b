//! A disk that loses what was not synced, and fails when it shall.
#![allow(dead_code)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sconce_store::disk::{Disk, IndexFile};
use sconce_store::{Dtype, StoreOptions};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

pub fn f32s() -> Dtype {
    Dtype::named("f32").unwrap()
}

pub fn u8s() -> Dtype {
    Dtype::named("u8").unwrap()
}

/// Numbers that gain by compression, and differ by `seed`.
pub fn numbers(seed: u64, count: u64) -> Vec<u8> {
    let rng = Rng::new(seed, "numbers", 0);
    (0..count).flat_map(|i| (rng.normal(i) as i32).to_le_bytes()).collect()
}

pub fn small() -> StoreOptions {
    StoreOptions { ram: 1 << 20, compressed: 1 << 18, block: 1 << 14, ..StoreOptions::default() }
}

#[derive(Debug, Default, Clone)]
struct Pack {
    durable: Vec<u8>,
    /// Writes since the last sync.
    written: Vec<(u64, Vec<u8>)>,
}

impl Pack {
    fn now(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        self.written.iter().for_each(|(offset, new)| put(&mut bytes, *offset, new));
        bytes
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, new: &[u8]) {
    let end = offset as usize + new.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset as usize..end].copy_from_slice(new);
}

#[derive(Debug, Default)]
pub struct Content {
    packs: HashMap<u32, Pack>,
    indices: HashMap<IndexFile, Vec<u8>>,
    logs: HashMap<IndexFile, Vec<u8>>,
    /// Operations until the power is cut, or `None`.
    pub left: Option<u64>,
    /// Bytes after which the disk is full.
    pub room: Option<u64>,
    /// Whether syncs fail.
    pub syncs_fail: bool,
    pub operations: u64,
    /// Whether the write to a log at which the power is cut leaves a part of it.
    pub torn: bool,
    /// Whether a log that was cut off is there again.
    pub logs_stay: bool,
    /// Logs that cannot be read.
    pub unread: Vec<IndexFile>,
}

/// A disk in memory, whose contents outlive a store.
#[derive(Debug, Default, Clone)]
pub struct Lossy(pub Arc<Mutex<Content>>);

impl Lossy {
    fn with<T>(&self, work: impl FnOnce(&mut Content) -> Result<T>) -> Result<T> {
        let mut content = self.0.lock().unwrap();
        content.operations += 1;
        match &mut content.left {
            Some(0) => return Err(off()),
            Some(left) => *left -= 1,
            None => {}
        }
        work(&mut content)
    }

    /// The disk after a power cut: of the writes that were not synced, any part may be there, in any order.
    pub fn after_power_cut(&self, seed: u64) -> Lossy {
        let content = self.0.lock().unwrap();
        let rng = Rng::new(seed, "cut", 0);
        let mut at = 0;
        let mut draw = |n: u64| {
            at += 1;
            rng.below(at, n)
        };
        let mut packs = HashMap::new();
        for (number, pack) in &content.packs {
            let mut durable = pack.durable.clone();
            for (offset, new) in &pack.written {
                match draw(4) {
                    0 => {}
                    1 => put(&mut durable, *offset, new),
                    2 => put(&mut durable, *offset, &new[..draw(new.len() as u64 + 1) as usize]),
                    _ => put(&mut durable, *offset, &vec![0; new.len()]),
                }
            }
            packs.insert(*number, Pack { durable, written: vec![] });
        }
        let (indices, logs) = (content.indices.clone(), content.logs.clone());
        Lossy(Arc::new(Mutex::new(Content { packs, indices, logs, ..Content::default() })))
    }

    /// Flips one bit of a pack.
    pub fn flip(&self, pack: u32, bit: u64) {
        let mut content = self.0.lock().unwrap();
        let pack = content.packs.get_mut(&pack).unwrap();
        pack.durable = pack.now();
        pack.written.clear();
        pack.durable[bit as usize / 8] ^= 1 << (bit % 8);
    }

    pub fn flip_index(&self, file: IndexFile, bit: u64) {
        let mut content = self.0.lock().unwrap();
        content.indices.get_mut(&file).unwrap()[bit as usize / 8] ^= 1 << (bit % 8);
    }

    /// Flips one bit of a log. False if it has no such bit.
    pub fn flip_log(&self, file: IndexFile, bit: u64) -> bool {
        let mut content = self.0.lock().unwrap();
        let byte = content.logs.get_mut(&file).and_then(|log| log.get_mut(bit as usize / 8));
        byte.map(|byte| *byte ^= 1 << (bit % 8)).is_some()
    }

    pub fn sizes(&self) -> Vec<(u32, u64)> {
        let content = self.0.lock().unwrap();
        let mut sizes: Vec<_> =
            content.packs.iter().map(|(n, pack)| (*n, pack.now().len() as u64)).collect();
        sizes.sort_unstable();
        sizes
    }
}

fn off() -> Error {
    Error::io(Path::new("lossy"))(std::io::Error::other("the power was cut"))
}

fn full() -> Error {
    Error::io(Path::new("lossy"))(std::io::ErrorKind::StorageFull.into())
}

impl Disk for Lossy {
    fn write(&self, pack: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let cut = self.0.lock().unwrap().left == Some(0);
        let written = self.with(|content| {
            let used: u64 = content.packs.values().map(|p| p.now().len() as u64).sum();
            let room = content.room.map_or(u64::MAX, |room| room.saturating_sub(used));
            let fits = (bytes.len() as u64).min(room) as usize;
            let part = bytes[..fits].to_vec();
            content.packs.entry(pack).or_default().written.push((offset, part));
            if fits < bytes.len() { Err(full()) } else { Ok(()) }
        });
        if !cut && self.0.lock().unwrap().left == Some(0) {
            // The cut comes in the middle of this write: part of it may be on its way.
            return Err(off());
        }
        written
    }

    fn read(&self, pack: u32, offset: u64, to: &mut [u8]) -> Result<()> {
        let content = self.0.lock().unwrap();
        let bytes = content.packs.get(&pack).map(Pack::now).unwrap_or_default();
        match bytes.get(offset as usize..offset as usize + to.len()) {
            Some(found) => {
                to.copy_from_slice(found);
                Ok(())
            }
            None => Err(Error::corrupt(format!("pack {pack}"), "ends before")),
        }
    }

    fn read_now(&self, pack: u32, offset: u64, to: &mut [u8]) -> bool {
        self.read(pack, offset, to).is_ok()
    }

    fn sync(&self, pack: u32) -> Result<()> {
        self.with(|content| {
            if content.syncs_fail {
                content.packs.entry(pack).or_default().written.clear();
                return Err(Error::io(Path::new("lossy"))(std::io::Error::other("sync failed")));
            }
            let pack = content.packs.entry(pack).or_default();
            pack.durable = pack.now();
            pack.written.clear();
            Ok(())
        })
    }

    fn packs(&self) -> Result<Vec<u32>> {
        Ok(self.0.lock().unwrap().packs.keys().copied().collect())
    }

    fn shorten(&self, pack: u32, end: u64) -> Result<()> {
        self.with(|content| {
            let pack = content.packs.entry(pack).or_default();
            pack.durable = pack.now();
            pack.written.clear();
            pack.durable.truncate(end as usize);
            Ok(())
        })
    }

    fn remove(&self, pack: u32) -> Result<()> {
        self.with(|content| {
            content.packs.remove(&pack);
            Ok(())
        })
    }

    fn write_index(&self, file: IndexFile, bytes: &[u8]) -> Result<()> {
        self.with(|content| {
            if content.room == Some(0) {
                return Err(full());
            }
            content.indices.insert(file, bytes.to_vec());
            Ok(())
        })
    }

    fn read_index(&self, file: IndexFile) -> Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().indices.get(&file).cloned())
    }

    fn write_log(&self, file: IndexFile, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut content = self.0.lock().unwrap();
        if content.left == Some(0) && content.torn {
            // The cut comes in the middle of this write: a part of it arrives, and zeros for the rest.
            content.torn = false;
            let rng = Rng::new(content.operations, "torn", 0);
            let mut part = vec![0; rng.below(0, bytes.len() as u64 + 1) as usize];
            let whole = rng.below(1, part.len() as u64 + 1) as usize;
            part[..whole].copy_from_slice(&bytes[..whole]);
            put(content.logs.entry(file).or_default(), offset, &part);
        }
        drop(content);
        self.with(|content| {
            if content.room == Some(0) {
                return Err(full());
            }
            put(content.logs.entry(file).or_default(), offset, bytes);
            Ok(())
        })
    }

    fn clear_log(&self, file: IndexFile) -> Result<()> {
        self.with(|content| {
            // A power cut may undo it, so records of older indices stay.
            if !content.logs_stay {
                content.logs.remove(&file);
            }
            Ok(())
        })
    }

    fn read_log(&self, file: IndexFile) -> Result<Option<Vec<u8>>> {
        let content = self.0.lock().unwrap();
        match content.unread.contains(&file) {
            true => Err(Error::io(Path::new("lossy"))(std::io::Error::other("a bad sector"))),
            false => Ok(content.logs.get(&file).cloned()),
        }
    }

    fn path(&self) -> &Path {
        Path::new("lossy")
    }
}
