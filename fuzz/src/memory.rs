//! An allocator that counts the allocated bytes of the process, and refuses allocations beyond a limit.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Maximum allocated bytes of the process. An allocation beyond the limit is refused, which ends a process that
/// does not use `try_reserve`. The limit protects the machine's memory.
const LIMIT: usize = 1536 << 20;

pub struct Counted;

fn add(bytes: usize) -> bool {
    let taken = TAKEN.fetch_add(bytes, Relaxed) + bytes;
    if taken > LIMIT {
        TAKEN.fetch_sub(bytes, Relaxed);
        return false;
    }
    PEAK.fetch_max(taken, Relaxed);
    true
}

// SAFETY: every request is forwarded unchanged to the system's allocator, or refused with a null pointer,
// as an allocator may. Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !add(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !add(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the memory was allocated by `alloc`, hence by the system's allocator, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !add(size) {
            return ptr::null_mut();
        }
        // SAFETY: the memory was allocated by `alloc`, hence by the system's allocator, with this layout.
        let moved = unsafe { System.realloc(memory, layout, size) };
        TAKEN.fetch_sub(if moved.is_null() { size } else { layout.size() }, Relaxed);
        moved
    }
}

/// Peak of allocated bytes since the last [`reset`], minus `before`.
pub fn peak(before: usize) -> usize {
    PEAK.load(Relaxed).saturating_sub(before)
}

/// Resets the peak, and returns the bytes allocated now.
pub fn reset() -> usize {
    let taken = TAKEN.load(Relaxed);
    PEAK.store(taken, Relaxed);
    taken
}
