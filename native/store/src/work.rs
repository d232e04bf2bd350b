//! The threads of a store: they prefetch, and compress what leaves RAM.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use sconce_tensor::memory;

use crate::budget::Budget;
use crate::codec;
use crate::disk::Stored;
use crate::queue::Id;
use crate::shared::Shared;
use crate::state::{Block, State};

impl Shared {
    /// Runs a thread until the store is closed.
    pub(crate) fn work(&self, is_first: bool) {
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
            let waits = state.readers > 0 && !(is_first && self.options.threads > 1);
            let pause = if waits { Some(None) } else { self.budget().pause().map(Some) };
            if pause.is_none() {
                if let Some(id) = state.ahead.pop_front() {
                    // A reader that did not wait for it has it already.
                    let block = state.blocks.get(&id).filter(|block| block.ahead.is_some());
                    let on_disk = state.idle_on_disk(id).filter(|_| state.resident(id).is_none());
                    if block.is_some() {
                        state = self.begin(state, id);
                        self.budget().take(on_disk.map_or(0, |at| u64::from(at.stored)));
                    }
                    continue;
                }
                if let Some((id, raw)) = state.next_demoted() {
                    let at = state.blocks.get(&id).map(|block| block.at);
                    drop(state);
                    let packed = at.and_then(|at| packed(&at, &raw));
                    state = self.state();
                    // A put may have mended it meanwhile, or a rewritten pack have changed its form.
                    let stays = |own: &Block| {
                        at.is_some_and(|at| (own.at.codec, own.at.crc) == (at.codec, at.crc))
                    };
                    if let Some(packed) =
                        packed.filter(|_| state.blocks.get(&id).is_some_and(stays))
                    {
                        state.keep_compressed(id, Arc::new(packed));
                    }
                    continue;
                }
            }
            state.spare |= state.ahead.is_empty();
            state = match pause.flatten() {
                Some(wait) if !state.ahead.is_empty() || !state.demoted.is_empty() => {
                    let waited = self.work.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes that were rewritten, and waits until there may be more, or `ends` says so.
    pub(crate) fn pace(&self, bytes: u64, ends: &dyn Fn() -> bool) {
        // In parts, so that reading ahead goes on in between.
        let part = self.options.background.map_or(u64::MAX, |rate| (rate / 10).max(1));
        let mut left = bytes;
        loop {
            let pause = self.budget().pause();
            match pause {
                _ if ends() => return,
                Some(pause) => std::thread::sleep(pause.min(Duration::from_millis(100))),
                None if left == 0 => return,
                None => {
                    let now = left.min(part);
                    self.budget().take(now);
                    left -= now;
                }
            }
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

/// The compressed form of a block, which may differ from that on disk, as of another version of LZ4. `None` without memory.
fn packed(at: &Stored, raw: &[u8]) -> Option<Vec<u8>> {
    memory::caught(|| Ok(codec::encode_as(at.codec, at.width, raw))).ok()
}
