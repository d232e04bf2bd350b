//! Gated linear unit over two halves that lie side by side.

use candle_core::Tensor;

use super::{card, composed};
use crate::activation::{Activation, multiply};
use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::{Error, Result, memory, pool, tensor};

/// Rows of one shard.
const ROWS: usize = 64;

/// `activation(x[.., ..n]) * x[.., n..]`, `x [.., 2n]` -> `[.., n]` (Dauphin et al. 2017; Shazeer 2020).
pub fn glu(x: &Tensor, activation: Activation) -> Result<Tensor> {
    let (_, width) = tensor::rows(x.dims());
    if width % 2 != 0 {
        return Err(Error::mismatch("width of a gated linear unit", "an even number", width));
    }
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::glu(x, activation),
        Form::Composed => return composed::glu(x, activation),
    }
    let n = width / 2;
    op::apply(Glu { activation, n }, &[x], tensor::with_width(x, n))
}

struct Glu {
    activation: Activation,
    n: usize,
}

impl Glu {
    fn rows(&self, y: &mut [f32], x: &[f32]) {
        for (y, x) in y.chunks_exact_mut(self.n).zip(x.chunks_exact(2 * self.n)) {
            let (gate, value) = x.split_at(self.n);
            y.copy_from_slice(gate);
            self.activation.apply(y);
            multiply(y, value);
        }
    }

    fn rows_backward(&self, dx: &mut [f32], x: &[f32], dy: &[f32]) {
        let n = self.n;
        let rows = dx.chunks_exact_mut(2 * n).zip(x.chunks_exact(2 * n)).zip(dy.chunks_exact(n));
        for ((dx, x), dy) in rows {
            let (d_gate, d_value) = dx.split_at_mut(n);
            let (gate, value) = x.split_at(n);
            d_value.copy_from_slice(gate);
            self.activation.apply(d_value);
            multiply(d_value, dy);
            d_gate.copy_from_slice(dy);
            multiply(d_gate, value);
            self.activation.backward(d_gate, gate);
        }
    }
}

impl Op for Glu {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let x = inputs[0];
        let mut y = memory::zeros(x.len() / 2);
        pool::for_each_rows(&mut y, self.n, ROWS, |first, y| {
            self.rows(y, &x[2 * first * self.n..]);
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, dy) = (pass.inputs[0], pass.gradient()?);
        let mut dx = memory::zeros(x.len());
        pool::for_each_rows(&mut dx, 2 * self.n, ROWS, |first, dx| {
            self.rows_backward(dx, &x[2 * first * self.n..], &dy[first * self.n..]);
        });
        Ok(vec![dx])
    }
}
