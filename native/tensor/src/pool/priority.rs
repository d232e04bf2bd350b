//! The priority of background threads, below all other threads of the machine.
//!
//! Measured as the p99 wake-up delay of a thread that wakes each millisecond, while two threads compute without a pause
//! on two cores (Linux 6.18): 2 to 4 ms beside ordinary threads and beside `SCHED_BATCH` threads, so `SCHED_BATCH` is
//! not offered here; 0.1 ms beside nice 19 and `SCHED_IDLE`.
//!
//! During an import p99 is 4 ms, one tick: a thread that has waited for a disk has run time to its credit, and Linux
//! lets it run before other waking threads, whatever its weight. Two remedies were tried and not kept. `sched_yield` at
//! each step of an import (64 KB of a digest, 16 KB of a replay, a column) halved p99, but p99.9 rose from 6 ms to
//! between 5 and 38 ms, probably because a thread that yields loses its turn even if it holds a lock that the VM waits
//! for, and a sixth fewer games were read. A slice of 0.1 ms (`sched_setattr`) changed nothing: p99 3.4 to 5.3 ms and
//! p99.9 5 to 67 ms with it, 3.8 to 4.8 ms and 5 to 14 ms without it, three runs each.

use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

/// The priority of background threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Nice 19, the lowest weight of an ordinary thread: about 1.5 % of a core that other threads use fully.
    #[default]
    Nice,
    /// `SCHED_IDLE`: a fifth of nice 19's weight.
    Idle,
    /// The priority of any other thread.
    Normal,
}

static BACKGROUND: AtomicU8 = AtomicU8::new(Priority::Nice as u8);

fn background() -> Priority {
    match BACKGROUND.load(Ordering::Relaxed) {
        normal if normal == Priority::Normal as u8 => Priority::Normal,
        idle if idle == Priority::Idle as u8 => Priority::Idle,
        _ => Priority::Nice,
    }
}

/// Sets the priority of background threads that start from now on.
pub(super) fn set(priority: Priority) {
    BACKGROUND.store(priority as u8, Ordering::Relaxed);
}

/// Gives the current thread the background priority. On failure the priority is unchanged.
pub(super) fn give_way() {
    take(background());
}

/// Whether a thread of this process can get the background priority. A short-lived thread tries it.
pub(super) fn is_given() -> bool {
    let tried = std::thread::Builder::new().name("sconce-priority".into());
    let tried = tried.spawn(|| take(background()));
    tried.is_ok_and(|thread| thread.join().unwrap_or(false))
}

#[cfg(target_os = "linux")]
fn take(priority: Priority) -> bool {
    match priority {
        Priority::Normal => true,
        // SAFETY: all arguments are numbers. On Linux 0 is the calling thread, not its process.
        Priority::Nice => unsafe { libc::setpriority(libc::PRIO_PROCESS as _, 0, LOWEST) == 0 },
        Priority::Idle => {
            let ordinary = libc::c_int::default();
            // SAFETY: the call reads one number, the priority, which is 0 for this policy. musl has no wrapper for the
            // call. 0 is again the calling thread.
            let refused = unsafe {
                libc::syscall(
                    libc::SYS_sched_setscheduler,
                    0,
                    libc::SCHED_IDLE,
                    &raw const ordinary,
                )
            };
            refused == 0
        }
    }
}

/// On other systems a priority applies to the whole process or needs a privilege.
#[cfg(not(target_os = "linux"))]
fn take(priority: Priority) -> bool {
    priority == Priority::Normal
}

/// The largest nice value.
#[cfg(target_os = "linux")]
const LOWEST: libc::c_int = 19;

/// The nice value of the current thread.
#[cfg(all(test, target_os = "linux"))]
pub(super) fn nice() -> i32 {
    // SAFETY: all arguments are numbers.
    unsafe { libc::getpriority(libc::PRIO_PROCESS as _, 0) }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn a_priority_applies_to_its_thread_alone() {
        let before = nice();
        assert_eq!(on_a_thread(|| (take(Priority::Nice), nice())), (true, LOWEST));
        assert_eq!(on_a_thread(|| (take(Priority::Normal), nice())), (true, before));
        assert_eq!(nice(), before);
    }

    #[test]
    fn an_idle_thread_has_the_policy_of_idle_threads() {
        // SAFETY: the only argument is a number.
        let policy = || unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        let before = policy();
        let given = on_a_thread(|| (take(Priority::Idle), policy()));
        assert_eq!(given, (true, libc::SCHED_IDLE.into()));
        assert_eq!(policy(), before);
    }
}
