//! What norms with a scale and without a shift have in common: rows in shards, one gradient of the
//! scale.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use crate::memory;
use crate::ops::simd::add_assign;
use crate::ops::tensor;
use crate::{Result, pool};

/// A norm of rows as wide as its weight.
pub(super) trait Rows: Send + Sync + 'static {
    const NAME: &'static str;
    /// Rows of one shard.
    const SHARD: usize;

    fn forward(&self, y: &mut [f32], x: &[f32], weight: &[f32]);

    /// `dx` for some rows; adds their part to `dw`.
    fn backward(&self, dx: &mut [f32], dw: &mut [f32], x: &[f32], dy: &[f32], weight: &[f32]);
}

/// `x [.., d]` by a norm of `weight [d]`.
pub(super) fn scaled(x: &Tensor, weight: &Tensor, norm: impl Rows) -> Result<Tensor> {
    Ok(x.contiguous()?.apply_op2(weight, Scaled(norm))?)
}

struct Scaled<N>(N);

impl<N: Rows> Scaled<N> {
    /// Parts of `dw` are summed in the order of the shards.
    fn gradients(&self, x: &[f32], w: &[f32], dy: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let d = w.len();
        let mut dx = memory::zeros(x.len());
        let zero = || memory::zeros(d);
        let parts = pool::sum_rows(&mut dx, d, N::SHARD, zero, |first, dx, dw| {
            let span = first * d..first * d + dx.len();
            self.0.backward(dx, dw, &x[span.clone()], &dy[span], w);
        });
        let mut dw = zero();
        parts.iter().for_each(|part| add_assign(&mut dw, part));
        (dx, dw)
    }
}

impl<N: Rows> CustomOp2 for Scaled<N> {
    fn name(&self) -> &'static str {
        N::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, w) = (tensor::slice(x, xl)?, tensor::slice(w, wl)?);
        let mut y = memory::zeros(x.len());
        pool::for_each_rows(&mut y, w.len(), N::SHARD, |first, y| {
            let begin = first * w.len();
            self.0.forward(y, &x[begin..begin + y.len()], w);
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
