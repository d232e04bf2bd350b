//! Softmax over the last dimension, of all values or of those that a mask selects.

use std::sync::Arc;

use candle_core::Tensor;

use super::composed;
use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::simd::{LANES, dispatch, exp};
use crate::{Error, Result, memory, pool, tensor};

/// Rows of one shard.
const ROWS: usize = 256;

/// `y_i = e^(x_i - max x) / sum_j e^(x_j - max x)`, `x [.., d]`.
///
/// Backward: `dx = y * (dy - sum(dy * y))`.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    if Form::of(x) != Form::Cpu {
        return composed::softmax(x);
    }
    Softmax { mask: None, width: tensor::rows(x.dims()).1 }.apply(x)
}

/// [`softmax`] over the values whose entry in `mask` (one for each of `x`) is `true`; the others are 0 and get no
/// gradient. A row without selected values gives zeros.
pub fn masked_softmax(x: &Tensor, mask: Arc<[bool]>) -> Result<Tensor> {
    if mask.len() != x.elem_count() {
        return Err(Error::mismatch("mask of a softmax", x.elem_count(), mask.len()));
    }
    if Form::of(x) != Form::Cpu {
        return composed::masked_softmax(x, mask);
    }
    Softmax { mask: Some(mask), width: tensor::rows(x.dims()).1 }.apply(x)
}

struct Softmax {
    mask: Option<Arc<[bool]>>,
    /// Values of a row.
    width: usize,
}

impl Softmax {
    fn apply(self, x: &Tensor) -> Result<Tensor> {
        op::apply(self, &[x], x.shape())
    }
}

/// The softmax of a row. Masked values are minus infinity, where `exp` saturates, so the caller sets them to 0.
#[inline(always)]
fn normalise(y: &mut [f32]) {
    let most = y.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    if y.iter().all(|y| *y == f32::NEG_INFINITY) {
        return y.fill(0.0);
    }
    let mut sums = [0.0f32; LANES];
    for y in y.chunks_mut(LANES) {
        for (y, sum) in y.iter_mut().zip(&mut sums) {
            *y = if *y == f32::NEG_INFINITY { 0.0 } else { exp(*y - most) };
            *sum += *y;
        }
    }
    let inverse = 1.0 / sums.iter().sum::<f32>();
    y.iter_mut().for_each(|y| *y *= inverse);
}

dispatch! {
    fn forward(y: &mut [f32], d: usize) {
        y.chunks_exact_mut(d).for_each(normalise);
    }
}

dispatch! {
    /// `d` holds dy on entry and dx on return.
    fn backward(d: &mut [f32], y: &[f32], width: usize) {
        for (d, y) in d.chunks_exact_mut(width).zip(y.chunks_exact(width)) {
            let mut sums = [0.0f32; LANES];
            for (d, y) in d.chunks(LANES).zip(y.chunks(LANES)) {
                for ((d, y), sum) in d.iter().zip(y).zip(&mut sums) {
                    *sum += d * y;
                }
            }
            let along = sums.iter().sum::<f32>();
            for (d, y) in d.iter_mut().zip(y) {
                *d = y * (*d - along);
            }
        }
    }
}

impl Op for Softmax {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (mut y, d) = (memory::copied(inputs[0]), self.width);
        pool::for_each_rows(&mut y, d, ROWS, |first, y| {
            if let Some(mask) = &self.mask {
                for (y, wanted) in y.iter_mut().zip(&mask[first * d..]) {
                    *y = if *wanted { *y } else { f32::NEG_INFINITY };
                }
            }
            forward(y, d);
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (y, mut dx, d) = (pass.outputs[0], memory::copied(pass.gradient()?), self.width);
        pool::for_each_rows(&mut dx, d, ROWS, |first, dx| backward(dx, &y[first * d..], d));
        Ok(vec![dx])
    }
}
