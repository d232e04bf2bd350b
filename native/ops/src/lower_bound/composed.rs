//! Lower bounds composed of candle's ops.

use candle_core::Tensor;

use crate::Result;

pub(super) fn lower_bound(bounds: &Tensor, layer: usize) -> Result<Tensor> {
    let p = bounds.broadcast_sub(&bounds.max_keepdim(0)?.detach())?.exp()?;
    let p = p.broadcast_div(&p.sum_keepdim(0)?)?;
    let counts = (0..bounds.dim(0)?).map(|j| f32::from((1..=layer).contains(&j)));
    let counts = Tensor::from_iter(counts, bounds.device())?.to_dtype(bounds.dtype())?;
    Ok(p.broadcast_mul(&counts.unsqueeze(1)?)?.sum(0)?)
}
