//! How far the threads of a loader may be ahead of its caller.

use std::sync::{Condvar, Mutex, MutexGuard};

use sconce_tensor::{Result, memory};

use super::{MAX_PREFETCH, within};

/// The depth of a loader, which its threads and its callers share.
#[derive(Debug)]
pub struct Ahead {
    state: Mutex<State>,
    moved: Condvar,
    /// The largest depth, so that the batches stay within the bytes of the loader.
    most: usize,
    /// Bytes of a batch.
    bytes: u64,
    name: String,
}

#[derive(Debug)]
struct State {
    /// Batches that may be ready or being made.
    depth: usize,
    /// The step of the batch that the caller takes next.
    step: u64,
    /// Whether the loader was dropped.
    gone: bool,
}

impl Ahead {
    pub(super) fn new(name: &str, depth: usize, most: usize, step: u64, bytes: u64) -> Self {
        let state = Mutex::new(State { depth, step, gone: false });
        Ahead { state, moved: Condvar::new(), most, bytes, name: name.into() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until the batch of `step` may be begun. False if the loader was dropped.
    pub(super) fn wait(&self, step: u64) -> bool {
        let far = |s: &mut State| !s.gone && step.saturating_sub(s.step) >= s.depth as u64;
        let state = self.moved.wait_while(self.state(), far);
        !state.unwrap_or_else(|e| e.into_inner()).gone
    }

    /// The caller has taken the batch before `step`.
    pub(super) fn took(&self, step: u64) {
        self.state().step = step;
        self.moved.notify_all();
    }

    /// Ends all waits.
    pub(super) fn end(&self) {
        self.state().gone = true;
        self.moved.notify_all();
    }

    /// The present depth.
    pub fn depth(&self) -> usize {
        self.state().depth
    }

    /// Bytes of a batch.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the depth, and returns it; the byte limit of the loader may have lowered it. Batches that are ready stay.
    /// The number of threads does not change.
    ///
    /// # Errors
    /// `OutOfRange` for a depth of 0 or more than the largest one; `OutOfMemory` if more batches do not fit.
    pub fn set(&self, depth: usize) -> Result<usize> {
        within("prefetch", depth as u64, 1, MAX_PREFETCH)?;
        let depth = depth.min(self.most);
        let more = depth.saturating_sub(self.depth()) as u64;
        memory::room(&format!("batches of {}", self.name), self.bytes.saturating_mul(more))?;
        self.state().depth = depth;
        self.moved.notify_all();
        Ok(depth)
    }
}
