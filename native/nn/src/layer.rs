//! Small layers that backbones and heads are built from.

use sconce_realtime::{self as packed, Matrix, Packer};
use sconce_tensor::Tensor;

use crate::ops::dropout::Dropout;
use crate::ops::{self, Activation};
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};

/// `y = activation(x W^T + b)`, `x [.., in]` -> `[.., out]`. Weights: `weight [out, in]`, `bias [out]`.
pub struct Linear {
    weight: Weight,
    bias: Option<Weight>,
    activation: Activation,
}

impl Linear {
    /// A layer with a bias.
    pub fn new(input: usize, output: usize, activation: Activation, b: &Builder) -> Result<Self> {
        let bias = b.get("bias", &[output], Init::fan_in(input))?;
        Ok(Linear { bias: Some(bias), activation, ..Self::without_bias(input, output, b)? })
    }

    /// A layer without a bias or an activation.
    pub fn without_bias(input: usize, output: usize, b: &Builder) -> Result<Self> {
        let weight = b.get("weight", &[output, input], Init::fan_in(input))?;
        Ok(Linear { weight, bias: None, activation: Activation::None })
    }

    /// A layer without an activation. `bias` initialises the bias.
    pub fn with_bias(input: usize, output: usize, bias: Init, b: &Builder) -> Result<Self> {
        let bias = b.get("bias", &[output], bias)?;
        Ok(Linear { bias: Some(bias), ..Self::without_bias(input, output, b)? })
    }

    /// A layer without a bias whose weight starts as zero: its initial output is zero.
    pub fn zero(input: usize, output: usize, b: &Builder) -> Result<Self> {
        let weight = b.get("weight", &[output, input], Init::Constant(0.0))?;
        Ok(Linear { weight, bias: None, activation: Activation::None })
    }

    /// This layer with another activation.
    pub fn activated(self, activation: Activation) -> Self {
        Linear { activation, ..self }
    }

    /// `x [.., in]` -> `[.., out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::linear(x, &self.weight, self.bias.as_ref(), self.activation)
    }

    /// `then(self(x))` in one op. `then` has no activation.
    pub fn forward_then(&self, x: &Tensor, then: &Linear) -> Result<Tensor> {
        ops::feed_forward(x, &self.affine(), self.activation, &then.plain()?)
    }

    /// `x + dropout(then(self(norm(x))))` in one op. `then` has no activation.
    pub fn residual_then(
        &self,
        x: &Tensor,
        then: &Linear,
        residual: &ops::Residual,
    ) -> Result<Tensor> {
        ops::feed_forward_residual(x, residual, &self.affine(), self.activation, &then.plain()?)
    }

    /// The layer as a part of a perceptron.
    pub(crate) fn to_activated(&self) -> ops::Activated {
        ops::Activated { affine: self.affine(), activation: self.activation }
    }

    /// Packs the weights for single frames. The step applies the activation.
    pub(crate) fn pack(&self, packer: &mut Packer) -> Result<Matrix> {
        Matrix::dense(packer, &self.weight, self.bias.as_ref())
    }

    pub(crate) fn activation(&self) -> Activation {
        self.activation
    }

    /// The weight and the bias.
    pub(crate) fn parts(&self) -> (&Weight, Option<&Weight>) {
        (&self.weight, self.bias.as_ref())
    }

    fn affine(&self) -> ops::Affine {
        ops::Affine { weight: self.weight.clone(), bias: self.bias.clone() }
    }

    /// The weights as an affine map; an error if the layer has an activation.
    pub(crate) fn plain(&self) -> Result<ops::Affine> {
        match self.activation {
            Activation::None => Ok(self.affine()),
            other => {
                let got = format!("{other:?}");
                Err(Error::mismatch("activation of a layer that must not have one", "None", got))
            }
        }
    }

    /// Computes `activation(norm(x W^T + b))`.
    pub fn forward_norm(&self, x: &Tensor, norm: &Norm) -> Result<Tensor> {
        ops::linear_norm(x, &self.weight, self.bias.as_ref(), &norm.0, self.activation)
    }
}

/// LayerNorm or RMSNorm over the last dimension, with [`EPS`]. Weights: `weight [d]`, and `bias [d]` for a LayerNorm.
pub struct Norm(ops::Norm);

/// Constant that a norm adds to the variance, unless its backbone has another.
pub const EPS: f32 = 1e-5;

impl Norm {
    /// A LayerNorm over vectors of width `size`.
    pub fn layer(size: usize, b: &Builder) -> Result<Self> {
        let bias = b.get("bias", &[size], Init::Constant(0.0))?;
        let Norm(rms) = Norm::rms(size, b)?;
        Ok(Norm(ops::Norm { bias: Some(bias), ..rms }))
    }

    /// An RMSNorm over vectors of width `size`.
    pub fn rms(size: usize, b: &Builder) -> Result<Self> {
        let weight = b.get("weight", &[size], Init::Constant(1.0))?;
        Ok(Norm(ops::Norm { weight, bias: None, eps: EPS }))
    }

    /// The norm with another constant that is added to the variance.
    #[must_use]
    pub fn with_eps(self, eps: f32) -> Self {
        Norm(ops::Norm { eps, ..self.0 })
    }

    /// Normalises each row of `x [.., d]` and keeps the shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::row_norm(x, &self.0)
    }

    /// Packs the weights for single frames.
    pub(crate) fn pack(&self, packer: &mut Packer) -> Result<packed::Norm> {
        packed::Norm::new(packer, &self.0)
    }

    /// Combines the norms of each head's queries and keys.
    pub(crate) fn of_heads(queries: Norm, keys: Norm) -> ops::HeadNorms {
        ops::HeadNorms { queries: queries.0, keys: keys.0 }
    }

    /// The residual connection around a layer whose input is the output of this norm.
    pub fn residual(&self, dropout: Option<Dropout>) -> ops::Residual {
        ops::Residual { norm: self.0.clone(), dropout }
    }
}

/// Several dense layers with one input. Their outputs are concatenated in the order of the names.
pub struct Projection {
    layers: Vec<(Weight, Option<Weight>)>,
}

impl Projection {
    /// Weights `NAME.weight [out, in]` and `NAME.bias [out]`.
    pub fn new(input: usize, outputs: &[(&str, usize)], b: &Builder) -> Result<Self> {
        let init = Init::fan_in(input);
        let layer = |&(name, output): &(&str, usize)| {
            let b = b.under(name);
            let bias = b.get("bias", &[output], init)?;
            Ok((b.get("weight", &[output, input], init)?, Some(bias)))
        };
        Ok(Projection { layers: outputs.iter().map(layer).collect::<Result<_>>()? })
    }

    /// Packs the weights for single frames.
    pub(crate) fn pack(&self, packer: &mut Packer) -> Result<Matrix> {
        Matrix::side_by_side(packer, &self.parts())
    }

    /// The weight and the bias of each layer.
    pub(crate) fn parts(&self) -> Vec<(&Weight, Option<&Weight>)> {
        self.layers.iter().map(|(weight, bias)| (weight, bias.as_ref())).collect()
    }

    /// `x [.., in]` -> `[.., sum of the outputs]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::project(x, &self.parts())
    }
}
