//! The handle of environments, and the right of one call at a time to use them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::{mem, thread};

use rustler::{Resource, ResourceArc};
use sconce_tensor::{Error, Result};

use super::buffers::EnvBuffers;
use crate::border::Handled;

/// Longest step that runs on the caller's scheduler, in microseconds: a tenth of what a native call may take.
const INLINE_US: f64 = 100.0;

/// Environments that any process may use, one call at a time.
///
/// 1. They are `Idle`, or `Working` while a call has them. A call takes them out, so no lock is held while it computes,
///    and puts them back; a second call finds them `Working` and is `:busy`.
/// 2. A panic may leave them half stepped. They are then `Broken`, and each call is an error of kind `:panic`.
/// 3. A call of a process that dies is completed. The last reference frees them.
pub(super) struct EnvHandle {
    slot: Mutex<Slot>,
    inline: bool,
    /// Steps of all environments.
    steps: AtomicU64,
}

enum Slot {
    Idle(Box<EnvBuffers>),
    Working,
    Broken,
}

#[rustler::resource_impl]
impl Resource for EnvHandle {}

impl Handled for EnvHandle {
    const NOUN: &'static str = "environments";
}

impl EnvHandle {
    pub(super) fn new(buffers: EnvBuffers, step_us: f64) -> ResourceArc<Self> {
        ResourceArc::new(EnvHandle {
            slot: Mutex::new(Slot::Idle(Box::new(buffers))),
            inline: step_us <= INLINE_US,
            steps: AtomicU64::default(),
        })
    }

    pub(super) fn is_inline(&self) -> bool {
        self.inline
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The lock is held for a move of a pointer only.
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Environments that one call has taken. Dropping this puts them back.
pub(super) struct Taken {
    handle: ResourceArc<EnvHandle>,
    buffers: Option<Box<EnvBuffers>>,
}

impl Taken {
    pub(super) fn new(handle: ResourceArc<EnvHandle>) -> Result<Self> {
        let mut slot = handle.slot();
        let refused = match &*slot {
            Slot::Idle(_) => None,
            Slot::Working => Some(Error::Busy { what: "environments".into() }),
            Slot::Broken => Some(broken()),
        };
        if let Some(refused) = refused {
            return Err(refused);
        }
        let before = mem::replace(&mut *slot, Slot::Working);
        drop(slot);
        let buffers = match before {
            Slot::Idle(buffers) => Some(buffers),
            Slot::Working | Slot::Broken => None,
        };
        Ok(Taken { handle, buffers })
    }

    pub(super) fn is_inline(&self) -> bool {
        self.handle.inline
    }

    pub(super) fn buffers(&mut self) -> Result<&mut EnvBuffers> {
        self.buffers.as_deref_mut().ok_or_else(broken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let after = match self.buffers.take() {
            Some(buffers) if !thread::panicking() => {
                self.handle.steps.store(buffers.steps(), Ordering::Relaxed);
                Slot::Idle(buffers)
            }
            _ => Slot::Broken,
        };
        *self.handle.slot() = after;
    }
}

fn broken() -> Error {
    Error::Panic { message: "an earlier call on these environments panicked".into() }
}
