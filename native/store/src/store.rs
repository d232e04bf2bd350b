//! A store: opening, reading, and the threads that move blocks between tiers.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use sconce_tensor::{Error, Result, memory};
use serde::{Deserialize, Serialize};

use crate::codec;
use crate::disk::index::Index;
use crate::disk::{Disk, Folder, IndexFile, Stored, pack_name};
use crate::packs::Writer;
use crate::prefetch::PrefetchOptions;
use crate::queue::Id;
use crate::state::{Bytes, Counts, State};
use crate::tensor::{MAX_BLOCK, Tensor};

/// How a store is opened.
#[derive(Debug, Clone, Deserialize)]
pub struct StoreOptions {
    /// Bytes of blocks in RAM.
    pub ram: u64,
    /// Bytes of compressed blocks in RAM.
    pub compressed: u64,
    /// Bytes on disk at most.
    pub disk: Option<u64>,
    /// Bytes of a block; a tensor of fewer bytes is one block of its size.
    pub block: u64,
    /// Whether blocks are compressed that gain by it.
    pub compress: bool,
    /// Threads that prefetch and compress.
    pub threads: usize,
    /// Bytes a second that these threads read and write at most.
    pub background: Option<u64>,
    /// Options of prefetching.
    pub prefetch: PrefetchOptions,
    /// Whether the store is opened for reading beside a process that writes.
    pub read_only: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            ram: 256 << 20,
            compressed: 64 << 20,
            disk: None,
            block: 1 << 20,
            compress: true,
            threads: 2,
            background: None,
            prefetch: PrefetchOptions::default(),
            read_only: false,
        }
    }
}

impl StoreOptions {
    fn check(&self) -> Result<()> {
        let within = |field: &str, value: u64, min: u64, max: u64| {
            let inside = (min..=max).contains(&value);
            inside
                .then_some(())
                .ok_or_else(|| Error::out_of_range(field, value as f64, min as f64, max as f64))
        };
        within("block", self.block, 4096, MAX_BLOCK)?;
        within("threads", self.threads as u64, 0, 64)?;
        within("ram", self.ram, 0, 1 << 50)?;
        within("compressed", self.compressed, 0, 1 << 50)?;
        within("prefetch", self.prefetch.depth as u64, 0, 1024)?;
        within("background", self.background.unwrap_or(1), 1, u64::MAX)
    }
}

/// Bytes of a tensor, in parts that lie in RAM.
#[derive(Debug, Clone)]
pub struct Part {
    block: Bytes,
    range: Range<usize>,
}

impl Part {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.block.get(self.range.clone()).unwrap_or_default()
    }
}

/// Rows of a tensor.
#[derive(Debug)]
pub struct Rows {
    /// The tensor, of which `parts` hold the rows.
    pub tensor: Arc<Tensor>,
    /// The bytes, in order.
    pub parts: Vec<Part>,
}

impl Rows {
    /// All bytes, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = memory::with_capacity(self.parts.iter().map(|part| part.range.len()).sum());
        self.parts.iter().for_each(|part| all.extend_from_slice(part.bytes()));
        all
    }
}

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

/// The part of a store that its threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) options: StoreOptions,
    state: Mutex<State>,
    /// Notified when a block has arrived, or could not be read.
    pub(crate) arrived: Condvar,
    /// Notified when there is work for the threads.
    work: Condvar,
    /// `None` if the store is open for reading.
    pub(crate) writer: Mutex<Option<Writer>>,
    /// The fault of an index whose copy was read instead.
    fault: Option<String>,
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
            let Some(at) = shared.state().blocks.get(&id).map(|block| block.at) else { continue };
            let reason = match shared.stored_bytes(&at) {
                Ok(stored) => shared.fault_of(&at, &stored)?,
                Err(Error::Corrupt { reason, .. }) => Some(reason),
                Err(error) => return Err(error),
            };
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

fn range(tensor: &Tensor, rows: Option<(u64, u64)>) -> Result<Range<u64>> {
    match rows {
        None => Ok(0..tensor.bytes()),
        Some((first, count)) => tensor.rows(first, count),
    }
}

/// The blocks of a range of bytes, with their places in the tensor.
fn blocks<'t>(tensor: &'t Tensor, range: &Range<u64>) -> impl Iterator<Item = (Id, u64)> + 't {
    let first = range.start / tensor.block;
    let end = if range.is_empty() { first } else { range.end.div_ceil(tensor.block) };
    (first..end).filter_map(|at| tensor.blocks.get(at as usize).map(|id| (*id, at)))
}

fn rows_of(tensor: Arc<Tensor>, range: &Range<u64>, found: Vec<Bytes>) -> Rows {
    let places: Vec<u64> = blocks(&tensor, range).map(|(_, at)| at).collect();
    let part = |(at, block): (u64, Bytes)| {
        let begin = at * tensor.block;
        let end = begin + block.len() as u64;
        let within = |byte: u64| (byte.clamp(begin, end) - begin) as usize;
        Part { range: within(range.start)..within(range.end), block }
    };
    let parts = places.into_iter().zip(found).map(part).collect();
    Rows { tensor, parts }
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Arc<Tensor>> {
        let found = self.state().tensors.get(name).cloned();
        found.ok_or_else(|| Error::not_found(format!("tensor {name:?}")))
    }

    fn read(&self, name: &str, rows: Option<(u64, u64)>, stream: u64) -> Result<Rows> {
        let began = Instant::now();
        let tensor = self.tensor(name)?;
        let range = range(&tensor, rows)?;
        let wanted: Vec<(Id, u64)> = blocks(&tensor, &range).collect();
        let mut state = self.state();
        let mut missing = vec![];
        for (id, _) in &wanted {
            state.ask(*id, stream);
            if state.resident(*id).is_none() {
                missing.push(*id);
            }
        }
        // The caller reads the first one; the threads begin with the others.
        if self.options.threads > 0 {
            state.urgent.extend(missing.iter().skip(1));
        }
        let waited: u64 =
            missing.iter().filter_map(|id| state.blocks.get(id)).map(|b| u64::from(b.at.raw)).sum();
        drop(state);
        self.work.notify_all();
        let damaged = |(at, error): (u64, Error)| match error {
            Error::Corrupt { what, reason } => {
                Error::corrupt(format!("tensor {name:?}, block {at}, {what}"), reason)
            }
            other => other,
        };
        let found = wanted
            .iter()
            .map(|(id, at)| self.obtain(*id).map_err(|error| damaged((*at, error))))
            .collect::<Result<Vec<_>>>()?;
        if waited > 0 {
            let mut state = self.state();
            state.counts.waited_bytes += waited;
            state.counts.waited_ns += began.elapsed().as_nanos() as u64;
        }
        Ok(rows_of(tensor, &range, found))
    }

    /// The bytes of a block, read by this thread unless another one is at it.
    fn obtain(&self, id: Id) -> Result<Bytes> {
        let mut state = self.state();
        loop {
            let Some(block) = state.blocks.get_mut(&id) else {
                return Err(Error::not_found("a block of a tensor that was replaced"));
            };
            if let Some(raw) = &block.raw {
                return Ok(raw.clone());
            }
            if !block.loading {
                block.loading = true;
                state.readers += 1;
                drop(state);
                let loaded = self.load(id);
                let mut state = self.state();
                state.readers -= 1;
                if state.readers == 0 {
                    self.work.notify_all();
                }
                return loaded;
            }
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads a block that this thread has marked as loading.
    fn load(&self, id: Id) -> Result<Bytes> {
        let from = self.state().blocks.get(&id).map(|block| (block.at, block.packed.clone()));
        let loaded = match from {
            None => Err(Error::not_found("a block of a tensor that was replaced")),
            Some((at, packed)) => memory::caught(|| self.restored(&at, packed.as_deref())),
        };
        let mut state = self.state();
        if let Some(block) = state.blocks.get_mut(&id) {
            block.loading = false;
        }
        let loaded = match loaded {
            Ok((raw, read)) => {
                state.counts.read_bytes += read;
                let raw = Arc::new(raw);
                state.keep(id, raw.clone());
                Ok(raw)
            }
            Err(error) => {
                if let Error::Corrupt { .. } = error {
                    state.distrust(id);
                }
                Err(error)
            }
        };
        let more = !state.demoted.is_empty();
        drop(state);
        self.arrived.notify_all();
        if more {
            self.work.notify_one();
        }
        loaded
    }

    /// The bytes of a block, and how many bytes were read from disk for it.
    fn restored(&self, at: &Stored, packed: Option<&Vec<u8>>) -> Result<(Vec<u8>, u64)> {
        let corrupt = |reason| Error::corrupt(self.place_of(at), reason);
        match packed {
            Some(packed) => at.restore(packed).map(|raw| (raw, 0)).map_err(corrupt),
            None => {
                let stored = self.stored_bytes(at)?;
                let read = stored.len() as u64;
                if at.codec == codec::Codec::Raw {
                    at.check(&stored).map_err(corrupt)?;
                    return Ok((stored, read));
                }
                at.restore(&stored).map(|raw| (raw, read)).map_err(corrupt)
            }
        }
    }

    pub(crate) fn stored_bytes(&self, at: &Stored) -> Result<Vec<u8>> {
        let mut stored = memory::repeated(0, at.stored as usize);
        self.disk.read(at.pack, at.offset, &mut stored)?;
        Ok(stored)
    }

    fn place_of(&self, at: &Stored) -> String {
        let file = self.disk.path().join(pack_name(at.pack));
        format!("{} at byte {}", file.display(), at.offset)
    }

    /// The fault of a block and its header on disk.
    pub(crate) fn fault_of(&self, at: &Stored, stored: &[u8]) -> Result<Option<String>> {
        if let Err(reason) = at.restore(stored) {
            return Ok(Some(reason));
        }
        let expected = at.header();
        let mut header = [0; crate::disk::HEADER];
        self.disk.read(at.pack, at.offset - header.len() as u64, &mut header)?;
        Ok((header != expected).then(|| "its header is not that of the index".into()))
    }

    /// A thread: prefetches, and compresses what leaves RAM.
    fn work(&self) {
        let mut budget = Budget::new(self.options.background);
        let mut state = self.state();
        loop {
            if state.closing {
                return;
            }
            if let Some(id) = state.urgent.pop_front() {
                state = self.begin(state, id);
                continue;
            }
            // Blocks for which a caller waits come first.
            let pause = if state.readers > 0 { Some(None) } else { budget.pause().map(Some) };
            if pause.is_none() {
                if let Some(id) = state.ahead.pop_front() {
                    let bytes = state.blocks.get(&id).map_or(0, |block| block.at.stored);
                    state = self.begin(state, id);
                    budget.take(u64::from(bytes));
                    continue;
                }
                if let Some((id, raw)) = state.next_demoted() {
                    let at = state.blocks.get(&id).map(|block| block.at);
                    drop(state);
                    let packed = at.map(|at| codec::encode_as(at.codec, at.width, &raw));
                    state = self.state();
                    if let Some(packed) = packed {
                        state.keep_compressed(id, Arc::new(packed));
                    }
                    continue;
                }
            }
            state = match pause.flatten() {
                Some(wait) if !state.ahead.is_empty() || !state.demoted.is_empty() => {
                    let waited = self.work.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Reads a block in the background, unless it is there or another thread is at it.
    fn begin<'s>(&'s self, mut state: MutexGuard<'s, State>, id: Id) -> MutexGuard<'s, State> {
        match state.blocks.get_mut(&id) {
            Some(block) if block.raw.is_none() && !block.loading => {
                block.loading = true;
                drop(state);
                // The reader meets the error again, and names it.
                let _ = self.load(id);
                self.state()
            }
            _ => state,
        }
    }
}

/// Bytes a second of a thread's work in the background.
struct Budget {
    rate: Option<u64>,
    left: f64,
    at: Instant,
}

impl Budget {
    fn new(rate: Option<u64>) -> Budget {
        Budget { rate, left: 0.0, at: Instant::now() }
    }

    /// How long to wait before the next byte.
    fn pause(&mut self) -> Option<Duration> {
        let rate = self.rate? as f64;
        let passed = self.at.elapsed().as_secs_f64();
        self.at = Instant::now();
        // At most a tenth of a second is saved up.
        self.left = (self.left + passed * rate).min(rate / 10.0);
        (self.left < 0.0).then(|| Duration::from_secs_f64((-self.left / rate).clamp(1e-4, 1.0)))
    }

    fn take(&mut self, bytes: u64) {
        self.left -= bytes as f64;
    }
}
