//! The allocator of everything native.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay`, by its place in `mimalloc.h`; the binding has no name for it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// Longer than the time between two steps: freed pages go back to the system a second later.
const MILLISECONDS: i64 = 1000;

/// Freed memory is what the next step takes; given back at once the kernel would zero it anew.
pub fn keep_for_the_next_step() {
    // SAFETY: an option by number and a plain value; the allocator reads it at its next purge.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, MILLISECONDS as std::ffi::c_long) };
}
