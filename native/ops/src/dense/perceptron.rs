//! Dense layers one after the other, each followed by an elementwise function.

use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;

use super::composites;
use super::layers::Activated;
use super::linear::weight_gradient;
use crate::columns::{Output, copied, outputs, shard_of_rows};
use crate::form::Form;
use crate::matmul::{Operand, View};
use crate::op::{self, Op, Pass};
use crate::simd::row_sum;
use crate::{Error, Result, pool, tensor};

/// `f_n(W_n .. f_1(W_1 x + b_1) .. + b_n)`, `x [.., k]` -> `[.., n]`: the layers of [`linear`](crate::linear()), one
/// after the other.
///
/// The rows of a shard pass through all layers while they are in the cache, and hidden rows have no edge in the graph.
/// The forward pass saves the outputs of hidden layers, and `W x + b` where a slope is computed from it. Gradients of
/// weights accumulate in the weights, in the order of the rows.
pub fn perceptron(x: &Tensor, layers: &Arc<[Activated]>) -> Result<Tensor> {
    let input = tensor::rows(x.dims()).1;
    let widths = widths(layers, input)?;
    if Form::of(x) != Form::Cpu || layers.iter().any(|layer| layer.affine.weight.rounds()) {
        return composites::perceptron(x, layers);
    }
    let rows = x.elem_count() / input.max(1);
    let output = widths.last().copied().unwrap_or(input);
    let weights = layers.iter().map(|layer| &*layer.affine.weight);
    let tensors: Vec<&Tensor> = std::iter::once(x).chain(weights).collect();
    let (layers, shard) = (layers.clone(), shard_of_rows(rows));
    let op = Perceptron { layers, input, widths, rows, shard, kept: vec![] };
    op::apply(op, &tensors, tensor::with_width(x, output))
}

/// The number of outputs of each layer.
fn widths(layers: &[Activated], mut input: usize) -> Result<Vec<usize>> {
    let width = |(i, layer): (usize, &Activated)| {
        input = layer.affine.check(&format!("dense {i}"), input)?;
        match input {
            0 => Err(Error::mismatch(format!("width of dense layer {i}"), "at least 1", 0)),
            n => Ok(n),
        }
    };
    let all: Vec<usize> = layers.iter().enumerate().map(width).collect::<Result<_>>()?;
    if all.is_empty() {
        return Err(Error::not_found("layers of a perceptron"));
    }
    Ok(all)
}

/// Shards whose gradients of `W x + b` exist at one time. Weights add up rows in order, so this changes no bit.
const AT_ONCE: usize = 8;

/// The inputs after the first tie the weights to the graph.
struct Perceptron {
    layers: Arc<[Activated]>,
    /// Inputs of the first layer.
    input: usize,
    /// Outputs of each layer.
    widths: Vec<usize>,
    rows: usize,
    /// Rows of a shard.
    shard: usize,
    /// For each layer, `W x + b` of all rows where the slope is computed from it, then the outputs. The outputs of the
    /// last layer are those of the op.
    kept: Vec<f32>,
}

/// Uninitialised values of some rows.
type Place<'a> = &'a mut [MaybeUninit<f32>];

/// Saved values of a layer for all rows.
struct Saved<'a> {
    /// `W x + b`, if the slope is computed from it.
    before: &'a [f32],
    output: &'a [f32],
}

/// The rows `rows` of width `n`.
fn part<'a>(all: &'a [f32], rows: &Range<usize>, n: usize) -> &'a [f32] {
    &all[rows.start * n..rows.end * n]
}

/// The places of `rows` in rows of the given widths, where `total` rows of one width follow those of another.
///
/// # Safety
///
/// No other place of these rows exists.
unsafe fn places<'a>(
    all: Output<'a>,
    total: usize,
    rows: &Range<usize>,
    widths: impl IntoIterator<Item = usize>,
) -> impl Iterator<Item = Place<'a>> {
    let mut before = 0;
    widths.into_iter().map(move |n| {
        let begin = before + rows.start * n;
        before += total * n;
        // SAFETY: places of other widths begin elsewhere, and the caller promises the same of other rows.
        unsafe { all.range(begin, rows.len() * n) }
    })
}

impl Perceptron {
    /// Calls `work` with the rows of each shard of `rows`.
    fn for_each_shard(&self, rows: &Range<usize>, work: impl Fn(Range<usize>) + Sync + Send) {
        pool::for_each(rows.len().div_ceil(self.shard), |i| {
            let begin = rows.start + i * self.shard;
            work(begin..(begin + self.shard).min(rows.end));
        });
    }

    fn last(&self) -> usize {
        self.widths.len() - 1
    }

    /// Widths of the saved values of layer `i`: of `W x + b`, and of the output.
    fn saved_widths(&self, i: usize, keep: bool) -> [usize; 2] {
        let n = self.widths[i];
        let before = keep && self.layers[i].activation.needs_input();
        [if before { n } else { 0 }, if i < self.last() { n } else { 0 }]
    }

    /// [`saved_widths`](Self::saved_widths) of all layers.
    fn all_saved(&self, keep: bool) -> impl Iterator<Item = usize> {
        (0..self.widths.len()).flat_map(move |i| self.saved_widths(i, keep))
    }

    /// Inputs of layer `i`.
    fn inputs(&self, i: usize) -> usize {
        if i == 0 { self.input } else { self.widths[i - 1] }
    }

    /// The weights as right operands; `W^T` if `turned`.
    fn operands<'a>(&self, weights: &[&'a [f32]], turned: bool) -> Vec<Operand<'a>> {
        let layers = self.layers.iter().zip(weights).zip(&self.widths);
        let operand = |((layer, values), &n): ((&Activated, &&'a [f32]), &usize)| {
            layer.affine.weight.operand(values, 0..n, turned, self.rows)
        };
        layers.map(operand).collect()
    }

    /// The outputs, and if `keep` the values that the backward pass reads.
    fn outputs(
        &self,
        x: &[f32],
        weights: &[&[f32]],
        keep: bool,
    ) -> candle_core::Result<[Vec<f32>; 2]> {
        let biases = self.layers.iter().map(|layer| layer.affine.bias());
        let biases = biases.collect::<candle_core::Result<Vec<_>>>()?;
        let operands = self.operands(weights, true);
        let (n, width) = (self.widths[self.last()], self.all_saved(keep).sum::<usize>());
        let forward = |rows: Range<usize>, [y, kept]: [Output<'_>; 2]| {
            let x = part(x, &rows, self.input);
            let of_shard = |total: usize, rows: Range<usize>, room: Output<'_>, y: Place<'_>| {
                // SAFETY: the rows of one shard are no other shard's.
                let mut saved = unsafe { places(room, total, &rows, self.all_saved(keep)) };
                self.forward_shard(x, (&operands, &biases), &mut saved, y);
            };
            // SAFETY: as above, and the shard writes all of its rows.
            unsafe {
                let y = y.range(rows.start * n, rows.len() * n);
                if keep {
                    return of_shard(self.rows, rows, kept, y);
                }
                let count = rows.len();
                outputs([count * width], |[room]| of_shard(count, 0..count, room, y));
            }
        };
        let kept = if keep { self.rows * width } else { 0 };
        // SAFETY: each shard writes all of its rows.
        Ok(unsafe {
            outputs([self.rows * n, kept], |all| {
                self.for_each_shard(&(0..self.rows), |rows| forward(rows, all));
            })
        })
    }

    /// Fills the outputs `y` and the values to save, two places for each layer.
    fn forward_shard<'a>(
        &self,
        mut x: &'a [f32],
        (operands, biases): (&[Operand<'_>], &[Option<Vec<f32>>]),
        saved: &mut impl Iterator<Item = Place<'a>>,
        mut y: Place<'a>,
    ) {
        let rows = y.len() / self.widths[self.last()];
        for (i, layer) in self.layers.iter().enumerate() {
            let [before, output] = [(); 2].map(|()| saved.next().unwrap_or_default());
            let output = if i == self.last() { mem::take(&mut y) } else { output };
            let input = View::rows(x, rows, self.inputs(i));
            let bias = biases[i].as_deref();
            let output = match before.is_empty() {
                true => operands[i].fill(output, input, bias),
                false => copied(output, operands[i].fill(before, input, bias)),
            };
            layer.activation.apply(output);
            x = output;
        }
    }

    /// The saved values of each layer; `y` are the outputs of the last one.
    fn saved<'a>(&self, mut kept: &'a [f32], y: &'a [f32]) -> Vec<Saved<'a>> {
        let mut next = |n: usize| {
            let (own, rest) = kept.split_at(self.rows * n);
            kept = rest;
            own
        };
        let saved = |i: usize| {
            let [before, output] = self.saved_widths(i, true).map(&mut next);
            Saved { before, output: if i == self.last() { y } else { output } }
        };
        (0..self.widths.len()).map(saved).collect()
    }

    /// The gradient of `x`, of width `of_x`. Accumulates the gradients of weights and biases in them.
    fn gradients(
        &self,
        [x, kept, y, dy]: [&[f32]; 4],
        weights: &[&[f32]],
        of_x: usize,
    ) -> Vec<f32> {
        let (operands, saved) = (self.operands(weights, false), self.saved(kept, y));
        let width: usize = self.widths.iter().sum();
        let step = AT_ONCE * self.shard;
        // SAFETY: each shard writes all of its rows, and they are no other shard's.
        let [dx] = unsafe {
            outputs([self.rows * of_x], |[dx]| {
                // A batch without rows has a gradient too: 0.
                for begin in (0..self.rows.max(1)).step_by(step) {
                    let all = begin..(begin + step).min(self.rows);
                    let [d] = outputs([all.len() * width], |[d]| {
                        self.for_each_shard(&all, |rows| {
                            let dx = dx.range(rows.start * of_x, rows.len() * of_x);
                            let own = rows.start - begin..rows.end - begin;
                            let d = places(d, all.len(), &own, self.widths.iter().copied());
                            self.backward_shard(&rows, (&saved, dy), &operands, d.collect(), dx);
                        });
                    });
                    self.accumulate(x, &d, &all, &saved);
                }
            })
        };
        dx
    }

    /// Fills the gradients `d` of `W x + b` of each layer, and the gradient `dx`, which may be empty.
    fn backward_shard(
        &self,
        rows: &Range<usize>,
        (saved, dy): (&[Saved<'_>], &[f32]),
        operands: &[Operand<'_>],
        d: Vec<Place<'_>>,
        dx: Place<'_>,
    ) {
        let mut later: Option<View<'_>> = None;
        for (i, d) in d.into_iter().enumerate().rev() {
            let (n, activation) = (self.widths[i], self.layers[i].activation);
            let d = match later {
                None => copied(d, part(dy, rows, n)),
                Some(later) => operands[i + 1].fill(d, later, None),
            };
            match activation.needs_input() {
                true => activation.backward(d, part(saved[i].before, rows, n)),
                false => activation.backward_from_output(d, part(saved[i].output, rows, n)),
            }
            later = Some(View::rows(d, rows.len(), n));
        }
        if let (Some(d), false) = (later, dx.is_empty()) {
            operands[0].fill(dx, d, None);
        }
    }

    /// Accumulates the gradients of weights and biases over `rows`; `d` are the gradients of `W x + b`.
    fn accumulate(&self, x: &[f32], d: &[f32], rows: &Range<usize>, saved: &[Saved<'_>]) {
        let mut rest = d;
        for (i, layer) in self.layers.iter().enumerate() {
            let [k, n] = [self.inputs(i), self.widths[i]];
            let (d, later) = rest.split_at(rows.len() * n);
            rest = later;
            let input = part(if i == 0 { x } else { saved[i - 1].output }, rows, k);
            layer.affine.weight.accumulate(|dw, adds| {
                let input = Operand::of(View::rows(input, rows.len(), k));
                weight_gradient(dw, View::rows(d, rows.len(), n), &input, adds);
            });
            if let Some(bias) = &layer.affine.bias {
                bias.accumulate(|db, adds| row_sum(db, d, adds));
            }
        }
    }
}

impl Op for Perceptron {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let [y, kept] = self.outputs(inputs[0], &inputs[1..], track)?;
        self.kept = kept;
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, y, kept) = (pass.inputs[0], pass.outputs[0], mem::take(&mut self.kept));
        let of_x = if pass.wants(0) { self.input } else { 0 };
        let dx = self.gradients([x, &kept, y, pass.gradient()?], &pass.inputs[1..], of_x);
        let mut all = vec![vec![]; pass.inputs.len()];
        all[0] = dx;
        Ok(all)
    }
}
