//! `y = activation(norm(x W^T + b))`.

use candle_core::Tensor;

use super::{card, composed};
use crate::activation::Activation;
use crate::columns::{copied, filled, shard_of_rows};
use crate::form::Form;
use crate::matmul::{FEW_COLUMNS, Operand, View, matmul};
use crate::norm::Norm;
use crate::norm::row_norm::row_norm_then;
use crate::op::{self, Op, Pass};
use crate::simd::{LANES, row_sum};
use crate::weights::Weight;
use crate::{Result, arrange, memory, pool, tensor};

/// Rows of one shard of a product.
const ROWS: usize = 128;
/// Shards of a weight gradient, over the rows of the weight.
const GRADIENT_SHARDS: usize = 4;

/// `x [.., k]`, `weight [n, k]`, `bias [n]` -> `[.., n]`.
/// Backward: `dx = dy W`, `dW = dy^T x`, `db = sum of dy`, after `dy` is multiplied by the slope of the activation.
/// Gradients of weights accumulate in the weights ([`Weight::accumulate`]).
pub fn linear(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: Activation,
) -> Result<Tensor> {
    apply(x, weight, bias, None, activation)
}

/// Computes [`linear`] with a [`row_norm`](crate::row_norm()) before the activation, in one pass over each row while
/// the row is in the cache.
pub fn linear_norm(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    norm: &Norm,
    activation: Activation,
) -> Result<Tensor> {
    apply(x, weight, bias, Some(norm), activation)
}

/// `activation(x W^T + b) + rest`.
pub(crate) fn linear_add(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: Activation,
    rest: &Tensor,
) -> Result<Tensor> {
    match Form::of(x) {
        Form::Card => card::layer(x, weight, bias.map(|bias| &**bias), activation, Some(rest)),
        Form::Cpu | Form::Composed => arrange::add(rest, &linear(x, weight, bias, activation)?),
    }
}

fn apply(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    norm: Option<&Norm>,
    activation: Activation,
) -> Result<Tensor> {
    let (n, k) = weight.dims2()?;
    tensor::check_width("input of a linear layer", k, x.dims())?;
    if let Some(bias) = bias {
        tensor::check_shape("bias of a linear layer", &[n], bias.dims())?;
    }
    norm.map_or(Ok(()), |norm| norm.check(n))?;
    let x = &*weight.rounded(x)?;
    match (Form::of(x), norm) {
        (Form::Cpu, _) => {}
        (Form::Card, None) => {
            return card::layer(x, weight, bias.map(|bias| &**bias), activation, None);
        }
        (Form::Composed, None) => return composed::linear(x, weight, bias, activation),
        (_, Some(norm)) => {
            return row_norm_then(&linear(x, weight, bias, Activation::None)?, norm, activation);
        }
    }
    let (weight, bias, norm) = (weight.clone(), bias.cloned(), norm.cloned());
    let tensor = weight.clone();
    let op = Linear { weight, bias, norm, activation, before: None };
    op::apply(op, &[x, &tensor], tensor::with_width(x, n))
}

struct Linear {
    weight: Weight,
    bias: Option<Weight>,
    norm: Option<Norm>,
    activation: Activation,
    /// The product before norm and activation, if the backward pass reads it.
    before: Option<Vec<f32>>,
}

impl Linear {
    /// The output, and if `keep` the product before norm and activation.
    fn outputs(&self, x: &[f32], weight: &[f32], keep: bool) -> candle_core::Result<[Vec<f32>; 2]> {
        let (n, k) = self.weight.dims2()?;
        let m = x.len() / k.max(1);
        let weight = self.weight.operand(weight, 0..n, true, m);
        let bias = self.bias.as_ref().map(|bias| tensor::to_vec(bias)).transpose()?;
        let norm = self.norm.as_ref().map(Norm::values).transpose()?;
        let kept = if keep { n } else { 0 };
        // SAFETY: products and copies of them write every value of their outputs.
        let all = unsafe {
            filled(m, shard_of_rows(m), [n, kept], |rows, [y, before]| {
                let x = View::rows(&x[rows.start * k..], rows.len(), k);
                let y = if keep {
                    let before = weight.fill(before, x, bias.as_deref());
                    let y = copied(y, before);
                    if let Some(norm) = &norm {
                        norm.forward(y, before);
                    }
                    y
                } else {
                    let y = weight.fill(y, x, bias.as_deref());
                    if let Some(norm) = &norm {
                        let before = memory::copied(y);
                        norm.forward(y, &before);
                    }
                    y
                };
                self.activation.apply(y);
            })
        };
        Ok(all)
    }

    /// Turns the gradient of `y` into the gradient of the product, in place.
    fn slopes(&self, d: &mut [f32], y: &[f32]) -> candle_core::Result<()> {
        let n = self.weight.dims()[0];
        let before = self.before.as_deref().unwrap_or(y);
        let Some(norm) = &self.norm else {
            pool::for_each_rows(d, n, ROWS, |first, d| {
                let span = first * n..first * n + d.len();
                match self.activation.needs_input() {
                    true => self.activation.backward(d, &before[span]),
                    false => self.activation.backward_from_output(d, &y[span]),
                }
            });
            return Ok(());
        };
        let values = norm.values()?;
        let zeros = || values.zeros();
        let parts = pool::sum_rows(d, n, ROWS, zeros, |first, d, part| {
            let span = first * n..first * n + d.len();
            let before = &before[span.clone()];
            if self.activation.needs_input() {
                let mut normed = memory::zeros(d.len());
                values.forward(&mut normed, before);
                self.activation.backward(d, &normed);
            } else {
                self.activation.backward_from_output(d, &y[span]);
            }
            values.backward(d, part, before);
        });
        norm.accumulate(&parts);
        Ok(())
    }

    /// Accumulates the gradients of the weights in the weights, and returns the gradient of `x` if `wanted`.
    fn gradients(&self, x: &[f32], w: &[f32], dy: &[f32], wanted: bool) -> Vec<f32> {
        let n = self.weight.dims()[0];
        let k = w.len() / n;
        let m = dy.len() / n;
        let (rows, x) = (View::rows(dy, m, n), Operand::of(View::rows(x, m, k)));
        self.weight.accumulate(|dw, accumulate| weight_gradient(dw, rows, &x, accumulate));
        if let Some(bias) = &self.bias {
            bias.accumulate(|db, accumulate| row_sum(db, dy, accumulate));
        }
        if !wanted {
            return vec![];
        }
        let w = self.weight.operand(w, 0..n, false, m);
        // SAFETY: the products write every value of their outputs.
        let [dx] = unsafe {
            filled(m, ROWS, [k], |rows, [dx]| {
                w.fill(dx, View::rows(&dy[rows.start * n..], rows.len(), n), None);
            })
        };
        dx
    }
}

/// The most outputs of a layer of few inputs whose gradient is computed transposed, in one shard.
const FEW_OUTPUTS: usize = 256;

/// `dW [n, k] (+)= dy^T x` of `dy [m, n]` and `x [m, k]`. Shards split the rows of `dW`, so nothing is reduced across
/// shards.
pub(crate) fn weight_gradient(dw: &mut [f32], dy: View<'_>, x: &Operand<'_>, accumulate: bool) {
    let (n, k) = (dy.width(), dw.len() / dy.width().max(1));
    if let (..=FEW_COLUMNS, LANES..=FEW_OUTPUTS, Some(x)) = (k, n, x.view()) {
        return transposed_gradient(dw, dy, x, accumulate);
    }
    pool::for_each_rows(dw, k, n.div_ceil(GRADIENT_SHARDS).next_multiple_of(32), |first, dw| {
        let dy = dy.columns(first..first + dw.len() / k).transposed();
        x.matmul(dw, k, dy, accumulate);
    });
}

/// The weight gradient as the transpose of `x^T dy`, whose rows fill vectors if `x` has only few columns.
fn transposed_gradient(dw: &mut [f32], dy: View<'_>, x: View<'_>, accumulate: bool) {
    let n = dy.width();
    let mut turned = transpose(dw, x.width());
    matmul(&mut turned, n, x.transposed(), dy, accumulate);
    dw.copy_from_slice(&transpose(&turned, n));
}

/// The transpose of a matrix of rows of `k` values.
fn transpose(x: &[f32], k: usize) -> Vec<f32> {
    let (rows, mut y) = (x.len() / k.max(1), memory::zeros(x.len()));
    for (i, row) in x.chunks_exact(k.max(1)).enumerate() {
        row.iter().enumerate().for_each(|(j, v)| y[j * rows + i] = *v);
    }
    y
}

impl Op for Linear {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, weight) = (inputs[0], inputs[1]);
        let keep = track && (self.norm.is_some() || self.activation.needs_input());
        let [y, before] = self.outputs(x, weight, keep)?;
        if keep {
            self.before = Some(before);
        }
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, w, dy) = (pass.inputs[0], pass.inputs[1], pass.gradient()?);
        let dx = match (&self.norm, self.activation) {
            (None, Activation::None) => self.gradients(x, w, dy, pass.wants(0)),
            _ => {
                let mut d = memory::copied(dy);
                self.slopes(&mut d, pass.outputs[0])?;
                self.gradients(x, w, &d, pass.wants(0))
            }
        };
        Ok(vec![dx, vec![]])
    }
}
