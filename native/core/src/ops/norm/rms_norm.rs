//! RMSNorm over the last dimension (Zhang & Sennrich 2019, eq. 4).

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use crate::ops::simd::{LANES, add_assign, dispatch};
use crate::ops::tensor;
use crate::{Result, pool};

/// Rows of one shard.
const ROWS: usize = 256;

/// `y = x / sqrt(mean(x^2) + eps) * weight`; `x [.., d]`, `weight [d]`.
///
/// Backward, with `n = x / sqrt(mean(x^2) + eps)` and `g = dy * weight`:
/// `dx = (g - n * mean(g * n)) / sqrt(mean(x^2) + eps)`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let (_, d) = tensor::rows(x.dims());
    tensor::check_shape("weight of an RMS norm", &[d], weight.dims())?;
    Ok(x.contiguous()?.apply_op2(weight, RmsNorm { eps })?)
}

struct RmsNorm {
    eps: f32,
}

/// `sum(a[i] * b[i])` in f64.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let (chunks_a, rest_a) = a.as_chunks::<LANES>();
    let (chunks_b, rest_b) = b.as_chunks::<LANES>();
    let mut sums = [0.0f64; LANES];
    for (a, b) in chunks_a.iter().zip(chunks_b) {
        for i in 0..LANES {
            sums[i] += f64::from(a[i]) * f64::from(b[i]);
        }
    }
    let rest: f64 = rest_a.iter().zip(rest_b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    sums.iter().sum::<f64>() + rest
}

/// `1 / sqrt(mean(x^2) + eps)`
#[inline(always)]
fn scale(x: &[f32], eps: f32) -> f32 {
    (1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt()) as f32
}

dispatch! {
    fn forward(y: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
        let d = weight.len();
        for (y, x) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
            let scale = scale(x, eps);
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                *y = x * scale * w;
            }
        }
    }
}

dispatch! {
    /// `dx` for some rows; adds their part to `dw`.
    fn backward(dx: &mut [f32], dw: &mut [f32], x: &[f32], dy: &[f32], weight: &[f32], eps: f32) {
        let d = weight.len();
        for ((dx, x), dy) in dx.chunks_exact_mut(d).zip(x.chunks_exact(d)).zip(dy.chunks_exact(d)) {
            let scale = scale(x, eps);
            for (((dx, dy), w), (x, dw)) in
                dx.iter_mut().zip(dy).zip(weight).zip(x.iter().zip(dw.iter_mut()))
            {
                *dx = dy * w;
                *dw += dy * (x * scale);
            }
            let mean = (dot(dx, x) / d as f64) as f32 * scale;
            for (dx, x) in dx.iter_mut().zip(x) {
                *dx = (*dx - x * scale * mean) * scale;
            }
        }
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, w) = (tensor::slice(x, xl)?, tensor::slice(w, wl)?);
        let mut y = vec![0.0; x.len()];
        pool::for_each_rows(&mut y, w.len(), ROWS, |first, y| {
            let begin = first * w.len();
            forward(y, &x[begin..begin + y.len()], w, self.eps);
        });
        Ok((CpuStorage::F32(y), xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dw) = tensor::with(x, |x| {
            tensor::with(w, |w| tensor::with(dy, |dy| Ok(gradients(x, w, dy, self.eps))))
        })?;
        let dw = tensor::tensor(dw, w.shape())?;
        Ok((Some(tensor::tensor(dx, x.shape())?), Some(dw)))
    }
}

/// Parts of `dw` are summed in the order of the shards.
fn gradients(x: &[f32], w: &[f32], dy: &[f32], eps: f32) -> (Vec<f32>, Vec<f32>) {
    let d = w.len();
    let mut dx = vec![0.0; x.len()];
    let zero = || vec![0.0; d];
    let parts = pool::sum_rows(&mut dx, d, ROWS, zero, |first, dx, dw| {
        let span = first * d..first * d + dx.len();
        backward(dx, dw, &x[span.clone()], &dy[span], w, eps);
    });
    let mut dw = zero();
    parts.iter().for_each(|part| add_assign(&mut dw, part));
    (dx, dw)
}
