//! Linear layers, tables of rows.

use candle_core::Tensor;

use crate::Result;
use crate::activation::composed::biased;
use crate::arrange;
use crate::linear::linear_add;
use crate::matmul::composed::product;
use crate::residual::composed::around;
use crate::weights::Weight;
use crate::{Activation, Affine, Branch, Residual, op, tensor};

/// `x W^T`
fn rows_product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (rows, k) = tensor::rows(x.dims());
    let y = product(&x.reshape((rows, k))?, &weight.t()?)?;
    Ok(y.reshape(tensor::with_width(x, weight.dim(0)?))?)
}

pub(crate) fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Weight>,
    activation: Activation,
) -> Result<Tensor> {
    biased(&rows_product(x, weight)?, bias, activation)
}

/// `x W^T + b + rest`
pub(crate) fn affine_to(x: &Tensor, affine: &Affine, rest: Option<&Tensor>) -> Result<Tensor> {
    let Affine { weight, bias } = affine;
    match rest {
        Some(rest) => linear_add(x, weight, bias.as_ref(), Activation::None, rest),
        None => crate::linear(x, weight, bias.as_ref(), Activation::None),
    }
}

pub(crate) fn linear_parts<const N: usize>(
    x: &Tensor,
    weight: &Weight,
    widths: [usize; N],
) -> Result<[Tensor; N]> {
    let mut end = 0;
    let parts = widths.into_iter().map(|width| {
        end += width;
        linear(x, &weight.narrow(0, end - width, width)?, None, Activation::None)
    });
    op::take(parts.collect::<Result<_>>()?)
}

pub(crate) fn project(x: &Tensor, layers: &[(&Weight, Option<&Weight>)]) -> Result<Tensor> {
    let part = |(weight, bias): &(&Weight, _)| crate::linear(x, weight, *bias, Activation::None);
    let parts = layers.iter().map(part);
    arrange::join(&parts.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>())
}

pub(crate) fn branches(x: &Tensor, branches: &[Branch]) -> Result<Tensor> {
    let x = arrange::reshape(x, <[usize; 2]>::from(tensor::rows(x.dims())))?;
    let parts = branches.iter().map(|Branch { hidden, out }| {
        let h = crate::linear(&x, &hidden.weight, Some(&hidden.bias), Activation::Relu)?;
        crate::linear(&h, &out.weight, Some(&out.bias), Activation::None)
    });
    arrange::join(&parts.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>())
}

pub(crate) fn feed_forward(
    x: &Tensor,
    up: &Affine,
    activation: Activation,
    down: &Affine,
) -> Result<Tensor> {
    feed_forward_to(x, up, activation, down, None)
}

fn feed_forward_to(
    x: &Tensor,
    up: &Affine,
    activation: Activation,
    down: &Affine,
    rest: Option<&Tensor>,
) -> Result<Tensor> {
    let h = crate::linear(x, &up.weight, up.bias.as_ref(), activation)?;
    affine_to(&h, down, rest)
}

pub(crate) fn feed_forward_residual(
    x: &Tensor,
    residual: &Residual,
    up: &Affine,
    activation: Activation,
    down: &Affine,
) -> Result<Tensor> {
    around(x, residual, |x, rest| feed_forward_to(x, up, activation, down, rest))
}
