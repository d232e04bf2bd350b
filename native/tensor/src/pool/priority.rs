//! How background threads give way to all other threads of the machine.
//!
//! Measured beside a thread that wakes each millisecond, with two threads that compute without a pause on two cores
//! (Linux 6.18): p99 of its delay is 2 to 4 ms beside ordinary threads and beside those of `SCHED_BATCH`, which
//! therefore is no choice here, and 0.1 ms beside nice 19 and `SCHED_IDLE`.
//!
//! Beside an import p99 is 4 ms, a tick: a thread that has waited for a disk has time to its credit, which Linux lets
//! it run on before others that wake, whatever its weight. `sched_yield` at each step of an import (64 KB of a digest,
//! 16 KB of a replay, a column) halved that, and was not kept: p99.9 rose from 6 ms to between 5 and 38, probably
//! because who yields loses its turn also where it then holds a lock that the VM waits for, and a sixth fewer games
//! were read. A slice of 0.1 ms (`sched_setattr`) changed nothing: p99 3.4 to 5.3 ms, p99.9 5 to 67, beside 3.8 to 4.8
//! and 5 to 14 without it, three runs each.

use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// The least weight of an ordinary thread, nice 19: some 1.5 % of a core that others want all of.
    #[default]
    Nice,
    /// `SCHED_IDLE`: a fifth of that.
    Idle,
    /// That of any other thread.
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

/// Gives the present thread the priority of the background. A system that refuses leaves it as it is.
pub(super) fn give_way() {
    take(background());
}

/// Whether a thread of this process can have the priority of the background, which a thread that ends at once finds
/// out.
pub(super) fn is_given() -> bool {
    let tried = std::thread::Builder::new().name("sconce-priority".into());
    let tried = tried.spawn(|| take(background()));
    tried.is_ok_and(|thread| thread.join().unwrap_or(false))
}

#[cfg(target_os = "linux")]
fn take(priority: Priority) -> bool {
    match priority {
        Priority::Normal => true,
        // SAFETY: it takes numbers alone. On Linux 0 is the calling thread, not its process.
        Priority::Nice => unsafe { libc::setpriority(libc::PRIO_PROCESS as _, 0, LOWEST) == 0 },
        Priority::Idle => {
            let ordinary = libc::c_int::default();
            // SAFETY: it reads one number, the priority, which is 0 for this policy. musl has the call and no
            // function for it. Again 0 is the calling thread.
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

/// Elsewhere a priority is the whole process's, or is not to be had without a privilege.
#[cfg(not(target_os = "linux"))]
fn take(priority: Priority) -> bool {
    priority == Priority::Normal
}

/// The largest nice value.
#[cfg(target_os = "linux")]
const LOWEST: libc::c_int = 19;

/// Nice value of the present thread.
#[cfg(all(test, target_os = "linux"))]
pub(super) fn nice() -> i32 {
    // SAFETY: it takes numbers alone.
    unsafe { libc::getpriority(libc::PRIO_PROCESS as _, 0) }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn a_priority_is_that_of_its_thread_alone() {
        let before = nice();
        assert_eq!(on_a_thread(|| (take(Priority::Nice), nice())), (true, LOWEST));
        assert_eq!(on_a_thread(|| (take(Priority::Normal), nice())), (true, before));
        assert_eq!(nice(), before);
    }

    #[test]
    fn an_idle_thread_has_the_policy_of_idle_threads() {
        // SAFETY: it takes a number alone.
        let policy = || unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        let before = policy();
        let given = on_a_thread(|| (take(Priority::Idle), policy()));
        assert_eq!(given, (true, libc::SCHED_IDLE.into()));
        assert_eq!(policy(), before);
    }
}
