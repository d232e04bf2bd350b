//! Putting tensors, committing, and rewriting packs.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use sconce_tensor::memory;
use sconce_tensor::{Error, Result};

use crate::codec::{self, Codec};
use crate::disk::index::{Index, MAX_NAME};
use crate::disk::{Digest, HEADER, IndexFile, Stored};
use crate::packs::{ON_DISK, Writer};
use crate::queue::Id;
use crate::shared::Shared;
use crate::state::State;
use crate::store::Store;
use crate::tensor::{Dtype, Tensor};

impl Shared {
    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        match self.writer().as_ref() {
            Some(writer) => writer.bytes(),
            None => self.state().pack_bytes,
        }
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
    fn place(&self, width: u8, raw: &[u8]) -> Result<Id> {
        let digest = Digest::of(raw);
        let mut state = self.state();
        if let Some(id) = state.used(digest, raw.len() as u64) {
            state.counts.repeated += 1;
            return Ok(id);
        }
        drop(state);
        let (codec, packed) = match self.options.compress {
            true => codec::encode(raw, width),
            false => (Codec::Raw, None),
        };
        let stored = packed.as_deref().unwrap_or(raw);
        let (long, crc) = (stored.len() as u32, crc32fast::hash(stored));
        let raw_bytes = raw.len() as u32;
        let block =
            Stored { digest, pack: 0, offset: 0, raw: raw_bytes, stored: long, codec, width, crc };
        let at = self
            .with_writer(|writer| writer.append(&*self.disk, self.options.disk, block, stored))?;
        let copy = memory::copied(raw);
        let mut state = self.state();
        state.counts.written_bytes += u64::from(long) + HEADER as u64;
        // Another thread may have put the same bytes meanwhile.
        if let Some(id) = state.used(digest, raw.len() as u64) {
            return Ok(id);
        }
        let id = state.add(at, 1);
        if let Some(packed) = packed {
            state.keep_compressed(id, Arc::new(packed));
        }
        state.keep(id, Arc::new(copy));
        Ok(id)
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
        match self.put_once(name, dtype, shape, bytes) {
            Err(Error::OutOfRange { field, .. })
                if field == ON_DISK && matches!(self.compact(1.0), Ok(freed) if freed > 0) =>
            {
                self.put_once(name, dtype, shape, bytes)
            }
            put => put,
        }
    }

    fn put_once(&self, name: &str, dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME {
            let most = MAX_NAME as f64;
            return Err(Error::out_of_range("bytes of the name", name.len() as f64, 1.0, most));
        }
        let shared = &*self.shared;
        let mut tensor = Tensor::new(name, dtype, shape.to_vec(), shared.options.block)?;
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
                ids.push(shared.place(dtype.size(), raw)?);
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
        shared.with_writer(|writer| match writer.changed {
            true => shared.commit(writer),
            false => Ok(()),
        })
    }

    /// Rewrites packs of which less than `share` is used, and gives their bytes back to the disk. Returns the bytes.
    ///
    /// # Errors
    /// As [`Store::commit`]. A pack with a damaged block stays.
    pub fn compact(&self, share: f64) -> Result<u64> {
        let shared = &*self.shared;
        shared.with_writer(|writer| {
            // Blocks that only an older index uses are given up first.
            shared.commit(writer)?;
            let before = writer.bytes();
            let moved = shared.move_blocks(writer, share)?;
            shared.commit(writer)?;
            for pack in moved {
                writer.ends.remove(&pack);
                shared.disk.remove(pack)?;
            }
            shared.commit(writer)?;
            Ok(before.saturating_sub(writer.bytes()))
        })
    }
}

impl Shared {
    /// Gives a name to a tensor, or takes it away.
    fn name(&self, name: &str, tensor: Option<Arc<Tensor>>) -> Result<()> {
        self.with_writer(|writer| {
            let mut state = self.state();
            let old = match tensor {
                Some(tensor) => state.tensors.insert(name.to_owned(), tensor),
                None => state.tensors.remove(name),
            };
            old.iter().flat_map(|old| &old.blocks).for_each(|id| state.release(*id));
            writer.changed = true;
            Ok(())
        })
    }

    fn commit(&self, writer: &mut Writer) -> Result<()> {
        let mut index = indexed(&self.state());
        // A commit that failed may have left a copy of its generation.
        writer.generation += 1;
        index.generation = writer.generation;
        index.next_pack = writer.next_pack;
        index.packs = writer.ends.iter().map(|(pack, end)| (*pack, *end)).collect();
        while let Some(pack) = writer.dirty.last().copied() {
            // A failed sync may have dropped bytes that a later sync would not miss.
            self.disk.sync(pack).inspect_err(|error| writer.failed = Some(error.to_string()))?;
            writer.dirty.pop();
        }
        let bytes = index.to_bytes();
        IndexFile::ALL.iter().try_for_each(|file| self.disk.write_index(*file, &bytes))?;
        writer.changed = false;
        Ok(())
    }

    /// Appends the used blocks of sparse packs again. Returns the packs that nothing uses then.
    fn move_blocks(&self, writer: &mut Writer, share: f64) -> Result<Vec<u32>> {
        let mut used: HashMap<u32, u64> = HashMap::new();
        let mut of: HashMap<u32, Vec<Id>> = HashMap::new();
        for (id, block) in &self.state().blocks {
            *used.entry(block.at.pack).or_default() += u64::from(block.at.stored) + HEADER as u64;
            of.entry(block.at.pack).or_default().push(*id);
        }
        let sparse = |(pack, end): (&u32, &u64)| {
            let used = used.get(pack).copied().unwrap_or_default() as f64;
            (used < share * *end as f64).then_some(*pack)
        };
        let packs: Vec<u32> = writer.ends.iter().filter_map(sparse).collect();
        if writer.current.is_some_and(|current| packs.contains(&current)) {
            writer.current = None;
        }
        let mut moved = vec![];
        for pack in packs {
            let ids = of.remove(&pack).unwrap_or_default();
            if self.move_pack(writer, &ids)? {
                moved.push(pack);
            }
        }
        Ok(moved)
    }

    /// Moves blocks to the current pack. False if one is damaged.
    fn move_pack(&self, writer: &mut Writer, ids: &[Id]) -> Result<bool> {
        let mut whole = true;
        for id in ids {
            let Some(at) = self.state().blocks.get(id).map(|block| block.at) else { continue };
            let stored = match self.stored_bytes(&at) {
                Ok(stored) if at.check(&stored).is_ok() => stored,
                Ok(_) | Err(Error::Corrupt { .. }) => {
                    whole = false;
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Moving needs room for a while, whatever the disk may hold.
            let new = writer.append(&*self.disk, None, at, &stored)?;
            if let Some(block) = self.state().blocks.get_mut(id) {
                block.at = new;
            }
        }
        Ok(whole)
    }
}

/// The index of what the store holds, without packs.
fn indexed(state: &State) -> Index {
    let mut places: HashMap<Id, u32> = HashMap::new();
    let mut index = Index::default();
    for (name, tensor) in &state.tensors {
        let mut blocks = vec![];
        for id in &tensor.blocks {
            let Some(block) = state.blocks.get(id) else { continue };
            let place = *places.entry(*id).or_insert_with(|| {
                index.blocks.push(block.at);
                index.blocks.len() as u32 - 1
            });
            blocks.push(place);
        }
        index.tensors.push((name.clone(), Tensor { blocks, ..(**tensor).clone() }));
    }
    index
}
