//! What stands around a layer.

use candle_core::Tensor;

use super::elementwise::dropout_residual;
use super::norm::row_norm;
use crate::Result;
use crate::ops::Residual;

/// `x + dropout(layer(norm(x)))`; the layer adds what it is given to what it makes.
pub fn around(
    x: &Tensor,
    residual: &Residual,
    layer: impl FnOnce(&Tensor, Option<&Tensor>) -> Result<Tensor>,
) -> Result<Tensor> {
    let normed = row_norm(x, &residual.norm)?;
    match &residual.dropout {
        Some(mask) => dropout_residual(&layer(&normed, None)?, x, mask),
        None => layer(&normed, Some(x)),
    }
}
