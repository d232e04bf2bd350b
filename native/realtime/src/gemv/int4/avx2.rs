//! The kernel for AVX2.

use std::arch::x86_64::*;

use sconce_tensor::simd::LANES;

use super::{BLOCK, Panel, Row, Sums, Vector, WORDS};

/// Adds to the sums of a vector the products of its live blocks and the weights of a panel.
///
/// # Safety
/// The CPU has AVX2 and FMA, and the panel has the rows of these blocks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn add(sums: &mut Sums, panel: &Panel, x: Row, live: &[bool]) {
    let mut at = 0;
    while at < panel.vectors {
        // SAFETY: the caller guarantees features and rows, and the stripe ends within a row.
        at += unsafe {
            match panel.vectors - at {
                2.. => stripe::<2, 4>(sums, panel, at, x, live),
                _ => stripe::<1, 2>(sums, panel, at, x, live),
            }
        };
    }
}

/// [`add`] for the `T` SIMD vectors of sums from `at` on, as `H = 2 T` halves that stay in registers.
///
/// # Safety
/// As for [`add`], and `at + T <= panel.vectors`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn stripe<const T: usize, const H: usize>(
    sums: &mut Sums,
    panel: &Panel,
    at: usize,
    x: Row,
    live: &[bool],
) -> usize {
    let (lower, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let row = panel.vectors;
    let half = |words: *const Vector, h: usize| words.cast::<f32>().wrapping_add(h * LANES / 2);
    let sums = &mut sums[at..at + T];
    let own: *mut f32 = sums.as_flattened_mut().as_mut_ptr();
    let mut all = [_mm256_setzero_ps(); H];
    for (h, all) in all.iter_mut().enumerate() {
        // SAFETY: reads `H` times 8 of the `T` times 16 sums.
        *all = unsafe { _mm256_loadu_ps(own.add(h * LANES / 2)) };
    }
    let mut words: *const Vector = panel.weights.as_ptr().wrapping_add(at);
    let mut first = 0;
    for live in live.chunks(panel.blocks()) {
        let scales = words;
        words = words.wrapping_add(row);
        let mut parts = [_mm256_setzero_ps(); H];
        for (block, live) in live.iter().enumerate() {
            if *live {
                let (shared, codes) = (x.shared[first + block], &x.codes[first + block]);
                // A sum of 16 bits holds 16 products of at most 15 * 127.
                let mut pairs = [_mm256_setzero_si256(); H];
                for k in 0..WORDS {
                    let words = words.wrapping_add(k * row);
                    let (lows, highs) = (four(codes, 8 * k), four(codes, 8 * k + 4));
                    for (h, pairs) in pairs.iter_mut().enumerate() {
                        // SAFETY: the caller guarantees the rows of the block.
                        let both = unsafe { _mm256_loadu_si256(half(words, h).cast()) };
                        let low = _mm256_and_si256(both, lower);
                        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), lower);
                        *pairs = _mm256_add_epi16(*pairs, _mm256_maddubs_epi16(low, lows));
                        *pairs = _mm256_add_epi16(*pairs, _mm256_maddubs_epi16(high, highs));
                    }
                }
                let (start, scale) =
                    (_mm256_set1_epi32(shared.start), _mm256_set1_ps(shared.scale));
                for (part, pairs) in parts.iter_mut().zip(pairs) {
                    let products = _mm256_add_epi32(_mm256_madd_epi16(pairs, ones), start);
                    *part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scale, *part);
                }
            }
            words = words.wrapping_add(WORDS * row);
        }
        first += live.len();
        for (h, (all, part)) in all.iter_mut().zip(parts).enumerate() {
            // SAFETY: the caller guarantees the row of scales.
            let scale = unsafe { _mm256_loadu_ps(half(scales, h)) };
            *all = _mm256_fmadd_ps(part, scale, *all);
        }
    }
    for (h, made) in all.into_iter().enumerate() {
        // SAFETY: writes `H` times 8 of the `T` times 16 sums.
        unsafe { _mm256_storeu_ps(own.add(h * LANES / 2), made) };
    }
    T
}

/// Four codes of a block, repeated in every word.
#[inline]
#[target_feature(enable = "avx2")]
fn four(codes: &[i8; BLOCK], at: usize) -> __m256i {
    let [a, b, c, d] = [codes[at], codes[at + 1], codes[at + 2], codes[at + 3]];
    _mm256_set1_epi32(i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8]))
}
