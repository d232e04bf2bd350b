//! On which processors threads run.
//!
//! On Linux a thread starts on the processors of the one that starts it. Where the VM binds its schedulers (`+sbt`) that
//! is one processor, on which all threads that a scheduler starts would stay together.

/// Lets the present thread run wherever the process may.
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

/// A bit for each of the most processors that Linux can have.
#[cfg(target_os = "linux")]
type Processors = [u64; 128];

/// Those of a thread, 0 being the present one. The thread with the number of the process is its first, which the VM
/// does not bind.
#[cfg(target_os = "linux")]
fn processors(thread: u32) -> Option<Processors> {
    let thread = libc::pid_t::try_from(thread).ok()?;
    let mut set: Processors = [0; 128];
    // SAFETY: it writes bits to as many bytes as it is told there are.
    let told = unsafe { libc::sched_getaffinity(thread, size_of_val(&set), (&raw mut set).cast()) };
    (told == 0).then_some(set)
}

/// Has the present thread run on these. A refusal leaves it as it was.
#[cfg(target_os = "linux")]
fn bind(to: &Processors) -> bool {
    // SAFETY: it reads bits from as many bytes as it is told there are.
    unsafe { libc::sched_setaffinity(0, size_of_val(to), (&raw const *to).cast()) == 0 }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::pool::{Class, available};

    #[test]
    fn threads_of_a_thread_that_is_bound_to_one_processor_are_not() {
        let process = processors(std::process::id());
        let bound = std::thread::spawn(|| {
            // SAFETY: it takes nothing.
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
