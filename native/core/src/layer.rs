//! The small layers that backbones and heads are made of.

use candle_core::Tensor;

use crate::Result;
use crate::ops::{self, Activation};
use crate::weights::{Builder, Init};

/// `y = activation(x W^T + b)`, `x [.., in]` -> `[.., out]`; weights `weight [out, in]`, `bias [out]`.
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Activation,
}

impl Linear {
    pub fn new(input: usize, output: usize, activation: Activation, b: &Builder) -> Result<Self> {
        let init = Init::fan_in(input);
        let weight = b.get("weight", &[output, input], init)?;
        Ok(Linear { weight, bias: Some(b.get("bias", &[output], init)?), activation })
    }

    /// Without a bias, and zero at first: it adds nothing until it has learned to.
    pub fn zero(input: usize, output: usize, b: &Builder) -> Result<Self> {
        let weight = b.get("weight", &[output, input], Init::Constant(0.0))?;
        Ok(Linear { weight, bias: None, activation: Activation::None })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::linear(x, &self.weight, self.bias.as_ref(), self.activation)
    }
}

/// LayerNorm over the last dimension, eps 1e-5; weights `weight [d]`, `bias [d]`.
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    const EPS: f32 = 1e-5;

    pub fn new(size: usize, b: &Builder) -> Result<Self> {
        Ok(LayerNorm {
            weight: b.get("weight", &[size], Init::Constant(1.0))?,
            bias: b.get("bias", &[size], Init::Constant(0.0))?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm(x, &self.weight, &self.bias, Self::EPS)
    }
}
