//! Norms of rows and groups, composed of candle's ops.

use candle_core::{D, Tensor};

use crate::{Norm, Result, tensor};

/// `x / sqrt(mean(x^2) + eps)` over the last dimension; with `center` the mean is subtracted from x
/// first.
fn normed(x: &Tensor, center: bool, eps: f32) -> candle_core::Result<Tensor> {
    let x = match center {
        true => x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?,
        false => x.clone(),
    };
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?.sqrt()?;
    x.broadcast_div(&scale)
}

pub(super) fn row_norm(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    let y = normed(x, norm.bias.is_some(), norm.eps)?.broadcast_mul(&norm.weight)?;
    match &norm.bias {
        Some(bias) => Ok(y.broadcast_add(bias)?),
        None => Ok(y),
    }
}

pub(super) fn group_norm(
    x: &Tensor,
    weight: &Tensor,
    groups: usize,
    center: bool,
    eps: f32,
) -> Result<Tensor> {
    let (rows, d) = tensor::rows(x.dims());
    let y = normed(&x.reshape((rows, groups, d / groups))?, center, eps)?;
    Ok(y.reshape(x.shape())?.broadcast_mul(weight)?)
}
