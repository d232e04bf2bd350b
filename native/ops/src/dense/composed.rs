//! Linear layers composed of candle's ops.

use candle_core::Tensor;

use crate::activation::composed::biased;
use crate::matmul::composed::product;
use crate::weights::Weight;
use crate::{Activation, Result, op, tensor};

/// `x W^T`.
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
