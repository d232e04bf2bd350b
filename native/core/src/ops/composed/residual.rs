//! What stands around a layer.

use candle_core::Tensor;

use super::elementwise::dropout;
use super::norm::row_norm;
use crate::Result;
use crate::ops::Residual;

/// `x + dropout(layer(norm(x)))`
pub fn around(
    x: &Tensor,
    residual: &Residual,
    layer: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut y = layer(&row_norm(x, &residual.norm)?)?;
    if let Some(mask) = &residual.dropout {
        y = dropout(&y, mask)?;
    }
    Ok((x + y)?)
}
