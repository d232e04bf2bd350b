//! Kernels of panels that the compiler vectorises.

use sconce_tensor::simd::{LANES, dispatch, mul_add};

use super::Sums;
use super::input::Entry;
use super::int8::Code;
use super::rows::Rows;

dispatch! {
    /// Adds to the sums the row of each entry times the entry's value.
    pub fn add<[const T: usize], [T]>(sums: &mut [[f32; LANES]; T], rows: &[[[f32; LANES]; T]], entries: &[Entry]) {
        let mut all = *sums;
        for entry in entries {
            let row = &rows[entry.row as usize];
            for t in 0..T {
                for i in 0..LANES {
                    all[t][i] = mul_add::<FMA>(row[t][i], entry.value, all[t][i]);
                }
            }
        }
        *sums = all;
    }
}

dispatch! {
    /// [`add`] for rows whose words hold two bf16.
    pub fn add_pairs<[const T: usize], [T]>(low: &mut [[f32; LANES]; T], high: &mut [[f32; LANES]; T], rows: &[[[f32; LANES]; T]], entries: &[Entry]) {
        let (mut lows, mut highs) = (*low, *high);
        for entry in entries {
            let row = &rows[entry.row as usize];
            for t in 0..T {
                for i in 0..LANES {
                    let (first, second) = halves(row[t][i]);
                    lows[t][i] = mul_add::<FMA>(first, entry.value, lows[t][i]);
                    highs[t][i] = mul_add::<FMA>(second, entry.value, highs[t][i]);
                }
            }
        }
        (*low, *high) = (lows, highs);
    }
}

dispatch! {
    /// Adds to the sums of each of `R` input vectors the rows of a panel times the vector's values. A row has `vectors`
    /// SIMD vectors.
    pub fn tile<[const R: usize], [R]>(sums: &mut [Sums; R], panel: &[[f32; LANES]], vectors: usize, x: &[&[f32]; R], rows: impl Rows) {
        for (sums, x) in sums.iter_mut().zip(x) {
            for input in (0..rows.len()).map(|i| rows.input(i)) {
                let (row, x) = (&panel[input * vectors..][..vectors], x[input]);
                for (sum, weights) in sums.iter_mut().zip(row) {
                    for i in 0..LANES {
                        sum[i] = mul_add::<FMA>(weights[i], x, sum[i]);
                    }
                }
            }
        }
    }
}

dispatch! {
    /// [`tile`] for rows whose words hold two bf16.
    pub fn tile_pairs<[const R: usize], [R]>(sums: &mut [Sums; R], panel: &[[f32; LANES]], vectors: usize, x: &[&[f32]; R], rows: impl Rows) {
        for (sums, x) in sums.iter_mut().zip(x) {
            let (lows, highs) = sums.split_at_mut(vectors);
            for input in (0..rows.len()).map(|i| rows.input(i)) {
                let (row, x) = (&panel[input * vectors..][..vectors], x[input]);
                for ((low, high), words) in lows.iter_mut().zip(highs.iter_mut()).zip(row) {
                    for i in 0..LANES {
                        let (first, second) = halves(words[i]);
                        low[i] = mul_add::<FMA>(first, x, low[i]);
                        high[i] = mul_add::<FMA>(second, x, high[i]);
                    }
                }
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
