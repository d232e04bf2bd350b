//! Kernels of panels that the compiler vectorises.

use sconce_tensor::simd::{LANES, dispatch, mul_add};

use super::input::Entries;
use super::int8::Code;
use super::rows::Rows;
use super::{Sums, Vector};

dispatch! {
    /// Adds to the sums of each of `S` streams of weights the stream's row of each entry times the entry's value. The rows
    /// of a stream begin `stride` SIMD vectors apart.
    pub fn add<[const S: usize], [S]>(sums: &mut [Vector; S], streams: [&[Vector]; S], stride: usize, entries: Entries) {
        check(&streams, stride, entries);
        let mut all = *sums;
        for entry in entries.own() {
            for s in 0..S {
                // SAFETY: the row is less than the width, and each stream has as many rows.
                let row = unsafe { streams[s].get_unchecked(entry.row as usize * stride) };
                for i in 0..LANES {
                    all[s][i] = mul_add::<FMA>(row[i], entry.value, all[s][i]);
                }
            }
        }
        *sums = all;
    }
}

dispatch! {
    /// [`add`] for words that hold two bf16. The sums of the upper halves follow those of the lower halves.
    pub fn add_pairs<[const S: usize], [S]>(sums: &mut [[Vector; 2]; S], streams: [&[Vector]; S], stride: usize, entries: Entries) {
        check(&streams, stride, entries);
        let (mut lows, mut highs) = (sums.map(|own| own[0]), sums.map(|own| own[1]));
        for entry in entries.own() {
            for s in 0..S {
                // SAFETY: the row is less than the width, and each stream has as many rows.
                let row = unsafe { streams[s].get_unchecked(entry.row as usize * stride) };
                for i in 0..LANES {
                    let (first, second) = halves(row[i]);
                    lows[s][i] = mul_add::<FMA>(first, entry.value, lows[s][i]);
                    highs[s][i] = mul_add::<FMA>(second, entry.value, highs[s][i]);
                }
            }
        }
        *sums = std::array::from_fn(|s| [lows[s], highs[s]]);
    }
}

/// Panics unless each stream has the rows of all entries.
#[inline(always)]
fn check<const S: usize>(streams: &[&[Vector]; S], stride: usize, entries: Entries) {
    let rows = |stream: &&[Vector]| stream.len().div_ceil(stride.max(1));
    let least = streams.iter().map(rows).min().unwrap_or(0);
    assert!(entries.width() <= least, "{} rows of a stream of {least}", entries.width());
}

dispatch! {
    /// Adds to the sums of each of `R` input vectors the rows of a panel times the vector's values. A row has `vectors`
    /// SIMD vectors.
    pub fn tile<[const R: usize], [R]>(sums: &mut [Sums; R], panel: &[Vector], vectors: usize, x: &[&[f32]; R], rows: impl Rows) {
        for t in 0..vectors {
            // The sums of one SIMD vector of outputs stay in registers.
            let mut all: [Vector; R] = std::array::from_fn(|r| sums[r][t]);
            for input in (0..rows.len()).map(|i| rows.input(i)) {
                let row = panel[input * vectors + t];
                for r in 0..R {
                    let x = x[r][input];
                    for i in 0..LANES {
                        all[r][i] = mul_add::<FMA>(row[i], x, all[r][i]);
                    }
                }
            }
            for r in 0..R {
                sums[r][t] = all[r];
            }
        }
    }
}

dispatch! {
    /// [`tile`] for words that hold two bf16. The sums of the upper halves follow those of the lower halves.
    pub fn tile_pairs<[const R: usize], [R]>(sums: &mut [Sums; R], panel: &[Vector], vectors: usize, x: &[&[f32]; R], rows: impl Rows) {
        for t in 0..vectors {
            let mut lows: [Vector; R] = std::array::from_fn(|r| sums[r][t]);
            let mut highs: [Vector; R] = std::array::from_fn(|r| sums[r][vectors + t]);
            for input in (0..rows.len()).map(|i| rows.input(i)) {
                let row = panel[input * vectors + t];
                for r in 0..R {
                    let x = x[r][input];
                    for i in 0..LANES {
                        let (first, second) = halves(row[i]);
                        lows[r][i] = mul_add::<FMA>(first, x, lows[r][i]);
                        highs[r][i] = mul_add::<FMA>(second, x, highs[r][i]);
                    }
                }
            }
            for r in 0..R {
                (sums[r][t], sums[r][vectors + t]) = (lows[r], highs[r]);
            }
        }
    }
}

dispatch! {
    /// Computes the sums of each of `R` input vectors: the vector's high and low parts times the rows of these groups,
    /// times the scales, plus the bias. A row has `vectors` SIMD vectors.
    pub fn codes<[const R: usize], [R]>(sums: &mut [Sums; R], panel: &[[f32; LANES]], vectors: usize, x: &[Code; R], groups: &[u32], scales: &[f32], bias: &[f32]) {
        for (sums, x) in sums.iter_mut().zip(x) {
            let outputs = scales.chunks(LANES).zip(bias.chunks(LANES)).zip(sums);
            for (t, ((scales, bias), sum)) in outputs.enumerate() {
                let (mut high, mut low) = ([x.row.high; LANES], [x.row.low; LANES]);
                for &group in groups {
                    let group = group as usize;
                    let parts = (x.high[group].map(i32::from), x.low[group].map(i32::from));
                    let words = &panel[group * vectors + t];
                    for i in 0..LANES {
                        let weights = words[i].to_bits().to_le_bytes().map(i32::from);
                        high[i] = high[i].wrapping_add(product(weights, parts.0));
                        low[i] = low[i].wrapping_add(product(weights, parts.1));
                    }
                }
                for (i, (of, bias)) in scales.iter().zip(bias).enumerate() {
                    sum[i] = (256.0 * high[i] as f32 + low[i] as f32) * (x.row.scale * of) + bias;
                }
            }
        }
    }
}

#[inline(always)]
fn product(a: [i32; 4], b: [i32; 4]) -> i32 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]
}

/// Unpacks the two bf16 values of a word.
#[inline(always)]
fn halves(word: f32) -> (f32, f32) {
    let word = word.to_bits();
    (f32::from_bits(word << 16), f32::from_bits(word & 0xFFFF_0000))
}
