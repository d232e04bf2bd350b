//! Panels in vectors of 16.

use std::arch::x86_64::*;

use sconce_core::ops::simd::LANES;

use super::{AHEAD, Entry};

type Sums<const T: usize> = [__m512; T];

/// Adds to the sums each row of a panel times what its entry says, two rows at a time: an addition that
/// waited for the one before would be slower than the memory. The last [`AHEAD`] entries are not added.
///
/// # Safety
/// The CPU has AVX-512F, and all entries but the last [`AHEAD`] are of rows that there are.
#[target_feature(enable = "avx512f")]
pub unsafe fn add<const T: usize>(
    sums: &mut [[f32; LANES]; T],
    rows: &[[[f32; LANES]; T]],
    entries: &[Entry],
) {
    let (mut even, mut odd) = ([_mm512_setzero_ps(); T], [_mm512_setzero_ps(); T]);
    for (even, sums) in even.iter_mut().zip(sums.iter()) {
        // SAFETY: reads the 16 numbers of an array.
        *even = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
    }
    let count = entries.len().saturating_sub(AHEAD);
    let now = entries[..count].as_chunks::<2>();
    let later = entries[AHEAD.min(entries.len())..].as_chunks::<2>();
    for (now, later) in now.0.iter().zip(later.0) {
        // SAFETY: the caller's promise.
        unsafe {
            row(&mut even, rows, now[0], later[0]);
            row(&mut odd, rows, now[1], later[1]);
        }
    }
    for last in now.1 {
        // SAFETY: the caller's promise.
        unsafe { row(&mut even, rows, *last, *last) };
    }
    for ((even, odd), sums) in even.into_iter().zip(odd).zip(sums) {
        // SAFETY: writes the 16 numbers of an array.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), _mm512_add_ps(even, odd)) };
    }
}

/// Adds one row, and fetches another, which need not be there.
///
/// # Safety
/// The CPU has AVX-512F, and the row of `now` is there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn row<const T: usize>(
    sums: &mut Sums<T>,
    rows: &[[[f32; LANES]; T]],
    now: Entry,
    later: Entry,
) {
    let x = _mm512_set1_ps(now.value);
    let next = rows.as_ptr().wrapping_add(later.row as usize).cast::<f32>();
    // SAFETY: the caller's promise.
    let row = unsafe { rows.get_unchecked(now.row as usize) };
    for (t, (sum, weights)) in sums.iter_mut().zip(row).enumerate() {
        // SAFETY: reads the 16 numbers of an array; fetching reads nothing.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(t * LANES).cast());
            *sum = _mm512_fmadd_ps(_mm512_loadu_ps(weights.as_ptr()), x, *sum);
        }
    }
}
