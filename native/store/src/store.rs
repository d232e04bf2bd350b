//! A store as its users see it.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use sconce_tensor::{Error, Result};
use serde::Serialize;

use crate::disk::index::Index;
use crate::disk::{Disk, Folder, IndexFile, Stored, pack_name};
use crate::options::StoreOptions;
use crate::packs::Writer;
use crate::prefetch::PrefetchOptions;
use crate::queue::Id;
use crate::shared::{Rows, Shared, blocks, range, rows_of};
use crate::state::{Bytes, Counts, State};
use crate::tensor::Tensor;

/// The contents of a store, and their places.
#[derive(Debug, Clone, Serialize)]
pub struct Stats {
    /// Tensors.
    pub tensors: usize,
    /// Blocks, each content once.
    pub blocks: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Bytes of all blocks before compression.
    pub block_bytes: u64,
    /// Bytes of all blocks as stored on disk.
    pub stored_bytes: u64,
    /// Bytes of the packs on disk, with blocks that nothing uses any more.
    pub disk_bytes: u64,
    /// Bytes of the blocks in RAM.
    pub ram_bytes: u64,
    /// Bytes of the blocks in compressed RAM.
    pub compressed_bytes: u64,
    /// Counts since the store was opened.
    #[serde(flatten)]
    pub counts: Counts,
}

/// A block whose bytes are not what was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The tensors that use it.
    pub tensors: Vec<String>,
    /// The file, within the store.
    pub file: String,
    /// Where the block begins.
    pub offset: u64,
    /// The fault.
    pub reason: String,
}

/// A store of named tensors. Any thread may use it.
#[derive(Debug)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Store {
    /// Opens a folder.
    ///
    /// # Errors
    /// `Busy` if another process writes; `Corrupt` if both indices are damaged; `NotFound` if a store that is opened for
    /// reading does not exist.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Store> {
        let folder = match options.read_only {
            true => Folder::to_read(path)?,
            false => Folder::to_write(path)?,
        };
        Store::on(Box::new(folder), options)
    }

    /// Opens a store on a disk.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn on(disk: Box<dyn Disk>, options: StoreOptions) -> Result<Store> {
        options.check()?;
        let (index, fault) = latest(&*disk)?;
        // Without threads nothing happens in the background.
        let busy = options.threads > 0;
        let depth = if busy { options.prefetch.depth } else { 0 };
        let compressed = if busy { options.compressed } else { 0 };
        let prefetch = PrefetchOptions { depth, ..options.prefetch };
        let mut state = State::new(options.ram, compressed, prefetch);
        fill(&mut state, &index);
        let writer = match options.read_only {
            true => None,
            false => Some(Writer::open(&*disk, &index)?),
        };
        let shared = Arc::new(Shared {
            disk,
            options,
            state: Mutex::new(state),
            arrived: Condvar::new(),
            work: Condvar::new(),
            writer: Mutex::new(writer),
            fault,
        });
        let store = Store { shared, threads: Mutex::default() };
        for at in 0..store.shared.options.threads {
            let own = store.shared.clone();
            let started =
                Builder::new().name(format!("sconce-store-{at}")).spawn(move || own.work());
            let thread = started.map_err(|error| Error::Unavailable {
                what: "a thread of the store".into(),
                reason: error.to_string(),
            })?;
            store.threads().push(thread);
        }
        Ok(store)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits, and waits until the threads of the store have ended. The store can still be read.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub fn close(&self) -> Result<()> {
        let committed = if self.shared.options.read_only { Ok(()) } else { self.commit() };
        self.stop();
        let threads = std::mem::take(&mut *self.threads());
        // A thread that panicked has told so.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        committed
    }

    fn stop(&self) {
        self.shared.state().closing = true;
        self.shared.work.notify_all();
    }

    /// The fault of the index, if it was damaged and its copy was read instead.
    pub fn fault(&self) -> Option<&str> {
        self.shared.fault.as_deref()
    }

    /// The names, in order.
    pub fn names(&self) -> Vec<String> {
        self.shared.state().tensors.keys().cloned().collect()
    }

    /// A tensor's type, shape and blocks.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn tensor(&self, name: &str) -> Result<Arc<Tensor>> {
        self.shared.tensor(name)
    }

    /// Rows of a tensor, or all, if all their blocks are in RAM. Never waits.
    ///
    /// # Errors
    /// `NotFound` for an unknown name, `OutOfRange` for rows that do not exist.
    pub fn resident(
        &self,
        name: &str,
        rows: Option<(u64, u64)>,
        stream: u64,
    ) -> Result<Option<Rows>> {
        let shared = &*self.shared;
        let tensor = shared.tensor(name)?;
        let range = range(&tensor, rows)?;
        let mut state = shared.state();
        let found = blocks(&tensor, &range).map(|(id, _)| state.resident(id)).collect();
        let Some(found): Option<Vec<Bytes>> = found else { return Ok(None) };
        blocks(&tensor, &range).for_each(|(id, _)| state.ask(id, stream));
        let more = !state.ahead.is_empty();
        drop(state);
        if more {
            shared.work.notify_all();
        }
        Ok(Some(rows_of(tensor, &range, found)))
    }

    /// Rows of a tensor, or all. Waits for blocks that are not in RAM.
    ///
    /// # Errors
    /// As [`Store::resident`], and `Corrupt` that names the tensor and the file of a damaged block.
    pub fn read(&self, name: &str, rows: Option<(u64, u64)>, stream: u64) -> Result<Rows> {
        match self.shared.read(name, rows, stream) {
            // The tensor was replaced meanwhile, or its pack was rewritten by the process that writes.
            Err(Error::NotFound { .. } | Error::Io { .. }) if self.tensor(name).is_ok() => {
                self.refresh()?;
                self.shared.read(name, rows, stream)
            }
            read => read,
        }
    }

    /// Takes up what another process has committed since. Does nothing in a store that is open for writing.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn refresh(&self) -> Result<()> {
        let shared = &*self.shared;
        if !shared.options.read_only {
            return Ok(());
        }
        let (index, _) = latest(&*shared.disk)?;
        shared.disk.retain(&index.packs.iter().map(|(pack, _)| *pack).collect());
        let mut state = shared.state();
        let old = std::mem::take(&mut state.tensors);
        fill(&mut state, &index);
        old.values().flat_map(|tensor| &tensor.blocks).for_each(|id| state.release(*id));
        Ok(())
    }

    /// The contents of the store, and their places.
    pub fn stats(&self) -> Stats {
        let disk_bytes = self.shared.disk_bytes();
        let state = self.shared.state();
        let sum = |of: fn(&Stored) -> u32| {
            state.blocks.values().map(|block| u64::from(of(&block.at))).sum()
        };
        Stats {
            tensors: state.tensors.len(),
            blocks: state.blocks.len(),
            bytes: state.tensors.values().map(|tensor| tensor.bytes()).sum(),
            block_bytes: sum(|at| at.raw),
            stored_bytes: sum(|at| at.stored),
            disk_bytes,
            ram_bytes: state.ram.bytes(),
            compressed_bytes: state.compressed.bytes(),
            counts: state.counts.clone(),
        }
    }

    /// Reads every block from disk and checks it. Returns the damaged ones.
    ///
    /// # Errors
    /// Those of the system; a damaged block is none.
    pub fn verify(&self) -> Result<Vec<Damage>> {
        let shared = &*self.shared;
        let ids: Vec<Id> = shared.state().blocks.keys().copied().collect();
        let mut damaged = vec![];
        for id in ids {
            let Some((at, reason)) = shared.checked(id)? else { continue };
            if let Some(reason) = reason {
                let mut state = shared.state();
                state.distrust(id);
                let uses = |(_, tensor): &(&String, &Arc<Tensor>)| tensor.blocks.contains(&id);
                let tensors = state.tensors.iter().filter(uses).map(|(name, _)| name.clone());
                damaged.push(Damage {
                    tensors: tensors.collect(),
                    file: pack_name(at.pack),
                    offset: at.offset,
                    reason,
                });
            }
        }
        damaged.sort_by_key(|d| (d.file.clone(), d.offset));
        Ok(damaged)
    }

    /// Bytes of the blocks that wait for a thread.
    pub fn is_idle(&self) -> bool {
        let state = self.shared.state();
        let loading = state.blocks.values().any(|block| block.loading);
        state.urgent.is_empty() && state.ahead.is_empty() && state.demoted.is_empty() && !loading
    }
}

impl Drop for Store {
    /// The threads end when they have done what they are at.
    fn drop(&mut self) {
        self.stop();
    }
}

/// The index with the highest generation, and the fault of one that is damaged.
fn latest(disk: &dyn Disk) -> Result<(Index, Option<String>)> {
    let mut found: Option<Index> = None;
    let mut faults = vec![];
    let mut there = 0;
    for file in IndexFile::ALL {
        let Some(bytes) = disk.read_index(file)? else { continue };
        there += 1;
        match Index::of_bytes(&bytes) {
            Ok(index) if found.as_ref().is_none_or(|own| own.generation <= index.generation) => {
                found = Some(index);
            }
            Ok(_) => {}
            Err(reason) => faults.push((file, reason)),
        }
    }
    let path = |file: IndexFile| disk.path().join(file.name()).display().to_string();
    let fault = faults.first().map(|(file, reason)| format!("{}: {reason}", path(*file)));
    match (found, faults.pop()) {
        (Some(index), _) => Ok((index, fault)),
        (None, Some((file, reason))) => Err(Error::corrupt(path(file), reason)),
        (None, None) if there == 0 => Ok((Index::default(), None)),
        (None, None) => Err(Error::corrupt(disk.path().display().to_string(), "no index")),
    }
}

/// Adds the tensors and blocks of an index. Blocks that are there already keep their bytes.
fn fill(state: &mut State, index: &Index) {
    state.pack_bytes = index.packs.iter().map(|(_, end)| end).sum();
    let mut ids = vec![];
    for at in &index.blocks {
        let id = match state.used(at.digest, u64::from(at.raw)) {
            Some(id) => {
                if let Some(block) = state.blocks.get_mut(&id) {
                    block.at = *at;
                }
                id
            }
            None => state.add(*at, 1),
        };
        ids.push(id);
    }
    for (name, tensor) in &index.tensors {
        let own = |at: &Id| ids.get(*at as usize).copied();
        let blocks: Vec<Id> = tensor.blocks.iter().filter_map(own).collect();
        for id in &blocks {
            if let Some(block) = state.blocks.get_mut(id) {
                block.uses += 1;
            }
        }
        state.tensors.insert(name.clone(), Arc::new(Tensor { blocks, ..tensor.clone() }));
    }
    // The use that the block itself had until its tensors were known.
    ids.into_iter().for_each(|id| state.release(id));
}
