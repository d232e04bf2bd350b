//! Encodes a matrix's weights: the words of its panels, and the rounding error.

use std::borrow::Cow;

use sconce_ops::weights::Coded;
use sconce_ops::weights::two_four::fits;
use sconce_tensor::simd::{LANES, Level, level};
use sconce_tensor::{Precision, memory};

use super::PANEL;
use super::int8::GROUP;
use super::{int4, int8, two_four};
use crate::format::{Encoding, Format, Ratios};

/// With fewer inputs, reading 8 or 4 bits is not faster than reading 16 bits.
pub(super) const LEAST_INPUTS: usize = 32;
/// Inputs that share a scale where the format chooses 4 bits.
const INT4_GROUP: usize = 32;

impl Encoding {
    /// Outputs per word.
    fn in_a_word(self) -> usize {
        match self {
            Encoding::F32 | Encoding::Int8 | Encoding::Int4(_) | Encoding::TwoFour => 1,
            Encoding::Bf16 => 2,
        }
    }

    /// Outputs of a full panel.
    pub(super) fn panel(self) -> usize {
        match self {
            Encoding::F32 | Encoding::Bf16 if level() < Level::Avx512 => LANES * self.in_a_word(),
            _ => PANEL,
        }
    }

    /// SIMD vectors of words in a row of a panel with this many outputs.
    pub(super) fn vectors(self, outputs: usize) -> usize {
        outputs.min(self.panel()).div_ceil(LANES * self.in_a_word())
    }

    /// Rows of a panel with this many inputs.
    pub(super) fn rows(self, inputs: usize) -> usize {
        match self {
            Encoding::F32 | Encoding::Bf16 => inputs,
            Encoding::Int8 => inputs.div_ceil(GROUP),
            Encoding::Int4(group) => int4::rows(inputs, group),
            Encoding::TwoFour => two_four::rows(inputs),
        }
    }

    /// Words of all panels.
    pub(super) fn words(self, outputs: usize, inputs: usize) -> usize {
        let panels = (0..outputs).step_by(self.panel());
        panels.map(|first| self.vectors(outputs - first) * LANES * self.rows(inputs)).sum()
    }

    /// Scales beside the panels.
    pub(super) fn scales(self, outputs: usize) -> usize {
        if self == Encoding::Int8 { outputs } else { 0 }
    }

    /// Whether the kernels read a matrix with this many inputs in this encoding.
    pub(super) fn fits(self, inputs: usize) -> bool {
        match self {
            Encoding::F32 | Encoding::Bf16 | Encoding::TwoFour => true,
            Encoding::Int8 => inputs <= int8::MOST_INPUTS,
            Encoding::Int4(group) => {
                let most = inputs.next_multiple_of(int4::BLOCK);
                (int4::BLOCK..=most).contains(&group) && group.is_multiple_of(int4::BLOCK)
            }
        }
    }
}

/// The weights of a matrix in an encoding.
pub(super) struct Written {
    encoding: Encoding,
    inputs: usize,
    weights: Weights,
    /// For 2:4, when f32 is faster.
    ratios: Option<Ratios>,
}

enum Weights {
    /// f32, bf16 or 2:4.
    Numbers(Vec<f32>),
    Codes(Coded),
}

impl Written {
    /// None for an encoding that does not have these weights.
    pub(super) fn new(encoding: Encoding, weight: &[f32], inputs: usize) -> Option<Self> {
        let weights = match encoding {
            Encoding::F32 => Weights::Numbers(weight.to_vec()),
            Encoding::Bf16 => {
                let mut rounded = vec![0.0; weight.len()];
                Precision::Bf16.round(&mut rounded, weight);
                Weights::Numbers(rounded)
            }
            Encoding::Int8 => Weights::Codes(Coded::nearest(8, weight, inputs, inputs).ok()?),
            Encoding::Int4(group) => Weights::Codes(Coded::nearest(4, weight, inputs, group).ok()?),
            Encoding::TwoFour => Weights::Numbers(fits(weight, inputs).then(|| weight.to_vec())?),
        };
        Some(Written { encoding, inputs, weights, ratios: None })
    }

    /// Encodes the weights as the format chooses. Returns them with their rounding error.
    pub(super) fn chosen(format: Format, weight: &[f32], inputs: usize) -> (Self, f64) {
        let within = |encoding, bound: f64| {
            let written = Written::new(encoding, weight, inputs)?;
            let error = error(weight, &written.numbers(), inputs);
            (error <= bound).then_some((written, error))
        };
        let int8 = |bound| int8_gains(inputs).then(|| within(Encoding::Int8, bound)).flatten();
        let int4 = |bound| {
            let encoding = Encoding::Int4(INT4_GROUP);
            int4_gains(inputs).then(|| within(encoding, bound)).flatten()
        };
        let bf16 = || bf16_gains().then(|| within(Encoding::Bf16, f64::INFINITY)).flatten();
        let two_four = || {
            let written = Written::new(Encoding::TwoFour, weight, inputs)?;
            (inputs >= LEAST_INPUTS && weight.iter().any(|w| *w != 0.0)).then_some(())?;
            let ratios = two_four::ratios(inputs, weight.len() / inputs)?;
            Some((written.timed(ratios), 0.0))
        };
        let chosen = match format {
            Format::F32 => None,
            Format::Stored => two_four(),
            Format::Bf16 => bf16(),
            Format::Int8(bound) => int8(bound).or_else(bf16),
            Format::Int4(bound) => int4(bound).or_else(|| int8(bound)).or_else(bf16),
        };
        chosen.unwrap_or_else(|| {
            let weights = Weights::Numbers(weight.to_vec());
            (Written { encoding: Encoding::F32, inputs, weights, ratios: None }, 0.0)
        })
    }

    /// Codes in the encoding that reads them; None where f32 is faster.
    pub(super) fn stored(codes: Coded) -> Option<Self> {
        let (inputs, group) = (codes.inputs(), codes.group());
        let whole = group >= inputs;
        let encoding = match codes.bits() {
            8 if whole && int8_gains(inputs) => Encoding::Int8,
            4 if int4_gains(inputs) && (whole || group.is_multiple_of(int4::BLOCK)) => {
                Encoding::Int4(group.min(inputs).next_multiple_of(int4::BLOCK))
            }
            _ => return None,
        };
        Some(Written { encoding, inputs, weights: Weights::Codes(codes), ratios: None })
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Weights in 2:4 that are kept in f32 too.
    pub(super) fn timed(self, ratios: Ratios) -> Self {
        Written { ratios: Some(ratios), ..self }
    }

    /// For 2:4 that is kept in f32 too, the times that say with which vectors f32 is faster.
    pub(super) fn ratios(&self) -> Option<Ratios> {
        self.ratios
    }

    /// The weights of a matrix in 2:4 as f32, and the times that say with which vectors f32 is faster.
    pub(super) fn also_f32(&self) -> Option<(Ratios, Self)> {
        self.ratios.map(|own| {
            let (encoding, inputs) = (Encoding::F32, self.inputs);
            let weights = Weights::Numbers(self.numbers().into_owned());
            (own, Written { encoding, inputs, weights, ratios: None })
        })
    }

    /// The weights as f32 after rounding.
    pub(super) fn numbers(&self) -> Cow<'_, [f32]> {
        match &self.weights {
            Weights::Numbers(numbers) => numbers.into(),
            Weights::Codes(codes) => codes.weights().into(),
        }
    }

    /// One scale per output for 8-bit weights; none otherwise.
    pub(super) fn scales(&self) -> &[f32] {
        match (&self.weights, self.encoding) {
            (Weights::Codes(codes), Encoding::Int8) => codes.scales(),
            _ => &[],
        }
    }

    /// The words of all panels in order.
    pub(super) fn words(&self, outputs: usize) -> Vec<f32> {
        let mut words = memory::with_capacity(self.encoding.words(outputs, self.inputs));
        for first in (0..outputs).step_by(self.encoding.panel()) {
            let width = self.encoding.vectors(outputs - first) * LANES;
            for row in 0..self.encoding.rows(self.inputs) {
                words.extend(
                    (first..first + width).map(|output| self.word(outputs, output, row, width)),
                );
            }
        }
        words
    }

    fn word(&self, outputs: usize, output: usize, row: usize, width: usize) -> f32 {
        let codes = match &self.weights {
            Weights::Codes(codes) => codes,
            Weights::Numbers(numbers) => {
                let at = |output: usize| match output < outputs {
                    true => numbers[output * self.inputs + row],
                    false => 0.0,
                };
                return match self.encoding {
                    Encoding::TwoFour => {
                        let own = numbers.chunks_exact(self.inputs).nth(output);
                        two_four::word(own.unwrap_or(&[]), row)
                    }
                    Encoding::Bf16 => pair(at(output), at(output + width)),
                    _ => at(output),
                };
            }
        };
        match self.encoding {
            Encoding::Int4(group) => int4::word(codes, group, output, row),
            _ => int8::word(codes, output, row * GROUP),
        }
    }
}

/// Whether this CPU reads a matrix faster in 16 bits. The baseline of x86-64 takes longer to widen them than to read f32.
fn bf16_gains() -> bool {
    cfg!(not(target_arch = "x86_64")) || level() > Level::Portable
}

/// Whether this CPU reads a matrix with this many inputs faster in 8 bits.
fn int8_gains(inputs: usize) -> bool {
    has_vnni() && (LEAST_INPUTS..=int8::MOST_INPUTS).contains(&inputs)
}

/// Whether this CPU reads a matrix with this many inputs faster in 4 bits.
fn int4_gains(inputs: usize) -> bool {
    level() >= Level::Avx2 && inputs >= LEAST_INPUTS
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

/// The features of the CPU on which encodings and their words depend, such as `x86_64 avx512 vnni`.
pub fn cpu() -> String {
    let level = match level() {
        Level::Portable => "portable narrow",
        Level::Avx2 => "avx2 narrow",
        Level::Avx512 => "avx512",
    };
    let vnni = if has_vnni() { " vnni" } else { "" };
    format!("{} {level}{vnni}", std::env::consts::ARCH)
}

/// The relative rounding error, as in [`Packed::error`](crate::format::Packed::error).
pub(super) fn error(weight: &[f32], written: &[f32], inputs: usize) -> f64 {
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
