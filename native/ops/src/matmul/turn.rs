//! Transposition in registers, for the products of AVX-512 and of AMX.

use std::arch::x86_64::*;

/// Values in a vector.
pub(super) const LANES: usize = 16;
/// Values in half a vector.
pub(super) const EIGHT: usize = LANES / 2;

/// A mask of the first `count` lanes.
pub(super) fn lanes(count: usize) -> __mmask16 {
    if count >= LANES { !0 } else { (1 << count) - 1 }
}

/// Transposes eight values of each of sixteen rows that are `stride` apart into eight vectors. This takes only 24
/// shuffles, of which the CPU executes one per cycle: rows j and j + 8 are combined as they are loaded.
///
/// # Safety
///
/// The CPU has AVX-512 F, and the rows are readable.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) unsafe fn turn(at: *const f32, stride: usize) -> [__m512; EIGHT] {
    let load = |j: usize| {
        // SAFETY: by the caller's promise.
        let [lower, upper] =
            unsafe { [j, j + EIGHT].map(|j| _mm256_loadu_pd(at.add(j * stride).cast())) };
        _mm512_castpd_ps(_mm512_insertf64x4::<1>(_mm512_castpd256_pd512(lower), upper))
    };
    // The columns c and c + 4 of the rows j..j + 4, then of the rows j + 8..j + 12.
    let four = |j: usize| {
        let (x0, x1, x2, x3) = (load(j), load(j + 1), load(j + 2), load(j + 3));
        let (a, b) = (_mm512_unpacklo_ps(x0, x1), _mm512_unpackhi_ps(x0, x1));
        let (c, d) = (_mm512_unpacklo_ps(x2, x3), _mm512_unpackhi_ps(x2, x3));
        [
            _mm512_shuffle_ps::<0b01_00_01_00>(a, c),
            _mm512_shuffle_ps::<0b11_10_11_10>(a, c),
            _mm512_shuffle_ps::<0b01_00_01_00>(b, d),
            _mm512_shuffle_ps::<0b11_10_11_10>(b, d),
        ]
        .map(|x| _mm512_castps_pd(x))
    };
    let (first, second) = (four(0), four(4));
    // Combines quarters of both vectors: rows 0..4, 4..8, 8..12, 12..16 of a column.
    let even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    std::array::from_fn(|i| {
        let quarters = if i < 4 { even } else { odd };
        _mm512_castpd_ps(_mm512_permutex2var_pd(first[i % 4], quarters, second[i % 4]))
    })
}

/// Computes `turn` for `count` rows of `steps` values; missing values are 0.
///
/// # Safety
///
/// As for `turn`.
#[target_feature(enable = "avx512f,avx512vl")]
pub(super) unsafe fn turn_ragged(
    at: *const f32,
    stride: usize,
    count: usize,
    steps: usize,
) -> [__m512; EIGHT] {
    let mut padded = [0.0; LANES * EIGHT];
    // SAFETY: by the caller's promise; the mask ends a row after `steps`.
    unsafe {
        for (j, row) in padded.chunks_exact_mut(EIGHT).enumerate().take(count) {
            let numbers = _mm256_maskz_loadu_ps(lanes(steps) as __mmask8, at.add(j * stride));
            _mm256_storeu_ps(row.as_mut_ptr(), numbers);
        }
        turn(padded.as_ptr(), EIGHT)
    }
}
