//! Weights of 8 bits times vectors of 16 bits.
//!
//! A weight is `scale q` with q from -127 to 127 and one scale per output. An input value is `scale (256 high + low)`
//! with high and low of 8 bits each and one scale per vector. 16-bit inputs cost no time, because reading the weights
//! takes longer. Products are summed as integers, so the order of additions does not change the result.
//!
//! The instruction that adds four products at once (`vpdpbusd`) needs one unsigned operand. Weights are therefore
//! stored as `q + 128`, and each sum of a vector starts at -128 times the sum of the vector's values.

use sconce_ops::weights::Coded;
use sconce_tensor::simd::{LANES, dispatch};

use super::AHEAD;
use super::places::places;

/// Maximum inputs: with more, a sum of high parts could overflow.
pub(super) const MOST_INPUTS: usize = i32::MAX as usize / (127 * 128);
/// Inputs per word.
pub(super) const GROUP: usize = 4;
/// The offset that makes weights unsigned.
const ZERO: i32 = 128;
/// The largest quantised input value; its high part is 127.
const MOST_OF_A_VECTOR: f32 = 127.0 * 256.0;

/// Packs the weights of an output for four inputs from `first` on in one word. Missing weights are 0.
pub(super) fn word(weights: &Coded, output: usize, first: usize) -> f32 {
    let row = weights.row(output);
    let byte = |j| (i32::from(row.get(first + j).copied().unwrap_or(0)) + ZERO) as u8;
    f32::from_bits(u32::from_le_bytes(std::array::from_fn(byte)))
}

/// Vectors quantised to 16 bits.
#[derive(Default)]
pub(super) struct Codes {
    /// `[rows, groups]`
    high: Vec<[i8; GROUP]>,
    low: Vec<[i8; GROUP]>,
    rows: Vec<Shared>,
    /// The groups that are not 0 in all vectors, followed by [`AHEAD`] groups that are only prefetched, and by room for a
    /// SIMD vector.
    groups: Vec<u32>,
    count: usize,
    width: usize,
    /// For each group, the bitwise or of all vectors.
    seen: Vec<u32>,
}

/// Per-vector parameters.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shared {
    pub scale: f32,
    /// Start values of the sums of high and low parts.
    pub high: i32,
    pub low: i32,
}

/// One vector, split into groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code<'a> {
    pub row: Shared,
    pub high: &'a [[i8; GROUP]],
    pub low: &'a [[i8; GROUP]],
}

impl Codes {
    /// Memory for `rows` vectors of up to `widest` values.
    pub(super) fn new(widest: usize, rows: usize) -> Self {
        let groups = widest.div_ceil(GROUP);
        let [high, low] = std::array::from_fn(|_| vec![[0; GROUP]; groups * rows]);
        let seen = vec![0; groups];
        let (rows, groups) = (vec![Shared::default(); rows], vec![0; groups + AHEAD + LANES]);
        Codes { high, low, rows, groups, seen, ..Codes::default() }
    }

    /// Replaces the vectors.
    pub(super) fn read(&mut self, numbers: &[f32], width: usize) {
        self.width = width.div_ceil(GROUP);
        let rows = numbers.chunks_exact(width.max(1));
        let codes =
            self.high.chunks_exact_mut(self.width).zip(self.low.chunks_exact_mut(self.width));
        for ((x, (high, low)), row) in rows.zip(codes).zip(&mut self.rows) {
            for last in [&mut *high, &mut *low] {
                last.last_mut().into_iter().for_each(|last| *last = [0; GROUP]);
            }
            encode(
                x,
                &mut high.as_flattened_mut()[..width],
                &mut low.as_flattened_mut()[..width],
                row,
            );
        }
        self.find_groups(numbers.len() / width.max(1));
    }

    fn find_groups(&mut self, rows: usize) {
        let seen = &mut self.seen[..self.width];
        seen.fill(0);
        for part in [&self.high, &self.low] {
            part.chunks_exact(self.width.max(1)).take(rows).for_each(|codes| mark(seen, codes));
        }
        self.count = places(&mut self.groups, seen);
        // The next panel begins after the last group.
        for i in 0..AHEAD {
            self.groups[self.count + i] = (self.width + i) as u32;
        }
    }

    /// The groups that are not 0 in all vectors, and [`AHEAD`] more.
    pub(super) fn groups(&self) -> &[u32] {
        &self.groups[..self.count + AHEAD]
    }

    pub(super) fn row(&self, row: usize) -> Code<'_> {
        let own = row * self.width..(row + 1) * self.width;
        Code { row: self.rows[row], high: &self.high[own.clone()], low: &self.low[own] }
    }
}

dispatch! {
    /// Ors the bits of groups into `seen`.
    fn mark(seen: &mut [u32], codes: &[[i8; GROUP]]) {
        for (seen, codes) in seen.iter_mut().zip(codes) {
            *seen |= u32::from_le_bytes(codes.map(i8::cast_unsigned));
        }
    }
}

dispatch! {
    /// Rounds a vector to the nearest multiples of 1/32512 of its largest magnitude. If a value is not finite, the
    /// scale and all products are NaN.
    fn encode(x: &[f32], high: &mut [i8], low: &mut [i8], row: &mut Shared) {
        // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the lowest bits.
        const ROUND: f32 = 12_582_912.0;
        // Comparing magnitudes as integers makes NaN the largest.
        let most = x.iter().fold(0, |most, x| x.abs().to_bits().max(most));
        let most = f32::from_bits(most);
        let scale = if most.is_finite() { most / MOST_OF_A_VECTOR } else { f32::NAN };
        let inverse = if scale.is_normal() { 1.0 / scale } else { 0.0 };
        let (mut highs, mut lows) = (0i32, 0i32);
        for ((x, high), low) in x.iter().zip(high).zip(low) {
            let code = (x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32;
            let upper = code.wrapping_add(128) >> 8;
            let lower = code.wrapping_sub(upper << 8);
            (*high, *low) = (upper as i8, lower as i8);
            highs = highs.wrapping_add(upper);
            lows = lows.wrapping_add(lower);
        }
        let start = |sum: i32| sum.wrapping_mul(-ZERO);
        *row = Shared { scale, high: start(highs), low: start(lows) };
    }
}
