//! RMSNorm over the last dimension (Zhang & Sennrich 2019, eq. 4).

use candle_core::Tensor;

use super::scaled::{Rows, scaled};
use crate::Result;
use crate::ops::simd::{LANES, dispatch};
use crate::ops::tensor;

/// `y = x / sqrt(mean(x^2) + eps) * weight`; `x [.., d]`, `weight [d]`.
///
/// Backward, with `n = x / sqrt(mean(x^2) + eps)` and `g = dy * weight`:
/// `dx = (g - n * mean(g * n)) / sqrt(mean(x^2) + eps)`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let (_, d) = tensor::rows(x.dims());
    tensor::check_shape("weight of an RMS norm", &[d], weight.dims())?;
    scaled(x, weight, RmsNorm { eps })
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

impl Rows for RmsNorm {
    const NAME: &'static str = "rms-norm";
    const SHARD: usize = 256;

    fn forward(&self, y: &mut [f32], x: &[f32], weight: &[f32]) {
        forward(y, x, weight, self.eps);
    }

    fn backward(&self, dx: &mut [f32], dw: &mut [f32], x: &[f32], dy: &[f32], weight: &[f32]) {
        backward(dx, dw, x, dy, weight, self.eps);
    }
}
