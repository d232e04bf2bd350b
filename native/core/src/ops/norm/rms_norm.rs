//! RMSNorm over the last dimension (Zhang & Sennrich 2019, eq. 4).

use candle_core::Tensor;

use super::group_norm;
use crate::Result;
use crate::ops::tensor;

/// `y = x / sqrt(mean(x^2) + eps) * weight`; `x [.., d]`, `weight [d]`: a [`group_norm`] of one group that
/// keeps its mean.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let (_, d) = tensor::rows(x.dims());
    tensor::check_shape("weight of an RMS norm", &[d], weight.dims())?;
    group_norm(x, weight, 1, false, eps)
}
