//! The rows of a panel that a product reads.

use super::Vector;

/// The rows to read from a panel, in order.
pub(super) trait Rows: Copy {
    fn len(&self) -> usize;

    /// The input of the `i`-th row.
    fn input(&self, i: usize) -> usize;

    /// Prefetches a part of the next block of weights.
    fn fetch(&self, i: usize);

    /// Returns these rows with the next part to prefetch.
    fn ahead(self) -> Self;
}

/// All rows of a block.
#[derive(Clone, Copy)]
pub(super) struct All {
    pub(super) first: usize,
    pub(super) len: usize,
    pub(super) next: *const Vector,
}

impl Rows for All {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn input(&self, i: usize) -> usize {
        self.first + i
    }

    #[inline(always)]
    fn fetch(&self, i: usize) {
        fetch(self.next.wrapping_add(i));
    }

    #[inline(always)]
    fn ahead(self) -> Self {
        All { next: self.next.wrapping_add(self.len), ..self }
    }
}

/// The rows of some inputs.
impl Rows for &[u32] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u32]>::len(self)
    }

    #[inline(always)]
    fn input(&self, i: usize) -> usize {
        self[i] as usize
    }

    #[inline(always)]
    fn fetch(&self, _i: usize) {}

    #[inline(always)]
    fn ahead(self) -> Self {
        self
    }
}

/// Prefetches a SIMD vector. The address need not be valid.
#[inline(always)]
fn fetch(vector: *const Vector) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it ignores invalid addresses.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(vector.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = vector;
}
