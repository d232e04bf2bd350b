//! Rotations composed of candle's ops.

use candle_core::{D, Tensor};

use crate::Result;

/// Rotates the pairs (a, b), and returns all a's before all b's: all `[.., dim / 2]`.
pub(crate) fn turn(a: &Tensor, b: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let first = (a.broadcast_mul(cos)? - b.broadcast_mul(sin)?)?;
    let second = (b.broadcast_mul(cos)? + a.broadcast_mul(sin)?)?;
    Ok(Tensor::cat(&[first, second], D::Minus1)?)
}
