//! The kernel for AVX-512 VNNI.

use std::arch::x86_64::*;

use super::{BLOCK, Panel, Row, Sums, Vector, WORDS};

/// Adds to the sums of each of `R` vectors the products of its live blocks and the weights of a panel.
///
/// # Safety
/// The CPU has AVX-512 F, BW and VNNI, and the panel has the rows of these blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn add<const R: usize>(
    sums: &mut [Sums; R],
    panel: &Panel,
    x: [Row; R],
    live: &[bool],
) {
    // Sums, parts and products fit in 32 registers.
    let most = match R {
        1 => 8,
        2 => 4,
        _ => 2,
    };
    let mut at = 0;
    while at < panel.vectors {
        // SAFETY: the caller guarantees features and rows, and the stripe ends within a row.
        at += unsafe {
            match most.min(panel.vectors - at) {
                8 => stripe::<8, R>(sums, panel, at, x, live),
                4.. => stripe::<4, R>(sums, panel, at, x, live),
                2 | 3 => stripe::<2, R>(sums, panel, at, x, live),
                _ => stripe::<1, R>(sums, panel, at, x, live),
            }
        };
    }
}

/// [`add`] for the `T` SIMD vectors of sums from `at` on, which stay in registers.
///
/// # Safety
/// As for [`add`], and `at + T <= panel.vectors`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn stripe<const T: usize, const R: usize>(
    sums: &mut [Sums; R],
    panel: &Panel,
    at: usize,
    x: [Row; R],
    live: &[bool],
) -> usize {
    let mut all = [[_mm512_setzero_ps(); T]; R];
    for (all, sums) in all.iter_mut().zip(sums.iter()) {
        for (all, sum) in all.iter_mut().zip(&sums[at..at + T]) {
            // SAFETY: reads the 16 values of an array.
            *all = unsafe { _mm512_loadu_ps(sum.as_ptr()) };
        }
    }
    let row = panel.vectors;
    let mut words: *const Vector = panel.weights.as_ptr().wrapping_add(at);
    let mut first = 0;
    for live in live.chunks(panel.blocks()) {
        let scales = words;
        words = words.wrapping_add(row);
        let mut parts = [[_mm512_setzero_ps(); T]; R];
        for (block, live) in live.iter().enumerate() {
            if *live {
                // SAFETY: the caller guarantees the rows of the block, and each vector has all blocks.
                unsafe { products(&mut parts, (words, row), x, first + block) };
            }
            words = words.wrapping_add(WORDS * row);
        }
        first += live.len();
        for t in 0..T {
            // SAFETY: the caller guarantees the row of scales.
            let scale = unsafe { _mm512_loadu_ps(scales.add(t).cast()) };
            for (all, parts) in all.iter_mut().zip(&parts) {
                all[t] = _mm512_fmadd_ps(parts[t], scale, all[t]);
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

/// Rows of words between a read and its prefetch.
const AHEAD: usize = 8;

/// Adds the products of a block to the parts of its group.
///
/// # Safety
/// As for [`stripe`]. The rows of words begin at `words`, and each vector has the block at `place`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn products<const T: usize, const R: usize>(
    parts: &mut [[__m512; T]; R],
    (words, row): (*const Vector, usize),
    x: [Row; R],
    place: usize,
) {
    let lower = _mm512_set1_epi8(15);
    let mut sums = [[_mm512_setzero_si512(); T]; R];
    for r in 0..R {
        // SAFETY: the caller guarantees the block.
        let shared = unsafe { x[r].shared.get_unchecked(place) };
        sums[r] = [_mm512_set1_epi32(shared.start); T];
    }
    for k in 0..WORDS {
        let words = words.wrapping_add(k * row);
        let mut both = [_mm512_setzero_si512(); T];
        for (t, both) in both.iter_mut().enumerate() {
            fetch(words.wrapping_add(t + row * AHEAD));
            // SAFETY: the caller guarantees the row.
            *both = unsafe { _mm512_loadu_si512(words.add(t).cast()) };
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            // SAFETY: the caller guarantees the block.
            let codes = unsafe { x.codes.get_unchecked(place) };
            for (sum, both) in sums.iter_mut().zip(both) {
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(both, lower), four(codes, 8 * k));
            }
            for (sum, both) in sums.iter_mut().zip(both) {
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), lower);
                *sum = _mm512_dpbusd_epi32(*sum, high, four(codes, 8 * k + 4));
            }
        }
    }
    for r in 0..R {
        // SAFETY: the caller guarantees the block.
        let scale = _mm512_set1_ps(unsafe { x[r].shared.get_unchecked(place) }.scale);
        for t in 0..T {
            parts[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][t]), scale, parts[r][t]);
        }
    }
}

/// Four codes of a block, repeated in every word.
#[inline]
#[target_feature(enable = "avx512f")]
fn four(codes: &[i8; BLOCK], at: usize) -> __m512i {
    let [a, b, c, d] = [codes[at], codes[at + 1], codes[at + 2], codes[at + 3]];
    _mm512_set1_epi32(i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8]))
}

/// Prefetches a SIMD vector. The address need not be valid.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch(vector: *const Vector) {
    _mm_prefetch::<_MM_HINT_T0>(vector.cast());
}
