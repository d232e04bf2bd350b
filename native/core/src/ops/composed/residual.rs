//! What stands around a layer.

use candle_core::Tensor;

use super::elementwise::dropout_residual;
use super::norm::row_norm;
use crate::Result;
use crate::ops::Residual;

/// `x + dropout(layer(norm(x)))`
pub fn around(
    x: &Tensor,
    residual: &Residual,
    layer: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let y = layer(&row_norm(x, &residual.norm)?)?;
    match &residual.dropout {
        Some(mask) => dropout_residual(&y, x, mask),
        None => Ok((x + y)?),
    }
}
