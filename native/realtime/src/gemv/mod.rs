//! A matrix times a vector.
//!
//! `y = W x + b` reads each weight once, so its time is that of reading them. They lie in panels of up to
//! 64 outputs, in bf16 128, and in a panel input after input: what stands beside a zero is stepped over.
//! Behind a relu, and in a vector of one-hots, that is half of them or more.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::ops::Range;

use sconce_core::Precision;
use sconce_core::ops::simd::{LANES, Level, level};
use serde::{Deserialize, Serialize};

use crate::arena::Packer;

/// Vectors of words in a row of a panel. A word is one weight, or two in bf16.
const VECTORS: usize = 4;
/// Inputs between fetching their weights and using them.
const AHEAD: usize = 8;

/// What a vector has at one place.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    row: u32,
    value: f32,
}

/// The numbers of a vector that are not 0, and their places.
#[derive(Default)]
pub struct Active {
    /// Followed by [`AHEAD`] that only say what may be fetched.
    entries: Vec<Entry>,
    width: usize,
    count: usize,
}

impl Active {
    /// Room for vectors of up to `widest` numbers.
    pub fn new(widest: usize) -> Self {
        Active { entries: vec![Entry::default(); widest + AHEAD], width: 0, count: 0 }
    }

    pub fn read(&mut self, x: &[f32]) {
        self.width = x.len();
        self.count = 0;
        for (row, &value) in x.iter().enumerate() {
            self.entries[self.count] = Entry { row: row as u32, value };
            self.count += usize::from(value != 0.0);
        }
        // Behind the last row of a panel begins the next.
        for i in 0..AHEAD {
            self.entries[self.count + i] = Entry { row: (self.width + i) as u32, value: 0.0 };
        }
    }
}

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

    /// Outputs of a whole panel.
    fn panel(self) -> usize {
        VECTORS * LANES * self.in_a_word()
    }

    /// Vectors in a row of the panel that begins where so many outputs are left.
    fn vectors(self, outputs: usize) -> usize {
        outputs.div_ceil(LANES * self.in_a_word()).min(VECTORS)
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
        for first in (0..outputs).step_by(format.panel()) {
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

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `y [outputs] = W x + b`
    pub fn apply(&self, arena: &[f32], x: &Active, y: &mut [f32]) {
        self.each(arena, x, y, |sum| sum);
    }

    /// `y [outputs] = relu(W x + b)`
    pub fn relu(&self, arena: &[f32], x: &Active, y: &mut [f32]) {
        // What is not a number stays that.
        self.each(arena, x, y, |sum| if sum < 0.0 { 0.0 } else { sum });
    }

    #[inline(always)]
    fn each(&self, arena: &[f32], x: &Active, y: &mut [f32], f: impl Fn(f32) -> f32) {
        assert_eq!(x.width, self.inputs, "numbers that a matrix reads");
        let bias = &arena[self.bias.clone()];
        let mut rest = &arena[self.panels.clone()];
        let (format, level) = (self.format, level());
        let panels = y[..self.outputs].chunks_mut(format.panel());
        for (y, bias) in panels.zip(bias.chunks(format.panel())) {
            let mut sums = [[0.0; LANES]; 2 * VECTORS];
            sums.as_flattened_mut()[..bias.len()].copy_from_slice(bias);
            let vectors = format.vectors(y.len());
            let (panel, next) = rest.split_at(self.inputs * vectors * LANES);
            rest = next;
            match vectors {
                1 => add::<1>(format, level, &mut sums, panel, x),
                2 => add::<2>(format, level, &mut sums, panel, x),
                3 => add::<3>(format, level, &mut sums, panel, x),
                _ => add::<VECTORS>(format, level, &mut sums, panel, x),
            }
            for (y, sum) in y.iter_mut().zip(sums.as_flattened()) {
                *y = f(*sum);
            }
        }
    }
}

/// Two bf16, the first in the lower half of the word.
fn pair(low: f32, high: f32) -> f32 {
    f32::from_bits(high.to_bits() | low.to_bits() >> 16)
}

/// Adds to the sums of a panel each of its rows, of `T` vectors, times what stands in its place. The sums of
/// upper halves follow those of lower ones.
fn add<const T: usize>(
    format: Format,
    level: Level,
    sums: &mut [[f32; LANES]; 2 * VECTORS],
    panel: &[f32],
    x: &Active,
) {
    let (low, high) = sums.split_at_mut(T);
    let (Some(low), Some(high)) = (low.first_chunk_mut::<T>(), high.first_chunk_mut::<T>()) else {
        return;
    };
    let rows = panel.as_chunks::<LANES>().0.as_chunks::<T>().0;
    assert_eq!(rows.len(), x.width, "rows of a panel");
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512 {
        let entries = &x.entries[..x.count + AHEAD];
        return match format {
            // SAFETY: `level` found what the kernels need; entries that count are of rows that there
            // are, and there are as many rows as the vector has numbers.
            Format::F32 => unsafe { avx512::add(low, rows, entries) },
            // SAFETY: as above.
            Format::Bf16 => unsafe { avx512::add_pairs(low, high, rows, entries) },
        };
    }
    let _ = level;
    match format {
        Format::F32 => portable::add(low, rows, &x.entries[..x.count]),
        Format::Bf16 => portable::add_pairs(low, high, rows, &x.entries[..x.count]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_core::rng::Rng;
    use sconce_core::weights::Weights;

    /// Numbers of which some are 0.
    fn vector(rng: &Rng, count: usize) -> Vec<f32> {
        let number = |i| if rng.u32(i + 9000).is_multiple_of(3) { 0.0 } else { rng.normal(i) };
        (0..count as u64).map(number).collect()
    }

    fn assert_close(got: &[f32], want: &[f64], about: &str) {
        for (g, w) in got.iter().zip(want) {
            assert!((f64::from(*g) - w).abs() < 1e-5 * w.abs().max(1.0), "{about}: {g} is not {w}");
        }
    }

    #[test]
    fn every_shape_is_the_product_in_double_precision() {
        let shapes = [1, 5, 16, 17, 33, 48, 64, 65, 81, 130, 300]
            .into_iter()
            .flat_map(|outputs| [0, 1, 2, 7, 64, 99].map(|inputs| (outputs, inputs)));
        for (outputs, inputs) in shapes {
            for format in [Format::F32, Format::Bf16] {
                let rng = Rng::new(1, "gemv", (outputs * 1000 + inputs) as u64);
                let w: Vec<f32> = (0..(outputs * inputs) as u64).map(|i| rng.normal(i)).collect();
                let w = format.round(&w);
                let (x, b) = (vector(&rng, inputs), vector(&rng, outputs));
                let weights = Weights::new();
                let mut packer = Packer::new(&weights, format);
                let matrix = Matrix::pack(&mut packer, &w, &b);
                let mut active = Active::new(packer.widest());
                let arena = packer.finish().unwrap();
                active.read(&x);
                let want: Vec<f64> = (0..outputs)
                    .map(|i| {
                        let row = w[i * inputs..][..inputs].iter().zip(&x);
                        f64::from(b[i])
                            + row.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>()
                    })
                    .collect();
                let mut y = vec![7.0; outputs];
                matrix.apply(arena.numbers(), &active, &mut y);
                assert_close(&y, &want, &format!("{outputs} of {inputs}"));
                matrix.relu(arena.numbers(), &active, &mut y);
                let want: Vec<f64> = want.iter().map(|v| v.max(0.0)).collect();
                assert_close(&y, &want, &format!("{outputs} of {inputs}, relu"));
            }
        }
    }

    #[test]
    fn the_kernels_agree() {
        let rng = Rng::new(2, "gemv", 0);
        let numbers: Vec<f32> = (0..300).map(|i| rng.normal(i)).collect();
        let numbers = Format::Bf16.round(&numbers);
        // As two bf16 or as one f32, a number.
        let rows: Vec<[[f32; LANES]; 3]> = numbers
            .chunks_exact(6)
            .map(|of| std::array::from_fn(|t| [pair(of[t], of[t + 3]); LANES]))
            .collect();
        let mut active = Active::new(50);
        active.read(&vector(&rng, 50));
        for format in [Format::F32, Format::Bf16] {
            let made = |level| {
                let mut sums = [[0.5; LANES]; 2 * VECTORS];
                add::<3>(format, level, &mut sums, rows.as_flattened().as_flattened(), &active);
                sums
            };
            let portable = made(Level::Portable);
            let want: Vec<f64> = portable.as_flattened().iter().map(|v| f64::from(*v)).collect();
            assert_close(made(level()).as_flattened(), &want, "kernels");
        }
    }

    #[test]
    fn what_is_not_a_number_comes_through() {
        let weights = Weights::new();
        let mut packer = Packer::new(&weights, Format::F32);
        let matrix = Matrix::pack(&mut packer, &[1.0, 0.0, 2.0, 3.0], &[0.0; 2]);
        let arena = packer.finish().unwrap();
        let mut active = Active::new(2);
        active.read(&[0.0, f32::NAN]);
        let mut y = [0.0; 2];
        matrix.relu(arena.numbers(), &active, &mut y);
        assert!(y.iter().all(|y| y.is_nan()));
    }
}
