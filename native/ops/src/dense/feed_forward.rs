//! Two dense layers with an activation between them.

use std::mem::MaybeUninit;
use std::sync::Mutex;

use candle_core::Tensor;

use super::composites;
use super::layers::Affine;
use super::linear::weight_gradient;
use crate::columns::{filled, filled_and_summed, outputs, shard_of_rows};
use crate::form::Form;
use crate::matmul::{Operand, View};
use crate::norm::parameters as norm;
use crate::op::{self, Op, Pass};
use crate::weights::Weight;
use crate::{Activation, Error, Residual, Result, tensor};

/// Rows of one shard: hidden rows of 1024 values take a quarter of a second-level cache of 2 MiB.
const ROWS: usize = 128;
/// Rows whose hidden gradients exist at one time.
const CHUNK: usize = 4 * ROWS;

/// `W_2 activation(W_1 x + b_1) + b_2`, `x [.., k]` -> `[.., n]` (Vaswani et al. 2017, eq. 2).
///
/// Hidden rows stay in the cache between the layers, and they have no edge in the graph. The forward pass saves `W_1 x
/// + b_1`. Gradients of weights accumulate in the weights.
pub fn feed_forward(
    x: &Tensor,
    up: &Affine,
    activation: Activation,
    down: &Affine,
) -> Result<Tensor> {
    apply(x, None, up, activation, down)
}

/// `x + dropout(W_2 activation(W_1 norm(x) + b_1) + b_2)`, `x [.., k]` -> `[.., k]`. Like [`feed_forward`], but the
/// backward pass also recomputes the normed rows.
pub fn feed_forward_residual(
    x: &Tensor,
    residual: &Residual,
    up: &Affine,
    activation: Activation,
    down: &Affine,
) -> Result<Tensor> {
    apply(x, Some(residual.clone()), up, activation, down)
}

fn apply(
    x: &Tensor,
    residual: Option<Residual>,
    up: &Affine,
    activation: Activation,
    down: &Affine,
) -> Result<Tensor> {
    let k = tensor::rows(x.dims()).1;
    let hidden = up.check("first", k)?;
    let n = down.check("second", hidden)?;
    if hidden == 0 {
        return Err(Error::mismatch("width of a hidden layer", "at least 1", hidden));
    }
    if let Some(residual) = &residual {
        residual.norm.check(k)?;
        if n != k {
            return Err(Error::mismatch("output of a residual layer", k, n));
        }
    }
    if Form::of(x) != Form::Cpu || up.weight.rounds() || down.weight.rounds() {
        return composites::feed_forward(x, residual.as_ref(), up, activation, down);
    }
    let op = FeedForward {
        residual,
        up: up.clone(),
        down: down.clone(),
        activation,
        k,
        hidden,
        n,
        kept: vec![],
    };
    op::apply(op, &[x, &up.weight], tensor::with_width(x, n))
}

/// The second input ties the weights to the graph.
struct FeedForward {
    residual: Option<Residual>,
    up: Affine,
    down: Affine,
    activation: Activation,
    k: usize,
    hidden: usize,
    n: usize,
    /// The input of the activation, saved for the backward pass.
    kept: Vec<f32>,
}

/// Inputs of a backward pass for some rows: x, the gradients of the output and of the layers' output, the norm, and the
/// transposed right operands.
struct Chunk<'a> {
    x: &'a [f32],
    dy: &'a [f32],
    of_layer: &'a [f32],
    norm: Option<&'a norm::Values>,
    first: &'a Operand<'a>,
    second: &'a Operand<'a>,
}

/// Gradients of the biases and of the norm over the rows of a shard.
#[derive(Default)]
struct Sums {
    up: Vec<f32>,
    down: Vec<f32>,
    norm: norm::Gradients,
}

impl FeedForward {
    /// The output, and if `keep` the input of the activation.
    fn outputs(&self, x: &[f32], keep: bool) -> candle_core::Result<[Vec<f32>; 2]> {
        let &FeedForward { k, hidden, n, .. } = self;
        let m = x.len() / k.max(1);
        let (b1, b2, norm) = (self.up.bias()?, self.down.bias()?, self.norm()?);
        self.with_weights(|[w1, w2]| {
            let first = self.up.weight.operand(w1, 0..hidden, true, m);
            let second = self.down.weight.operand(w2, 0..n, true, m);
            let kept = if keep { hidden } else { 0 };
            // SAFETY: the products write every value of their outputs.
            unsafe {
                filled(m, shard_of_rows(m), [n, kept], |rows, [y, kept]| {
                    let x = &x[rows.start * k..rows.end * k];
                    let normed = norm.as_ref().map(|norm| norm.rows(x));
                    let input = View::rows(normed.as_deref().unwrap_or(x), rows.len(), k);
                    let mut scratch = Vec::with_capacity(rows.len() * hidden);
                    let scratch = &mut scratch.spare_capacity_mut()[..rows.len() * hidden];
                    let h = match keep {
                        true => {
                            let kept = first.fill(kept, input, b1.as_deref());
                            self.activation.fill(scratch, kept)
                        }
                        false => {
                            let h = first.fill(scratch, input, b1.as_deref());
                            self.activation.apply(h);
                            h
                        }
                    };
                    let y = second.fill(y, View::rows(h, rows.len(), hidden), b2.as_deref());
                    if let Some(residual) = &self.residual {
                        residual.add(rows.start, y, x, n);
                    }
                })
            }
        })
    }

    /// Accumulates the gradients of the weights in the weights and returns the gradient of `x` if `wanted`; `h` is the
    /// input of the activation.
    fn gradients(
        &self,
        x: &[f32],
        mut h: Vec<f32>,
        dy: &[f32],
        wanted: bool,
    ) -> candle_core::Result<Vec<f32>> {
        let &FeedForward { k, hidden, n, .. } = self;
        let m = x.len() / k.max(1);
        let norm = self.norm()?;
        let of_layer =
            self.residual.as_ref().map_or(dy.into(), |residual| residual.of_layer(dy, n));
        // The norm's weights need the gradient of the rows even if `x` does not.
        let width = if wanted || norm.is_some() { k } else { 0 };
        self.with_weights(|[w1, w2]| {
            let first = self.up.weight.operand(w1, 0..hidden, false, m);
            let second = self.down.weight.operand(w2, 0..n, false, m);
            // SAFETY: each chunk writes all of its rows.
            let [dx] = unsafe {
                outputs([m * width], |[dx]| {
                    for (i, h) in h.chunks_mut(CHUNK * hidden).enumerate() {
                        let (begin, rows) = (i * CHUNK, h.len() / hidden);
                        let chunk = Chunk {
                            x: &x[begin * k..][..rows * k],
                            dy: &dy[begin * n..][..rows * n],
                            of_layer: &of_layer[begin * n..][..rows * n],
                            norm: norm.as_ref(),
                            first: &first,
                            second: &second,
                        };
                        self.backward_chunk(chunk, h, dx.range(begin * width, rows * width));
                    }
                })
            };
            dx
        })
    }

    /// Fills `dx`, which may be empty, and accumulates the gradients of the weights in the weights. `h` holds the input
    /// of the activation on entry and its output on return.
    fn backward_chunk(&self, chunk: Chunk<'_>, h: &mut [f32], dx: &mut [MaybeUninit<f32>]) {
        let &FeedForward { k, hidden, n, .. } = self;
        let Chunk { x, dy, of_layer, norm, first, second } = chunk;
        let m = h.len() / hidden;
        let width = dx.len() / m;
        let of_norm = if norm.is_some() { k } else { 0 };
        let dx = dx.chunks_mut((ROWS * width).max(1));
        let places =
            h.chunks_mut(ROWS * hidden).zip(dx.chain(std::iter::repeat_with(Default::default)));
        let places: Vec<_> = places.map(Mutex::new).collect();
        // SAFETY: the products and the norm write every value of their outputs. Without a norm `normed` is empty; with one
        // `dx` is not.
        let ([d, normed], sums) = unsafe {
            filled_and_summed(m, ROWS, [hidden, of_norm], |rows, [d, normed], sums: &mut Sums| {
                let mut place = places[rows.start / ROWS].lock().unwrap_or_else(|e| e.into_inner());
                let (h, dx) = &mut *place;
                let of_layer = &of_layer[rows.start * n..rows.end * n];
                let d = second.fill(d, View::rows(of_layer, rows.len(), n), None);
                self.activation.backward_and_apply(d, h);
                sums.up = self.up.bias_gradient(d, hidden);
                sums.down = self.down.bias_gradient(of_layer, n);
                if dx.is_empty() {
                    return;
                }
                let dx = first.fill(dx, View::rows(d, rows.len(), hidden), None);
                if let Some(norm) = norm {
                    let x = &x[rows.start * k..rows.end * k];
                    sums.norm = norm.zeros();
                    let dy = &dy[rows.start * n..rows.end * n];
                    norm.backward_residual(dx, &mut sums.norm, x, dy, normed);
                }
            })
        };
        drop(places);
        self.up.accumulate_bias(sums.iter().map(|part| &part.up));
        self.down.accumulate_bias(sums.iter().map(|part| &part.down));
        if let Some(residual) = &self.residual {
            residual.norm.accumulate(sums.iter().map(|part| &part.norm));
        }
        let gradient = |weight: &Weight, d: &[f32], input: &[f32], [n, k]: [usize; 2]| {
            let input = Operand::of(View::rows(input, m, k));
            let d = View::rows(d, m, n);
            weight.accumulate(|dw, adds| weight_gradient(dw, d, &input, adds));
        };
        gradient(&self.down.weight, of_layer, h, [n, hidden]);
        gradient(&self.up.weight, &d, if norm.is_some() { &normed } else { x }, [hidden, k]);
    }

    fn norm(&self) -> candle_core::Result<Option<norm::Values>> {
        self.residual.as_ref().map(|residual| residual.norm.values()).transpose()
    }

    fn with_weights<R>(&self, f: impl FnOnce([&[f32]; 2]) -> R) -> candle_core::Result<R> {
        tensor::with(&self.up.weight, |w1| tensor::with(&self.down.weight, |w2| Ok(f([w1, w2]))))
    }
}

impl Op for FeedForward {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let [y, kept] = self.outputs(inputs[0], track)?;
        self.kept = kept;
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let kept = std::mem::take(&mut self.kept);
        let dx = self.gradients(pass.inputs[0], kept, pass.gradient()?, pass.wants(0))?;
        Ok(vec![if pass.wants(0) { dx } else { vec![] }, vec![]])
    }
}
