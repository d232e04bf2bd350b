//! An allocator that counts what the whole process takes, and refuses more than a limit.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Bytes that no input may reach: an allocation beyond is refused, which ends a process that does not ask
/// by `try_reserve`. The machine keeps its memory.
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

// SAFETY: every request is handed to the system's allocator as it came, or refused with a null pointer, as an
// allocator may. Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !add(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: the caller's promise is that of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !add(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: the caller's promise is that of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the memory comes from `alloc`, which is the system's, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !add(size) {
            return ptr::null_mut();
        }
        // SAFETY: the memory comes from `alloc`, which is the system's, with this layout.
        let moved = unsafe { System.realloc(memory, layout, size) };
        TAKEN.fetch_sub(if moved.is_null() { size } else { layout.size() }, Relaxed);
        moved
    }
}

/// Bytes at their most since the last [`reset`], beyond those at that time.
pub fn peak(before: usize) -> usize {
    PEAK.load(Relaxed).saturating_sub(before)
}

/// Begins to count anew; what is taken now.
pub fn reset() -> usize {
    let taken = TAKEN.load(Relaxed);
    PEAK.store(taken, Relaxed);
    taken
}
