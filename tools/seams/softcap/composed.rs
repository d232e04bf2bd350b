//! The softcap composed of candle's ops.

use candle_core::Tensor;

use crate::Result;

pub(super) fn softcap(x: &Tensor, cap: f32) -> Result<Tensor> {
    let cap = f64::from(cap);
    Ok(((x / cap)?.tanh()? * cap)?)
}
