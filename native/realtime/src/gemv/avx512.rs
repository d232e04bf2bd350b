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
    fetch(rows, later);
    let x = _mm512_set1_ps(now.value);
    // SAFETY: the caller's promise.
    let row = unsafe { rows.get_unchecked(now.row as usize) };
    for (sum, weights) in sums.iter_mut().zip(row) {
        // SAFETY: reads the 16 numbers of an array.
        *sum = unsafe { _mm512_fmadd_ps(_mm512_loadu_ps(weights.as_ptr()), x, *sum) };
    }
}

/// [`add`] of rows whose words are two bf16: with twice the sums, none waits for the one before.
///
/// # Safety
/// As of [`add`].
#[target_feature(enable = "avx512f")]
pub unsafe fn add_pairs<const T: usize>(
    low: &mut [[f32; LANES]; T],
    high: &mut [[f32; LANES]; T],
    rows: &[[[f32; LANES]; T]],
    entries: &[Entry],
) {
    // SAFETY: reads the 16 numbers of arrays.
    let load = |sums: &[[f32; LANES]; T]| sums.map(|sum| unsafe { _mm512_loadu_ps(sum.as_ptr()) });
    let (mut lows, mut highs) = (load(low), load(high));
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    let count = entries.len().saturating_sub(AHEAD);
    for (now, later) in entries[..count].iter().zip(&entries[AHEAD.min(entries.len())..]) {
        fetch(rows, *later);
        let x = _mm512_set1_ps(now.value);
        // SAFETY: the caller's promise.
        let row = unsafe { rows.get_unchecked(now.row as usize) };
        for ((low, high), words) in lows.iter_mut().zip(&mut highs).zip(row) {
            // SAFETY: reads the 16 words of an array.
            let words = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
            let first = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words));
            let second = _mm512_castsi512_ps(_mm512_and_si512(words, upper));
            *low = _mm512_fmadd_ps(first, x, *low);
            *high = _mm512_fmadd_ps(second, x, *high);
        }
    }
    for (sums, made) in [(low, lows), (high, highs)] {
        for (sum, made) in sums.iter_mut().zip(made) {
            // SAFETY: writes the 16 numbers of an array.
            unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), made) };
        }
    }
}

/// Fetches a row, which need not be there.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch<const T: usize>(rows: &[[[f32; LANES]; T]], later: Entry) {
    let row = rows.as_ptr().wrapping_add(later.row as usize).cast::<f32>();
    for t in 0..T {
        _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(t * LANES).cast());
    }
}
