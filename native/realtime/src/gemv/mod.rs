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
mod narrow;
mod panel;
mod places;
mod portable;
mod product;
mod rows;
mod two_four;
mod whole;
mod written;

use std::mem;

pub use input::{Input, Tap};
use product::Product;
use sconce_ops::weights::{Coded, Weight};
use sconce_tensor::Result;
use sconce_tensor::simd::{LANES, dispatch};
use whole::Whole;
use written::Written;
pub use written::cpu;

use crate::arena::Packer;
use crate::format::{Encoding, Factor, Format, Packed, Ratios, Record};

/// Maximum SIMD vectors of sums of a panel.
const VECTORS: usize = 8;
/// Most outputs of a panel.
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

/// A matrix `[outputs, inputs]` and a bias.
pub struct Matrix {
    /// Place among the matrices of the plan.
    place: usize,
    inputs: usize,
    outputs: usize,
    form: Form,
}

/// What a report says of the weights of a matrix.
struct Report {
    encoding: Encoding,
    error: f64,
    ratios: Option<Ratios>,
    factors: Vec<Factor>,
}

/// How a matrix is read.
enum Form {
    Whole(Whole),
    Product(Product),
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
        if let Some(matrix) = Self::recorded(packer, &[name], &[bias.len()], inputs)? {
            return Ok(matrix);
        }
        packer.check(weight);
        let (written, error) = Written::chosen(packer.format(), weight, inputs);
        Ok(Self::lay(packer, &[name], &written, error, bias))
    }

    /// A matrix of an arena that was built before, with the outputs of its parts; `None` while one is built.
    fn recorded(
        packer: &mut Packer,
        names: &[&str],
        parts: &[usize],
        inputs: usize,
    ) -> Result<Option<Self>> {
        let name = together(names);
        let Some((encoding, record)) = packer.record(&name)? else { return Ok(None) };
        let Record { error, ratios, factors, .. } = record;
        let outputs = parts.iter().sum();
        let form = match factors.split_first() {
            None => {
                let shape = [outputs, inputs];
                Form::Whole(Whole::recorded(packer, &name, (encoding, ratios), shape)?)
            }
            Some((right, lefts)) => {
                Form::Product(Product::recorded(packer, &name, (right, lefts), parts, inputs)?)
            }
        };
        let report = Report { encoding, error, ratios, factors };
        Ok(Some(Self::reported(packer, names, [outputs, inputs], report, form)))
    }

    /// A matrix, and its report.
    fn reported(
        packer: &mut Packer,
        names: &[&str],
        [outputs, inputs]: [usize; 2],
        report: Report,
        form: Form,
    ) -> Self {
        packer.holds(inputs);
        packer.holds(outputs);
        let Report { encoding, error, ratios, factors } = report;
        let (name, bits, group) = (together(names), encoding.bits(), encoding.group());
        let parts = names.iter().map(|name| (*name).to_owned()).collect();
        let rank = factors.first().map(|right| right.rank);
        let own = Packed {
            name,
            parts,
            outputs,
            inputs,
            encoding,
            bits,
            group,
            rank,
            error,
            ratios,
            factors,
        };
        Matrix { place: packer.packed(own), inputs, outputs, form }
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
        let (encoding, ratios) = (written.encoding(), written.ratios());
        let shape = [bias.len(), written.inputs()];
        let form = Form::Whole(Whole::lay(packer, written, bias));
        let report = Report { encoding, error, ratios, factors: vec![] };
        Self::reported(packer, names, shape, report, form)
    }

    /// Packs a weight and its bias, or a bias of zeros.
    pub fn dense(packer: &mut Packer, weight: &Weight, bias: Option<&Weight>) -> Result<Self> {
        Self::side_by_side(packer, &[(weight, bias)])
    }

    /// Packs weights with the same input, and their biases, as one matrix with concatenated outputs.
    pub fn side_by_side(packer: &mut Packer, parts: &[(&Weight, Option<&Weight>)]) -> Result<Self> {
        let names: Vec<&str> = parts.iter().map(|(weight, _)| packer.name(weight)).collect();
        let outputs = parts.iter().map(|(of, _)| Ok(of.dim(0)?)).collect::<Result<Vec<_>>>()?;
        let numbers: usize = parts.iter().map(|(of, _)| of.elem_count()).sum();
        let inputs = numbers / outputs.iter().sum::<usize>().max(1);
        if let Some(matrix) = Self::recorded(packer, &names, &outputs, inputs)? {
            return Ok(matrix);
        }
        let (mut weight, mut bias) = (vec![], vec![]);
        for ((of, own), outputs) in parts.iter().zip(&outputs) {
            weight.extend(packer.read(of)?);
            match own {
                Some(own) => bias.extend(packer.read(own)?),
                None => bias.resize(bias.len() + outputs, 0.0),
            }
        }
        let factors = parts.iter().map(|(of, _)| of.factors().map(|own| &**own));
        if let Some(factors) = factors.collect::<Option<Vec<_>>>().filter(|own| product::gains(own))
        {
            let (product, report) = Product::lay(packer, &factors, &weight, &bias);
            let (shape, form) = ([bias.len(), inputs], Form::Product(product));
            return Ok(Self::reported(packer, &names, shape, report, form));
        }
        let (written, error) = match Self::stored(packer, parts).and_then(Written::stored) {
            Some(written) => (written, 0.0),
            None => Written::chosen(packer.format(), &weight, inputs),
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

    fn each<const RELU: bool>(&self, arena: &[f32], x: &mut Input, y: &mut [f32]) {
        let Input { vectors: x, sums, between, tap } = x;
        assert_eq!(x.width(), self.inputs, "width of the input");
        if let Some(tap) = tap {
            (0..x.rows()).for_each(|row| tap(self.place, x.row(row)));
        }
        match &self.form {
            Form::Whole(own) => own.multiply::<RELU>(arena, x, sums, (y, self.outputs)),
            Form::Product(own) => {
                own.multiply::<RELU>(arena, x, (sums, between), (y, self.outputs))
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
