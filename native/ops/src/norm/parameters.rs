//! The weights of norms, and their gradients.

use super::{layer_norm, rms_norm};
use crate::simd::row_sum;
use crate::weights::Weight;
use crate::{Result, memory, tensor};

/// Scale and shift of a norm: with a shift a LayerNorm (Ba et al. 2016, eq. 3 and 4), without a shift an RMSNorm (Zhang
/// & Sennrich 2019, eq. 4), which subtracts no mean.
#[derive(Clone)]
pub struct Norm {
    /// The scale, `[d]`.
    pub weight: Weight,
    /// The shift of a LayerNorm, `[d]`.
    pub bias: Option<Weight>,
    /// The constant added to the variance.
    pub eps: f32,
}

/// The values of a [`Norm`].
pub(crate) struct Values {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    eps: f32,
}

/// The gradients of a norm's weights over some rows; without a bias the bias gradient is empty.
#[derive(Default)]
pub(crate) struct Gradients {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Norm {
    pub(crate) fn check(&self, d: usize) -> Result<()> {
        for (name, t) in [("weight", Some(&self.weight)), ("bias", self.bias.as_ref())] {
            let Some(t) = t else { continue };
            tensor::check_shape(format_args!("{name} of a norm"), &[d], t.dims())?;
        }
        Ok(())
    }

    pub(crate) fn values(&self) -> candle_core::Result<Values> {
        let bias = self.bias.as_ref().map(|bias| tensor::to_vec(bias)).transpose()?;
        Ok(Values { weight: tensor::to_vec(&self.weight)?, bias, eps: self.eps })
    }

    /// Accumulates gradients in the weights, summed in the order of the shards.
    pub(crate) fn accumulate<'a>(&self, parts: impl IntoIterator<Item = &'a Gradients>) {
        for (i, part) in parts.into_iter().enumerate() {
            self.weight.accumulate(|sum, adds| row_sum(sum, &part.weight, adds || i > 0));
            if let Some(bias) = &self.bias {
                bias.accumulate(|sum, adds| row_sum(sum, &part.bias, adds || i > 0));
            }
        }
    }
}

impl Values {
    pub(crate) fn forward(&self, y: &mut [f32], x: &[f32]) {
        match &self.bias {
            Some(bias) => layer_norm::forward(y, x, &self.weight, bias, self.eps),
            None => rms_norm::forward(y, x, &self.weight, self.eps),
        }
    }

    /// Normalises some rows.
    pub(crate) fn rows(&self, x: &[f32]) -> Vec<f32> {
        let mut y = memory::zeros(x.len());
        self.forward(&mut y, x);
        y
    }

    /// Turns the gradient of y into the gradient of x, in place.
    pub(crate) fn backward(&self, d: &mut [f32], part: &mut Gradients, x: &[f32]) {
        let Gradients { weight, bias } = part;
        match &self.bias {
            Some(_) => layer_norm::backward(d, weight, bias, x, &self.weight, self.eps),
            None => rms_norm::backward(d, weight, x, &self.weight, self.eps),
        }
    }

    pub(crate) fn zeros(&self) -> Gradients {
        let d = self.weight.len();
        Gradients {
            weight: memory::zeros(d),
            bias: memory::zeros(if self.bias.is_some() { d } else { 0 }),
        }
    }
}

/// Norms of queries and of keys, `[d]` wide, shared by all heads.
#[derive(Clone)]
pub struct HeadNorms {
    /// The norm of each query.
    pub queries: Norm,
    /// The norm of each key.
    pub keys: Norm,
}
