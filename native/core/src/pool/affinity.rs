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
        let size = size_of_val(&process);
        // SAFETY: it reads a set of that size. 0 is the calling thread, and a refusal leaves it as it was.
        unsafe { libc::sched_setaffinity(0, size, &raw const process) };
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn release() {}

/// Those of a thread, 0 being the present one. The thread with the number of the process is its first, which the VM
/// does not bind.
#[cfg(target_os = "linux")]
fn processors(thread: u32) -> Option<libc::cpu_set_t> {
    let thread = libc::pid_t::try_from(thread).ok()?;
    // SAFETY: an empty set is all zeros.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: it writes a set of that size.
    let told = unsafe { libc::sched_getaffinity(thread, size_of_val(&set), &raw mut set) };
    (told == 0).then_some(set)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::pool::{Class, available};

    #[test]
    fn threads_of_a_thread_that_is_bound_to_one_processor_are_not() {
        let process = processors(std::process::id());
        let bound = std::thread::spawn(|| {
            // SAFETY: an empty set is all zeros.
            let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            // SAFETY: it takes a number alone.
            let here = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
            // SAFETY: the processor is one of the set's.
            unsafe { libc::CPU_SET(here, &mut one) };
            // SAFETY: it reads a set of that size.
            assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&one), &one) }, 0);
            let freed = std::thread::spawn(|| {
                Class::Foreground.enter();
                (available(), processors(0))
            });
            (processors(0) == Some(one), freed.join().unwrap())
        });
        assert_eq!(bound.join().unwrap(), (true, (available(), process)));
    }
}
