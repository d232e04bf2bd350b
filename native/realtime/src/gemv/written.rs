//! Encodes a matrix's weights: the words of its panels, and the rounding error.

use std::borrow::Cow;

use sconce_tensor::Precision;
use sconce_tensor::simd::{LANES, Level, level};

use super::PANEL;
use super::int8::{self, GROUP, Quantised};
use crate::format::{Encoding, Format};

/// With fewer inputs, reading 8 bits is not faster than reading 16 bits.
pub(super) const LEAST_INPUTS: usize = 32;

impl Encoding {
    /// Outputs per word.
    fn in_a_word(self) -> usize {
        match self {
            Encoding::F32 | Encoding::Int8 => 1,
            Encoding::Bf16 => 2,
        }
    }

    /// SIMD vectors of words in a row of a panel with this many outputs.
    pub(super) fn vectors(self, outputs: usize) -> usize {
        outputs.min(PANEL).div_ceil(LANES * self.in_a_word())
    }

    /// Rows of a panel with this many inputs.
    pub(super) fn rows(self, inputs: usize) -> usize {
        match self {
            Encoding::F32 | Encoding::Bf16 => inputs,
            Encoding::Int8 => inputs.div_ceil(GROUP),
        }
    }
}

/// The weights of a matrix in an encoding.
pub(super) enum Written {
    F32(Vec<f32>),
    Bf16(Vec<f32>),
    Int8(Quantised),
}

impl Written {
    pub(super) fn new(encoding: Encoding, weight: &[f32], inputs: usize) -> Self {
        match encoding {
            Encoding::F32 => Written::F32(weight.to_vec()),
            Encoding::Bf16 => {
                let mut rounded = vec![0.0; weight.len()];
                Precision::Bf16.round(&mut rounded, weight);
                Written::Bf16(rounded)
            }
            Encoding::Int8 => Written::Int8(Quantised::new(weight, inputs)),
        }
    }

    /// Encodes the weights as the format chooses. Returns them with their rounding error.
    pub(super) fn chosen(format: Format, weight: &[f32], inputs: usize) -> (Self, f64) {
        let written = |encoding| {
            let written = Written::new(encoding, weight, inputs);
            let error = error(weight, &written.numbers(inputs), inputs);
            (written, error)
        };
        match format {
            Format::F32 => written(Encoding::F32),
            Format::Int8(bound) if int8_gains(inputs) => Some(written(Encoding::Int8))
                .filter(|(_, error)| *error <= bound)
                .unwrap_or_else(|| written(Encoding::Bf16)),
            Format::Bf16 | Format::Int8(_) => written(Encoding::Bf16),
        }
    }

    pub(super) fn encoding(&self) -> Encoding {
        match self {
            Written::F32(_) => Encoding::F32,
            Written::Bf16(_) => Encoding::Bf16,
            Written::Int8(_) => Encoding::Int8,
        }
    }

    /// The weights as f32 after rounding.
    pub(super) fn numbers(&self, inputs: usize) -> Cow<'_, [f32]> {
        match self {
            Written::F32(numbers) | Written::Bf16(numbers) => numbers.into(),
            Written::Int8(quantised) => quantised.numbers(inputs).into(),
        }
    }

    pub(super) fn scales(&self) -> &[f32] {
        match self {
            Written::F32(_) | Written::Bf16(_) => &[],
            Written::Int8(quantised) => &quantised.scales,
        }
    }

    /// The words of all panels in order.
    pub(super) fn words(&self, outputs: usize, inputs: usize) -> Vec<f32> {
        let at = |numbers: &[f32], output: usize, input: usize| match output < outputs {
            true => numbers[output * inputs + input],
            false => 0.0,
        };
        let mut words = vec![];
        for first in (0..outputs).step_by(PANEL) {
            let width = self.encoding().vectors(outputs - first) * LANES;
            for row in 0..self.encoding().rows(inputs) {
                words.extend((first..first + width).map(|output| match self {
                    Written::F32(numbers) => at(numbers, output, row),
                    Written::Bf16(numbers) => {
                        pair(at(numbers, output, row), at(numbers, output + width, row))
                    }
                    Written::Int8(quantised) => quantised.word(output, row * GROUP, inputs),
                }));
            }
        }
        words
    }
}

/// Whether this CPU reads a matrix with this many inputs faster in 8 bits.
fn int8_gains(inputs: usize) -> bool {
    has_vnni() && (LEAST_INPUTS..=int8::MOST_INPUTS).contains(&inputs)
}

/// Whether the CPU has AVX-512 VNNI, which adds four products of bytes at once.
pub(super) fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        level() == Level::Avx512 && is_x86_feature_detected!("avx512vnni")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// The relative rounding error, as in [`Packed::error`](crate::format::Packed::error).
fn error(weight: &[f32], written: &[f32], inputs: usize) -> f64 {
    let size = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|v| v * v).sum::<f64>().sqrt();
    let rows = weight.chunks_exact(inputs.max(1)).zip(written.chunks_exact(inputs.max(1)));
    let errors = rows.map(|(row, written)| {
        let pairs = row.iter().zip(written);
        let lost = size(&mut pairs.map(|(w, v)| f64::from(*w) - f64::from(*v)));
        if lost == 0.0 { 0.0 } else { lost / size(&mut row.iter().map(|w| f64::from(*w))) }
    });
    errors.fold(0.0, f64::max)
}

/// Packs two bf16 values in a word, the first in the lower half.
pub(super) fn pair(low: f32, high: f32) -> f32 {
    f32::from_bits(high.to_bits() | low.to_bits() >> 16)
}
