//! The kernel for AVX2.

use std::arch::x86_64::*;

use sconce_tensor::simd::LANES;

use super::{BLOCK, FOUR, GROUPS, Panel, Sums, groups_of};

/// Adds to the sums of each of `R` vectors the products of its live groups and the weights of a panel.
///
/// # Safety
/// The CPU has AVX2 and FMA, the panel has the rows of the live groups, and the vectors have the groups of these blocks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn add<const R: usize>(
    sums: &mut [Sums; R],
    panel: &Panel,
    x: [&[[f32; FOUR]]; R],
    live: &[u32],
) {
    for (sums, x) in sums.iter_mut().zip(x) {
        let mut at = 0;
        while at < panel.vectors {
            // SAFETY: the caller guarantees features, rows and groups, and the stripe ends within a row.
            at += unsafe {
                match panel.vectors - at {
                    3.. => stripe::<3, 6>(sums, panel, at, x, live),
                    2 => stripe::<2, 4>(sums, panel, at, x, live),
                    _ => stripe::<1, 2>(sums, panel, at, x, live),
                }
            };
        }
    }
}

/// [`add`] for one vector and the `T` SIMD vectors of sums from `at` on, as `H = 2 T` halves that stay in registers.
///
/// # Safety
/// As for [`add`], and `at + T <= panel.vectors`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn stripe<const T: usize, const H: usize>(
    sums: &mut Sums,
    panel: &Panel,
    at: usize,
    x: &[[f32; FOUR]],
    live: &[u32],
) -> usize {
    let row = |row: usize| panel.weights.as_ptr().wrapping_add(row * panel.vectors + at);
    let own: *mut f32 = sums[at..at + T].as_flattened_mut().as_mut_ptr();
    let mut all = [_mm256_setzero_ps(); H];
    for (h, all) in all.iter_mut().enumerate() {
        // SAFETY: reads `H` times 8 of the `T` times 16 sums.
        *all = unsafe { _mm256_loadu_ps(own.add(h * LANES / 2)) };
    }
    for (block, live) in live.iter().enumerate().filter(|(_, live)| **live != 0) {
        let live = groups_of(*live);
        let first = row(block * BLOCK).cast::<f32>();
        let mut places = [_mm256_setzero_si256(); H];
        for (h, places) in places.iter_mut().enumerate() {
            // SAFETY: the caller guarantees the rows of a block with a live group.
            *places = unsafe { _mm256_loadu_si256(first.add(h * LANES / 2).cast()) };
        }
        for group in 0..GROUPS {
            if live >> (FOUR * group) & 1 == 0 {
                places = places.map(|places| _mm256_srli_epi32::<4>(places));
                continue;
            }
            // SAFETY: the caller guarantees the groups of the block.
            let four = unsafe { _mm_loadu_ps(x.as_ptr().add(block * GROUPS + group).cast()) };
            let inputs = _mm256_set_m128(four, four);
            for j in 0..2 {
                let values = row(block * BLOCK + 1 + 2 * group + j).cast::<f32>();
                for (h, (all, places)) in all.iter_mut().zip(&mut places).enumerate() {
                    // SAFETY: the caller guarantees the rows of a live group.
                    let values = unsafe { _mm256_loadu_ps(values.add(h * LANES / 2)) };
                    *all = _mm256_fmadd_ps(values, _mm256_permutevar_ps(inputs, *places), *all);
                    *places = _mm256_srli_epi32::<2>(*places);
                }
            }
        }
    }
    for (h, made) in all.into_iter().enumerate() {
        // SAFETY: writes `H` times 8 of the `T` times 16 sums.
        unsafe { _mm256_storeu_ps(own.add(h * LANES / 2), made) };
    }
    T
}
