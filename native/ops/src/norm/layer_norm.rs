//! Rows of a LayerNorm (Ba et al. 2016, eq. 3 and 4).

use std::mem::MaybeUninit;

use super::moments;
use crate::simd::{LANES, dispatch};
use crate::uninit::writable;

/// `y = (x - mean) / sqrt(variance + eps) * weight + bias`, row after row.
pub fn forward(y: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32], eps: f32) {
    fill(writable(y), x, weight, bias, eps);
}

dispatch! {
    /// Computes [`forward`] into uninitialised memory; writes every value of the rows that `y` and `x` both have.
    pub(crate) fn fill(y: &mut [MaybeUninit<f32>], x: &[f32], weight: &[f32], bias: &[f32], eps: f32) {
        let d = weight.len();
        for (y, x) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
            let (mean, scale) = moments(x, true, eps);
            for (((y, x), w), b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                y.write((x - mean) * scale * w + b);
            }
        }
    }
}

dispatch! {
    /// Turns `dy` of some rows into `dx`, in place; adds their part to `dw` and `db`. With `RESIDUAL` it also adds
    /// `rest` to `dx` and writes the normed rows to `y`, with the same mean and variance; otherwise both are empty.
    pub(crate) fn backward<[const RESIDUAL: bool], [RESIDUAL]>(
        dy: &mut [f32],
        dw: &mut [f32],
        db: &mut [f32],
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        eps: f32,
        rest: &[f32],
        y: &mut [MaybeUninit<f32>],
    ) {
        let d = weight.len();
        for (i, (dy, x)) in dy.chunks_exact_mut(d).zip(x.chunks_exact(d)).enumerate() {
            let (mean, scale) = moments(x, true, eps);
            let (mut g_lanes, mut gn_lanes) = ([0.0f32; LANES], [0.0f32; LANES]);
            for ((x, dy), w) in x.chunks(LANES).zip(dy.chunks(LANES)).zip(weight.chunks(LANES)) {
                for (((x, dy), w), (g_lane, gn_lane)) in
                    x.iter().zip(dy).zip(w).zip(g_lanes.iter_mut().zip(&mut gn_lanes))
                {
                    let (g, n) = (dy * w, (x - mean) * scale);
                    *g_lane += g;
                    *gn_lane += g * n;
                }
            }
            let mean_g = g_lanes.iter().sum::<f32>() / d as f32;
            let mean_gn = gn_lanes.iter().sum::<f32>() / d as f32;
            for ((((d, x), w), dw), db) in
                dy.iter_mut().zip(x).zip(weight).zip(dw.iter_mut()).zip(db.iter_mut())
            {
                let (dy, n) = (*d, (x - mean) * scale);
                *d = (dy * w - mean_g - n * mean_gn) * scale;
                *dw += dy * n;
                *db += dy;
            }
            if RESIDUAL {
                for (((y, x), w), b) in y[i * d..][..d].iter_mut().zip(x).zip(weight).zip(bias) {
                    y.write((x - mean) * scale * w + b);
                }
                for (d, rest) in dy.iter_mut().zip(&rest[i * d..]) {
                    *d += rest;
                }
            }
        }
    }
}
