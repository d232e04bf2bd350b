//! Norms over the last dimension, as an op and as part of other ops.

use candle_core::Tensor;

use super::parameters::Norm;
use super::{card, composed};
use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::{Activation, Result, activate, memory, pool, tensor};

/// Rows of one shard.
const ROWS: usize = 256;

/// `x [.., d]` -> `[.., d]`: `(x - mean) / sqrt(variance + eps) * weight + bias`, or without a bias `x / sqrt(mean(x^2)
/// + eps) * weight`.
///
/// Backward, with `n` the normalised row, `s` its divisor and `g = dy * weight`: `dx = (g - mean(g) - n * mean(g * n))
/// / s`; an RMSNorm has no `mean(g)`. Gradients of weights accumulate in the weights.
pub fn row_norm(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    norm.check(tensor::rows(x.dims()).1)?;
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::row_norm(x, norm, Activation::None),
        Form::Composed => return composed::row_norm(x, norm),
    }
    op::apply(RowNorm(norm.clone()), &[x, &norm.weight], x.shape())
}

/// `activation(row_norm(x))`.
pub(crate) fn row_norm_then(x: &Tensor, norm: &Norm, activation: Activation) -> Result<Tensor> {
    match Form::of(x) {
        Form::Card => card::row_norm(x, norm, activation),
        Form::Cpu | Form::Composed => activate(&row_norm(x, norm)?, activation),
    }
}

struct RowNorm(Norm);

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
