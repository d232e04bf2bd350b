//! Matrices times vectors.
//!
//! `y = W x + b` of one vector reads each weight once, so its time is that of reading them. They lie in panels
//! of up to 128 outputs, and in a panel input after input: what stands beside a zero is stepped over. Behind a
//! relu, and in a vector of one-hots, that is half of them or more. Of several vectors a weight that was read
//! serves up to six.
//!
//! Each output is one sum in the order of the inputs, so that it has the same bits in whatever company a vector
//! comes: a zero that is stepped over adds nothing.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod input;
mod portable;

use std::ops::Range;

use sconce_core::Precision;
use sconce_core::ops::simd::{LANES, Level, level};
use serde::{Deserialize, Serialize};

use crate::arena::Packer;
use input::Entry;
pub use input::Input;

/// Vectors of sums that a panel makes.
const VECTORS: usize = 8;
/// Outputs of a whole panel.
const PANEL: usize = VECTORS * LANES;
/// Vectors that a weight serves once it was read.
const ROWS: usize = 6;
/// Inputs between fetching their weights and using them.
const AHEAD: usize = 8;

/// The sums of a panel for one vector.
type Sums = [[f32; LANES]; VECTORS];

/// `W [outputs, inputs]` and `b [outputs]` in the arena: the bias, then panel after panel.
pub struct Matrix {
    inputs: usize,
    outputs: usize,
    format: Format,
    bias: Range<usize>,
    panels: Range<usize>,
}

/// How a weight is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    #[default]
    F32,
    /// Rounded to 8 bits of its number, and read as f32: what it is multiplied with is not rounded.
    Bf16,
}

impl Format {
    /// Weights in a word.
    fn in_a_word(self) -> usize {
        match self {
            Format::F32 => 1,
            Format::Bf16 => 2,
        }
    }

    /// Vectors of words in a row of the panel that makes so many outputs.
    fn vectors(self, outputs: usize) -> usize {
        outputs.min(PANEL).div_ceil(LANES * self.in_a_word())
    }

    fn round(self, weights: &[f32]) -> Vec<f32> {
        let mut rounded = vec![0.0; weights.len()];
        let precision = match self {
            Format::F32 => Precision::F32,
            Format::Bf16 => Precision::Bf16,
        };
        precision.round(&mut rounded, weights);
        rounded
    }
}

impl Matrix {
    /// Packs a weight, row after row, and its bias.
    pub fn pack(packer: &mut Packer, weight: &[f32], bias: &[f32]) -> Self {
        let outputs = bias.len();
        let inputs = weight.len() / outputs.max(1);
        packer.holds(inputs);
        packer.holds(outputs);
        let (format, bias) = (packer.format(), packer.lay(bias));
        let weight = format.round(weight);
        packer.check(&weight);
        let at = |output, input| match output < outputs {
            true => weight[output * inputs + input],
            false => 0.0,
        };
        let mut words = Vec::with_capacity(weight.len());
        for first in (0..outputs).step_by(PANEL) {
            let width = format.vectors(outputs - first) * LANES;
            for input in 0..inputs {
                words.extend((first..first + width).map(|output| match format {
                    Format::F32 => at(output, input),
                    Format::Bf16 => pair(at(output, input), at(output + width, input)),
                }));
            }
        }
        Matrix { inputs, outputs, format, bias, panels: packer.lay(&words) }
    }

    /// Packs the weights `NAME.weight` and `NAME.bias`.
    pub fn dense(packer: &mut Packer, name: &str) -> sconce_core::Result<Self> {
        let weight = packer.read(&format!("{name}.weight"))?;
        let bias = packer.read(&format!("{name}.bias"))?;
        Ok(Self::pack(packer, &weight, &bias))
    }

    /// Packs the weight `NAME.weight` of so many outputs.
    pub fn without_bias(
        packer: &mut Packer,
        name: &str,
        outputs: usize,
    ) -> sconce_core::Result<Self> {
        let weight = packer.read(&format!("{name}.weight"))?;
        Ok(Self::pack(packer, &weight, &vec![0.0; outputs]))
    }

    /// Packs the weights `NAME.PART.weight` and `NAME.PART.bias`, the outputs of all parts side by side.
    pub fn side_by_side(
        packer: &mut Packer,
        name: &str,
        parts: &[&str],
    ) -> sconce_core::Result<Self> {
        let (mut weight, mut bias) = (vec![], vec![]);
        for part in parts {
            weight.extend(packer.read(&format!("{name}.{part}.weight"))?);
            bias.extend(packer.read(&format!("{name}.{part}.bias"))?);
        }
        Ok(Self::pack(packer, &weight, &bias))
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Makes `rows` vectors of its own width, which lie one after the other, its input.
    pub fn read(&self, input: &mut Input, x: &[f32], rows: usize) {
        input.read(x.chunks_exact(self.inputs).take(rows));
    }

    /// `y [rows, outputs] = x W^T + b`
    pub fn apply(&self, arena: &[f32], x: &Input, y: &mut [f32]) {
        self.each(arena, x, y, |sum| sum);
    }

    /// `y [rows, outputs] = relu(x W^T + b)`
    pub fn relu(&self, arena: &[f32], x: &Input, y: &mut [f32]) {
        // What is not a number stays that.
        self.each(arena, x, y, |sum| if sum < 0.0 { 0.0 } else { sum });
    }

    #[inline(always)]
    fn each(&self, arena: &[f32], x: &Input, y: &mut [f32], f: impl Fn(f32) -> f32) {
        assert_eq!(x.width(), self.inputs, "numbers that a matrix reads");
        let (bias, level) = (&arena[self.bias.clone()], level());
        let mut rest = &arena[self.panels.clone()];
        for first in (0..self.outputs).step_by(PANEL) {
            let outputs = (self.outputs - first).min(PANEL);
            let vectors = self.format.vectors(outputs);
            let (panel, next) = rest.split_at(self.inputs * vectors * LANES);
            rest = next;
            let panel = Panel { format: self.format, level, vectors, weights: panel };
            for rows in x.tiles() {
                let mut sums = [[[0.0; LANES]; VECTORS]; ROWS];
                for sums in &mut sums[..rows.len()] {
                    sums.as_flattened_mut()[..outputs]
                        .copy_from_slice(&bias[first..first + outputs]);
                }
                panel.add(&mut sums[..rows.len()], x, rows.start);
                for (row, sums) in rows.zip(&sums) {
                    let y = &mut y[row * self.outputs + first..][..outputs];
                    for (y, sum) in y.iter_mut().zip(sums.as_flattened()) {
                        *y = f(*sum);
                    }
                }
            }
        }
    }
}

/// Two bf16, the first in the lower half of the word.
fn pair(low: f32, high: f32) -> f32 {
    f32::from_bits(high.to_bits() | low.to_bits() >> 16)
}

/// Weights of up to 128 outputs: of each input `vectors` vectors of words.
struct Panel<'a> {
    format: Format,
    level: Level,
    vectors: usize,
    weights: &'a [f32],
}

impl Panel<'_> {
    /// Adds to the sums of the vectors from `first` on each weight times the number it stands beside. The sums
    /// of upper halves of words follow those of lower ones.
    fn add(&self, sums: &mut [Sums], x: &Input, first: usize) {
        match (x.sparse(), sums) {
            (Some(entries), [sums]) => self.add_sparse(sums, entries),
            (_, sums) => self.add_dense(sums, x, first),
        }
    }

    fn add_sparse(&self, sums: &mut Sums, entries: &[Entry]) {
        match (self.format, self.vectors) {
            (Format::F32, 1) => self.singles::<1>(sums, entries),
            (Format::F32, 2) => self.singles::<2>(sums, entries),
            (Format::F32, 3) => self.singles::<3>(sums, entries),
            (Format::F32, 4) => self.singles::<4>(sums, entries),
            (Format::F32, 5) => self.singles::<5>(sums, entries),
            (Format::F32, 6) => self.singles::<6>(sums, entries),
            (Format::F32, 7) => self.singles::<7>(sums, entries),
            (Format::F32, _) => self.singles::<8>(sums, entries),
            (Format::Bf16, 1) => self.pairs::<1>(sums, entries),
            (Format::Bf16, 2) => self.pairs::<2>(sums, entries),
            (Format::Bf16, 3) => self.pairs::<3>(sums, entries),
            (Format::Bf16, _) => self.pairs::<4>(sums, entries),
        }
    }

    /// `entries` end with [`AHEAD`] that only say what may be fetched.
    fn singles<const T: usize>(&self, sums: &mut Sums, entries: &[Entry]) {
        let Some(sums) = sums.first_chunk_mut::<T>() else { return };
        let rows = self.weights.as_chunks::<LANES>().0.as_chunks::<T>().0;
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 {
            // SAFETY: `level` found what the kernel needs; entries that count are of inputs that there
            // are.
            return unsafe { avx512::add(sums, rows, entries) };
        }
        portable::add(sums, rows, &entries[..entries.len() - AHEAD]);
    }

    /// As [`singles`](Self::singles), of words of two.
    fn pairs<const T: usize>(&self, sums: &mut Sums, entries: &[Entry]) {
        let (low, high) = sums.split_at_mut(T);
        let (Some(low), Some(high)) = (low.first_chunk_mut::<T>(), high.first_chunk_mut::<T>())
        else {
            return;
        };
        let rows = self.weights.as_chunks::<LANES>().0.as_chunks::<T>().0;
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 {
            // SAFETY: as in `singles`.
            return unsafe { avx512::add_pairs(low, high, rows, entries) };
        }
        portable::add_pairs(low, high, rows, &entries[..entries.len() - AHEAD]);
    }

    fn add_dense(&self, sums: &mut [Sums], x: &Input, first: usize) {
        match sums.len() {
            1 => self.tile::<1>(sums, x, first),
            2 => self.tile::<2>(sums, x, first),
            3 => self.tile::<3>(sums, x, first),
            4 => self.tile::<4>(sums, x, first),
            5 => self.tile::<5>(sums, x, first),
            _ => self.tile::<ROWS>(sums, x, first),
        }
    }

    fn tile<const R: usize>(&self, sums: &mut [Sums], x: &Input, first: usize) {
        let Some(sums) = sums.first_chunk_mut::<R>() else { return };
        let rows: [&[f32]; R] = std::array::from_fn(|r| x.row(first + r));
        let weights = self.weights.as_chunks::<LANES>().0;
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 {
            // SAFETY: `level` found what the kernels need; the panel has `vectors` vectors for each number of
            // a row.
            return unsafe {
                match self.format {
                    Format::F32 => avx512::tile(sums, weights, self.vectors, rows),
                    Format::Bf16 => avx512::tile_pairs(sums, weights, self.vectors, rows),
                }
            };
        }
        match self.format {
            Format::F32 => portable::tile(sums, weights, self.vectors, &rows),
            Format::Bf16 => portable::tile_pairs(sums, weights, self.vectors, &rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_core::rng::Rng;
    use sconce_core::weights::Weights;

    const FORMATS: [Format; 2] = [Format::F32, Format::Bf16];

    /// Numbers of which some are 0.
    fn vector(rng: &Rng, count: usize) -> Vec<f32> {
        let number = |i| if rng.u32(i + 9000).is_multiple_of(3) { 0.0 } else { rng.normal(i) };
        (0..count as u64).map(number).collect()
    }

    fn assert_close(got: &[f32], want: &[f64], about: &str) {
        assert_eq!(got.len(), want.len(), "{about}");
        for (g, w) in got.iter().zip(want) {
            assert!((f64::from(*g) - w).abs() < 1e-5 * w.abs().max(1.0), "{about}: {g} is not {w}");
        }
    }

    /// `[rows, outputs]` in double precision.
    fn product(w: &[f32], x: &[f32], b: &[f32], inputs: usize) -> Vec<f64> {
        let sum = |x: &[f32], i: usize| {
            let terms = w[i * inputs..][..inputs].iter().zip(x);
            f64::from(b[i]) + terms.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>()
        };
        let rows = (0..x.len() / inputs.max(1)).map(|row| &x[row * inputs..][..inputs]);
        rows.flat_map(|x| (0..b.len()).map(move |i| sum(x, i))).collect()
    }

    #[test]
    fn every_shape_is_the_product_in_double_precision_and_a_row_alone_has_the_same_bits() {
        let shapes = [1, 5, 16, 17, 33, 48, 64, 65, 81, 130, 300]
            .into_iter()
            .flat_map(|outputs| [1, 2, 7, 64, 99].map(|inputs| (outputs, inputs)));
        for (outputs, inputs) in shapes {
            for format in FORMATS {
                let rng = Rng::new(1, "gemv", (outputs * 1000 + inputs) as u64);
                let w: Vec<f32> = (0..(outputs * inputs) as u64).map(|i| rng.normal(i)).collect();
                let w = format.round(&w);
                let rows = 1 + (outputs + inputs) % 14;
                let (x, b) = (vector(&rng, inputs * rows), vector(&rng, outputs));
                let weights = Weights::new();
                let mut packer = Packer::new(&weights, format);
                let matrix = Matrix::pack(&mut packer, &w, &b);
                let mut input = Input::new(packer.widest(), rows);
                let arena = packer.finish().unwrap();
                input.read(x.chunks_exact(inputs));
                let want = product(&w, &x, &b, inputs);
                let mut y = vec![7.0; outputs * rows];
                matrix.apply(arena.numbers(), &input, &mut y);
                assert_close(&y, &want, &format!("{rows}, {outputs} of {inputs}"));
                let mut alone = vec![7.0; outputs];
                for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
                    input.read([x]);
                    matrix.apply(arena.numbers(), &input, &mut alone);
                    assert_eq!(alone, y, "{rows}, {outputs} of {inputs}");
                }
                input.read(x.chunks_exact(inputs));
                matrix.relu(arena.numbers(), &input, &mut y);
                let want: Vec<f64> = want.iter().map(|v| v.max(0.0)).collect();
                assert_close(&y, &want, &format!("{rows}, {outputs} of {inputs}, relu"));
            }
        }
    }

    #[test]
    fn the_kernels_agree() {
        let rng = Rng::new(2, "gemv", 0);
        let numbers: Vec<f32> = (0..50 * 2 * 3 * LANES as u64).map(|i| rng.normal(i)).collect();
        let numbers = Format::Bf16.round(&numbers);
        // As two bf16 or as one f32, a number.
        let weights: Vec<f32> = numbers.chunks_exact(2).map(|of| pair(of[0], of[1])).collect();
        let mut input = Input::new(50, ROWS);
        for rows in 1..=ROWS {
            let x = vector(&rng, 50 * rows);
            input.read(x.chunks_exact(50));
            for format in FORMATS {
                let made = |level| {
                    let mut sums = [[[0.5; LANES]; VECTORS]; ROWS];
                    let panel = Panel { format, level, vectors: 3, weights: &weights };
                    panel.add(&mut sums[..rows], &input, 0);
                    sums
                };
                let portable = made(Level::Portable);
                let want: Vec<f64> =
                    portable.as_flattened().as_flattened().iter().map(|v| f64::from(*v)).collect();
                assert_close(made(level()).as_flattened().as_flattened(), &want, "kernels");
            }
        }
    }

    #[test]
    fn what_is_not_a_number_comes_through() {
        let weights = Weights::new();
        let mut packer = Packer::new(&weights, Format::F32);
        let matrix = Matrix::pack(&mut packer, &[1.0, 0.0, 2.0, 3.0], &[0.0; 2]);
        let arena = packer.finish().unwrap();
        let mut input = Input::new(2, 2);
        for rows in 1..=2 {
            input.read([[0.0, f32::NAN]; 2][..rows].iter().map(|x| &x[..]));
            let mut y = [0.0; 4];
            matrix.relu(arena.numbers(), &input, &mut y);
            assert!(y[..2 * rows].iter().all(|y| y.is_nan()));
        }
    }
}
