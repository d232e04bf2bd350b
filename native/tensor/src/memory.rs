//! What a thread takes of memory, counted where it is taken; what the process can still take; and refusal.
//!
//! A tensor belongs to whoever runs the op that makes it: ops take their results and what a backward
//! pass reads on the thread that calls them, and only the scratch of a shard elsewhere. What one thread
//! took is therefore what one training takes, whatever else the process is doing. (Layers of one game's
//! window that walk side by side, of a policy that does not learn, take theirs where they run: that is less
//! than a window's numbers.)

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

/// An allocator that counts for each thread what it takes and gives back.
///
/// Programs make it their own by `#[global_allocator]`; without it [`Meter::start`] is an error.
pub struct Counted<A>(pub A);

/// Less is a rounding error, and not worth counting.
const LEAST: usize = 1024;

thread_local! {
    /// Bytes that this thread took less those that it gave back, some of which others may have taken.
    static TAKEN: Cell<isize> = const { Cell::new(0) };
    /// The most that `TAKEN` was since the latest meter began.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: usize, sign: isize) {
    if bytes < LEAST {
        return;
    }
    // A thread at its end has no locals any more, and nobody who asks for them.
    let _ = TAKEN.try_with(|taken| {
        taken.set(taken.get() + sign * bytes as isize);
        PEAK.try_with(|peak| peak.set(peak.get().max(taken.get())))
    });
}

/// Counts what the allocator gave; a refusal takes nothing.
fn count_taken(memory: *mut u8, bytes: usize) {
    if !memory.is_null() {
        count(bytes, 1);
    }
}

// SAFETY: every request is handed to `A`, an allocator, as it came, and its answer is returned. Counting
// touches two numbers of the thread, which have no destructor and no lazy beginning: it neither
// allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counted<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is that of `alloc`.
        let memory = unsafe { self.0.alloc(layout) };
        count_taken(memory, layout.size());
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is that of `alloc_zeroed`.
        let memory = unsafe { self.0.alloc_zeroed(layout) };
        count_taken(memory, layout.size());
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the memory comes from `self.alloc`, which is `A`'s, with this layout.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the memory comes from `self.alloc`, which is `A`'s, with this layout.
        let moved = unsafe { self.0.realloc(memory, layout, size) };
        if !moved.is_null() {
            count(size, 1);
            count(layout.size(), -1);
        }
        moved
    }
}

/// Watches what its thread takes from its start on.
pub struct Meter {
    before: isize,
    /// The peak of the meter around this one.
    outer: isize,
}

impl Meter {
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

    /// Bytes at their most, beyond those before.
    pub fn peak(&self) -> u64 {
        positive(PEAK.get() - self.before)
    }

    /// Bytes that were not given back.
    pub fn kept(&self) -> u64 {
        positive(TAKEN.get() - self.before)
    }

    /// Bytes that were taken for a while, at their most.
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
    fn a_meter_tells_the_peak_and_what_was_kept_of_its_own_thread() {
        let outer = Meter::start().unwrap();
        let kept: Vec<u8> = vec![1; 10_000];
        let inner = Meter::start().unwrap();
        let mut grown: Vec<u8> = Vec::with_capacity(20_000);
        grown.extend_from_slice(&kept);
        grown.reserve_exact(40_000);
        drop(grown);
        std::thread::spawn(|| drop(black_box(vec![0u8; 1 << 20]))).join().unwrap();
        // The old place of what grows stands until the new one is there.
        assert_eq!((inner.peak(), inner.kept(), inner.passing()), (70_000, 0, 70_000));
        drop(inner);
        assert_eq!((outer.peak(), outer.kept(), outer.passing()), (80_000, 10_000, 70_000));
        drop(kept);
        assert_eq!(outer.kept(), 0);
    }

    #[test]
    fn memory_keeps_its_numbers_through_the_counting() {
        let mut numbers: Vec<u64> = (0..1000).collect();
        numbers.extend(1000..100_000);
        numbers.shrink_to_fit();
        assert!(numbers.iter().enumerate().all(|(i, n)| i as u64 == *n));
        assert!(vec![0u64; 5000].iter().all(|n| *n == 0));
    }
}
