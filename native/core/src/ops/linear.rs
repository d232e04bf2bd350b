//! `y = activation(x W^T + b)`.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Shape, Tensor};

use super::matmul::{View, matmul};
use super::{simd, tensor};
use crate::{Error, Result, pool};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    None,
    Relu,
}

/// Rows of one shard of a product: enough to pay for packing the weights again.
const ROWS: usize = 128;
/// Shards of a weight gradient, over the rows of the weight.
const GRADIENT_SHARDS: usize = 4;

/// `x [.., k]`, `weight [n, k]`, `bias [n]` -> `[.., n]`.
///
/// Backward: `dx = dy W`, `dW = dy^T x`, `db = sum of dy`, with `dy` cut by the activation first.
pub fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
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
    let x = x.contiguous()?;
    Ok(match bias {
        Some(bias) => x.apply_op3(weight, bias, Linear { activation })?,
        None => x.apply_op2(weight, Linear { activation })?,
    })
}

struct Linear {
    activation: Activation,
}

impl Linear {
    fn forward(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        shape: &Shape,
        n: usize,
    ) -> (CpuStorage, Shape) {
        let (m, k) = tensor::rows(shape.dims());
        let mut y = vec![0.0; m * n];
        let weight = View::rows(weight, n, k).transposed();
        pool::for_each_rows(&mut y, n, ROWS, |first, y| {
            let rows = y.len() / n;
            if let Some(bias) = bias {
                y.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(bias));
            }
            let x = View::rows(&x[first * k..], rows, k);
            matmul(y, n, x, weight, bias.is_some());
            if self.activation == Activation::Relu {
                simd::relu(y);
            }
        });
        let mut dims = shape.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = n;
        }
        (CpuStorage::F32(y), Shape::from(dims))
    }

    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        dy: &Tensor,
        bias: bool,
    ) -> candle_core::Result<(Tensor, Tensor, Option<Tensor>)> {
        let (n, k) = weight.dims2()?;
        let cut = match self.activation {
            Activation::None => None,
            Activation::Relu => Some(tensor::with(y, |y| {
                let mut dy = tensor::to_vec(dy)?;
                simd::relu_backward(&mut dy, y);
                Ok(dy)
            })?),
        };
        let gradients = |dy: &[f32]| {
            let dx = tensor::with(weight, |w| Ok(input_gradient(dy, w, n, k)))?;
            let dw = tensor::with(x, |x| Ok(weight_gradient(dy, x, n, k)))?;
            let db = match bias {
                true => Some(tensor::tensor(row_sum(dy, n), n)?),
                false => None,
            };
            Ok((tensor::tensor(dx, x.shape())?, tensor::tensor(dw, (n, k))?, db))
        };
        match cut {
            Some(dy) => gradients(&dy),
            None => tensor::with(dy, gradients),
        }
    }
}

/// `dx [m, k] = dy [m, n] W [n, k]`
pub(super) fn input_gradient(dy: &[f32], weight: &[f32], n: usize, k: usize) -> Vec<f32> {
    let mut dx = vec![0.0; dy.len() / n * k];
    pool::for_each_rows(&mut dx, k, ROWS, |first, dx| {
        let rows = dx.len() / k;
        let dy = View::rows(&dy[first * n..], rows, n);
        matmul(dx, k, dy, View::rows(weight, n, k), false);
    });
    dx
}

/// `dW [n, k] = dy^T [n, m] x [m, k]`, cut over the rows of `dW`, so nothing is reduced across shards.
pub(super) fn weight_gradient(dy: &[f32], x: &[f32], n: usize, k: usize) -> Vec<f32> {
    let m = dy.len() / n;
    let mut dw = vec![0.0; n * k];
    pool::for_each_rows(&mut dw, k, n.div_ceil(GRADIENT_SHARDS).max(16), |first, dw| {
        let rows = dw.len() / k;
        let dy = View::strided(&dy[first..], m, rows, n).transposed();
        matmul(dw, k, dy, View::rows(x, m, k), false);
    });
    dw
}

pub(super) fn row_sum(dy: &[f32], n: usize) -> Vec<f32> {
    let mut sum = vec![0.0; n];
    simd::add_rows(&mut sum, dy);
    sum
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
        Ok(self.forward(
            tensor::slice(x, xl)?,
            tensor::slice(w, wl)?,
            None,
            xl.shape(),
            wl.dims()[0],
        ))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dw, _) = self.backward(x, w, y, dy, false)?;
        Ok((Some(dx), Some(dw)))
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let bias = tensor::slice(b, bl)?;
        Ok(self.forward(
            tensor::slice(x, xl)?,
            tensor::slice(w, wl)?,
            Some(bias),
            xl.shape(),
            wl.dims()[0],
        ))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _b: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dx, dw, db) = self.backward(x, w, y, dy, true)?;
        Ok((Some(dx), Some(dw), db))
    }
}
