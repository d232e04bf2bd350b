//! The small layers that backbones and heads are made of.

use sconce_realtime::{self as packed, Matrix, Packer};
use sconce_tensor::Tensor;

use crate::ops::dropout::Dropout;
use crate::ops::{self, Activation};
use crate::weights::{Builder, Init, Weight};
use crate::{Error, Result};

/// `y = activation(x W^T + b)`, `x [.., in]` -> `[.., out]`; weights `weight [out, in]`, `bias [out]`.
pub struct Linear {
    weight: Weight,
    bias: Option<Weight>,
    activation: Activation,
}

impl Linear {
    pub fn new(input: usize, output: usize, activation: Activation, b: &Builder) -> Result<Self> {
        let bias = b.get("bias", &[output], Init::fan_in(input))?;
        Ok(Linear { bias: Some(bias), activation, ..Self::without_bias(input, output, b)? })
    }

    pub fn without_bias(input: usize, output: usize, b: &Builder) -> Result<Self> {
        let weight = b.get("weight", &[output, input], Init::fan_in(input))?;
        Ok(Linear { weight, bias: None, activation: Activation::None })
    }

    /// With a bias drawn in a way of its own.
    pub fn with_bias(input: usize, output: usize, bias: Init, b: &Builder) -> Result<Self> {
        let bias = b.get("bias", &[output], bias)?;
        Ok(Linear { bias: Some(bias), ..Self::without_bias(input, output, b)? })
    }

    /// Without a bias, and zero at first: it adds nothing until it has learned to.
    pub fn zero(input: usize, output: usize, b: &Builder) -> Result<Self> {
        let weight = b.get("weight", &[output, input], Init::Constant(0.0))?;
        Ok(Linear { weight, bias: None, activation: Activation::None })
    }

    /// The same with an activation.
    pub fn activated(self, activation: Activation) -> Self {
        Linear { activation, ..self }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::linear(x, &self.weight, self.bias.as_ref(), self.activation)
    }

    /// `then(self(x))` in one op; `then` has no activation.
    pub fn forward_then(&self, x: &Tensor, then: &Linear) -> Result<Tensor> {
        ops::feed_forward(x, &self.affine(), self.activation, &then.plain()?)
    }

    /// `x + dropout(then(self(norm(x))))` in one op; `then` has no activation.
    pub fn residual_then(
        &self,
        x: &Tensor,
        then: &Linear,
        residual: &ops::Residual,
    ) -> Result<Tensor> {
        ops::feed_forward_residual(x, residual, &self.affine(), self.activation, &then.plain()?)
    }

    /// For one frame at a time; the activation is the step's.
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

    /// The weights of a layer that has no activation.
    pub(crate) fn plain(&self) -> Result<ops::Affine> {
        match self.activation {
            Activation::None => Ok(self.affine()),
            other => {
                let got = format!("{other:?}");
                Err(Error::mismatch("activation of a layer that should have none", "None", got))
            }
        }
    }

    /// `activation(norm(x W^T + b))`
    pub fn forward_norm(&self, x: &Tensor, norm: &Norm) -> Result<Tensor> {
        ops::linear_norm(x, &self.weight, self.bias.as_ref(), &norm.0, self.activation)
    }
}

/// LayerNorm or RMSNorm over the last dimension, eps 1e-5; weights `weight [d]`, and of a LayerNorm
/// `bias [d]`.
pub struct Norm(ops::Norm);

/// What a norm adds to the variance.
pub const EPS: f32 = 1e-5;

impl Norm {
    pub fn layer(size: usize, b: &Builder) -> Result<Self> {
        let bias = b.get("bias", &[size], Init::Constant(0.0))?;
        let Norm(rms) = Norm::rms(size, b)?;
        Ok(Norm(ops::Norm { bias: Some(bias), ..rms }))
    }

    pub fn rms(size: usize, b: &Builder) -> Result<Self> {
        let weight = b.get("weight", &[size], Init::Constant(1.0))?;
        Ok(Norm(ops::Norm { weight, bias: None, eps: EPS }))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::row_norm(x, &self.0)
    }

    /// For one frame at a time.
    pub(crate) fn pack(&self, packer: &mut Packer) -> Result<packed::Norm> {
        packed::Norm::new(packer, &self.0.weight, self.0.bias.as_ref())
    }

    /// For each head of queries or keys.
    pub(crate) fn of_heads(queries: Norm, keys: Norm) -> ops::HeadNorms {
        ops::HeadNorms { queries: queries.0, keys: keys.0 }
    }

    /// What stands around a layer that reads what this norm gives.
    pub fn residual(&self, dropout: Option<Dropout>) -> ops::Residual {
        ops::Residual { norm: self.0.clone(), dropout }
    }
}

/// Several dense layers over one input, their outputs side by side in the order of the names.
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

    /// For one frame at a time.
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
