//! Norms over the last dimension, and what other ops need to have one inside.

use super::{card, composed};
use candle_core::Tensor;

use super::{layer_norm, rms_norm};
use crate::form::Form;
use crate::linear::row_sum;
use crate::memory;
use crate::op::{self, Op, Pass};
use crate::weights::Weight;
use crate::{Activation, activate, tensor};
use crate::{Result, pool};

/// Rows of one shard.
const ROWS: usize = 256;

/// Scale and shift of a norm, `[d]` each: with a shift it is a LayerNorm (Ba et al. 2016, eq. 3 and 4),
/// without one an RMSNorm (Zhang & Sennrich 2019, eq. 4), which takes no mean away.
#[derive(Clone)]
pub struct Norm {
    pub weight: Weight,
    pub bias: Option<Weight>,
    pub eps: f32,
}

/// `x [.., d]` -> `[.., d]`: `(x - mean) / sqrt(variance + eps) * weight + bias`, or without a bias
/// `x / sqrt(mean(x^2) + eps) * weight`.
///
/// Backward, with `n` what is scaled, `s` what it was divided by and `g = dy * weight`:
/// `dx = (g - mean(g) - n * mean(g * n)) / s`, of an RMSNorm without `mean(g)`. The gradients of the
/// weights are left with them.
pub fn row_norm(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    norm.check(tensor::rows(x.dims()).1)?;
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::row_norm(x, norm, Activation::None),
        Form::Composed => return composed::row_norm(x, norm),
    }
    op::apply(RowNorm(norm.clone()), &[x, &norm.weight], x.shape())
}

/// `activation(row_norm(x))`
pub(crate) fn row_norm_then(x: &Tensor, norm: &Norm, activation: Activation) -> Result<Tensor> {
    match Form::of(x) {
        Form::Card => card::row_norm(x, norm, activation),
        Form::Cpu | Form::Composed => activate(&row_norm(x, norm)?, activation),
    }
}

struct RowNorm(Norm);

/// The numbers of a [`Norm`].
pub(crate) struct Values {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    eps: f32,
}

/// The gradients of a norm's weights over some rows; that of a bias which is not there is not either.
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

    /// Leaves gradients with the weights, summed in the order of the shards.
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

    /// What becomes of some rows.
    pub(crate) fn rows(&self, x: &[f32]) -> Vec<f32> {
        let mut y = memory::zeros(x.len());
        self.forward(&mut y, x);
        y
    }

    /// Makes of the gradient of y that of x, in place.
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

impl Op for RowNorm {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, d) = (inputs[0], inputs[1].len());
        let values = self.0.values()?;
        let mut y = memory::zeros(x.len());
        pool::for_each_rows(&mut y, d, ROWS, |first, y| {
            values.forward(y, &x[first * d..first * d + y.len()]);
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, d) = (pass.inputs[0], pass.inputs[1].len());
        let (values, mut dx) = (self.0.values()?, memory::copied(pass.gradient()?));
        let zeros = || values.zeros();
        let parts = pool::sum_rows(&mut dx, d, ROWS, zeros, |first, dx, part| {
            values.backward(dx, part, &x[first * d..first * d + dx.len()]);
        });
        self.0.accumulate(&parts);
        Ok(vec![dx, vec![]])
    }
}
