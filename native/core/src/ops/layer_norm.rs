//! LayerNorm over the last dimension (Ba et al. 2016, eq. 3 and 4).

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};

use super::{simd::dispatch, tensor};
use crate::{Error, Result, pool};

/// Rows of one shard.
const ROWS: usize = 256;

/// `y = (x - mean) / sqrt(variance + eps) * weight + bias`; `x [.., d]`, `weight [d]`, `bias [d]`.
///
/// Backward, with `n = (x - mean) / sqrt(variance + eps)` and `g = dy * weight`:
/// `dx = (g - mean(g) - n * mean(g * n)) / sqrt(variance + eps)`.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
    let (_, d) = tensor::rows(x.dims());
    for (name, t) in [("weight", weight), ("bias", bias)] {
        if t.dims() != [d] {
            let what = format!("{name} of a layer norm");
            return Err(Error::mismatch(what, format!("[{d}]"), format!("{:?}", t.dims())));
        }
    }
    Ok(x.contiguous()?.apply_op3(weight, bias, LayerNorm { eps })?)
}

struct LayerNorm {
    eps: f32,
}

/// Lanes of a sum. In one lane each addition would wait for the one before.
const LANES: usize = 16;

/// Mean and `1 / sqrt(variance + eps)`; sums in f64 so that a large mean does not eat the variance.
#[inline(always)]
fn moments(x: &[f32], eps: f32) -> (f32, f32) {
    let n = x.len() as f64;
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut sums = [0.0f64; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            sums[i] += f64::from(chunk[i]);
        }
    }
    let mut sum: f64 = sums.iter().sum();
    for v in rest {
        sum += f64::from(*v);
    }
    let mean = sum / n;
    let mut squares = [0.0f64; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            let d = f64::from(chunk[i]) - mean;
            squares[i] += d * d;
        }
    }
    let mut square: f64 = squares.iter().sum();
    for v in rest {
        square += (f64::from(*v) - mean).powi(2);
    }
    (mean as f32, (1.0 / (square / n + f64::from(eps)).sqrt()) as f32)
}

dispatch! {
    pub(super) fn forward(y: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32], eps: f32) {
        let d = weight.len();
        for (y, x) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
            let (mean, scale) = moments(x, eps);
            for (((y, x), w), b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                *y = (x - mean) * scale * w + b;
            }
        }
    }
}

dispatch! {
    /// `dx` for some rows; adds their part to `dw` and `db`.
    pub(super) fn backward(dx: &mut [f32], dw: &mut [f32], db: &mut [f32], x: &[f32], dy: &[f32], weight: &[f32], eps: f32) {
        let d = weight.len();
        for ((dx, x), dy) in dx.chunks_exact_mut(d).zip(x.chunks_exact(d)).zip(dy.chunks_exact(d)) {
            let (mean, scale) = moments(x, eps);
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
            for (((((dx, x), dy), w), dw), db) in
                dx.iter_mut().zip(x).zip(dy).zip(weight).zip(dw.iter_mut()).zip(db.iter_mut())
            {
                let n = (x - mean) * scale;
                *dx = (dy * w - mean_g - n * mean_gn) * scale;
                *dw += dy * n;
                *db += dy;
            }
        }
    }
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
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
        let (x, w, b) = (tensor::slice(x, xl)?, tensor::slice(w, wl)?, tensor::slice(b, bl)?);
        let mut y = vec![0.0; x.len()];
        pool::for_each_rows(&mut y, w.len(), ROWS, |first, y| {
            let begin = first * w.len();
            forward(y, &x[begin..begin + y.len()], w, b, self.eps);
        });
        Ok((CpuStorage::F32(y), xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _b: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dx, dw, db) = tensor::with(x, |x| {
            tensor::with(w, |w| tensor::with(dy, |dy| Ok(gradients(x, w, dy, self.eps))))
        })?;
        let d = w.elem_count();
        let wrap = |v| tensor::tensor(v, d);
        Ok((Some(tensor::tensor(dx, x.shape())?), Some(wrap(dw)?), Some(wrap(db)?)))
    }
}

/// Parts of `dw` and `db` are summed in the order of the shards.
fn gradients(x: &[f32], w: &[f32], dy: &[f32], eps: f32) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let d = w.len();
    let shards = (x.len() / d).div_ceil(ROWS).max(1);
    let mut dx = vec![0.0; x.len()];
    let parts: Vec<_> =
        (0..shards).map(|_| std::sync::Mutex::new((vec![0.0; d], vec![0.0; d]))).collect();
    pool::for_each_rows(&mut dx, d, ROWS, |first, dx| {
        let span = first * d..first * d + dx.len();
        let mut part = parts[first / ROWS].lock().unwrap_or_else(|e| e.into_inner());
        let (dw, db) = &mut *part;
        backward(dx, dw, db, &x[span.clone()], &dy[span], w, eps);
    });
    let (mut dw, mut db) = (vec![0.0; d], vec![0.0; d]);
    for part in parts {
        let (w, b) = part.into_inner().unwrap_or_else(|e| e.into_inner());
        super::simd::add_assign(&mut dw, &w);
        super::simd::add_assign(&mut db, &b);
    }
    (dx, dw, db)
}
