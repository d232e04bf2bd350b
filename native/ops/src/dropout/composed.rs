//! Dropout composed of candle's ops.

use candle_core::Tensor;

use crate::dropout::Dropout;
use crate::{Result, tensor};

/// Applies a mask of [`Dropout`]. Without a kernel the mask is drawn on the CPU, so that all devices drop the same
/// values.
pub(super) fn dropout(x: &Tensor, dropout: &Dropout) -> Result<Tensor> {
    let mask = dropout.mask(&vec![1.0; x.elem_count()], tensor::rows(x.dims()).1);
    let mask = Tensor::from_vec(mask, x.shape(), x.device())?.to_dtype(x.dtype())?;
    Ok((x * mask)?)
}
