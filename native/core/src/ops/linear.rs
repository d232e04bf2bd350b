//! `y = activation(x W^T + b)`.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use super::elementwise::Activation;
use super::matmul::{View, matmul};
use super::{simd, tensor};
use crate::weights::Weight;
use crate::{Error, Result, pool};

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
    let (n, k) = weight.dims2()?;
    if x.dims().last() != Some(&k) {
        return Err(Error::mismatch(
            "input of a linear layer",
            format!("[.., {k}]"),
            format!("{:?}", x.dims()),
        ));
    }
    if let Some(bias) = bias
        && bias.dims() != [n]
    {
        return Err(Error::mismatch(
            "bias of a linear layer",
            format!("[{n}]"),
            format!("{:?}", bias.dims()),
        ));
    }
    let track = x.track_op() || weight.track_op();
    let op = Linear {
        weight: weight.clone(),
        bias: bias.cloned(),
        activation,
        keep: track && activation.needs_input(),
        before: OnceLock::new(),
    };
    Ok(x.contiguous()?.apply_op2(weight, op)?)
}

struct Linear {
    weight: Weight,
    bias: Option<Weight>,
    activation: Activation,
    /// Whether a backward pass will ask what went into the activation.
    keep: bool,
    before: OnceLock<Vec<f32>>,
}

impl Linear {
    fn forward(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>, n: usize) -> Vec<f32> {
        let k = weight.len() / n;
        let m = x.len() / k.max(1);
        let mut y = vec![0.0; m * n];
        let weight = self.weight.operand(weight, 0..n, true, m);
        pool::for_each_rows(&mut y, n, ROWS, |first, y| {
            let rows = y.len() / n;
            if let Some(bias) = bias {
                y.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(bias));
            }
            let x = View::rows(&x[first * k..], rows, k);
            weight.matmul(y, n, x, bias.is_some());
            if !self.keep {
                self.activation.apply(y);
            }
        });
        if self.keep {
            let before = y.clone();
            pool::for_each_rows(&mut y, n, ROWS, |_, y| self.activation.apply(y));
            let _ = self.before.set(before);
        }
        y
    }

    /// Leaves the gradients of the weights with them and gives that of `x`, if it is wanted.
    fn backward(&self, x: &[f32], w: &[f32], dy: &[f32], wanted: bool) -> Option<Vec<f32>> {
        let n = self.weight.dims()[0];
        let k = w.len() / n;
        let m = dy.len() / n;
        let (rows, x) = (View::rows(dy, m, n), View::rows(x, m, k));
        self.weight.accumulate(|dw, accumulate| weight_gradient(dw, rows, x, accumulate));
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
pub(super) fn weight_gradient(dw: &mut [f32], dy: View<'_>, x: View<'_>, accumulate: bool) {
    let (n, k) = (dy.width(), x.width());
    pool::for_each_rows(dw, k, n.div_ceil(GRADIENT_SHARDS).max(16), |first, dw| {
        let dy = dy.columns(first..first + dw.len() / k).transposed();
        matmul(dw, k, dy, x, accumulate);
    });
}

/// `sum [n] (+)= the rows of dy [m, n]`
pub(super) fn row_sum(sum: &mut [f32], dy: &[f32], accumulate: bool) {
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
        let (x, w) = (tensor::slice(x, xl)?, tensor::slice(w, wl)?);
        let y = match &self.bias {
            Some(bias) => tensor::with(bias, |bias| Ok(self.forward(x, w, Some(bias), n)))?,
            None => self.forward(x, w, None, n),
        };
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
        let dx = match self.activation {
            Activation::None => tensor::with(dy, gradients)?,
            activation => {
                let mut dy = tensor::to_vec(dy)?;
                match self.before.get() {
                    Some(before) => activation.backward(&mut dy, before),
                    None => tensor::with(y, |y| {
                        activation.backward_from_output(&mut dy, y);
                        Ok(())
                    })?,
                }
                gradients(&dy)?
            }
        };
        Ok((dx.map(|dx| tensor::tensor(dx, x.shape())).transpose()?, None))
    }
}
