//! Dropout composed of candle's ops.

use candle_core::Tensor;

use crate::dropout::Dropout;
use crate::{Result, tensor};

/// All ways to drop numbers lead to a [`Dropout`]. Without a kernel its mask is drawn where the generator is, so that
/// the same numbers are dropped on all devices.
pub(super) fn dropout(x: &Tensor, dropout: &Dropout) -> Result<Tensor> {
    let mask = dropout.mask(&vec![1.0; x.elem_count()], tensor::rows(x.dims()).1);
    let mask = Tensor::from_vec(mask, x.shape(), x.device())?.to_dtype(x.dtype())?;
    Ok((x * mask)?)
}
