//! Processor affinity of threads.
//!
//! On Linux a thread inherits the affinity of the thread that starts it. If the VM binds its schedulers (`+sbt`), all
//! threads that a scheduler starts would run on the scheduler's one processor.

/// Lets the current thread run on all processors of the process.
#[cfg(target_os = "linux")]
pub(super) fn release() {
    if let (Some(own), Some(process)) = (processors(0), processors(std::process::id()))
        && own != process
    {
        bind(&process);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn release() {}

/// One bit for each processor, up to the largest number that Linux supports.
#[cfg(target_os = "linux")]
type Processors = [u64; 128];

/// The affinity of a thread; 0 is the current one. The thread whose id is the process id is the first thread, which the
/// VM does not bind.
#[cfg(target_os = "linux")]
fn processors(thread: u32) -> Option<Processors> {
    let thread = libc::pid_t::try_from(thread).ok()?;
    let mut set: Processors = [0; 128];
    // SAFETY: the call writes at most `size_of_val(&set)` bytes to `set`.
    let told = unsafe { libc::sched_getaffinity(thread, size_of_val(&set), (&raw mut set).cast()) };
    (told == 0).then_some(set)
}

/// Sets the affinity of the current thread. On failure the affinity is unchanged.
#[cfg(target_os = "linux")]
fn bind(to: &Processors) -> bool {
    // SAFETY: the call reads `size_of_val(to)` bytes from `to`.
    unsafe { libc::sched_setaffinity(0, size_of_val(to), (&raw const *to).cast()) == 0 }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::pool::{Class, available};

    #[test]
    fn a_thread_started_by_a_bound_thread_may_run_on_all_processors() {
        let process = processors(std::process::id());
        let bound = std::thread::spawn(|| {
            // SAFETY: the function has no arguments.
            let here = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
            let mut one: Processors = [0; 128];
            one[here / 64] |= 1 << (here % 64);
            assert!(bind(&one));
            let freed = std::thread::spawn(|| {
                Class::Foreground.enter();
                processors(0)
            });
            (processors(0) == Some(one), available(), freed.join().unwrap())
        });
        assert_eq!(bound.join().unwrap(), (true, available(), process));
    }
}
