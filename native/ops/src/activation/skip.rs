//! `y + d * x`, with one weight per channel.

use candle_core::Tensor;

use super::{card, composed};
use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::simd::{add_assign, dispatch};
use crate::weights::Weight;
use crate::{Result, memory, pool, tensor};

/// Rows of one shard.
const ROWS: usize = 256;

/// `y + d * x`: `y [.., c]`, `x [.., c]`, `d [c]`, the skip of a state space (Gu et al. 2022, eq. 1).
pub fn skip(y: &Tensor, x: &Tensor, d: &Weight) -> Result<Tensor> {
    let (_, c) = tensor::rows(x.dims());
    tensor::check_shape("input of a skip", x.dims(), y.dims())?;
    tensor::check_shape("weight of a skip", &[c], d.dims())?;
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::skip(y, x, d),
        Form::Composed => return composed::skip(y, x, d),
    }
    op::apply(Skip { d: d.clone() }, &[y, x, d], x.shape())
}

struct Skip {
    d: Weight,
}

dispatch! {
    /// Computes `y += d * x`, row by row.
    pub fn forward(y: &mut [f32], x: &[f32], d: &[f32]) {
        for (y, x) in y.chunks_exact_mut(d.len()).zip(x.chunks_exact(d.len())) {
            for ((y, x), d) in y.iter_mut().zip(x).zip(d) {
                *y += d * x;
            }
        }
    }
}

dispatch! {
    /// Computes `dx *= d`, and adds the rows' part of the gradient of `d` to `dd`; `dx` holds `dy` on entry.
    fn backward(dx: &mut [f32], dd: &mut [f32], x: &[f32], d: &[f32]) {
        for (dx, x) in dx.chunks_exact_mut(d.len()).zip(x.chunks_exact(d.len())) {
            for (((dx, x), d), dd) in dx.iter_mut().zip(x).zip(d).zip(dd.iter_mut()) {
                *dd += *dx * x;
                *dx *= d;
            }
        }
    }
}

impl Op for Skip {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (mut y, x, d) = (memory::copied(inputs[0]), inputs[1], inputs[2]);
        pool::for_each_rows(&mut y, d.len(), ROWS, |first, y| {
            forward(y, &x[first * d.len()..], d);
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, d, dy) = (pass.inputs[1], pass.inputs[2], pass.gradient()?);
        let (mut dx, c) = (memory::copied(dy), d.len());
        let zero = || memory::zeros(c);
        let parts = pool::sum_rows(&mut dx, c, ROWS, zero, |first, dx, part| {
            backward(dx, part, &x[first * c..], d);
        });
        self.d.accumulate(|dd, accumulate| {
            if !accumulate {
                dd.fill(0.0);
            }
            parts.iter().for_each(|part| add_assign(dd, part));
        });
        let dy = if pass.wants(0) { memory::copied(dy) } else { vec![] };
        Ok(vec![dy, dx, vec![]])
    }
}
