//! Kernels of panels for AVX-512.

use std::arch::x86_64::*;

use sconce_tensor::simd::LANES;

use super::input::Entry;
use super::int8::{Code, GROUP};
use super::rows::Rows;
use super::{AHEAD, Sums, Vector};

/// Adds to the sums the row of each entry times the entry's value. The last [`AHEAD`] entries are only prefetched.
///
/// # Safety
/// The CPU has AVX-512F, and all entries except for the last [`AHEAD`] have indices of `rows`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add<const T: usize>(
    sums: &mut [Vector; T],
    rows: &[[Vector; T]],
    entries: &[Entry],
) {
    // SAFETY: reads the 16 values of each array.
    let mut all = sums.map(|sum| unsafe { _mm512_loadu_ps(sum.as_ptr()) });
    let count = entries.len().saturating_sub(AHEAD);
    for (now, later) in entries[..count].iter().zip(&entries[AHEAD.min(entries.len())..]) {
        fetch::<T>(rows.as_ptr().wrapping_add(later.row as usize).cast());
        let x = _mm512_set1_ps(now.value);
        // SAFETY: the caller guarantees the index.
        let row = unsafe { rows.get_unchecked(now.row as usize) };
        for (sum, weights) in all.iter_mut().zip(row) {
            // SAFETY: reads the 16 values of an array.
            *sum = unsafe { _mm512_fmadd_ps(_mm512_loadu_ps(weights.as_ptr()), x, *sum) };
        }
    }
    for (sum, made) in sums.iter_mut().zip(all) {
        // SAFETY: writes the 16 values of an array.
        unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), made) };
    }
}

/// [`add`] for rows whose words hold two bf16.
///
/// # Safety
/// As for [`add`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_pairs<const T: usize>(
    low: &mut [Vector; T],
    high: &mut [Vector; T],
    rows: &[[Vector; T]],
    entries: &[Entry],
) {
    // SAFETY: reads the 16 values of each array.
    let load = |sums: &[Vector; T]| sums.map(|sum| unsafe { _mm512_loadu_ps(sum.as_ptr()) });
    let (mut lows, mut highs) = (load(low), load(high));
    let count = entries.len().saturating_sub(AHEAD);
    for (now, later) in entries[..count].iter().zip(&entries[AHEAD.min(entries.len())..]) {
        fetch::<T>(rows.as_ptr().wrapping_add(later.row as usize).cast());
        let x = _mm512_set1_ps(now.value);
        // SAFETY: the caller guarantees the index.
        let row = unsafe { rows.get_unchecked(now.row as usize) };
        for ((low, high), words) in lows.iter_mut().zip(&mut highs).zip(row) {
            // SAFETY: `words` is an array of 16 words.
            let (first, second) = unsafe { halves(words) };
            *low = _mm512_fmadd_ps(first, x, *low);
            *high = _mm512_fmadd_ps(second, x, *high);
        }
    }
    for (sums, made) in [(low, lows), (high, highs)] {
        for (sum, made) in sums.iter_mut().zip(made) {
            // SAFETY: writes the 16 values of an array.
            unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), made) };
        }
    }
}

/// Adds to the sums of each of `R` input vectors the rows of a panel times the vector's values. A row has `vectors`
/// SIMD vectors.
///
/// # Safety
/// The CPU has AVX-512F, and the panel and the input vectors have the inputs of these rows.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn tile<const R: usize, W: Rows>(
    sums: &mut [Sums; R],
    panel: &[Vector],
    vectors: usize,
    x: [&[f32]; R],
    mut rows: W,
) {
    let x = x.map(<[f32]>::as_ptr);
    let mut at = 0;
    while at < vectors {
        let of = (panel.as_ptr().wrapping_add(at), vectors);
        // SAFETY: the caller guarantees the rows, and the stripe ends within a row.
        at += unsafe {
            match vectors - at {
                4.. => stripe::<4, R, _>(sums, at, of, x, rows),
                2.. => stripe::<2, R, _>(sums, at, of, x, rows),
                _ => stripe::<1, R, _>(sums, at, of, x, rows),
            }
        };
        rows = rows.ahead();
    }
}

/// [`tile`] for the `T` SIMD vectors of sums from `at` on, which stay in registers.
///
/// # Safety
/// As for [`tile`]. `panel` points to its `at`-th SIMD vector, and `at + T <= vectors`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn stripe<const T: usize, const R: usize, W: Rows>(
    sums: &mut [Sums; R],
    at: usize,
    (panel, vectors): (*const Vector, usize),
    x: [*const f32; R],
    rows: W,
) -> usize {
    let mut all = [[_mm512_setzero_ps(); T]; R];
    for (all, sums) in all.iter_mut().zip(sums.iter()) {
        for (all, sum) in all.iter_mut().zip(&sums[at..at + T]) {
            // SAFETY: reads the 16 values of an array.
            *all = unsafe { _mm512_loadu_ps(sum.as_ptr()) };
        }
    }
    for i in 0..rows.len() {
        rows.fetch(i);
        let input = rows.input(i);
        let row = panel.wrapping_add(input * vectors);
        // SAFETY: the caller guarantees the row.
        let weights: [__m512; T] =
            std::array::from_fn(|t| unsafe { _mm512_loadu_ps(row.add(t).cast()) });
        for (all, x) in all.iter_mut().zip(x) {
            // SAFETY: the caller guarantees the input.
            let x = _mm512_set1_ps(unsafe { *x.add(input) });
            for (sum, weights) in all.iter_mut().zip(weights) {
                *sum = _mm512_fmadd_ps(weights, x, *sum);
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

/// [`tile`] for rows whose words hold two bf16.
///
/// # Safety
/// As for [`tile`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn tile_pairs<const R: usize, W: Rows>(
    sums: &mut [Sums; R],
    panel: &[Vector],
    vectors: usize,
    x: [&[f32]; R],
    mut rows: W,
) {
    let x = x.map(<[f32]>::as_ptr);
    let mut at = 0;
    while at < vectors {
        let of = (panel.as_ptr().wrapping_add(at), vectors);
        // SAFETY: as in `tile`.
        at += unsafe {
            match vectors - at {
                2.. => stripe_pairs::<2, R, _>(sums, at, of, x, rows),
                _ => stripe_pairs::<1, R, _>(sums, at, of, x, rows),
            }
        };
        rows = rows.ahead();
    }
}

/// [`stripe`] for rows whose words hold two bf16.
///
/// # Safety
/// As for [`stripe`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn stripe_pairs<const T: usize, const R: usize, W: Rows>(
    sums: &mut [Sums; R],
    at: usize,
    (panel, vectors): (*const Vector, usize),
    x: [*const f32; R],
    rows: W,
) -> usize {
    let (mut lows, mut highs) = ([[_mm512_setzero_ps(); T]; R], [[_mm512_setzero_ps(); T]; R]);
    for ((low, high), sums) in lows.iter_mut().zip(&mut highs).zip(sums.iter()) {
        for t in 0..T {
            // SAFETY: reads the 16 values of each array.
            (low[t], high[t]) = unsafe {
                let high = sums[vectors + at + t].as_ptr();
                (_mm512_loadu_ps(sums[at + t].as_ptr()), _mm512_loadu_ps(high))
            };
        }
    }
    for i in 0..rows.len() {
        rows.fetch(i);
        let input = rows.input(i);
        let row = panel.wrapping_add(input * vectors);
        // SAFETY: the caller guarantees the row.
        let words: [(__m512, __m512); T] = std::array::from_fn(|t| unsafe { halves(row.add(t)) });
        for ((low, high), x) in lows.iter_mut().zip(&mut highs).zip(x) {
            // SAFETY: the caller guarantees the input.
            let x = _mm512_set1_ps(unsafe { *x.add(input) });
            for ((low, high), (first, second)) in low.iter_mut().zip(high).zip(words) {
                *low = _mm512_fmadd_ps(first, x, *low);
                *high = _mm512_fmadd_ps(second, x, *high);
            }
        }
    }
    for ((low, high), sums) in lows.into_iter().zip(highs).zip(sums) {
        for t in 0..T {
            // SAFETY: writes the 16 values of each array.
            unsafe {
                _mm512_storeu_ps(sums[at + t].as_mut_ptr(), low[t]);
                _mm512_storeu_ps(sums[vectors + at + t].as_mut_ptr(), high[t]);
            }
        }
    }
    T
}

/// Unpacks the bf16 values of 16 words: first the lower halves, then the upper halves.
///
/// # Safety
/// `words` points to 16 words.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn halves(words: *const Vector) -> (__m512, __m512) {
    // SAFETY: the caller guarantees the words.
    let words = unsafe { _mm512_loadu_si512(words.cast()) };
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    let low = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words));
    (low, _mm512_castsi512_ps(_mm512_and_si512(words, upper)))
}

/// Computes the sums of each of `R` input vectors: the vector's high and low parts times the rows of these groups,
/// times the scales, plus the bias. A row has `vectors` SIMD vectors. The last [`AHEAD`] groups are only prefetched.
///
/// # Safety
/// The CPU has AVX-512 VNNI, and all groups except for the last [`AHEAD`] are in the panel and in the input vectors.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) unsafe fn codes<const R: usize>(
    sums: &mut [Sums; R],
    panel: &[Vector],
    vectors: usize,
    x: [Code; R],
    groups: &[u32],
    (scales, bias): (&[f32], &[f32]),
) {
    // The sums and the weights fit in 32 registers.
    let most = match R {
        1 => 8,
        2 | 3 => 4,
        _ => 2,
    };
    let mut at = 0;
    while at < vectors {
        let of = (vectors, at);
        // SAFETY: as in `tile`.
        at += unsafe {
            match most.min(vectors - at) {
                8 => stripe_codes::<8, R>(sums, panel, of, x, groups, (scales, bias)),
                7 => stripe_codes::<7, R>(sums, panel, of, x, groups, (scales, bias)),
                6 => stripe_codes::<6, R>(sums, panel, of, x, groups, (scales, bias)),
                5 => stripe_codes::<5, R>(sums, panel, of, x, groups, (scales, bias)),
                4 => stripe_codes::<4, R>(sums, panel, of, x, groups, (scales, bias)),
                3 => stripe_codes::<3, R>(sums, panel, of, x, groups, (scales, bias)),
                2 => stripe_codes::<2, R>(sums, panel, of, x, groups, (scales, bias)),
                _ => stripe_codes::<1, R>(sums, panel, of, x, groups, (scales, bias)),
            }
        };
    }
}

/// [`codes`] for the `T` SIMD vectors of sums from `at` on, which stay in registers.
///
/// # Safety
/// As for [`codes`], and `at + T <= vectors`.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn stripe_codes<const T: usize, const R: usize>(
    sums: &mut [Sums; R],
    panel: &[Vector],
    (vectors, at): (usize, usize),
    x: [Code; R],
    groups: &[u32],
    (scales, bias): (&[f32], &[f32]),
) -> usize {
    let mut highs = x.map(|x| [_mm512_set1_epi32(x.row.high); T]);
    let mut lows = x.map(|x| [_mm512_set1_epi32(x.row.low); T]);
    let row = |group: u32| panel.as_ptr().wrapping_add(group as usize * vectors + at);
    let count = groups.len().saturating_sub(AHEAD);
    for (now, later) in groups[..count].iter().zip(&groups[AHEAD.min(groups.len())..]) {
        fetch::<T>(row(*later));
        let words = row(*now);
        // SAFETY: the caller guarantees the group.
        let weights: [__m512i; T] =
            std::array::from_fn(|t| unsafe { _mm512_loadu_si512(words.add(t).cast()) });
        for ((highs, lows), x) in highs.iter_mut().zip(&mut lows).zip(&x) {
            // SAFETY: the caller guarantees the group.
            let (high, low) = unsafe { (four(x.high, *now), four(x.low, *now)) };
            for ((high_sum, low_sum), weights) in highs.iter_mut().zip(lows).zip(weights) {
                *high_sum = _mm512_dpbusd_epi32(*high_sum, weights, high);
                *low_sum = _mm512_dpbusd_epi32(*low_sum, weights, low);
            }
        }
    }
    let high_part = _mm512_set1_ps(256.0);
    for t in 0..T {
        let (of, bias) = (masked(scales, at + t), masked(bias, at + t));
        for r in 0..R {
            let high = _mm512_mul_ps(high_part, _mm512_cvtepi32_ps(highs[r][t]));
            let whole = _mm512_add_ps(high, _mm512_cvtepi32_ps(lows[r][t]));
            let scale = _mm512_mul_ps(_mm512_set1_ps(x[r].row.scale), of);
            let sum = _mm512_add_ps(_mm512_mul_ps(whole, scale), bias);
            // SAFETY: writes the 16 values of an array.
            unsafe { _mm512_storeu_ps(sums[r][at + t].as_mut_ptr(), sum) };
        }
    }
    T
}

/// Loads the 16 values of a SIMD vector. Values beyond the end are 0.
#[inline]
#[target_feature(enable = "avx512f")]
fn masked(numbers: &[f32], vector: usize) -> __m512 {
    let numbers = numbers.get(vector * LANES..).unwrap_or(&[]);
    let mask = u32::MAX.unbounded_shr(32 - numbers.len().min(LANES) as u32) as __mmask16;
    // SAFETY: the mask covers only the values of the slice.
    unsafe { _mm512_maskz_loadu_ps(mask, numbers.as_ptr()) }
}

/// Loads the four values of a group, repeated in every word.
///
/// # Safety
/// `numbers` has the group.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn four(numbers: &[[i8; GROUP]], group: u32) -> __m512i {
    // SAFETY: the caller guarantees the group.
    let numbers = unsafe { *numbers.get_unchecked(group as usize) };
    _mm512_set1_epi32(i32::from_le_bytes(numbers.map(i8::cast_unsigned)))
}

/// Prefetches `T` SIMD vectors. The addresses need not be valid.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch<const T: usize>(row: *const Vector) {
    for t in 0..T {
        _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(t).cast());
    }
}
