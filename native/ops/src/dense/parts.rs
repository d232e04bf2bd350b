//! A product whose output is split into parts, without a copy.

use candle_core::Tensor;

use super::{card, composed};
use crate::columns::{filled, zeroed};
use crate::form::Form;
use crate::linear::weight_gradient;
use crate::matmul::{Operand, View};
use crate::op::{self, Op, Pass};
use crate::pool::for_each_shard;
use crate::weights::Weight;
use crate::{Error, Result, tensor};

/// Rows of one shard of a product.
const ROWS: usize = 128;

/// `x W^T`, split after `widths[0]`, `widths[1]`, .. of its columns: `x [.., k]`, `weight [n, k]` with n the sum of the
/// widths -> `[.., width]` each.
///
/// Each part is a product with its own rows of the weight, so the backward pass uses its gradients in place, and the
/// products accumulate `dx`.
pub fn linear_parts<const N: usize>(
    x: &Tensor,
    weight: &Weight,
    widths: [usize; N],
) -> Result<[Tensor; N]> {
    let (n, k) = weight.dims2()?;
    if widths.iter().sum::<usize>() != n || widths.contains(&0) {
        return Err(Error::mismatch("parts of a linear layer", n, format!("{widths:?}")));
    }
    tensor::check_width("input of a linear layer", k, x.dims())?;
    let x = &*weight.rounded(x)?;
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::linear_parts(x, weight, widths),
        Form::Composed => return composed::linear_parts(x, weight, widths),
    }
    let op = Parts { weight: weight.clone(), widths, dims: x.dims().to_vec() };
    let shapes = widths.map(|width| tensor::with_width(x, width).into());
    op::apply_all(op, &[x, weight], shapes)
}

pub(crate) struct Parts<const N: usize> {
    pub(crate) weight: Weight,
    pub(crate) widths: [usize; N],
    /// Dimensions of the input.
    pub(crate) dims: Vec<usize>,
}

impl<const N: usize> Parts<N> {
    fn depth(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    fn rows(&self) -> usize {
        self.dims.iter().rev().skip(1).product()
    }

    /// The first row of the weight and the width of each part.
    fn spans(&self) -> [(usize, usize); N] {
        let mut first = 0;
        self.widths.map(|width| {
            first += width;
            (first - width, width)
        })
    }

    /// The rows of the weight that belong to each part.
    fn operands<'a>(&self, weight: &'a [f32], turned: bool) -> [Operand<'a>; N] {
        self.spans().map(|(first, width)| {
            self.weight.operand(weight, first..first + width, turned, self.rows())
        })
    }

    /// Computes each part of the product.
    pub(crate) fn products(&self, x: &[f32], weight: &[f32]) -> [Vec<f32>; N] {
        let (k, rows) = (self.depth(), self.rows());
        let weights = self.operands(weight, true);
        // SAFETY: the products write every value of their outputs.
        unsafe {
            filled(rows, ROWS, self.widths, |rows, parts| {
                let x = View::rows(&x[rows.start * k..], rows.len(), k);
                for (part, weight) in parts.into_iter().zip(&weights) {
                    weight.fill(part, x, None);
                }
            })
        }
    }

    /// Accumulates the gradient of the weight in the weight.
    pub(crate) fn weight_gradient(&self, x: &[f32], outputs: &[Option<&[f32]>]) {
        let (k, rows) = (self.depth(), self.rows());
        let x = Operand::of(View::rows(x, rows, k));
        self.weight.accumulate(|dw, accumulate| {
            for ((first, width), dy) in self.spans().into_iter().zip(outputs) {
                let dw = &mut dw[first * k..][..width * k];
                match dy {
                    Some(dy) => {
                        weight_gradient(dw, View::rows(dy, rows, width), &x, accumulate);
                    }
                    None if accumulate => {}
                    None => dw.fill(0.0),
                }
            }
        });
    }

    /// The gradient of `x`.
    pub(crate) fn input_gradient(&self, weight: &[f32], outputs: &[Option<&[f32]>]) -> Vec<f32> {
        let weights = self.operands(weight, false);
        let k = self.depth();
        // SAFETY: the first product writes every value, or zeros do if there is no product.
        let [dx] = unsafe {
            filled(self.rows(), ROWS, [k], |rows, [dx]| {
                let parts = self.widths.into_iter().zip(outputs).zip(&weights);
                let mut parts = parts.filter_map(|((width, dy), weight)| {
                    let dy = &(*dy)?[rows.start * width..];
                    Some((weight, View::rows(dy, rows.len(), width)))
                });
                let dx = match parts.next() {
                    Some((weight, dy)) => weight.fill(dx, dy, None),
                    None => zeroed(dx),
                };
                parts.for_each(|(weight, dy)| weight.matmul(dx, k, dy, true));
            })
        };
        dx
    }

    /// Adds the gradient of `x` to `dx`.
    pub(crate) fn add_input_gradient(
        &self,
        dx: &mut [f32],
        weight: &[f32],
        outputs: &[Option<&[f32]>],
    ) {
        let k = self.depth();
        let weights = self.operands(weight, false);
        for_each_shard(self.rows(), ROWS, [(dx, k)], |rows, [dx]| {
            for ((width, dy), weight) in self.widths.into_iter().zip(outputs).zip(&weights) {
                let Some(dy) = dy else { continue };
                let dy = View::rows(&dy[rows.start * width..], rows.len(), width);
                weight.matmul(dx, k, dy, true);
            }
        });
    }
}

impl<const N: usize> Op for Parts<N> {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        Ok(self.products(inputs[0], inputs[1]).into())
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, weight) = (pass.inputs[0], pass.inputs[1]);
        if pass.wants(1) {
            self.weight_gradient(x, pass.gradients);
        }
        let dx = match pass.wants(0) {
            true => self.input_gradient(weight, pass.gradients),
            false => vec![],
        };
        Ok(vec![dx, vec![]])
    }
}
