//! The allocator of all native memory.
//!
//! A training step frees the memory that the next one allocates. `mimalloc` returns freed pages to the system after a
//! second at the earliest; with the C library's allocator the kernel would zero them again at each step. Allocations of a
//! training are counted, see `Sconce.Trainer.plan/2`. With the feature `system-allocator` it is the C library's, which
//! heap profilers see.

use sconce_tensor::memory::Counted;

#[cfg(not(feature = "system-allocator"))]
pub(crate) use own::release;

#[cfg(feature = "system-allocator")]
#[global_allocator]
static ALLOCATOR: Counted<std::alloc::System> = Counted(std::alloc::System);

/// The C library keeps little, and does not say how much.
#[cfg(feature = "system-allocator")]
pub(crate) fn release() -> u64 {
    0
}

#[cfg(not(feature = "system-allocator"))]
mod own {
    use std::ffi::{CStr, c_char};

    use mimalloc::MiMalloc;

    use super::Counted;

    #[global_allocator]
    static ALLOCATOR: Counted<MiMalloc> = Counted(MiMalloc);

    unsafe extern "C" {
        safe fn mi_collect(force: bool);
        fn mi_stats_get_json(size: usize, buffer: *mut c_char) -> *mut c_char;
    }

    /// Returns free memory to the system at once. The result is the bytes of address space that the allocator has reserved
    /// and can hand out again.
    pub(crate) fn release() -> u64 {
        mi_collect(true);
        let mut text = vec![0 as c_char; 64 << 10];
        // SAFETY: the text is truncated to the buffer's length, ends with a zero, and lies in the buffer.
        let text = unsafe {
            let text = mi_stats_get_json(text.len(), text.as_mut_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text))
        };
        let statistics = text.and_then(|text| serde_json::from_slice(text.to_bytes()).ok());
        let statistics: serde_json::Value = statistics.unwrap_or_default();
        let bytes = |name: &str| statistics[name]["current"].as_u64();
        let (reserved, committed) = (bytes("reserved"), bytes("committed"));
        reserved
            .zip(committed)
            .map_or(0, |(reserved, committed)| reserved.saturating_sub(committed))
    }
}
