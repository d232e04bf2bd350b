//! Weights in 2:4: of four inputs of an output at most two weights are not 0 (Mishra et al. 2021).
//!
//! Of each four consecutive inputs (a group) an output has two values of 32 bits, and for each the place 0 to 3 of its
//! input, in ascending order. That is 17 bits for each weight of the whole matrix. A sum adds the same products as a sum of
//! f32 weights, in the same order, except for those with a weight of 0; the result has the same bits, up to the sign of a
//! zero.
//!
//! In a panel, eight groups (a block) have one row of words with their places, 4 bits for each group, and then two rows of
//! values for each group. A kernel repeats the four inputs of a group in each quarter of a register, and
//! `vpermilps` picks from them: it reads the lowest two bits of a word and ignores the others, so shifting the word by
//! two bits leads to the next place.
//!
//! A group is skipped if its four inputs are 0 in all vectors. f32 skips each input that is 0, so it reads fewer bytes
//! where most inputs are 0, as in one-hot inputs. A matrix in 2:4 therefore keeps its f32 panels too, and each product
//! reads the form that takes less time for its vectors ([`Ratios`]). Both have the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
mod timing;

use sconce_ops::weights::two_four::{FOUR, TWO, kept};
use sconce_tensor::simd::{Level, dispatch};

use super::{Sums, Vector, tiles};
use crate::format::Ratios;
pub(super) use timing::ratios;

/// Groups of a block.
const GROUPS: usize = 8;
/// Rows of a whole block.
const BLOCK: usize = 1 + TWO * GROUPS;
/// Bits of a place.
const BITS: usize = 2;
/// Vectors that share one read of the weights.
const ROWS: usize = 4;

/// Rows of a panel. The last block may have fewer groups.
pub(super) fn rows(inputs: usize) -> usize {
    let groups = inputs.div_ceil(FOUR);
    groups.div_ceil(GROUPS) + TWO * groups
}

/// A word of a row of a panel, for the weights of one output. Missing weights are 0.
pub(super) fn word(weights: &[f32], row: usize) -> f32 {
    let (block, row) = (row / BLOCK, row % BLOCK);
    let group = |group: usize| kept(weights, block * GROUPS + group);
    let Some(at) = row.checked_sub(1) else {
        let places = (0..GROUPS).flat_map(group).map(|(place, _)| u32::from(place));
        return f32::from_bits(places.rev().fold(0, |word, place| word << BITS | place));
    };
    group(at / TWO)[at % TWO].1
}

/// Vectors in groups.
#[derive(Default)]
pub(super) struct Groups {
    /// `[rows, groups]`, padded with zeros to whole blocks.
    numbers: Vec<[f32; FOUR]>,
    /// Whether all values of a vector are finite.
    finite: Vec<bool>,
    /// For each block, a bit for each input that is not 0 in all vectors.
    live: Vec<u32>,
    /// Groups of a vector.
    width: usize,
}

impl Groups {
    /// Memory for `rows` vectors of up to `widest` values.
    pub(super) fn new(widest: usize, rows: usize) -> Self {
        let blocks = widest.div_ceil(FOUR * GROUPS);
        let numbers = vec![[0.0; FOUR]; blocks * GROUPS * rows];
        Groups { numbers, finite: vec![true; rows], live: vec![0; blocks], width: 0 }
    }

    /// Replaces the vectors.
    pub(super) fn read(&mut self, numbers: &[f32], width: usize) {
        let blocks = width.div_ceil(FOUR * GROUPS);
        self.width = blocks * GROUPS;
        let live = &mut self.live[..blocks];
        live.fill(0);
        let own = self.numbers.chunks_exact_mut(self.width.max(1));
        let rows = numbers.chunks_exact(width.max(1));
        for ((x, own), finite) in rows.zip(own).zip(&mut self.finite) {
            let flat = own.as_flattened_mut();
            flat[..width].copy_from_slice(x);
            flat[width..].fill(0.0);
            *finite = sconce_tensor::simd::non_finite(x).is_none();
            mark(live, own.as_flattened());
        }
    }

    /// Inputs that are not 0 in all vectors, and inputs of the groups of these.
    fn counts(&self) -> [usize; 2] {
        let live = self.live[..self.width / GROUPS].iter();
        live.fold([0, 0], |[inputs, groups], live| {
            let groups = groups + FOUR * groups_of(*live).count_ones() as usize;
            [inputs + live.count_ones() as usize, groups]
        })
    }

    /// Whether the product of these `rows` vectors takes less time with f32 weights.
    pub(super) fn are_few(&self, rows: usize, ratios: Ratios) -> bool {
        let [inputs, groups] = self.counts();
        (inputs as f64) < ratios.of(rows) * groups as f64
    }

    fn row(&self, row: usize) -> &[[f32; FOUR]] {
        &self.numbers[row * self.width..][..self.width]
    }
}

dispatch! {
    /// Marks the inputs of each block that are not 0.
    fn mark(live: &mut [u32], x: &[f32]) {
        for (live, block) in live.iter_mut().zip(x.chunks_exact(FOUR * GROUPS)) {
            let bit = |(at, x): (usize, &f32)| u32::from(*x != 0.0) << at;
            *live |= block.iter().enumerate().map(bit).fold(0, |live, bit| live | bit);
        }
    }
}

/// The lowest bit of each group with a live input. Bit `4 g` is that of group `g`.
#[inline(always)]
fn groups_of(live: u32) -> u32 {
    let pairs = live | live >> 1;
    (pairs | pairs >> 2) & 0x1111_1111
}

/// Weights of a panel: `vectors` SIMD vectors in each row.
pub(super) struct Panel<'a> {
    pub(super) weights: &'a [Vector],
    pub(super) vectors: usize,
    pub(super) inputs: usize,
    pub(super) level: Level,
}

impl Panel<'_> {
    /// The sums of all vectors, starting with the bias. The sums of a vector with a value that is not finite are NaN.
    pub(super) fn sum(&self, sums: &mut [Sums], x: &Groups, bias: &[f32]) {
        let live = &x.live[..x.width / GROUPS];
        assert!(x.width == self.inputs.div_ceil(FOUR * GROUPS) * GROUPS, "width of the input");
        assert!(self.weights.len() >= rows(self.inputs) * self.vectors, "rows of a panel");
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
        for (sums, _) in sums.iter_mut().zip(&x.finite).filter(|(_, finite)| !**finite) {
            sums.as_flattened_mut().fill(f32::NAN);
        }
    }

    fn add<const R: usize>(&self, sums: &mut [Sums], x: &Groups, first: usize, live: &[u32]) {
        let Some(sums) = sums.first_chunk_mut::<R>() else { return };
        let x: [&[[f32; FOUR]]; R] = std::array::from_fn(|r| x.row(first + r));
        #[cfg(target_arch = "x86_64")]
        {
            if self.level == Level::Avx512 {
                // SAFETY: `level` found the features that the kernel needs. `sum` checked the rows of the panel, and only
                // groups of inputs are live. Each vector has all groups of these blocks.
                return unsafe { avx512::add(sums, self, x, live) };
            }
            if self.level == Level::Avx2 {
                // SAFETY: as above.
                return unsafe { avx2::add(sums, self, x, live) };
            }
        }
        portable::add(sums, self, &x, live);
    }
}

#[cfg(test)]
mod tests;
