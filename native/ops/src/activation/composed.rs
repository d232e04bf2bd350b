//! Activations, gates and skips, composed of candle's ops.

use candle_core::{D, Tensor};

use crate::weights::Weight;
use crate::{Activation, Result, tensor};

pub(crate) fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    Ok(match activation {
        Activation::None => x.clone(),
        Activation::Relu => relu(x)?,
        Activation::Sigmoid => sigmoid(x)?,
        Activation::Tanh => x.tanh()?,
        Activation::Silu => x.silu()?,
        Activation::Gelu => x.gelu()?,
        Activation::Softplus => softplus(x)?,
        Activation::SquaredRelu => relu(x)?.sqr()?,
        Activation::GeluErf => x.gelu_erf()?,
    })
}

/// `activation(x + bias)`.
pub(crate) fn biased(x: &Tensor, bias: Option<&Weight>, activation: Activation) -> Result<Tensor> {
    let Some(bias) = bias else { return activate(x, activation) };
    activate(&x.broadcast_add(bias)?, activation)
}

/// Computes a relu with candle's ops; candle's own turns NaN into 0, and has a slope at 0.
fn relu(x: &Tensor) -> candle_core::Result<Tensor> {
    let zeros = x.zeros_like()?;
    x.le(&zeros)?.where_cond(&zeros, x)
}

/// Computes the sigmoid from a tanh: the slope of `1 / (1 + e^-x)` is NaN where `e^-x` is infinite.
fn sigmoid(x: &Tensor) -> candle_core::Result<Tensor> {
    (x * 0.5)?.tanh()?.affine(0.5, 0.5)
}

/// `max(x, 0) + ln(1 + u)` with `u = e^-|x|`, which never overflows; the rounding error of `w = 1 + u` is added to the
/// logarithm. At 0 candle's relu and `|x|` have slope 1, so the sum has slope 1/2.
fn softplus(x: &Tensor) -> candle_core::Result<Tensor> {
    let u = x.abs()?.neg()?.exp()?;
    let w = (&u + 1.0)?;
    let lost = ((u - (&w - 1.0)?)? / &w)?;
    x.relu()? + (w.log()? + lost)?
}

pub(crate) fn gated(x: &Tensor, gate: &Tensor, activation: Activation) -> Result<Tensor> {
    Ok((x * activate(gate, activation)?)?)
}

pub(crate) fn glu(x: &Tensor, activation: Activation) -> Result<Tensor> {
    let n = tensor::rows(x.dims()).1 / 2;
    gated(&x.narrow(D::Minus1, n, n)?, &x.narrow(D::Minus1, 0, n)?, activation)
}

pub(crate) fn skip(y: &Tensor, x: &Tensor, d: &Weight) -> Result<Tensor> {
    Ok((y + x.broadcast_mul(d)?)?)
}

pub(super) fn clip(x: &Tensor, low: f32, high: f32) -> Result<Tensor> {
    let bound = |bound: f32| x.zeros_like()?.affine(0.0, f64::from(bound));
    let (low, high) = (bound(low)?, bound(high)?);
    let x = x.lt(&low)?.where_cond(&low, x)?;
    Ok(x.gt(&high)?.where_cond(&high, &x)?)
}
