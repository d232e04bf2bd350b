//! The norm, dropout and sum around a layer, composed of other ops.

use candle_core::Tensor;

use crate::{Residual, Result, row_norm};

/// `x + dropout(layer(norm(x)))`; without dropout the layer adds its second argument to its output.
pub(crate) fn around(
    x: &Tensor,
    residual: &Residual,
    layer: impl FnOnce(&Tensor, Option<&Tensor>) -> Result<Tensor>,
) -> Result<Tensor> {
    let normed = row_norm(x, &residual.norm)?;
    match &residual.dropout {
        Some(mask) => mask.apply_and_add(&layer(&normed, None)?, x),
        None => layer(&normed, Some(x)),
    }
}
