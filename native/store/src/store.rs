//! A store as its users see it.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use sconce_tensor::{Error, Result};
use serde::Serialize;

use crate::budget::Budget;
use crate::disk::index::Index;
use crate::disk::{Disk, Folder, IndexFile, log, pack_name};
use crate::options::StoreOptions;
use crate::packs::Writer;
use crate::prefetch::PrefetchOptions;
use crate::queue::Id;
use crate::shared::{Rows, Shared, blocks, range, rows_of};
use crate::state::{Counts, State};
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
    /// Blocks that are not what was put.
    pub lossy_blocks: u64,
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
    /// `Busy` if another process writes; `Corrupt` if both indices are damaged, or a record of both logs in a store that is
    /// opened for writing; an error of the system if no log can be read; `NotFound` if a store that is opened for
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
        let (index, fault) = latest(&*disk, !options.read_only)?;
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
        let is_new = index.generation == 0;
        let shared = Arc::new(Shared {
            disk,
            budget: Mutex::new(Budget::new(options.background)),
            options,
            state: Mutex::new(state),
            arrived: Condvar::new(),
            work: Condvar::new(),
            writer: Mutex::new(writer),
            fault,
            generation: Mutex::new(index.generation),
        });
        if is_new {
            // Packs without an index are then known to be damage.
            shared.with_writer_if_any(|writer| shared.commit_all(writer))?;
        }
        let store = Store { shared, threads: Mutex::default() };
        for at in 0..store.shared.options.threads {
            let own = store.shared.clone();
            let started =
                Builder::new().name(format!("sconce-store-{at}")).spawn(move || own.work(at == 0));
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

    /// Commits, waits until the threads of the store have ended, and lets another process write. Reads that have begun
    /// end.
    ///
    /// # Errors
    /// As [`Store::commit`]; the store then stays open.
    pub fn close(&self) -> Result<()> {
        self.shared.with_writer_if_any(|writer| self.shared.commit_whole(writer))?;
        self.stop();
        let threads = std::mem::take(&mut *self.threads());
        // A thread that panicked has told so.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        self.shared.close_writer();
        Ok(())
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
        self.shared.state().tensors.keys().map(|name| name.to_string()).collect()
    }

    /// A tensor's type, shape and blocks.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn tensor(&self, name: &str) -> Result<Arc<Tensor>> {
        self.shared.tensor(name)
    }

    /// How many blocks of a tensor are not what was put.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn lossy_blocks(&self, name: &str) -> Result<usize> {
        Ok(self.described(name)?.1)
    }

    /// A tensor, and how many blocks of it are not what was put, at one moment.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn described(&self, name: &str) -> Result<(Arc<Tensor>, usize)> {
        let state = self.shared.state();
        let found = state.tensors.get(name).cloned();
        let tensor = found.ok_or_else(|| Error::not_found(format!("tensor {name:?}")))?;
        let is_lossy = |id: &&Id| state.blocks.get(id).is_some_and(|own| own.at.codec.is_lossy());
        // A tensor that may lose nothing may have been put with the bytes of a block that had lost something.
        let count = if tensor.lossy { tensor.blocks.iter().filter(is_lossy).count() } else { 0 };
        Ok((tensor, count))
    }

    /// Rows of a tensor, or all, if they lie in one block that is in RAM, or in a small one in the system's cache of files.
    /// Never waits.
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
        let Ok(mut state) = shared.state.try_lock() else { return Ok(None) };
        let found = state.tensors.get(name).cloned();
        let tensor = found.ok_or_else(|| Error::not_found(format!("tensor {name:?}")))?;
        let range = range(&tensor, rows)?;
        let mut wanted = blocks(&tensor, &range);
        let (first, None) = (wanted.next(), wanted.next()) else { return Ok(None) };
        drop(wanted);
        let Some((id, _)) = first else { return Ok(Some(rows_of(tensor, &range, vec![]))) };
        let mut found = state.resident(id);
        if found.is_none() {
            let Some(at) = state.idle_on_disk(id) else { return Ok(None) };
            drop(state);
            let Some(read) = shared.at_once(&at) else { return Ok(None) };
            let Ok(again) = shared.state.try_lock() else { return Ok(None) };
            state = again;
            if state.blocks.get(&id).is_none_or(|block| block.at != at) {
                return Ok(None);
            }
            found = Some(read);
        }
        let (was_there, loops) = (state.resident(id).is_some(), state.ask(id, stream));
        if let (false, Some(read)) = (was_there, &found) {
            state.counts.read_bytes += state.blocks.get(&id).map_or(0, |b| u64::from(b.at.stored));
            state.keep(id, read.clone());
        }
        if loops {
            state.pass(id);
        }
        let more = state.has_background();
        drop(state);
        if more {
            shared.work.notify_all();
        }
        Ok(Some(rows_of(tensor, &range, found.into_iter().collect())))
    }

    /// Rows of a tensor, or all. Waits for blocks that are not in RAM.
    ///
    /// # Errors
    /// As [`Store::resident`], and `Corrupt` that names the tensor and the file of a damaged block.
    pub fn read(&self, name: &str, rows: Option<(u64, u64)>, stream: u64) -> Result<Rows> {
        let mut read = self.shared.read(name, rows, stream);
        for _ in 0..RETRIES {
            match read {
                // The tensor was replaced meanwhile, or its pack was rewritten by the process that writes.
                Err(Error::NotFound { .. }) if self.tensor(name).is_ok() => self.refresh()?,
                _ => break,
            }
            read = self.shared.read(name, rows, stream);
        }
        read
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
        let mut generation = shared.generation.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, _) = latest(&*shared.disk, false)?;
        if index.generation <= *generation {
            return Ok(());
        }
        *generation = index.generation;
        shared.disk.retain(&index.packs.iter().map(|(pack, _)| *pack).collect());
        let mut state = shared.state();
        let old = std::mem::take(&mut state.tensors);
        state.bytes = 0;
        fill(&mut state, &index);
        old.values().flat_map(|tensor| &tensor.blocks).for_each(|id| state.release(*id));
        Ok(())
    }

    /// The contents of the store, and their places.
    pub fn stats(&self) -> Stats {
        let state = self.shared.state();
        Stats {
            tensors: state.tensors.len(),
            blocks: state.blocks.len(),
            bytes: state.bytes,
            block_bytes: state.block_bytes,
            stored_bytes: state.stored_bytes,
            disk_bytes: state.pack_bytes,
            ram_bytes: state.ram_bytes(),
            compressed_bytes: state.compressed.bytes(),
            lossy_blocks: state.lossy_blocks,
            counts: state.counts.clone(),
        }
    }

    /// Reads every block from disk and checks it. Returns those that are damaged or cannot be read.
    pub fn verify(&self) -> Vec<Damage> {
        let shared = &*self.shared;
        let ids: Vec<Id> = shared.state().blocks.keys().copied().collect();
        let mut damaged = vec![];
        for id in ids {
            let Some((at, reason)) = shared.checked(id) else { continue };
            if let Some(reason) = reason {
                let mut state = shared.state();
                state.distrust(id);
                let uses = |(_, tensor): &(&Arc<str>, &Arc<Tensor>)| tensor.blocks.contains(&id);
                let tensors = state.tensors.iter().filter(uses).map(|(name, _)| name.to_string());
                damaged.push(Damage {
                    tensors: tensors.collect(),
                    file: pack_name(at.pack),
                    offset: at.offset,
                    reason,
                });
            }
        }
        damaged.sort_by_key(|d| (d.file.clone(), d.offset));
        damaged
    }

    /// Whether the threads have nothing to do.
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

/// How often a read begins again because its tensor was replaced or moved.
const RETRIES: usize = 8;

/// The index after the latest commit, and the fault of a file that is damaged. Fails if commits are missing and the store
/// shall be written: the blocks behind them would be cut off.
fn latest(disk: &dyn Disk, is_written: bool) -> Result<(Index, Option<String>)> {
    // Before the index: a writer replaces the index first, and cuts its log off then.
    let logs = match IndexFile::ALL.map(|file| disk.read_log(file)) {
        [Err(error), Err(_)] => return Err(error),
        logs => logs,
    };
    let path = |name: &str| disk.path().join(name).display().to_string();
    let unread = IndexFile::ALL.iter().zip(&logs).find_map(|(file, log)| {
        let reason = log.as_ref().err()?;
        Some(format!("{}: {reason}", path(file.log_name())))
    });
    let logs = logs.map(|log| log.ok().flatten().unwrap_or_default());
    let (index, fault) = whole(disk)?;
    let file = |at: usize| path(IndexFile::ALL.get(at).map_or("log", |file| file.log_name()));
    let found = log::replayed(index, [&logs[0], &logs[1]])
        .map_err(|reason| Error::corrupt(file(1), reason))?;
    let lost = found.lost.map(|reason| format!("{reason}, as in {}", file(0)));
    if let (true, Some(reason)) = (is_written, &lost) {
        return Err(Error::corrupt(file(1), reason.clone()));
    }
    let lost = lost.map(|reason| format!("{}: {reason}", file(1)));
    let skipped = found.fault.map(|(at, reason)| format!("{}: {reason}", file(at)));
    Ok((found.index, fault.or(lost).or(skipped).or(unread)))
}

/// The index with the highest generation, and the fault of one that is damaged.
fn whole(disk: &dyn Disk) -> Result<(Index, Option<String>)> {
    let mut found: Option<Index> = None;
    let mut faults = vec![];
    let mut there = 0;
    for file in IndexFile::ALL {
        let bytes = match disk.read_index(file) {
            Ok(None) => continue,
            Ok(Some(bytes)) => Index::of_bytes(&bytes),
            Err(error) => Err(error.to_string()),
        };
        there += 1;
        match bytes {
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
            Some((id, _)) => {
                state.moved(id, *at);
                id
            }
            None => state.add(*at, false),
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
        state.name(name, Some(Arc::new(Tensor { blocks, ..tensor.clone() })));
    }
    // The use that the block itself had until its tensors were known.
    ids.into_iter().for_each(|id| state.release(id));
}
