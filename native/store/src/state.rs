//! The names, the blocks, and the tiers that hold them. One lock guards it, and nothing under the lock
//! waits for a disk or compresses.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde::Serialize;

use crate::disk::{Digest, Stored};
use crate::prefetch::{Place, PrefetchOptions, Stream};
use crate::queue::{Id, Queue};
use crate::tensor::{Int8Form, Tensor};

/// Bytes of a block in RAM.
pub(crate) type Bytes = Arc<Vec<u8>>;

/// Streams that are remembered.
const MOST_STREAMS: usize = 64;
/// Requests after which a prefetched block is given up, if others need its room.
const PATIENCE: u64 = 256;
/// Prefetched blocks that are remembered.
const MOST_AHEAD: usize = 4096;

/// A block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) at: Stored,
    pub(crate) raw: Option<Bytes>,
    pub(crate) packed: Option<Bytes>,
    /// Whether a thread reads it.
    pub(crate) loading: bool,
    /// How often tensors use it.
    pub(crate) uses: u32,
    /// How often tensors use it that may lose something, all in this form.
    pub(crate) lossy_uses: u32,
    pub(crate) form: Option<Int8Form>,
    /// The stream for which it was prefetched, until it is asked for.
    pub(crate) ahead: Option<u64>,
    /// Whether this process has written it, or read it without a fault.
    pub(crate) sound: bool,
    /// The request of a loop that asked for it last, unless others asked or will ask for it.
    pub(crate) passed: Option<u64>,
    place: Place,
}

/// Counts since the store was opened.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Counts {
    /// Blocks that a reader asked for.
    pub requests: u64,
    /// Of these, blocks that were in RAM.
    pub in_ram: u64,
    /// Of these, blocks that were in compressed RAM.
    pub in_compressed: u64,
    /// Blocks that a reader asked for, and that are not what was put.
    pub lossy: u64,
    /// Blocks that were prefetched.
    pub prefetched: u64,
    /// Of these, blocks that were then asked for.
    pub prefetched_used: u64,
    /// Of the used ones, blocks that had not arrived in time.
    pub prefetched_late: u64,
    /// Of the prefetched ones, blocks that left RAM unused.
    pub prefetched_unused: u64,
    /// Bytes that were read from disk.
    pub read_bytes: u64,
    /// Bytes that were written to disk.
    pub written_bytes: u64,
    /// Bytes that readers waited for.
    pub waited_bytes: u64,
    /// Nanoseconds that readers waited.
    pub waited_ns: u64,
    /// Blocks that were put, and were there before.
    pub repeated: u64,
    /// Cold blocks that were stored in eight bits an element.
    pub quantised: u64,
    /// Blocks that a check found damaged.
    pub damaged: u64,
}

/// The contents of a store in this process.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tensors: BTreeMap<Arc<str>, Arc<Tensor>>,
    pub(crate) blocks: HashMap<Id, Block>,
    by_digest: HashMap<Digest, Id>,
    /// Blocks that could not be read. The next put of their content mends them.
    damaged: HashMap<Digest, Id>,
    by_place: BTreeMap<Place, Id>,
    next_id: Id,
    next_place: Place,
    pub(crate) ram: Queue,
    pub(crate) compressed: Queue,
    prefetch: PrefetchOptions,
    streams: HashMap<u64, (Stream, u64)>,
    /// Names that are being put.
    pub(crate) claimed: HashSet<String>,
    /// Blocks that a reader waits for, that are prefetched, and that shall be compressed.
    pub(crate) urgent: VecDeque<Id>,
    pub(crate) ahead: VecDeque<Id>,
    pub(crate) demoted: VecDeque<(Id, Bytes)>,
    pub(crate) demoted_bytes: u64,
    /// Bytes that were prefetched and not asked for yet.
    ahead_bytes: u64,
    /// Of these, bytes that have arrived. They are in RAM, but not in its queue.
    pub(crate) held: u64,
    /// Blocks that loops asked for, the latest last.
    pub(crate) passed: Vec<(Id, u64)>,
    /// Whether a thread had nothing to do since a block was late.
    pub(crate) spare: bool,
    /// Prefetched blocks, and the number of requests before each.
    ahead_since: VecDeque<(Id, u64)>,
    /// Readers that load a block themselves.
    pub(crate) readers: u32,
    /// Readers that wait for another thread.
    pub(crate) waiting: u32,
    pub(crate) closing: bool,
    /// Bytes of the packs on disk.
    pub(crate) pack_bytes: u64,
    /// Bytes of all tensors, of all blocks, and of all blocks as stored.
    pub(crate) bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) stored_bytes: u64,
    /// Blocks that are not what was put.
    pub(crate) lossy_blocks: u64,
    pub(crate) counts: Counts,
}

impl State {
    pub(crate) fn new(ram: u64, compressed: u64, prefetch: PrefetchOptions) -> State {
        State {
            tensors: BTreeMap::new(),
            blocks: HashMap::new(),
            by_digest: HashMap::new(),
            damaged: HashMap::new(),
            by_place: BTreeMap::new(),
            next_id: 0,
            next_place: 0,
            ram: Queue::new(ram),
            compressed: Queue::new(compressed),
            prefetch,
            streams: HashMap::new(),
            claimed: HashSet::new(),
            urgent: VecDeque::new(),
            ahead: VecDeque::new(),
            demoted: VecDeque::new(),
            demoted_bytes: 0,
            ahead_bytes: 0,
            held: 0,
            passed: vec![],
            spare: false,
            ahead_since: VecDeque::new(),
            readers: 0,
            waiting: 0,
            closing: false,
            pack_bytes: 0,
            bytes: 0,
            block_bytes: 0,
            stored_bytes: 0,
            lossy_blocks: 0,
            counts: Counts::default(),
        }
    }

    /// The block of a content, which gains a use, and whether it is known to be sound.
    pub(crate) fn used(&mut self, digest: Digest, bytes: u64) -> Option<(Id, bool)> {
        let id = self.by_digest.get(&digest).copied()?;
        let block = self.blocks.get_mut(&id).filter(|block| u64::from(block.at.raw) == bytes)?;
        block.uses += 1;
        Some((id, block.sound))
    }

    /// Gives a name to a tensor, or takes it away. The blocks of the former one lose a use.
    pub(crate) fn name(&mut self, name: &str, tensor: Option<Arc<Tensor>>) {
        let old = match tensor {
            Some(tensor) => {
                self.bytes += tensor.bytes();
                self.count_lossy(&tensor, true);
                self.tensors.insert(name.into(), tensor)
            }
            None => self.tensors.remove(name),
        };
        if let Some(old) = old {
            self.bytes -= old.bytes();
            self.count_lossy(&old, false);
            old.blocks.iter().for_each(|id| self.release(*id));
        }
    }

    /// A new place of a block.
    pub(crate) fn moved(&mut self, id: Id, at: Stored) {
        let Some(block) = self.blocks.get_mut(&id) else { return };
        self.lossy_blocks += u64::from(at.codec.is_lossy());
        self.lossy_blocks -= u64::from(block.at.codec.is_lossy());
        let same = (block.at.codec, block.at.crc) == (at.codec, at.crc);
        self.stored_bytes = self.stored_bytes - u64::from(block.at.stored) + u64::from(at.stored);
        block.at = at;
        if !same {
            block.packed = None;
            self.compressed.remove(id);
        }
    }

    /// A block has another content than before.
    pub(crate) fn rename(&mut self, id: Id, old: Digest, new: Digest) {
        for known in [&mut self.by_digest, &mut self.damaged] {
            if known.get(&old) == Some(&id) {
                known.remove(&old);
            }
        }
        // Another tensor may have been put with exactly these bytes.
        self.by_digest.entry(new).or_insert(id);
    }

    /// A damaged block of this content has a sound place again, and one more use.
    pub(crate) fn mended(&mut self, at: Stored) -> Option<Id> {
        let id = self.damaged.remove(&at.digest)?;
        self.blocks.get(&id).filter(|block| block.at.digest == at.digest)?;
        self.moved(id, at);
        let block = self.blocks.get_mut(&id)?;
        block.uses += 1;
        block.sound = true;
        self.by_digest.insert(at.digest, id);
        Some(id)
    }

    /// Adds a block that lies on disk, with one use.
    pub(crate) fn add(&mut self, at: Stored, sound: bool) -> Id {
        let (id, place) = (self.next_id, self.next_place);
        // Numbers of blocks that are gone are not given again before 2^32 others.
        self.next_id = (1..=u32::MAX)
            .find_map(|n| {
                let next = id.wrapping_add(n);
                (!self.blocks.contains_key(&next)).then_some(next)
            })
            .unwrap_or(id);
        self.next_place += 1;
        let (raw, packed, loading, ahead, passed) = (None, None, false, None, None);
        let (uses, lossy_uses, form) = (1, 0, None);
        let block =
            Block { at, raw, packed, loading, uses, lossy_uses, form, ahead, sound, passed, place };
        self.lossy_blocks += u64::from(at.codec.is_lossy());
        self.blocks.insert(id, block);
        self.block_bytes += u64::from(at.raw);
        self.stored_bytes += u64::from(at.stored);
        self.by_digest.insert(at.digest, id);
        self.by_place.insert(place, id);
        id
    }

    /// A tensor no longer uses a block.
    pub(crate) fn release(&mut self, id: Id) {
        let Some(block) = self.blocks.get_mut(&id) else { return };
        block.uses = block.uses.saturating_sub(1);
        if block.uses > 0 {
            return;
        }
        if let Some(block) = self.blocks.remove(&id) {
            if self.by_digest.get(&block.at.digest) == Some(&id) {
                self.by_digest.remove(&block.at.digest);
            }
            if self.damaged.get(&block.at.digest) == Some(&id) {
                self.damaged.remove(&block.at.digest);
            }
            self.block_bytes -= u64::from(block.at.raw);
            self.stored_bytes -= u64::from(block.at.stored);
            self.lossy_blocks -= u64::from(block.at.codec.is_lossy());
            self.by_place.remove(&block.place);
            self.ram.remove(id);
            self.compressed.remove(id);
            if block.ahead.is_some() {
                self.less_ahead(u64::from(block.at.raw), block.raw.is_some());
            }
        }
    }

    /// A block is no longer one that was prefetched and not asked for.
    fn less_ahead(&mut self, bytes: u64, in_ram: bool) {
        self.ahead_bytes = self.ahead_bytes.saturating_sub(bytes);
        if in_ram {
            self.held = self.held.saturating_sub(bytes);
        }
    }

    /// A damaged block is not taken for a new one of the same content.
    pub(crate) fn distrust(&mut self, id: Id) {
        if let Some(block) = self.blocks.get_mut(&id)
            && self.by_digest.get(&block.at.digest) == Some(&id)
        {
            block.sound = false;
            self.counts.damaged += 1;
            self.by_digest.remove(&block.at.digest);
            self.damaged.insert(block.at.digest, id);
        }
    }

    /// A prefetched block that could not be read is not waited for.
    pub(crate) fn failed(&mut self, id: Id) {
        if let Some(block) = self.blocks.get_mut(&id)
            && block.ahead.take().is_some()
        {
            let (bytes, in_ram) = (u64::from(block.at.raw), block.raw.is_some());
            self.less_ahead(bytes, in_ram);
        }
    }

    /// The bytes of a block, if they are in RAM.
    pub(crate) fn resident(&self, id: Id) -> Option<Bytes> {
        self.blocks.get(&id)?.raw.clone()
    }

    /// The place of a block that lies on disk only, and that no thread reads.
    pub(crate) fn idle_on_disk(&self, id: Id) -> Option<Stored> {
        let block = self.blocks.get(&id)?;
        (block.packed.is_none() && !block.loading).then_some(block.at)
    }

    /// Whether there is work for which no reader waits.
    pub(crate) fn has_background(&self) -> bool {
        !self.ahead.is_empty() || !self.demoted.is_empty()
    }

    /// Counts a request of a stream, and queues what the stream will ask for next. Returns whether the stream loops; then
    /// the caller calls [`State::pass`] when it has the block.
    pub(crate) fn ask(&mut self, id: Id, stream: u64) -> bool {
        self.counts.requests += 1;
        let Some(block) = self.blocks.get_mut(&id) else { return false };
        let (place, bytes) = (block.place, u64::from(block.at.raw));
        let (in_ram, in_compressed) = (block.raw.is_some(), block.packed.is_some());
        let (ahead, is_lossy) = (block.ahead.take(), block.at.codec.is_lossy());
        block.passed = None;
        self.counts.lossy += u64::from(is_lossy);
        self.counts.in_ram += u64::from(in_ram);
        self.counts.in_compressed += u64::from(!in_ram && in_compressed);
        if let Some(of) = ahead {
            self.counts.prefetched_used += 1;
            self.less_ahead(bytes, in_ram);
            match in_ram {
                // As a block that was not prefetched, which this request would have put there.
                true => self.ram.insert(id, bytes),
                false => self.was_late(of),
            }
        } else if in_ram {
            self.ram.touch(id);
        }
        if !in_ram && in_compressed {
            self.compressed.touch(id);
        }
        if self.prefetch.depth == 0 {
            return false;
        }
        let options = self.prefetch;
        let own = self.stream(stream);
        let (next, loops) = (own.next(place, &options), own.loops(options.confidence));
        next.into_iter().for_each(|place| self.prefetch(place, stream));
        loops
    }

    /// More depth helps only while the threads are not busy anyway.
    fn was_late(&mut self, of: u64) {
        self.counts.prefetched_late += 1;
        if std::mem::take(&mut self.spare) {
            let options = self.prefetch;
            self.with_stream(of, |stream| stream.was_late(&options));
        }
    }

    fn prefetch(&mut self, place: Place, stream: u64) {
        let Some(id) = self.by_place.get(&place).copied() else { return };
        let Some(block) = self.blocks.get_mut(&id) else { return };
        let bytes = u64::from(block.at.raw);
        block.passed = None;
        let waits = block.raw.is_some() || block.loading || block.ahead.is_some();
        let most = self.prefetch.bytes.min(self.ram.budget() / 2);
        if waits || bytes > most {
            return;
        }
        self.forget_ahead(most - bytes);
        if self.ahead_bytes + bytes <= most
            && let Some(block) = self.blocks.get_mut(&id)
        {
            block.ahead = Some(stream);
            self.ahead_bytes += bytes;
            self.counts.prefetched += 1;
            self.ahead.push_back(id);
            self.ahead_since.push_back((id, self.counts.requests));
        }
    }

    /// Gives up prefetched blocks that were not asked for within many requests, until at most `bytes` are left.
    fn forget_ahead(&mut self, bytes: u64) {
        while self.ahead_bytes > bytes || self.ahead_since.len() > MOST_AHEAD {
            match self.ahead_since.front().copied() {
                Some((id, since)) if self.counts.requests - since > PATIENCE => {
                    self.ahead_since.pop_front();
                    self.give_up(id);
                }
                // It was asked for, or has left RAM.
                Some((id, _)) if self.blocks.get(&id).is_none_or(|b| b.ahead.is_none()) => {
                    self.ahead_since.pop_front();
                }
                _ => return,
            }
        }
    }

    /// A prefetched block was not asked for. It stays until others need its room.
    fn give_up(&mut self, id: Id) {
        let Some(block) = self.blocks.get_mut(&id) else { return };
        let Some(of) = block.ahead.take() else { return };
        let (bytes, in_ram) = (u64::from(block.at.raw), block.raw.is_some());
        self.less_ahead(bytes, in_ram);
        if in_ram {
            self.ram.insert(id, bytes);
        }
        self.counts.prefetched_unused += 1;
        self.with_stream(of, Stream::was_unused);
    }

    fn stream(&mut self, number: u64) -> &mut Stream {
        if self.streams.len() >= MOST_STREAMS && !self.streams.contains_key(&number) {
            let oldest = self.streams.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(number) = oldest.map(|(number, _)| *number) {
                self.streams.remove(&number);
            }
        }
        let entry = self.streams.entry(number).or_default();
        entry.1 = self.counts.requests;
        &mut entry.0
    }

    fn with_stream(&mut self, number: u64, work: impl FnOnce(&mut Stream)) {
        if let Some((stream, _)) = self.streams.get_mut(&number) {
            work(stream);
        }
    }
}
