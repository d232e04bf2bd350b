//! Numbers within two bounds.

use candle_core::Tensor;

use super::{SHARD, composed};
use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::simd::dispatch;
use crate::{Error, Result, memory, pool};

/// `min(max(x, low), high)`, of any shape. The slope is 1 from `low` to `high`, and 0 outside. NaN stays NaN.
///
/// # Errors
/// `OutOfRange` unless `low` is at most `high`.
pub fn clip(x: &Tensor, low: f32, high: f32) -> Result<Tensor> {
    let in_order = low <= high;
    if !in_order {
        return Err(Error::out_of_range("lower bound", low.into(), f64::MIN, high.into()));
    }
    match Form::of(x) {
        Form::Cpu => op::apply(Clip { low, high }, &[x], x.shape()),
        Form::Card | Form::Composed => composed::clip(x, low, high),
    }
}

struct Clip {
    low: f32,
    high: f32,
}

/// [`clip()`] of one number.
#[inline(always)]
fn clipped(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

dispatch! {
    /// [`clip()`] in place.
    pub fn forward(x: &mut [f32], low: f32, high: f32) {
        for x in x.iter_mut() {
            *x = clipped(*x, low, high);
        }
    }
}

dispatch! {
    /// Multiplies `dy` by the slope at `x`.
    fn backward(dy: &mut [f32], x: &[f32], low: f32, high: f32) {
        for (dy, x) in dy.iter_mut().zip(x) {
            *dy = if *x < low || *x > high { 0.0 } else { *dy };
        }
    }
}

impl Op for Clip {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let mut y = memory::copied(inputs[0]);
        pool::for_each_rows(&mut y, 1, SHARD, |_, y| forward(y, self.low, self.high));
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, mut dx) = (pass.inputs[0], memory::copied(pass.gradient()?));
        pool::for_each_rows(&mut dx, 1, SHARD, |first, dx| {
            backward(dx, &x[first..], self.low, self.high);
        });
        Ok(vec![dx])
    }
}
