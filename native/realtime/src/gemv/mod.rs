//! Products of a matrix and one or more vectors.
//!
//! `y = W x + b` for one vector reads each weight once, so the product takes as long as reading the weights. Weights
//! are stored in panels of up to 128 outputs, and within a panel input by input, so that the weights of an input that
//! is 0 are skipped. After a relu or in one-hot inputs at least half are skipped. With several vectors, each weight
//! that was read serves up to six vectors.
//!
//! Each output is one sum in the order of the inputs, so it does not depend on the other vectors. Skipping a 0 changes
//! only the sign of a zero. With 8-bit weights four inputs are skipped together, and with 4-bit weights 32.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod input;
mod int4;
mod int8;
mod panel;
mod portable;
mod rows;
mod two_four;
mod written;

use std::mem;
use std::ops::Range;

use input::Vectors;
pub use input::{Input, Tap};
use panel::Panel;
use sconce_ops::weights::{Coded, Weight};
use sconce_tensor::simd::{LANES, dispatch, level};
use sconce_tensor::{Error, Result};
pub use two_four::Ratios;
pub use written::cpu;
use written::{Written, has_vnni};

use crate::arena::Packer;
use crate::format::{Encoding, Format, Packed, Record};

/// Maximum SIMD vectors of sums of a panel.
const VECTORS: usize = 8;
/// Outputs of a full panel.
const PANEL: usize = VECTORS * LANES;
/// Input vectors that share one read of a weight.
const ROWS: usize = 6;
/// Input vectors that share one read of an 8-bit weight: fewer, because each vector has two sums.
const ROWS_OF_INT8: usize = 4;
/// SIMD vectors of weights in a block, which stays in the first-level cache: 32 KB.
const BLOCK: usize = 512;
/// Distance of the prefetch, in inputs.
const AHEAD: usize = 8;

type Vector = [f32; LANES];
/// One panel's sums for one input vector.
type Sums = [Vector; VECTORS];

/// `W: [outputs, inputs]` and `b: [outputs]` in the arena: the bias, the scales, then the panels.
pub struct Matrix {
    /// Place among the matrices of the plan.
    place: usize,
    inputs: usize,
    outputs: usize,
    encoding: Encoding,
    bias: Range<usize>,
    /// One scale per output for 8-bit weights; empty otherwise.
    scales: Range<usize>,
    panels: Range<usize>,
    /// For weights in 2:4: when f32 is faster, and the panels of f32.
    also_f32: Option<(Ratios, Range<usize>)>,
}

/// Builds one name for concatenated weights: joins by `+` the segments that differ between their names.
fn together(names: &[&str]) -> String {
    let [first, rest @ ..] = names else { return String::new() };
    let parts: Vec<Vec<&str>> = names.iter().map(|name| name.split('.').collect()).collect();
    let is_one = |i: usize| parts.iter().all(|other| other.get(i) == parts[0].get(i));
    if rest.is_empty() || parts.iter().any(|other| other.len() != parts[0].len()) {
        return (*first).to_owned();
    }
    let joined = (0..parts[0].len()).map(|i| match is_one(i) {
        true => parts[0][i].to_owned(),
        false => parts.iter().map(|part| part[i]).collect::<Vec<_>>().join("+"),
    });
    joined.collect::<Vec<_>>().join(".")
}

impl Matrix {
    /// Packs a weight, row by row, and its bias. The report shows `name`.
    ///
    /// # Errors
    /// `NotFound` or `Mismatch` for an arena that was built before with other matrices.
    pub fn pack(packer: &mut Packer, name: &str, weight: &[f32], bias: &[f32]) -> Result<Self> {
        let inputs = weight.len() / bias.len().max(1);
        if let Some(matrix) = Self::recorded(packer, &[name], [bias.len(), inputs])? {
            return Ok(matrix);
        }
        packer.check(weight);
        let (written, error) = Written::chosen(packer.format(), weight, inputs);
        Ok(Self::lay(packer, &[name], &written, error, bias))
    }

    /// A matrix of an arena that was built before; `None` while one is built.
    fn recorded(
        packer: &mut Packer,
        names: &[&str],
        [outputs, inputs]: [usize; 2],
    ) -> Result<Option<Self>> {
        let name = together(names);
        let Some((encoding, record)) = packer.record(&name)? else { return Ok(None) };
        if !encoding.fits(inputs) {
            return Err(Error::mismatch(name, "an encoding of its inputs", inputs));
        }
        let Record { error, ratios, .. } = record;
        Ok(Some(Matrix {
            place: Self::report(packer, names, [outputs, inputs], (encoding, error, ratios)),
            inputs,
            outputs,
            encoding,
            bias: packer.place(outputs),
            scales: packer.place(encoding.scales(outputs)),
            panels: packer.place(encoding.words(outputs, inputs)),
            also_f32: ratios.map(|own| (own, packer.place(Encoding::F32.words(outputs, inputs)))),
        }))
    }

    /// Adds the report of a matrix. Returns its place.
    fn report(
        packer: &mut Packer,
        names: &[&str],
        [outputs, inputs]: [usize; 2],
        (encoding, error, ratios): (Encoding, f64, Option<Ratios>),
    ) -> usize {
        packer.holds(inputs);
        packer.holds(outputs);
        let (name, bits, group) = (together(names), encoding.bits(), encoding.group());
        let parts = names.iter().map(|name| (*name).to_owned()).collect();
        let report = Packed { name, parts, outputs, inputs, encoding, bits, group, error, ratios };
        packer.packed(report)
    }

    /// A matrix without a bias in this encoding; `None` if the encoding does not have these weights.
    fn encoded(
        packer: &mut Packer,
        encoding: Encoding,
        weight: &[f32],
        inputs: usize,
    ) -> Option<Self> {
        let written = Written::new(encoding, weight, inputs)?;
        let bias = vec![0.0; weight.len() / inputs];
        Some(Self::lay(packer, &["weight"], &written, 0.0, &bias))
    }

    fn lay(
        packer: &mut Packer,
        names: &[&str],
        written: &Written,
        error: f64,
        bias: &[f32],
    ) -> Self {
        let (inputs, outputs, encoding) = (written.inputs(), bias.len(), written.encoding());
        packer.check(&written.numbers());
        let how = (encoding, error, written.ratios());
        Matrix {
            place: Self::report(packer, names, [outputs, inputs], how),
            inputs,
            outputs,
            encoding,
            bias: packer.lay(bias),
            scales: packer.lay(written.scales()),
            panels: packer.lay(&written.words(outputs)),
            also_f32: written
                .also_f32()
                .map(|(ratios, written)| (ratios, packer.lay(&written.words(outputs)))),
        }
    }

    /// Packs a weight and its bias, or a bias of zeros.
    pub fn dense(packer: &mut Packer, weight: &Weight, bias: Option<&Weight>) -> Result<Self> {
        Self::side_by_side(packer, &[(weight, bias)])
    }

    /// Packs weights with the same input, and their biases, as one matrix with concatenated outputs.
    pub fn side_by_side(packer: &mut Packer, parts: &[(&Weight, Option<&Weight>)]) -> Result<Self> {
        let names: Vec<&str> = parts.iter().map(|(weight, _)| packer.name(weight)).collect();
        let (mut outputs, mut numbers) = (0, 0);
        for (of, _) in parts {
            outputs += of.dim(0)?;
            numbers += of.elem_count();
        }
        if let Some(matrix) = Self::recorded(packer, &names, [outputs, numbers / outputs.max(1)])? {
            return Ok(matrix);
        }
        let (mut weight, mut bias) = (vec![], vec![]);
        for (of, own) in parts {
            weight.extend(packer.read(of)?);
            match own {
                Some(own) => bias.extend(packer.read(own)?),
                None => bias.resize(bias.len() + of.dim(0)?, 0.0),
            }
        }
        let (written, error) = match Self::stored(packer, parts).and_then(Written::stored) {
            Some(written) => (written, 0.0),
            None => Written::chosen(packer.format(), &weight, weight.len() / bias.len().max(1)),
        };
        Ok(Self::lay(packer, &names, &written, error, &bias))
    }

    /// The codes of weights with the same input, if the format asks for codes and all have them.
    fn stored(packer: &Packer, parts: &[(&Weight, Option<&Weight>)]) -> Option<Coded> {
        let own = |i: usize| parts[i].0.codes().map(|codes| &**codes);
        let codes = || (0..parts.len()).map(own).collect::<Option<Vec<&Coded>>>();
        (packer.format() == Format::Stored).then(codes)?.and_then(|parts| Coded::together(&parts))
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Copies `x: [rows, inputs]` into `input`.
    pub fn read(&self, input: &mut Input, x: &[f32], rows: usize) {
        input.read(x.chunks_exact(self.inputs).take(rows));
    }

    /// `y = x W^T + b` with `y: [rows, outputs]`.
    pub fn apply(&self, arena: &[f32], x: &mut Input, y: &mut [f32]) {
        self.each::<false>(arena, x, y);
    }

    /// `y = relu(x W^T + b)` with `y: [rows, outputs]`.
    pub fn relu(&self, arena: &[f32], x: &mut Input, y: &mut [f32]) {
        self.each::<true>(arena, x, y);
    }

    /// The form of the weights that these vectors are multiplied with.
    fn form(&self, x: &mut Vectors) -> (Encoding, Range<usize>) {
        if let Some((ratios, panels)) = &self.also_f32 {
            x.prepare(self.encoding);
            if x.groups().are_few(x.rows(), *ratios) {
                return (Encoding::F32, panels.clone());
            }
        }
        (self.encoding, self.panels.clone())
    }

    fn each<const RELU: bool>(&self, arena: &[f32], x: &mut Input, y: &mut [f32]) {
        let Input { vectors: x, sums, tap } = x;
        assert_eq!(x.width(), self.inputs, "width of the input");
        if let Some(tap) = tap {
            (0..x.rows()).for_each(|row| tap(self.place, x.row(row)));
        }
        let (encoding, panels) = self.form(x);
        x.prepare(encoding);
        let sums = &mut sums[..x.rows()];
        let (bias, scales) = (&arena[self.bias.clone()], &arena[self.scales.clone()]);
        let (level, has_vnni) = (level(), has_vnni());
        let mut rest = &arena[panels];
        for first in (0..self.outputs).step_by(PANEL) {
            let outputs = first..self.outputs.min(first + PANEL);
            let vectors = encoding.vectors(outputs.len());
            let (weights, next) = rest.split_at(encoding.rows(self.inputs) * vectors * LANES);
            rest = next;
            let bias = &bias[outputs.clone()];
            let panel = Panel { encoding, level, has_vnni, vectors, weights };
            match encoding {
                Encoding::F32 | Encoding::Bf16 => panel.sum(sums, x, bias),
                Encoding::Int8 => {
                    panel.sum_codes(sums, x.codes(), (&scales[outputs.clone()], bias))
                }
                Encoding::Int4(group) => {
                    let weights = weights.as_chunks::<LANES>().0;
                    let panel = int4::Panel { weights, vectors, group, level, has_vnni };
                    panel.sum(sums, x.blocks(), bias);
                }
                Encoding::TwoFour => {
                    let (weights, inputs) = (weights.as_chunks::<LANES>().0, self.inputs);
                    two_four::Panel { weights, vectors, inputs, level }.sum(sums, x.groups(), bias);
                }
            }
            for (y, sums) in y.chunks_exact_mut(self.outputs).zip(&*sums) {
                write::<RELU>(&mut y[outputs.clone()], sums.as_flattened());
            }
        }
    }
}

dispatch! {
    /// Writes the sums of a panel, or those above 0 and 0 for the others.
    fn write<[const RELU: bool], [RELU]>(y: &mut [f32], sums: &[f32]) {
        for (y, sum) in y.iter_mut().zip(sums) {
            // NaN stays NaN.
            *y = if RELU && *sum < 0.0 { 0.0 } else { *sum };
        }
    }
}

/// Splits sums into shards of at most `most`, as equal as possible. Each has the index of its first input vector.
fn tiles(sums: &mut [Sums], most: usize) -> impl Iterator<Item = (&mut [Sums], usize)> {
    let (rows, parts) = (sums.len(), sums.len().div_ceil(most).max(1));
    let mut rest = sums;
    (0..parts).map(move |part| {
        let (first, end) = (part * rows / parts, (part + 1) * rows / parts);
        let (own, next) = mem::take(&mut rest).split_at_mut(end - first);
        rest = next;
        (own, first)
    })
}

#[cfg(test)]
mod tests;
