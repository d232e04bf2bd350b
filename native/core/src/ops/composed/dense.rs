//! Linear layers, tables of rows.

use candle_core::Tensor;

use super::elementwise::biased;
use super::norm::row_norm_then;
use super::product;
use super::residual::around;
use crate::Result;
use crate::ops::card;
use crate::ops::{Activation, Affine, Branch, Norm, Residual, op, tensor};
use crate::weights::Weight;

/// `x W^T + b`
fn affine(x: &Tensor, weight: &Tensor, bias: Option<&Weight>) -> Result<Tensor> {
    layer(x, weight, bias, Activation::None, None)
}

/// `x W^T`
fn rows_product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (rows, k) = tensor::rows(x.dims());
    let y = product(&x.reshape((rows, k))?, &weight.t()?)?;
    Ok(y.reshape(tensor::with_width(x, weight.dim(0)?))?)
}

pub fn linear(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: Activation,
) -> Result<Tensor> {
    layer(x, weight, bias, activation, None)
}

/// `activation(x W^T + b) + rest`
fn layer(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Weight>,
    activation: Activation,
    rest: Option<&Tensor>,
) -> Result<Tensor> {
    if card::wanted(x) {
        return card::layer(x, weight, bias.map(|bias| &**bias), activation, rest);
    }
    let y = biased(&rows_product(x, weight)?, bias, activation)?;
    rest.map_or(Ok(y.clone()), |rest| Ok((rest + y)?))
}

/// `x W^T + b + rest`
pub(super) fn affine_to(x: &Tensor, affine: &Affine, rest: Option<&Tensor>) -> Result<Tensor> {
    layer(x, &affine.weight, affine.bias.as_ref(), Activation::None, rest)
}

pub fn linear_norm(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    norm: &Norm,
    activation: Activation,
) -> Result<Tensor> {
    row_norm_then(&affine(x, weight, bias)?, norm, activation)
}

pub fn linear_parts<const N: usize>(
    x: &Tensor,
    weight: &Weight,
    widths: [usize; N],
) -> Result<[Tensor; N]> {
    if card::wanted(x) {
        return card::linear_parts(x, weight, widths);
    }
    let mut end = 0;
    let parts = widths.into_iter().map(|width| {
        end += width;
        affine(x, &weight.narrow(0, end - width, width)?, None)
    });
    op::take(parts.collect::<Result<_>>()?)
}

pub fn project(x: &Tensor, layers: &[(&Weight, Option<&Weight>)]) -> Result<Tensor> {
    let parts = layers.iter().map(|(weight, bias)| affine(x, weight, *bias));
    tensor::join(&parts.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>())
}

pub fn branches(x: &Tensor, branches: &[Branch]) -> Result<Tensor> {
    let x = tensor::reshape(x, <[usize; 2]>::from(tensor::rows(x.dims())))?;
    let parts = branches.iter().map(|Branch { hidden, out }| {
        let h = linear(&x, &hidden.weight, Some(&hidden.bias), Activation::Relu)?;
        affine(&h, &out.weight, Some(&out.bias))
    });
    tensor::join(&parts.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>())
}

pub fn feed_forward(
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
    let h = linear(x, &up.weight, up.bias.as_ref(), activation)?;
    affine_to(&h, down, rest)
}

pub fn feed_forward_residual(
    x: &Tensor,
    residual: &Residual,
    up: &Affine,
    activation: Activation,
    down: &Affine,
) -> Result<Tensor> {
    around(x, residual, |x, rest| feed_forward_to(x, up, activation, down, rest))
}

/// `ids`: u32, on the table's device.
pub fn gather(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    if card::wanted(table) {
        return card::gather(table, ids);
    }
    Ok(table.index_select(ids, 0)?)
}
