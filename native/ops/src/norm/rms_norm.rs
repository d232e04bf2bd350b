//! Rows of an RMSNorm (Zhang & Sennrich 2019, eq. 4).

use std::mem::MaybeUninit;

use crate::simd::{LANES, dispatch};

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

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn scale(x: &[f32], eps: f32) -> f32 {
    (1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt()) as f32
}

dispatch! {
    /// `y = x / sqrt(mean(x^2) + eps) * weight`, row after row, into uninitialised memory; writes every value of the rows
    /// that `y` and `x` both have.
    pub(crate) fn fill(y: &mut [MaybeUninit<f32>], x: &[f32], weight: &[f32], eps: f32) {
        let d = weight.len();
        for (y, x) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
            let scale = scale(x, eps);
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                y.write(x * scale * w);
            }
        }
    }
}

dispatch! {
    /// Turns `dy` of some rows into `dx`, in place; adds their part to `dw`. With `RESIDUAL` it also adds `rest` to `dx`
    /// and writes the normed rows to `y`, with the same scale; otherwise both are empty.
    pub(crate) fn backward<[const RESIDUAL: bool], [RESIDUAL]>(
        dy: &mut [f32],
        dw: &mut [f32],
        x: &[f32],
        weight: &[f32],
        eps: f32,
        rest: &[f32],
        y: &mut [MaybeUninit<f32>],
    ) {
        let d = weight.len();
        for (i, (dy, x)) in dy.chunks_exact_mut(d).zip(x.chunks_exact(d)).enumerate() {
            let scale = scale(x, eps);
            for ((dy, w), (x, dw)) in dy.iter_mut().zip(weight).zip(x.iter().zip(dw.iter_mut())) {
                *dw += *dy * (x * scale);
                *dy *= w;
            }
            let mean = (dot(dy, x) / d as f64) as f32 * scale;
            for (dy, x) in dy.iter_mut().zip(x) {
                *dy = (*dy - x * scale * mean) * scale;
            }
            if RESIDUAL {
                for ((y, x), w) in y[i * d..][..d].iter_mut().zip(x).zip(weight) {
                    y.write(x * scale * w);
                }
                for (d, rest) in dy.iter_mut().zip(&rest[i * d..]) {
                    *d += rest;
                }
            }
        }
    }
}
