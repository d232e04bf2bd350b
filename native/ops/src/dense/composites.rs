//! Several layers composed of [`linear`](crate::linear()) and other ops, for devices where they are not one op and for
//! products that round their inputs.

use candle_core::Tensor;

use super::layers::{Activated, Affine, Branch};
use super::linear::{linear, linear_add};
use crate::residual::composed::around;
use crate::weights::Weight;
use crate::{Activation, Residual, Result, arrange, tensor};

/// `x W^T + b + rest`.
pub(crate) fn affine_to(x: &Tensor, affine: &Affine, rest: Option<&Tensor>) -> Result<Tensor> {
    let Affine { weight, bias } = affine;
    match rest {
        Some(rest) => linear_add(x, weight, bias.as_ref(), Activation::None, rest),
        None => linear(x, weight, bias.as_ref(), Activation::None),
    }
}

pub(crate) fn project(x: &Tensor, layers: &[(&Weight, Option<&Weight>)]) -> Result<Tensor> {
    let part = |(weight, bias): &(&Weight, _)| linear(x, weight, *bias, Activation::None);
    let parts = layers.iter().map(part);
    arrange::join(&parts.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>())
}

pub(crate) fn branches(x: &Tensor, branches: &[Branch]) -> Result<Tensor> {
    let x = arrange::reshape(x, <[usize; 2]>::from(tensor::rows(x.dims())))?;
    let parts = branches.iter().map(|Branch { hidden, out }| {
        let h = linear(&x, &hidden.weight, Some(&hidden.bias), Activation::Relu)?;
        linear(&h, &out.weight, Some(&out.bias), Activation::None)
    });
    arrange::join(&parts.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>())
}

pub(crate) fn feed_forward(
    x: &Tensor,
    residual: Option<&Residual>,
    up: &Affine,
    activation: Activation,
    down: &Affine,
) -> Result<Tensor> {
    let layers = |x: &Tensor, rest: Option<&Tensor>| {
        let h = linear(x, &up.weight, up.bias.as_ref(), activation)?;
        affine_to(&h, down, rest)
    };
    match residual {
        Some(residual) => around(x, residual, layers),
        None => layers(x, None),
    }
}

pub(crate) fn perceptron(x: &Tensor, layers: &[Activated]) -> Result<Tensor> {
    layers.iter().try_fold(x.clone(), |x, Activated { affine, activation }| {
        linear(&x, &affine.weight, affine.bias.as_ref(), *activation)
    })
}
