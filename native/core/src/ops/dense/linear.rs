//! `y = activation(norm(x W^T + b))`.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use crate::ops::elementwise::Activation;
use crate::ops::layer_norm::Norm;
use crate::ops::matmul::{Packed, View};
use crate::ops::{simd, tensor};
use crate::pool::for_each_shard;
use crate::weights::Weight;
use crate::{Result, pool};

/// Rows of one shard of a product.
const ROWS: usize = 64;
/// Shards of a weight gradient, over the rows of the weight.
const GRADIENT_SHARDS: usize = 4;

/// `x [.., k]`, `weight [n, k]`, `bias [n]` -> `[.., n]`.
///
/// Backward: `dx = dy W`, `dW = dy^T x`, `db = sum of dy`, with `dy` times the slope of the activation
/// first. The gradients of the weights are left with them ([`Weight::accumulate`]).
pub fn linear(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: Activation,
) -> Result<Tensor> {
    apply(x, weight, bias, None, activation)
}

/// [`linear`] with a [`layer_norm`](crate::ops::layer_norm()) before the activation: one pass over each row
/// while it is at hand.
pub fn linear_norm(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    norm: &Norm,
    activation: Activation,
) -> Result<Tensor> {
    apply(x, weight, bias, Some(norm), activation)
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
    let track = x.track_op() || weight.track_op();
    let op = Linear {
        weight: weight.clone(),
        bias: bias.cloned(),
        norm: norm.cloned(),
        activation,
        keep: track && (norm.is_some() || activation.needs_input()),
        before: OnceLock::new(),
    };
    Ok(x.contiguous()?.apply_op2(weight, op)?)
}

struct Linear {
    weight: Weight,
    bias: Option<Weight>,
    norm: Option<Norm>,
    activation: Activation,
    /// Whether a backward pass will ask what came out of the product.
    keep: bool,
    before: OnceLock<Vec<f32>>,
}

impl Linear {
    fn forward(&self, x: &[f32], weight: &[f32], n: usize) -> candle_core::Result<Vec<f32>> {
        let k = weight.len() / n;
        let m = x.len() / k.max(1);
        let weight = self.weight.operand(weight, 0..n, true, m);
        // The product is added to the bias.
        let first = || match &self.bias {
            Some(bias) => tensor::with(bias, |bias| Ok(bias.repeat(m))),
            None => Ok(vec![0.0; m * n]),
        };
        let mut y = if self.keep { vec![0.0; m * n] } else { first()? };
        let mut before = if self.keep { first()? } else { vec![] };
        let kept = if self.keep { n } else { 0 };
        let norm = self.norm.as_ref().map(Norm::values).transpose()?;
        let buffers = [(&mut y[..], n), (&mut before[..], kept)];
        for_each_shard(m, ROWS, buffers, |rows, [y, before]| {
            let x = View::rows(&x[rows.start * k..], rows.len(), k);
            let product = if self.keep { &mut *before } else { &mut *y };
            weight.matmul(product, n, x, self.bias.is_some());
            match (&norm, self.keep) {
                (Some(norm), true) => norm.forward(y, before),
                (Some(norm), false) => {
                    let before = y.to_vec();
                    norm.forward(y, &before);
                }
                (None, true) => y.copy_from_slice(before),
                (None, false) => {}
            }
            self.activation.apply(y);
        });
        if self.keep {
            let _ = self.before.set(before);
        }
        Ok(y)
    }

    /// Makes of the gradient of `y` that of the product, in place.
    fn slopes(&self, d: &mut [f32], y: &[f32]) -> candle_core::Result<()> {
        let n = self.weight.dims()[0];
        let before = self.before.get().map_or(y, |before| &before[..]);
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
                let mut normed = vec![0.0; d.len()];
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

    /// Leaves the gradients of the weights with them and gives that of `x`, if it is wanted.
    fn backward(&self, x: &[f32], w: &[f32], dy: &[f32], wanted: bool) -> Option<Vec<f32>> {
        let n = self.weight.dims()[0];
        let k = w.len() / n;
        let m = dy.len() / n;
        let (rows, x) = (View::rows(dy, m, n), Packed::new(View::rows(x, m, k)));
        self.weight.accumulate(|dw, accumulate| weight_gradient(dw, rows, &x, accumulate));
        if let Some(bias) = &self.bias {
            bias.accumulate(|db, accumulate| row_sum(db, dy, accumulate));
        }
        wanted.then(|| {
            let w = self.weight.operand(w, 0..n, false, m);
            let mut dx = vec![0.0; m * k];
            pool::for_each_rows(&mut dx, k, ROWS, |first, dx| {
                let dy = View::rows(&dy[first * n..], dx.len() / k, n);
                w.matmul(dx, k, dy, false);
            });
            dx
        })
    }
}

/// `dW [n, k] (+)= dy^T x` of `dy [m, n]` and `x [m, k]`, cut over the rows of `dW`, so nothing is reduced
/// across shards.
pub(in crate::ops) fn weight_gradient(dw: &mut [f32], dy: View<'_>, x: &Packed, accumulate: bool) {
    let (n, k) = (dy.width(), dw.len() / dy.width().max(1));
    pool::for_each_rows(dw, k, n.div_ceil(GRADIENT_SHARDS).max(16), |first, dw| {
        let dy = dy.columns(first..first + dw.len() / k).transposed();
        x.matmul(dw, k, dy, accumulate);
    });
}

/// `sum [n] (+)= the rows of dy [m, n]`
pub(in crate::ops) fn row_sum(sum: &mut [f32], dy: &[f32], accumulate: bool) {
    if !accumulate {
        sum.fill(0.0);
    }
    simd::add_rows(sum, dy);
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let n = wl.dims()[0];
        let y = self.forward(tensor::slice(x, xl)?, tensor::slice(w, wl)?, n)?;
        let mut dims = xl.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = n;
        }
        Ok((CpuStorage::F32(y), Shape::from(dims)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let gradients = |dy: &[f32]| {
            let wanted = x.track_op();
            tensor::with(x, |x| tensor::with(w, |w| Ok(self.backward(x, w, dy, wanted))))
        };
        let dx = match (&self.norm, self.activation) {
            (None, Activation::None) => tensor::with(dy, gradients)?,
            _ => {
                let mut d = tensor::to_vec(dy)?;
                tensor::with(y, |y| self.slopes(&mut d, y))?;
                gradients(&d)?
            }
        };
        Ok((dx.map(|dx| tensor::tensor(dx, x.shape())).transpose()?, None))
    }
}
