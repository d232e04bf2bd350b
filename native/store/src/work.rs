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

/// The stored form of a block. `None` if it is not that on disk, as of another version of the codec, or without memory.
fn packed(at: &Stored, raw: &[u8]) -> Option<Vec<u8>> {
    let is_own = |encoded: &Vec<u8>| at.check(encoded).is_ok();
    memory::caught(|| {
        let encoded = codec::encode_as(at.codec, at.width, raw);
        if is_own(&encoded) {
            return Ok(Some(encoded));
        }
        Ok(codec::encode_formerly(at.codec, at.width, raw).filter(is_own))
    })
    .ok()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::disk::Digest;

    #[test]
    fn blocks_of_former_versions_are_packed_as_they_are_on_disk() {
        let rng = sconce_tensor::rng::Rng::new(3, "weights", 0);
        let weight = |i| ((0.05 * rng.normal(i)).to_bits() >> 16) as u16;
        let raw: Vec<u8> = (0..9000).flat_map(|i| weight(i).to_le_bytes()).collect();
        let (codec, width) = (Codec::Bits, 2);
        let now = codec::encode_as(codec, width, &raw);
        let former = codec::encode_formerly(codec, width, &raw).unwrap();
        assert!(now != former);
        for stored in [now, former] {
            let at = Stored {
                digest: Digest::of(&raw),
                pack: 0,
                offset: 40,
                raw: raw.len() as u32,
                stored: stored.len() as u32,
                codec,
                width,
                crc: crc32fast::hash(&stored),
            };
            assert!(packed(&at, &raw) == Some(stored));
        }
    }
}
