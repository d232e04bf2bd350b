//! Norms of each head by itself.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use super::moments;
use crate::ops::simd::{LANES, add_assign, dispatch};
use crate::ops::tensor;
use crate::{Error, Result, pool};

/// Rows of one shard.
const ROWS: usize = 128;

/// `y = (x - mean) / sqrt(variance + eps) * weight`, mean and variance over each of the `groups` of the
/// last dimension (Wu & He 2018, without a bias); without `center` the mean is not taken away, as
/// in an RMSNorm of each group. `x [.., d]`, `weight [d]`.
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
    let op = GroupNorm { size: d / groups, center, eps };
    Ok(x.contiguous()?.apply_op2(weight, op)?)
}

#[derive(Clone, Copy)]
struct GroupNorm {
    /// Numbers of a group.
    size: usize,
    center: bool,
    eps: f32,
}

dispatch! {
    fn forward(y: &mut [f32], x: &[f32], weight: &[f32], norm: GroupNorm) {
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
    /// `dx` of some rows; adds their part to `dw`.
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

impl CustomOp2 for GroupNorm {
    fn name(&self) -> &'static str {
        "group-norm"
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
            forward(y, &x[begin..begin + y.len()], w, *self);
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
            tensor::with(w, |w| tensor::with(dy, |dy| Ok(self.gradients(x, w, dy))))
        })?;
        let dw = tensor::tensor(dw, w.shape())?;
        Ok((Some(tensor::tensor(dx, x.shape())?), Some(dw)))
    }
}

impl GroupNorm {
    /// Parts of `dw` are summed in the order of the shards.
    fn gradients(&self, x: &[f32], w: &[f32], dy: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let d = w.len();
        let mut dx = vec![0.0; x.len()];
        let zero = || vec![0.0; d];
        let parts = pool::sum_rows(&mut dx, d, ROWS, zero, |first, dx, dw| {
            let span = first * d..first * d + dx.len();
            backward(dx, dw, &x[span.clone()], &dy[span], w, *self);
        });
        let mut dw = zero();
        parts.iter().for_each(|part| add_assign(&mut dw, part));
        (dx, dw)
    }
}
