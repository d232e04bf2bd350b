//! LayerNorm over the last dimension (Ba et al. 2016, eq. 3 and 4).

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use super::moments;
use crate::ops::linear::row_sum;
use crate::ops::simd::{LANES, dispatch};
use crate::ops::tensor;
use crate::weights::Weight;
use crate::{Result, pool};

/// Rows of one shard.
const ROWS: usize = 256;

/// Scale and shift of a norm, `[d]` each.
#[derive(Clone)]
pub struct Norm {
    pub weight: Weight,
    pub bias: Weight,
    pub eps: f32,
}

/// `y = (x - mean) / sqrt(variance + eps) * weight + bias`; `x [.., d]`, `weight [d]`, `bias [d]`.
///
/// Backward, with `n = (x - mean) / sqrt(variance + eps)` and `g = dy * weight`:
/// `dx = (g - mean(g) - n * mean(g * n)) / sqrt(variance + eps)`. The gradients of the weights are left
/// with them.
pub fn layer_norm(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    norm.check(tensor::rows(x.dims()).1)?;
    Ok(x.contiguous()?.apply_op2(&norm.weight, LayerNorm(norm.clone()))?)
}

struct LayerNorm(Norm);

/// The numbers of a [`Norm`].
pub(in crate::ops) struct Values {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

/// The gradients of a norm's weights over some rows.
pub(in crate::ops) struct Gradients {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Norm {
    pub(in crate::ops) fn check(&self, d: usize) -> Result<()> {
        for (name, t) in [("weight", &self.weight), ("bias", &self.bias)] {
            tensor::check_shape(format_args!("{name} of a layer norm"), &[d], t.dims())?;
        }
        Ok(())
    }

    pub(in crate::ops) fn values(&self) -> candle_core::Result<Values> {
        let (weight, bias) = (tensor::to_vec(&self.weight)?, tensor::to_vec(&self.bias)?);
        Ok(Values { weight, bias, eps: self.eps })
    }

    /// Leaves gradients with the weights, summed in the order of the shards.
    pub(in crate::ops) fn accumulate(&self, parts: &[Gradients]) {
        for (i, part) in parts.iter().enumerate() {
            for (weight, part) in [(&self.weight, &part.weight), (&self.bias, &part.bias)] {
                weight.accumulate(|sum, adds| row_sum(sum, part, adds || i > 0));
            }
        }
    }
}

impl Values {
    pub(in crate::ops) fn forward(&self, y: &mut [f32], x: &[f32]) {
        forward(y, x, &self.weight, &self.bias, self.eps);
    }

    /// Makes of the gradient of y that of x, in place.
    pub(in crate::ops) fn backward(&self, d: &mut [f32], part: &mut Gradients, x: &[f32]) {
        backward(d, &mut part.weight, &mut part.bias, x, &self.weight, self.eps);
    }

    pub(in crate::ops) fn zeros(&self) -> Gradients {
        let zeros = || vec![0.0; self.weight.len()];
        Gradients { weight: zeros(), bias: zeros() }
    }
}

dispatch! {
    pub(in crate::ops) fn forward(y: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32], eps: f32) {
        let d = weight.len();
        for (y, x) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
            let (mean, scale) = moments(x, true, eps);
            for (((y, x), w), b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                *y = (x - mean) * scale * w + b;
            }
        }
    }
}

dispatch! {
    /// Makes of `dy` for some rows `dx`, in place; adds their part to `dw` and `db`.
    pub(in crate::ops) fn backward(dy: &mut [f32], dw: &mut [f32], db: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
        let d = weight.len();
        for (dy, x) in dy.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
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
        }
    }
}

impl CustomOp2 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, d) = (tensor::slice(x, xl)?, tensor::rows(xl.dims()).1);
        let values = self.0.values()?;
        let mut y = vec![0.0; x.len()];
        pool::for_each_rows(&mut y, d, ROWS, |first, y| {
            values.forward(y, &x[first * d..first * d + y.len()]);
        });
        Ok((CpuStorage::F32(y), xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        _: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (_, d) = tensor::rows(x.dims());
        let values = self.0.values()?;
        let mut dx = tensor::to_vec(dy)?;
        let zeros = || values.zeros();
        let parts = tensor::with(x, |x| {
            Ok(pool::sum_rows(&mut dx, d, ROWS, zeros, |first, dx, part| {
                values.backward(dx, part, &x[first * d..first * d + dx.len()]);
            }))
        })?;
        self.0.accumulate(&parts);
        Ok((Some(tensor::tensor(dx, x.shape())?), None))
    }
}
