//! Weights of 4 bits times vectors of 8 bits.
//!
//! A weight is `scale q` with q from -8 to 7 and one scale per output and group of inputs. A vector is split in blocks of
//! 32 values; a value is `scale c` with c from -127 to 127 and one scale per block, so that an outlier costs only its
//! neighbours precision. Products of a block are summed as integers, and the sums of blocks in f32, in order.
//!
//! The instructions that add several products at once (`vpdpbusd`, `vpmaddubsw`) need one unsigned operand. Weights are
//! therefore stored as `q + 8`, and the sum of a block starts at -8 times the sum of the vector's codes.
//!
//! In a panel each group has one row of scales. Then each of its blocks has four rows of words: eight inputs of one
//! output, the first four in the lower halves of the bytes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use sconce_ops::weights::Coded;
use sconce_tensor::simd::{Level, dispatch};

use super::{Sums, Vector, tiles};

/// Values of a vector that share a scale.
pub(super) const BLOCK: usize = 32;
/// Rows of words of a block.
const WORDS: usize = 4;
/// Inputs of a word.
const IN_A_WORD: usize = BLOCK / WORDS;
/// The offset that makes weights unsigned.
const ZERO: i32 = 8;
/// The largest code of a vector.
const MOST: f32 = 127.0;
/// Vectors that share one read of the weights.
const ROWS: usize = 4;

/// Rows of a panel: the scales of each group and the words of its blocks.
pub(super) fn rows(inputs: usize, group: usize) -> usize {
    inputs.div_ceil(group) + WORDS * inputs.div_ceil(BLOCK)
}

/// A word of a row of a panel. Missing weights are 0.
pub(super) fn word(weights: &Coded, group: usize, output: usize, row: usize) -> f32 {
    let (place, row) = (row / (1 + WORDS * group / BLOCK), row % (1 + WORDS * group / BLOCK));
    let Some(first) = row.checked_sub(1).map(|row| place * group + row * IN_A_WORD) else {
        let scales = weights.scales().chunks_exact(weights.groups());
        return scales.clone().nth(output).map_or(0.0, |scales| scales[place]);
    };
    let codes = weights.row(output);
    let code = |j| (i32::from(codes.get(first + j).copied().unwrap_or(0)) + ZERO) as u8;
    let byte = |j| code(j) | code(j + IN_A_WORD / 2) << 4;
    f32::from_bits(u32::from_le_bytes(std::array::from_fn(byte)))
}

/// Vectors in blocks.
#[derive(Default)]
pub(super) struct Blocks {
    /// `[rows, blocks]`
    codes: Vec<[i8; BLOCK]>,
    shared: Vec<Shared>,
    /// Whether a block is not 0 in all vectors.
    live: Vec<bool>,
    width: usize,
}

/// Parameters of a block of a vector.
#[derive(Debug, Clone, Copy, Default)]
struct Shared {
    scale: f32,
    /// Start value of the sum of the block.
    start: i32,
}

/// One vector.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    codes: &'a [[i8; BLOCK]],
    shared: &'a [Shared],
}

impl Blocks {
    /// Memory for `rows` vectors of up to `widest` values.
    pub(super) fn new(widest: usize, rows: usize) -> Self {
        let width = widest.div_ceil(BLOCK);
        let (codes, shared) =
            (vec![[0; BLOCK]; width * rows], vec![Shared::default(); width * rows]);
        Blocks { codes, shared, live: vec![false; width], width: 0 }
    }

    /// Replaces the vectors.
    pub(super) fn read(&mut self, numbers: &[f32], width: usize) {
        self.width = width.div_ceil(BLOCK);
        self.live[..self.width].fill(false);
        let rows = numbers.chunks_exact(width.max(1));
        let own = self.codes.chunks_mut(self.width.max(1));
        for ((x, codes), shared) in rows.zip(own).zip(self.shared.chunks_mut(self.width.max(1))) {
            encode(x, codes, shared, &mut self.live);
        }
    }

    fn row(&self, row: usize) -> Row<'_> {
        let own = row * self.width..(row + 1) * self.width;
        Row { codes: &self.codes[own.clone()], shared: &self.shared[own] }
    }
}

dispatch! {
    /// Rounds each block to the nearest multiples of 1/127 of its largest magnitude, and marks blocks that are not 0. If a
    /// value is not finite, the scale of its block and all products are NaN.
    fn encode(x: &[f32], codes: &mut [[i8; BLOCK]], shared: &mut [Shared], live: &mut [bool]) {
        // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the lowest bits.
        const ROUND: f32 = 12_582_912.0;
        for (((x, codes), shared), live) in x.chunks(BLOCK).zip(codes).zip(shared).zip(live) {
            let mut block = [0.0; BLOCK];
            block[..x.len()].copy_from_slice(x);
            // Comparing magnitudes as integers makes NaN the largest.
            let most = block.iter().fold(0, |most, x| x.abs().to_bits().max(most));
            let most = f32::from_bits(most);
            let scale = if most.is_finite() { most / MOST } else { f32::NAN };
            let inverse = if scale.is_normal() { 1.0 / scale } else { 0.0 };
            let mut sum = 0i32;
            for (x, code) in block.iter().zip(codes) {
                let nearest = (x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32;
                *code = nearest as i8;
                sum = sum.wrapping_add(i32::from(*code));
            }
            *shared = Shared { scale, start: -ZERO * sum };
            // Without an inverse all codes are 0: only NaN matters.
            *live |= inverse != 0.0 || scale.is_nan();
        }
    }
}

/// Weights of a panel: `vectors` SIMD vectors in each row.
pub(super) struct Panel<'a> {
    pub(super) weights: &'a [Vector],
    pub(super) vectors: usize,
    /// Inputs that share a scale: a multiple of [`BLOCK`].
    pub(super) group: usize,
    pub(super) level: Level,
    pub(super) has_vnni: bool,
}

impl Panel<'_> {
    /// Blocks that share a scale.
    fn blocks(&self) -> usize {
        self.group / BLOCK
    }

    /// The sums of all vectors, starting with the bias.
    pub(super) fn sum(&self, sums: &mut [Sums], x: &Blocks, bias: &[f32]) {
        let live = &x.live[..x.width];
        let needed = rows(x.width * BLOCK, self.group) * self.vectors;
        assert!(self.weights.len() >= needed, "rows of a panel");
        for sums in &mut *sums {
            sums.as_flattened_mut()[..bias.len()].copy_from_slice(bias);
        }
        for (sums, first) in tiles(sums, ROWS) {
            match sums.len() {
                1 => self.add::<1>(sums, x, first, live),
                2 => self.add::<2>(sums, x, first, live),
                3 => self.add::<3>(sums, x, first, live),
                _ => self.add::<ROWS>(sums, x, first, live),
            }
        }
    }

    fn add<const R: usize>(&self, sums: &mut [Sums], x: &Blocks, first: usize, live: &[bool]) {
        let Some(sums) = sums.first_chunk_mut::<R>() else { return };
        let rows: [Row; R] = std::array::from_fn(|r| x.row(first + r));
        #[cfg(target_arch = "x86_64")]
        {
            if self.level == Level::Avx512 && self.has_vnni {
                // SAFETY: `has_vnni` found the features that the kernel needs, and `sum` checked the rows of the panel.
                return unsafe { avx512::add(sums, self, rows, live) };
            }
            if self.level >= Level::Avx2 {
                // SAFETY: `level` found the features that the kernel needs, and `sum` checked the rows of the panel.
                return sums
                    .iter_mut()
                    .zip(rows)
                    .for_each(|(sums, row)| unsafe { avx2::add(sums, self, row, live) });
            }
        }
        portable::add(sums, self, &rows, live);
    }
}

#[cfg(test)]
mod tests;
