//! Memory counted per thread, memory available to the process, and refusal of large requests.
//!
//! An op allocates its result, and the activations that its backward pass reads, on the thread that calls it. Only the
//! scratch of a shard is allocated on other threads. The bytes counted on a training thread are therefore the bytes of
//! that training, whatever else the process does. (Exception: during inference over a window, layers that run in
//! parallel allocate on the threads where they run. These allocations are smaller than the values of a window.)

pub(crate) mod available;
pub(crate) mod refused;
mod room;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::hint::black_box;

pub use self::available::{Available, Bound, available};
pub use self::room::{
    WORTH, caught, copied, fits, granted, repeated, reserve, resize, room, set_release, uninit,
    with_capacity, zeros,
};
use crate::{Error, Result};

/// An allocator that counts the bytes that each thread allocates and frees.
///
/// A program installs it with `#[global_allocator]`. Without it [`Meter::start`] returns an error.
pub struct Counted<A>(pub A);

/// Smaller requests are negligible and not counted.
const LEAST: usize = 1024;

thread_local! {
    /// Bytes that this thread allocated, less the bytes that it freed. A thread may free memory of other threads.
    static TAKEN: Cell<isize> = const { Cell::new(0) };
    /// The maximum of `TAKEN` since the latest meter started.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: isize) {
    if bytes < LEAST {
        return;
    }
    // An ending thread has no thread-locals any more, and no meter is left to read them.
    let _ = TAKEN.try_with(|taken| {
        taken.set(taken.get() + sign * bytes as isize);
        PEAK.try_with(|peak| peak.set(peak.get().max(taken.get())))
    });
}

/// Counts an allocation unless the allocator refused it.
fn count_taken(memory: *mut u8, bytes: usize) {
    if !memory.is_null() {
        count(bytes, 1);
    }
}

// SAFETY: every request is passed unchanged to the allocator `A`, and its answer is returned. Counting accesses two
// thread-locals that have neither a destructor nor lazy initialisation, so counting neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counted<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc`.
        let memory = unsafe { self.0.alloc(layout) };
        count_taken(memory, layout.size());
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        let memory = unsafe { self.0.alloc_zeroed(layout) };
        count_taken(memory, layout.size());
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the memory comes from `self.alloc`, that is from `A`, with this layout.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the memory comes from `self.alloc`, that is from `A`, with this layout.
        let moved = unsafe { self.0.realloc(memory, layout, size) };
        if !moved.is_null() {
            count(size, 1);
            count(layout.size(), -1);
        }
        moved
    }
}

/// Measures the memory that the current thread allocates after [`Meter::start`].
pub struct Meter {
    before: isize,
    /// The peak of the enclosing meter.
    outer: isize,
}

impl Meter {
    /// Starts a meter on this thread. Meters may be nested.
    ///
    /// # Errors
    /// `Unavailable` in a program whose allocator does not count.
    pub fn start() -> Result<Meter> {
        let before = TAKEN.get();
        let probe = black_box(Vec::<u8>::with_capacity(LEAST));
        let counts = TAKEN.get() != before;
        drop(probe);
        match counts {
            true => Ok(Meter { before, outer: PEAK.replace(before) }),
            false => Err(Error::Unavailable {
                what: "a count of memory".into(),
                reason: "the program's allocator is not memory::Counted".into(),
            }),
        }
    }

    /// Peak bytes in use since the start.
    pub fn peak(&self) -> u64 {
        positive(PEAK.get() - self.before)
    }

    /// Bytes allocated since the start and not freed.
    pub fn kept(&self) -> u64 {
        positive(TAKEN.get() - self.before)
    }

    /// Peak bytes of temporary allocations: the peak less the bytes kept.
    pub fn passing(&self) -> u64 {
        positive(PEAK.get() - TAKEN.get().max(self.before))
    }
}

fn positive(bytes: isize) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

impl Drop for Meter {
    fn drop(&mut self) {
        PEAK.set(PEAK.get().max(self.outer));
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counted<System> = Counted(System);

    #[test]
    fn a_meter_measures_the_peak_and_the_kept_bytes_of_its_own_thread() {
        let outer = Meter::start().unwrap();
        let kept: Vec<u8> = vec![1; 10_000];
        let inner = Meter::start().unwrap();
        let mut grown: Vec<u8> = Vec::with_capacity(20_000);
        grown.extend_from_slice(&kept);
        grown.reserve_exact(40_000);
        drop(grown);
        std::thread::spawn(|| drop(black_box(vec![0u8; 1 << 20]))).join().unwrap();
        // When a vector grows, the old buffer exists until the new one is filled.
        assert_eq!((inner.peak(), inner.kept(), inner.passing()), (70_000, 0, 70_000));
        drop(inner);
        assert_eq!((outer.peak(), outer.kept(), outer.passing()), (80_000, 10_000, 70_000));
        drop(kept);
        assert_eq!(outer.kept(), 0);
    }

    #[test]
    fn counting_does_not_change_the_contents_of_memory() {
        let mut numbers: Vec<u64> = (0..1000).collect();
        numbers.extend(1000..100_000);
        numbers.shrink_to_fit();
        assert!(numbers.iter().enumerate().all(|(i, n)| i as u64 == *n));
        assert!(vec![0u64; 5000].iter().all(|n| *n == 0));
    }
}
