//! Putting tensors, committing, and rewriting packs.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use sconce_tensor::memory;
use sconce_tensor::{Error, Result};

use crate::codec::{self, Codec};
use crate::disk::index::{Index, MAX_INDEX, MAX_NAME};
use crate::disk::log::Change;
use crate::disk::{Digest, HEADER, IndexFile, Stored};
use crate::packs::{Log, ON_DISK, Writer};
use crate::queue::Id;
use crate::shared::Shared;
use crate::state::Block;
use crate::store::Store;
use crate::tensor::{Dtype, Tensor};

/// Bytes that a log may always have.
const LEAST_LOG: u64 = 64 << 10;
/// The share of a pack that cold blocks must get shorter by to rewrite it.
const LEAST_GAIN: f64 = 0.1;
/// Tensors that are looked up under one lock.
const AT_ONCE: usize = 256;

impl Shared {
    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs work on the writer of a store that is open for writing, unless a failure has ended that.
    pub(crate) fn with_writer_if_any(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<()>,
    ) -> Result<()> {
        match self.writer().as_mut() {
            Some(writer) if writer.check().is_ok() => work(writer),
            _ => Ok(()),
        }
    }

    /// Commits what changed since the last commit: to the log, or with a whole index if the log has become too long.
    pub(crate) fn commit_changes(&self, writer: &mut Writer) -> Result<()> {
        if writer.touched.is_empty() {
            return Ok(());
        }
        match writer.log.take() {
            Some(log) if self.logged(writer, log)? => Ok(()),
            _ => self.commit_all(writer),
        }
    }

    /// Commits what changed, and folds the log into the index, if the disk has room for that.
    pub(crate) fn commit_whole(&self, writer: &mut Writer) -> Result<()> {
        let is_committed = writer.touched.is_empty();
        match writer.log {
            Some(log) if log.end == 0 && is_committed => Ok(()),
            None if is_committed => Ok(()),
            _ => match self.commit_all(writer) {
                // The log has everything.
                Err(_) if is_committed && writer.failed.is_none() => Ok(()),
                committed => committed,
            },
        }
    }

    /// Refuses later changes, and lets another process write.
    pub(crate) fn close_writer(&self) {
        *self.writer() = None;
        self.disk.release();
    }

    fn with_writer<T>(&self, work: impl FnOnce(&mut Writer) -> Result<T>) -> Result<T> {
        match self.writer().as_mut() {
            None => Err(Error::Unavailable {
                what: "writing to the store".into(),
                reason: "it is open for reading".into(),
            }),
            Some(writer) => writer.check().and_then(|()| work(writer)),
        }
    }

    /// The block of these bytes: one that is there, or a new one on disk. It has one more use.
    fn placed(&self, width: u8, raw: &[u8]) -> Result<Id> {
        let digest = Digest::of(raw);
        if let Some(id) = self.repeated(digest, raw) {
            return Ok(id);
        }
        let (codec, packed) = match self.options.compress {
            true => codec::encode(raw, width),
            false => (Codec::Raw, None),
        };
        let stored = packed.as_deref().unwrap_or(raw);
        let (long, crc) = (stored.len() as u32, crc32fast::hash(stored));
        let raw_bytes = raw.len() as u32;
        let block =
            Stored { digest, pack: 0, offset: 0, raw: raw_bytes, stored: long, codec, width, crc };
        let copy = Arc::new(memory::copied(raw));
        // The block counts as used before the writer is free: rewriting packs would remove it.
        let id = self.with_writer(|writer| {
            let at = writer.append(&*self.disk, self.options.disk, block, stored)?;
            let mut state = self.state();
            let bytes = u64::from(long) + HEADER as u64;
            state.counts.written_bytes += bytes;
            state.pack_bytes += bytes;
            // Another thread may have put the same bytes meanwhile.
            if let Some((id, _)) = state.used(digest, u64::from(raw_bytes)) {
                return Ok(id);
            }
            if let Some(id) = state.mended(at) {
                // Other tensors use it too, of which a record of the log says nothing.
                writer.log = None;
                return Ok(id);
            }
            Ok(state.add(at, true))
        })?;
        let mut state = self.state();
        // The block of another thread may have another form.
        let same = |at: &Stored| (at.codec, at.width, at.crc) == (codec, width, crc);
        let is_own = state.blocks.get(&id).is_some_and(|block| same(&block.at));
        if let Some(packed) = packed.filter(|_| is_own) {
            state.keep_compressed(id, Arc::new(packed));
        }
        state.keep(id, copy);
        let more = !state.demoted.is_empty();
        drop(state);
        if more {
            self.work.notify_one();
        }
        Ok(id)
    }

    /// The block of these bytes that is there and can be read. It has one more use.
    fn repeated(&self, digest: Digest, raw: &[u8]) -> Option<Id> {
        let (id, is_sound) = self.state().used(digest, raw.len() as u64)?;
        let whole = is_sound || self.checked(id).is_some_and(|(_, fault)| fault.is_none());
        let mut state = self.state();
        match (whole, state.blocks.get_mut(&id)) {
            (true, Some(block)) => {
                block.sound = true;
                state.counts.repeated += 1;
                Some(id)
            }
            _ => {
                state.distrust(id);
                state.release(id);
                None
            }
        }
    }
}

impl Store {
    /// Puts a tensor, which replaces one of the same name. Readers see it at once; [`Store::commit`] makes it durable.
    ///
    /// # Errors
    /// `Mismatch` if the bytes are not those of the shape; `Busy` if another caller puts the same name;
    /// `OutOfRange` beyond the bytes that the disk may hold, after packs have been rewritten. The former tensor stays after
    /// any error.
    pub fn put(&self, name: &str, dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Result<()> {
        self.put_tensor(name, dtype, shape, bytes, false)
    }

    /// Puts a tensor as [`Store::put`] does. In a store with [`StoreOptions::cold`](crate::StoreOptions::cold) blocks of it
    /// that have gone cold lose something when packs are rewritten.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_lossy(&self, name: &str, dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Result<()> {
        self.put_tensor(name, dtype, shape, bytes, true)
    }

    fn put_tensor(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        bytes: &[u8],
        lossy: bool,
    ) -> Result<()> {
        match self.put_once(name, dtype, shape, bytes, lossy) {
            Err(Error::OutOfRange { field, .. })
                if field == ON_DISK
                    && matches!(self.rewrite(0.9, false, &|| false), Ok(freed) if freed > 0) =>
            {
                self.put_once(name, dtype, shape, bytes, lossy)
            }
            put => put,
        }
    }

    fn put_once(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        bytes: &[u8],
        lossy: bool,
    ) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME {
            let most = MAX_NAME as f64;
            return Err(Error::out_of_range("bytes of the name", name.len() as f64, 1.0, most));
        }
        let shared = &*self.shared;
        let tensor = Tensor::new(name, dtype, shape.to_vec(), shared.options.block)?;
        let mut tensor = Tensor { lossy, ..tensor };
        if tensor.bytes() != bytes.len() as u64 {
            let what = format!("tensor {name:?}");
            let (expected, got) = (tensor.bytes(), bytes.len());
            return Err(Error::mismatch(what, format!("{expected} bytes"), format!("{got} bytes")));
        }
        if !shared.state().claimed.insert(name.to_owned()) {
            return Err(Error::Busy { what: format!("tensor {name:?}") });
        }
        let mut ids = vec![];
        let placed = memory::caught(|| {
            bytes.chunks(tensor.block as usize).try_for_each(|raw| {
                ids.push(shared.placed(dtype.size(), raw)?);
                Ok(())
            })
        });
        tensor.blocks = ids;
        let tensor = Arc::new(tensor);
        let named = placed.and_then(|()| shared.name(name, Some(tensor.clone())));
        if named.is_err() {
            let mut state = shared.state();
            tensor.blocks.iter().for_each(|id| state.release(*id));
        }
        shared.state().claimed.remove(name);
        named
    }

    /// Removes a tensor. [`Store::commit`] makes that durable.
    ///
    /// # Errors
    /// `NotFound` for an unknown name, `Busy` while it is put.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.tensor(name)?;
        if self.shared.state().claimed.contains(name) {
            return Err(Error::Busy { what: format!("tensor {name:?}") });
        }
        self.shared.name(name, None)
    }

    /// Returns when all that was put and deleted before would survive a power cut.
    ///
    /// # Errors
    /// Those of the system; what was committed before stays. After a failed sync of a pack, which leaves open what lies
    /// on disk, nothing more is written until the store is opened again.
    pub fn commit(&self) -> Result<()> {
        let shared = &*self.shared;
        shared.with_writer(|writer| shared.commit_changes(writer))
    }

    /// Rewrites packs of which less than `share` is used, and gives their bytes back to the disk. Returns the bytes. With
    /// [`StoreOptions::cold`](crate::StoreOptions::cold) the cold blocks of tensors that may lose something do. Waits
    /// before each pack, of 64 MB at most, until the budget of the background allows it; puts go on meanwhile. Ends
    /// between two packs when the store is closed, or `is_cancelled` says so.
    ///
    /// # Errors
    /// As [`Store::commit`]. A pack with a damaged block stays.
    pub fn compact(&self, share: f64, is_cancelled: &dyn Fn() -> bool) -> Result<u64> {
        let ends = || is_cancelled() || self.shared.state().closing;
        self.rewrite(share, true, &ends)
    }

    fn rewrite(&self, share: f64, paced: bool, ends: &dyn Fn() -> bool) -> Result<u64> {
        let shared = &*self.shared;
        let packs = shared.with_writer(|writer| {
            // Blocks that only an older index uses are given up first.
            shared.commit_all(writer)?;
            Ok(shared.sparse(writer, share))
        })?;
        let (mut freed, mut written) = (0, 0);
        for pack in packs {
            if paced {
                shared.pace(written, ends);
            }
            if ends() {
                break;
            }
            let bytes = shared.with_writer(|writer| {
                // The blocks of others may have filled it since.
                let is_sparse = shared.sparse(writer, share).contains(&pack);
                is_sparse.then(|| shared.rewritten(writer, pack)).transpose()
            })?;
            written = bytes.as_ref().map_or(0, |bytes| bytes.written);
            freed += bytes.map_or(0, |bytes| bytes.freed);
        }
        Ok(u64::try_from(freed).unwrap_or_default())
    }
}

/// Bytes of a pack that was rewritten.
struct Rewritten {
    freed: i64,
    written: u64,
}

impl Shared {
    /// Gives a name to a tensor, or takes it away.
    fn name(&self, name: &str, tensor: Option<Arc<Tensor>>) -> Result<()> {
        self.with_writer(|writer| {
            self.state().name(name, tensor);
            writer.touched.insert(name.into());
            Ok(())
        })
    }

    /// Syncs the packs.
    fn synced(&self, writer: &mut Writer) -> Result<()> {
        while let Some(pack) = writer.dirty.last().copied() {
            // A failed sync may have dropped bytes that a later sync would not miss.
            self.disk.sync(pack).inspect_err(|error| writer.failed = Some(error.to_string()))?;
            writer.dirty.pop();
        }
        Ok(())
    }

    /// Syncs the packs and replaces the index.
    pub(crate) fn commit_all(&self, writer: &mut Writer) -> Result<()> {
        writer.log = None;
        let tensors: Vec<_> =
            self.state().tensors.iter().map(|(name, own)| (name.clone(), own.clone())).collect();
        let mut index = self.indexed(&tensors);
        // A commit that failed may have left a copy of its generation.
        writer.generation += 1;
        index.generation = writer.generation;
        index.next_pack = writer.next_pack;
        index.packs = writer.ends.iter().map(|(pack, end)| (*pack, *end)).collect();
        self.synced(writer)?;
        let bytes = index.to_bytes();
        if bytes.len() as u64 > MAX_INDEX {
            let (got, most) = (bytes.len() as f64, MAX_INDEX as f64);
            return Err(Error::out_of_range("bytes of the index", got, 0.0, most));
        }
        IndexFile::ALL.iter().try_for_each(|file| self.disk.write_index(*file, &bytes))?;
        writer.touched.clear();
        writer.grown.clear();
        // Records of the old log are not those of this index. One that cannot be cut off is not continued.
        if IndexFile::ALL.iter().all(|file| self.disk.clear_log(*file).is_ok()) {
            let most = (bytes.len() as u64).max(LEAST_LOG);
            writer.log = Some(Log { base: index.generation, end: 0, most });
        }
        Ok(())
    }

    /// Syncs the packs and appends a record to both logs. False if the log would become too long.
    fn logged(&self, writer: &mut Writer, log: Log) -> Result<bool> {
        let (mut tensors, mut removed) = (vec![], vec![]);
        let state = self.state();
        for name in &writer.touched {
            match state.tensors.get(name) {
                Some(tensor) => tensors.push((name.clone(), tensor.clone())),
                None => removed.push(name.to_string()),
            }
        }
        drop(state);
        let mut put = self.indexed(&tensors);
        writer.generation += 1;
        put.generation = writer.generation;
        put.next_pack = writer.next_pack;
        let mut packs = std::mem::take(&mut writer.grown);
        packs.extend(put.blocks.iter().map(|block| block.pack));
        let end = |pack: &u32| writer.ends.get(pack).map(|end| (*pack, *end));
        put.packs = packs.iter().filter_map(end).collect();
        let record = Change { base: log.base, removed, put }.to_bytes();
        let end = log.end + record.len() as u64;
        if end > log.most {
            return Ok(false);
        }
        self.synced(writer)?;
        // After a failure the next commit writes the index whole: the log may hold any part of the record.
        let write = |file: &IndexFile| self.disk.write_log(*file, log.end, &record);
        IndexFile::ALL.iter().try_for_each(write)?;
        writer.touched.clear();
        writer.log = Some(Log { end, ..log });
        Ok(true)
    }

    /// The packs of which less than a share is used, or would be if their cold blocks lost something.
    fn sparse(&self, writer: &Writer, share: f64) -> Vec<u32> {
        let mut used: HashMap<u32, (u64, u64)> = HashMap::new();
        for block in self.state().blocks.values() {
            let (used, gain) = used.entry(block.at.pack).or_default();
            *used += u64::from(block.at.stored) + HEADER as u64;
            *gain += self.cold_gain(block);
        }
        let sparse = |(pack, end): (&u32, &u64)| {
            let (used, gain) = used.get(pack).copied().unwrap_or_default();
            let (used, gain, end) = (used as f64, gain as f64, *end as f64);
            (used - gain < share * end || gain > LEAST_GAIN * end).then_some(*pack)
        };
        writer.ends.iter().filter_map(sparse).collect()
    }

    /// Moves the blocks of a pack to another one, and removes it.
    fn rewritten(&self, writer: &mut Writer, pack: u32) -> Result<Rewritten> {
        let before = writer.bytes();
        if writer.current == Some(pack) {
            writer.current = None;
        }
        let is_whole = self.moved(writer, pack)?;
        let written = writer.bytes() - before;
        if is_whole {
            let end = writer.ends.remove(&pack).unwrap_or_default();
            self.commit_all(writer)?;
            self.disk.remove(pack)?;
            let mut state = self.state();
            state.pack_bytes = state.pack_bytes.saturating_sub(end);
        }
        Ok(Rewritten { freed: before as i64 - writer.bytes() as i64, written })
    }

    /// Appends the blocks of a pack to another one. False if one is damaged, which then stays where it is.
    fn moved(&self, writer: &mut Writer, pack: u32) -> Result<bool> {
        // A record of the log says nothing of blocks that moved.
        writer.log = None;
        let state = self.state();
        let own = |(id, block): (&Id, &Block)| (block.at.pack == pack).then_some((*id, block.at));
        let blocks: Vec<(Id, Stored)> = state.blocks.iter().filter_map(own).collect();
        drop(state);
        let mut whole = true;
        for (id, at) in blocks {
            let stored = match self.stored_bytes(&at) {
                Ok(stored) if at.check(&stored).is_ok() => stored,
                _ => {
                    whole = false;
                    continue;
                }
            };
            if self.cooled(writer, id, &stored)? {
                continue;
            }
            // Moving needs room for a while, whatever the disk may hold.
            let new = writer.append(&*self.disk, None, at, &stored)?;
            let mut state = self.state();
            state.pack_bytes += u64::from(at.stored) + HEADER as u64;
            state.moved(id, new);
        }
        Ok(whole)
    }

    /// The index of tensors, without packs. The caller holds the writer, so nothing moves meanwhile; the lock
    /// of the blocks is free in between, so that readers do not wait.
    fn indexed(&self, tensors: &[(Arc<str>, Arc<Tensor>)]) -> Index {
        let mut places: HashMap<Id, u32> = HashMap::new();
        let mut index = Index::default();
        for part in tensors.chunks(AT_ONCE) {
            let state = self.state();
            for (name, tensor) in part {
                let mut blocks = vec![];
                for id in &tensor.blocks {
                    let Some(block) = state.blocks.get(id) else { continue };
                    let place = *places.entry(*id).or_insert_with(|| {
                        index.blocks.push(block.at);
                        index.blocks.len() as u32 - 1
                    });
                    blocks.push(place);
                }
                index.tensors.push((name.to_string(), Tensor { blocks, ..(**tensor).clone() }));
            }
        }
        index
    }
}
