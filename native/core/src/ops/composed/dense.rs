//! Linear layers, tables of rows.

use candle_core::{D, Tensor};

use super::elementwise::{activate, biased};
use super::norm::row_norm;
use super::product;
use super::residual::around;
use crate::Result;
#[cfg(feature = "cuda")]
use crate::ops::card;
use crate::ops::{Activation, Affine, Branch, Norm, Residual, many, tensor};
use crate::weights::Weight;

/// `x W^T + b`
fn affine(x: &Tensor, weight: &Tensor, bias: Option<&Weight>) -> Result<Tensor> {
    biased(&rows_product(x, weight)?, bias, Activation::None)
}

/// `x W^T`
fn rows_product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if card::wanted(x) {
        return card::linear(x, weight);
    }
    let (rows, k) = tensor::rows(x.dims());
    let y = product(&x.reshape((rows, k))?, &weight.t()?)?;
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = weight.dim(0)?;
    }
    Ok(y.reshape(dims)?)
}

pub fn linear(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: Activation,
) -> Result<Tensor> {
    biased(&rows_product(x, weight)?, bias, activation)
}

pub fn linear_norm(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    norm: &Norm,
    activation: Activation,
) -> Result<Tensor> {
    activate(&row_norm(&affine(x, weight, bias)?, norm)?, activation)
}

pub fn linear_parts<const N: usize>(
    x: &Tensor,
    weight: &Weight,
    widths: [usize; N],
) -> Result<[Tensor; N]> {
    let mut end = 0;
    let parts = widths.into_iter().map(|width| {
        end += width;
        affine(x, &weight.narrow(0, end - width, width)?, None)
    });
    many::take(parts.collect::<Result<_>>()?)
}

pub fn project(x: &Tensor, layers: &[(&Weight, Option<&Weight>)]) -> Result<Tensor> {
    let parts = layers.iter().map(|(weight, bias)| affine(x, weight, *bias));
    Ok(Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, D::Minus1)?)
}

pub fn branches(x: &Tensor, branches: &[Branch]) -> Result<Tensor> {
    let x = x.reshape(tensor::rows(x.dims()))?;
    let parts = branches.iter().map(|Branch { hidden, out }| {
        let h = linear(&x, &hidden.weight, Some(&hidden.bias), Activation::Relu)?;
        affine(&h, &out.weight, Some(&out.bias))
    });
    Ok(Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 1)?)
}

pub fn feed_forward(
    x: &Tensor,
    up: &Affine,
    activation: Activation,
    down: &Affine,
) -> Result<Tensor> {
    let h = linear(x, &up.weight, up.bias.as_ref(), activation)?;
    affine(&h, &down.weight, down.bias.as_ref())
}

pub fn feed_forward_residual(
    x: &Tensor,
    residual: &Residual,
    up: &Affine,
    activation: Activation,
    down: &Affine,
) -> Result<Tensor> {
    around(x, residual, |x| feed_forward(x, up, activation, down))
}

/// `ids`: u32, on the table's device.
pub fn gather(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if card::wanted(table) {
        return card::gather(table, ids);
    }
    Ok(table.index_select(ids, 0)?)
}
