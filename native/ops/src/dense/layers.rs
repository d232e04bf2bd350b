//! The weights of linear layers.

use crate::simd::row_sum;
use crate::weights::Weight;
use crate::{Activation, Error, Result, memory, simd, tensor};

/// One linear layer `W x + b` with k inputs and n outputs.
#[derive(Clone)]
pub struct Affine {
    /// W, `[n, k]`.
    pub weight: Weight,
    /// b, `[n]`, if the layer has one.
    pub bias: Option<Weight>,
}

impl Affine {
    pub(crate) fn bias(&self) -> candle_core::Result<Option<Vec<f32>>> {
        self.bias.as_ref().map(|bias| tensor::to_vec(bias)).transpose()
    }

    /// The gradient of the bias over some rows; empty if there is no bias.
    pub(crate) fn bias_gradient(&self, d: &[f32], n: usize) -> Vec<f32> {
        let mut sum = memory::zeros(if self.bias.is_some() { n } else { 0 });
        if self.bias.is_some() {
            simd::add_rows(&mut sum, d);
        }
        sum
    }

    /// Adds the parts, in order, to the stored gradient of the bias.
    pub(crate) fn accumulate_bias<'a>(&self, parts: impl IntoIterator<Item = &'a Vec<f32>>) {
        let Some(bias) = &self.bias else { return };
        for (i, part) in parts.into_iter().enumerate() {
            bias.accumulate(|sum, adds| row_sum(sum, part, adds || i > 0));
        }
    }

    /// Checks that the layer takes `input` inputs and the bias fits; returns the output width.
    pub(crate) fn check(&self, what: &str, input: usize) -> Result<usize> {
        let (n, k) = self.weight.dims2()?;
        if k != input {
            return Err(Error::mismatch(format!("input of the {what} layer"), k, input));
        }
        match &self.bias {
            Some(bias) if bias.dims() != [n] => {
                let (expected, got) = (format!("[{n}]"), format!("{:?}", bias.dims()));
                Err(Error::mismatch(format!("bias of the {what} layer"), expected, got))
            }
            _ => Ok(n),
        }
    }
}

/// One linear layer followed by an elementwise function, `f(W x + b)`.
#[derive(Clone)]
pub struct Activated {
    /// W and b.
    pub affine: Affine,
    /// f.
    pub activation: Activation,
}

/// One linear layer with a bias, `W x + b`.
#[derive(Clone)]
pub struct Dense {
    /// W, `[n, k]`.
    pub weight: Weight,
    /// b, `[n]`.
    pub bias: Weight,
}

/// Two layers with a relu between them.
#[derive(Clone)]
pub struct Branch {
    /// The first layer, followed by the relu.
    pub hidden: Dense,
    /// The second layer.
    pub out: Dense,
}
