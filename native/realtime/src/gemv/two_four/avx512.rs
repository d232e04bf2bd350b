//! The kernel for AVX-512.

use std::arch::x86_64::*;

use super::{BLOCK, FOUR, GROUPS, Panel, Sums, Vector, groups_of};

/// Distance of the prefetch, in rows.
const AHEAD: usize = 8;

/// Adds to the sums of each of `R` vectors the products of its live groups and the weights of a panel.
///
/// # Safety
/// The CPU has AVX-512F, the panel has the rows of the live groups, and the vectors have the groups of these blocks.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add<const R: usize>(
    sums: &mut [Sums; R],
    panel: &Panel,
    x: [&[[f32; FOUR]]; R],
    live: &[u32],
) {
    // The sums, the places and the values fit in 32 registers.
    let most = match R {
        1 => 8,
        _ => 4,
    };
    let mut at = 0;
    while at < panel.vectors {
        // SAFETY: the caller guarantees features, rows and groups, and the stripe ends within a row.
        at += unsafe {
            match most.min(panel.vectors - at) {
                8 => stripe::<8, R>(sums, panel, at, x, live),
                7 => stripe::<7, R>(sums, panel, at, x, live),
                6 => stripe::<6, R>(sums, panel, at, x, live),
                5 => stripe::<5, R>(sums, panel, at, x, live),
                4 => stripe::<4, R>(sums, panel, at, x, live),
                3 => stripe::<3, R>(sums, panel, at, x, live),
                2 => stripe::<2, R>(sums, panel, at, x, live),
                _ => stripe::<1, R>(sums, panel, at, x, live),
            }
        };
    }
}

/// [`add`] for the `T` SIMD vectors of sums from `at` on, which stay in registers.
///
/// # Safety
/// As for [`add`], and `at + T <= panel.vectors`.
#[target_feature(enable = "avx512f")]
unsafe fn stripe<const T: usize, const R: usize>(
    sums: &mut [Sums; R],
    panel: &Panel,
    at: usize,
    x: [&[[f32; FOUR]]; R],
    live: &[u32],
) -> usize {
    let mut all = [[_mm512_setzero_ps(); T]; R];
    for (all, sums) in all.iter_mut().zip(sums.iter()) {
        for (all, sum) in all.iter_mut().zip(&sums[at..at + T]) {
            // SAFETY: reads the 16 values of an array.
            *all = unsafe { _mm512_loadu_ps(sum.as_ptr()) };
        }
    }
    let x = x.map(<[[f32; FOUR]]>::as_ptr);
    let row = |row: usize| panel.weights.as_ptr().wrapping_add(row * panel.vectors + at);
    for (block, live) in live.iter().enumerate().filter(|(_, live)| **live != 0) {
        let live = groups_of(*live);
        let first = row(block * BLOCK);
        let mut places = [_mm512_setzero_si512(); T];
        for (t, places) in places.iter_mut().enumerate() {
            // SAFETY: the caller guarantees the rows of a block with a live group.
            *places = unsafe { _mm512_loadu_si512(first.wrapping_add(t).cast()) };
        }
        let mut values = first.wrapping_add(panel.vectors);
        for group in 0..GROUPS {
            if live >> (FOUR * group) & 1 == 1 {
                for _ in 0..2 {
                    fetch::<T>(values.wrapping_add(AHEAD * panel.vectors));
                    // SAFETY: the caller guarantees the rows of a live group, and the groups of the vectors.
                    unsafe { row_of(&mut all, &places, values, x, block * GROUPS + group) };
                    values = values.wrapping_add(panel.vectors);
                    places = places.map(|places| _mm512_srli_epi32::<2>(places));
                }
            } else {
                values = values.wrapping_add(2 * panel.vectors);
                places = places.map(|places| _mm512_srli_epi32::<4>(places));
            }
        }
    }
    for (all, sums) in all.into_iter().zip(sums) {
        for (made, sum) in all.into_iter().zip(&mut sums[at..at + T]) {
            // SAFETY: writes the 16 values of an array.
            unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), made) };
        }
    }
    T
}

/// Adds the products of a row of values and the inputs that the lowest bits of the places pick.
///
/// # Safety
/// `values` points to `T` SIMD vectors, and the vectors have the group.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn row_of<const T: usize, const R: usize>(
    all: &mut [[__m512; T]; R],
    places: &[__m512i; T],
    values: *const Vector,
    x: [*const [f32; FOUR]; R],
    group: usize,
) {
    // SAFETY: the caller guarantees the group.
    let inputs =
        x.map(|x| _mm512_broadcast_f32x4(unsafe { _mm_loadu_ps(x.wrapping_add(group).cast()) }));
    for (t, places) in places.iter().enumerate() {
        // SAFETY: the caller guarantees the values.
        let values = unsafe { _mm512_loadu_ps(values.wrapping_add(t).cast()) };
        for (all, inputs) in all.iter_mut().zip(inputs) {
            all[t] = _mm512_fmadd_ps(values, _mm512_permutevar_ps(inputs, *places), all[t]);
        }
    }
}

/// Prefetches `T` SIMD vectors. The addresses need not be valid.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch<const T: usize>(row: *const Vector) {
    for t in 0..T {
        _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(t).cast());
    }
}
