//! Norms of each head separately.

use candle_core::Tensor;

use super::scaled::{Rows, scaled};
use super::{card, composed, moments};
use crate::form::Form;
use crate::simd::{LANES, dispatch};
use crate::{Error, Result, tensor};

/// `y = (x - mean) / sqrt(variance + eps) * weight`, with mean and variance over each of the `groups` of the last
/// dimension (Wu & He 2018, without a bias). Without `center` the mean is not subtracted: an RMSNorm of each group. `x
/// [.., d]`, `weight [d]`.
pub fn group_norm(
    x: &Tensor,
    weight: &Tensor,
    groups: usize,
    center: bool,
    eps: f32,
) -> Result<Tensor> {
    let (_, d) = tensor::rows(x.dims());
    if weight.dims() != [d] || groups == 0 || d % groups != 0 {
        let got = format!("{:?} in {groups} groups", weight.dims());
        return Err(Error::mismatch("weight of a group norm", format!("[{d}]"), got));
    }
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::group_norm(x, weight, groups, center, eps),
        Form::Composed => return composed::group_norm(x, weight, groups, center, eps),
    }
    scaled(x, weight, GroupNorm { size: d / groups, center, eps })
}

/// Options of a [`group_norm`].
#[derive(Debug, Clone, Copy)]
pub struct GroupNorm {
    /// Values per group.
    pub size: usize,
    /// Whether the mean is subtracted.
    pub center: bool,
    /// The constant added to the variance.
    pub eps: f32,
}

dispatch! {
    /// The norm of rows as wide as the weight.
    pub fn forward(y: &mut [f32], x: &[f32], weight: &[f32], norm: GroupNorm) {
        let groups = y.chunks_exact_mut(norm.size).zip(x.chunks_exact(norm.size));
        let weights = weight.chunks_exact(norm.size).cycle();
        for ((y, x), weight) in groups.zip(weights) {
            let (mean, scale) = moments(x, norm.center, norm.eps);
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                *y = (x - mean) * scale * w;
            }
        }
    }
}

dispatch! {
    /// Computes `dx` of some rows and adds their part to `dw`.
    fn backward(dx: &mut [f32], dw: &mut [f32], x: &[f32], dy: &[f32], weight: &[f32], norm: GroupNorm) {
        let (size, d) = (norm.size, weight.len());
        let groups = dx.chunks_exact_mut(size).zip(x.chunks_exact(size)).zip(dy.chunks_exact(size));
        for (i, ((dx, x), dy)) in groups.enumerate() {
            let first = i * size % d;
            let (weight, dw) = (&weight[first..first + size], &mut dw[first..first + size]);
            let (mean, scale) = moments(x, norm.center, norm.eps);
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
            let mean_g =
                if norm.center { g_lanes.iter().sum::<f32>() / size as f32 } else { 0.0 };
            let mean_gn = gn_lanes.iter().sum::<f32>() / size as f32;
            for ((((dx, x), dy), w), dw) in
                dx.iter_mut().zip(x).zip(dy).zip(weight).zip(dw.iter_mut())
            {
                let n = (x - mean) * scale;
                *dx = (dy * w - mean_g - n * mean_gn) * scale;
                *dw += dy * n;
            }
        }
    }
}

impl Rows for GroupNorm {
    const SHARD: usize = 128;

    fn forward(&self, y: &mut [f32], x: &[f32], weight: &[f32]) {
        forward(y, x, weight, *self);
    }

    fn backward(&self, dx: &mut [f32], dw: &mut [f32], x: &[f32], dy: &[f32], weight: &[f32]) {
        backward(dx, dw, x, dy, weight, *self);
    }
}
