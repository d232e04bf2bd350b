//! Reading blocks, by the callers and by the threads of a store.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sconce_tensor::{Error, Result, memory};

use crate::budget::Budget;
use crate::codec::Codec;
use crate::disk::{Digest, Disk, Stored, pack_name};
use crate::options::StoreOptions;
use crate::packs::Writer;
use crate::queue::Id;
use crate::state::{Bytes, State};
use crate::tensor::Tensor;

/// Bytes of a block that a caller reads itself if the system has it in RAM: 4 us, and a queue takes longer.
const SMALL: usize = 16 << 10;
/// Bytes of a compressed block for which a thread keeps its memory.
const KEPT: usize = 4 << 20;

thread_local! {
    /// A compressed block on its way from disk.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
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

/// The part of a store that its threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) options: StoreOptions,
    pub(crate) state: Mutex<State>,
    /// Notified when a block has arrived, or could not be read.
    pub(crate) arrived: Condvar,
    /// Notified when there is work for the threads.
    pub(crate) work: Condvar,
    /// The bytes that the background may still read and write.
    pub(crate) budget: Mutex<Budget>,
    /// `None` if the store is open for reading.
    pub(crate) writer: Mutex<Option<Writer>>,
    /// The fault of an index whose copy was read instead.
    pub(crate) fault: Option<String>,
    /// The generation of the index that was read last.
    pub(crate) generation: Mutex<u64>,
}

/// A block that a thread reads. Others wait until it is dropped, also by a panic.
pub(crate) struct Loading<'s>(pub(crate) &'s Shared, pub(crate) Id);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if let Some(block) = state.blocks.get_mut(&self.1) {
            block.loading = false;
        }
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.0.arrived.notify_all();
        }
    }
}

pub(crate) fn range(tensor: &Tensor, rows: Option<(u64, u64)>) -> Result<Range<u64>> {
    match rows {
        None => Ok(0..tensor.bytes()),
        Some((first, count)) => tensor.rows(first, count),
    }
}

/// The blocks of a range of bytes, with their places in the tensor.
pub(crate) fn blocks<'t>(
    tensor: &'t Tensor,
    range: &Range<u64>,
) -> impl Iterator<Item = (Id, u64)> + 't {
    let first = range.start / tensor.block;
    let end = if range.is_empty() { first } else { range.end.div_ceil(tensor.block) };
    (first..end).filter_map(|at| tensor.blocks.get(at as usize).map(|id| (*id, at)))
}

pub(crate) fn rows_of(tensor: Arc<Tensor>, range: &Range<u64>, found: Vec<Bytes>) -> Rows {
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

    pub(crate) fn read(&self, name: &str, rows: Option<(u64, u64)>, stream: u64) -> Result<Rows> {
        let began = Instant::now();
        let tensor = self.tensor(name)?;
        let range = range(&tensor, rows)?;
        let wanted: Vec<(Id, u64)> = blocks(&tensor, &range).collect();
        let (waited, loops) = self.ask(wanted.iter().map(|(id, _)| *id), stream);
        let damaged = |(at, error): (u64, Error)| match error {
            Error::Corrupt { what, reason } => {
                Error::corrupt(format!("tensor {name:?}, block {at}, {what}"), reason)
            }
            other => other,
        };
        let found = wanted
            .iter()
            .map(|(id, at)| self.obtain(*id, loops).map_err(|error| damaged((*at, error))))
            .collect::<Result<Vec<_>>>()?;
        if waited > 0 {
            let mut state = self.state();
            state.counts.waited_bytes += waited;
            state.counts.waited_ns += began.elapsed().as_nanos() as u64;
        }
        Ok(rows_of(tensor, &range, found))
    }

    /// Counts requests for blocks. The caller reads the first one that is missing, and the threads begin with the others.
    /// Returns the bytes of all that are missing, and whether the stream loops.
    fn ask(&self, wanted: impl Iterator<Item = Id>, stream: u64) -> (u64, bool) {
        let mut state = self.state();
        let (mut missing, mut bytes, mut loops) = (0, 0, false);
        let help = self.options.threads > 0 && !state.closing;
        for id in wanted {
            loops = state.ask(id, stream);
            if state.resident(id).is_some() {
                continue;
            }
            missing += 1;
            bytes += state.blocks.get(&id).map_or(0, |block| u64::from(block.at.raw));
            if missing > 1 && help {
                state.urgent.push_back(id);
            }
        }
        let more = !state.urgent.is_empty() || !state.ahead.is_empty();
        drop(state);
        if more {
            self.work.notify_all();
        }
        (bytes, loops)
    }

    /// The bytes of a block, read by this thread unless another one is at it.
    fn obtain(&self, id: Id, loops: bool) -> Result<Bytes> {
        let mut state = self.state();
        loop {
            let Some(block) = state.blocks.get_mut(&id) else {
                return Err(Error::not_found("a block of a tensor that was replaced"));
            };
            if let Some(raw) = block.raw.clone() {
                if loops {
                    state.pass(id);
                }
                return Ok(raw);
            }
            if !block.loading {
                block.loading = true;
                state.readers += 1;
                drop(state);
                let loaded = self.load(id);
                let mut state = self.state();
                state.readers -= 1;
                if loops {
                    state.pass(id);
                }
                if state.readers == 0 && state.has_background() {
                    self.work.notify_all();
                }
                return loaded;
            }
            state.waiting += 1;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }

    /// Reads a block that this thread has marked as loading.
    pub(crate) fn load(&self, id: Id) -> Result<Bytes> {
        let _loading = Loading(self, id);
        let loaded = loop {
            let from = self.state().blocks.get(&id).map(|block| (block.at, block.packed.clone()));
            let Some((at, packed)) = from else {
                break Err(Error::not_found("a block of a tensor that was replaced"));
            };
            match memory::caught(|| self.restored(&at, packed.as_deref())) {
                // Its pack was rewritten meanwhile.
                Err(_) if self.place(id) != Some(at) => {}
                loaded => break loaded,
            }
        };
        let mut state = self.state();
        let loaded = match loaded {
            Ok((raw, read)) => {
                state.counts.read_bytes += read;
                let raw = Arc::new(raw);
                state.keep(id, raw.clone());
                Ok(raw)
            }
            Err(error) => {
                state.failed(id);
                if let Error::Corrupt { .. } | Error::Io { .. } = error {
                    state.distrust(id);
                }
                Err(error)
            }
        };
        let more = !state.demoted.is_empty();
        drop(state);
        if more {
            self.work.notify_one();
        }
        loaded
    }

    /// A small block that lies on disk, if the system has it in RAM. Never waits.
    pub(crate) fn at_once(&self, at: &Stored) -> Option<Bytes> {
        let mut stored = [0; SMALL];
        let stored = stored.get_mut(..at.stored as usize).filter(|_| at.raw as usize <= SMALL)?;
        self.disk.read_now(at.pack, at.offset, stored).then_some(())?;
        // A reader that waits meets the error again, and names it.
        memory::caught(|| Ok(at.restore(stored).ok())).ok().flatten().map(Arc::new)
    }

    fn place(&self, id: Id) -> Option<Stored> {
        self.state().blocks.get(&id).map(|block| block.at)
    }

    /// The bytes of a block, and how many bytes were read from disk for it.
    fn restored(&self, at: &Stored, packed: Option<&Vec<u8>>) -> Result<(Vec<u8>, u64)> {
        let corrupt = |reason| Error::corrupt(self.place_of(at), reason);
        if let Some(packed) = packed {
            // Bytes in RAM are not checked again, compressed or not.
            return at.decode(packed).map(|raw| (raw, 0)).map_err(corrupt);
        }
        let read = u64::from(at.stored);
        if at.codec == Codec::Raw {
            let raw = self.stored_bytes(at)?;
            return at.check(&raw).map(|()| (raw, read)).map_err(corrupt);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let long = at.stored as usize;
            memory::reserve(scratch, long.saturating_sub(scratch.len()));
            scratch.resize(long.max(scratch.len()), 0);
            let stored = scratch.get_mut(..long).unwrap_or_default();
            self.disk.read(at.pack, at.offset, stored)?;
            let raw = at.restore(stored).map(|raw| (raw, read)).map_err(corrupt);
            if long > KEPT {
                *scratch = vec![];
            }
            raw
        })
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

    /// The place and the fault of a block on disk. `None` for a block that is gone.
    pub(crate) fn checked(&self, id: Id) -> Option<(Stored, Option<String>)> {
        loop {
            let at = self.place(id)?;
            let fault = self.stored_bytes(&at).and_then(|stored| self.fault_of(&at, &stored));
            match fault {
                Ok(None) => return Some((at, None)),
                // Its pack was rewritten meanwhile.
                _ if self.place(id) != Some(at) => {}
                Ok(fault) => return Some((at, fault)),
                Err(Error::Corrupt { reason, .. }) => return Some((at, Some(reason))),
                Err(error) => return Some((at, Some(error.to_string()))),
            }
        }
    }

    /// The fault of a block and its header on disk.
    fn fault_of(&self, at: &Stored, stored: &[u8]) -> Result<Option<String>> {
        match at.restore(stored) {
            Err(reason) => return Ok(Some(reason)),
            Ok(raw) if Digest::of(&raw) != at.digest => {
                return Ok(Some("its content is another one".into()));
            }
            Ok(_) => {}
        }
        let expected = at.header();
        let mut header = [0; crate::disk::HEADER];
        self.disk.read(at.pack, at.offset - header.len() as u64, &mut header)?;
        Ok((header != expected).then(|| "its header is not that of the index".into()))
    }
}
