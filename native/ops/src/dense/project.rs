//! Several linear layers over one input, their outputs side by side.

use candle_core::Tensor;

use super::composites;
use crate::form::Form;
use crate::matmul::{Packed, View};
use crate::op::{self, Op, Pass};
use crate::simd::{add_assign, add_rows};
use crate::weights::Weight;
use crate::{Error, Result, memory, pool, tensor};

/// Rows of one shard of a product.
const ROWS: usize = 128;
/// Shards of a weight gradient, over the rows of the weight.
const GRADIENT_SHARDS: usize = 4;

/// `x W_i^T + b_i` of all layers side by side: `x [.., k]`, layers of `weight [n_i, k]` and `bias [n_i]` -> `[.., n_1 +
/// n_2 + ..]`.
///
/// One op reads `x` once and gives it one gradient, `dx = sum of dy_i W_i`. Gradients of weights accumulate in the
/// weights ([`Weight::accumulate`]).
pub fn project(x: &Tensor, layers: &[(&Weight, Option<&Weight>)]) -> Result<Tensor> {
    let Some((first, _)) = layers.first() else {
        return Err(Error::mismatch("layers of a projection", "at least 1", 0));
    };
    let k = x.dims().last().copied().unwrap_or(1);
    let mut parts = Vec::with_capacity(layers.len());
    let mut width = 0;
    for (weight, bias) in layers {
        let (n, inputs) = weight.dims2()?;
        tensor::check_width("input of a projection", inputs, x.dims())?;
        if let Some(bias) = bias {
            tensor::check_shape("bias of a projection", &[n], bias.dims())?;
        }
        parts.push(Part { weight: (*weight).clone(), bias: bias.cloned(), begin: width, n });
        width += n;
    }
    if Form::of(x) != Form::Cpu || layers.iter().any(|(weight, _)| weight.rounds()) {
        return composites::project(x, layers);
    }
    op::apply(Project { parts, k, width }, &[x, first], tensor::with_width(x, width))
}

/// One layer, and the first column of its outputs.
struct Part {
    weight: Weight,
    bias: Option<Weight>,
    begin: usize,
    n: usize,
}

struct Project {
    parts: Vec<Part>,
    k: usize,
    width: usize,
}

impl Project {
    fn outputs(&self, x: &[f32]) -> candle_core::Result<Vec<f32>> {
        let (k, width) = (self.k, self.width);
        let rows = x.len() / k.max(1);
        let mut y = self.biases(rows)?;
        for part in &self.parts {
            tensor::with(&part.weight, |w| {
                let right = part.weight.operand(w, 0..part.n, true, rows);
                pool::for_each_rows(&mut y, width, ROWS, |first, y| {
                    let x = View::rows(&x[first * k..], y.len() / width, k);
                    right.matmul(&mut y[part.begin..], width, x, true);
                });
                Ok(())
            })?;
        }
        Ok(y)
    }

    /// Repeats all biases in `rows` rows, to which the products are added.
    fn biases(&self, rows: usize) -> candle_core::Result<Vec<f32>> {
        let mut row = Vec::with_capacity(self.width);
        for part in &self.parts {
            match &part.bias {
                Some(bias) => tensor::with(bias, |bias| {
                    row.extend_from_slice(bias);
                    Ok(())
                })?,
                None => row.resize(part.begin + part.n, 0.0),
            }
        }
        let mut all = memory::with_capacity(row.len().saturating_mul(rows));
        (0..rows).for_each(|_| all.extend_from_slice(&row));
        Ok(all)
    }

    /// `dW_i (+)= dy_i^T x`, with shards over the rows of `dW_i`; `db_i (+)= the sum of the rows of dy_i`.
    fn weights_backward(&self, x: &[f32], dy: &[f32]) {
        let (k, width) = (self.k, self.width);
        let rows = dy.len() / width;
        let right = Packed::new(View::rows(x, rows, k));
        for Part { weight, n, begin, .. } in &self.parts {
            weight.accumulate(|dw, accumulate| {
                let shard = n.div_ceil(GRADIENT_SHARDS).next_multiple_of(32);
                pool::for_each_rows(dw, k, shard, |first, dw| {
                    let dy = View::strided(&dy[begin + first..], rows, dw.len() / k, width);
                    right.matmul(dw, k, dy.transposed(), accumulate);
                });
            });
        }
        if self.parts.iter().any(|part| part.bias.is_some()) {
            let mut sum = memory::zeros(width);
            add_rows(&mut sum, dy);
            for Part { bias, n, begin, .. } in &self.parts {
                let own = &sum[*begin..begin + n];
                if let Some(bias) = bias {
                    bias.accumulate(|db, accumulate| match accumulate {
                        true => add_assign(db, own),
                        false => db.copy_from_slice(own),
                    });
                }
            }
        }
    }

    fn input_backward(&self, dx: &mut [f32], dy: &[f32]) -> candle_core::Result<()> {
        let (k, width) = (self.k, self.width);
        for (i, part) in self.parts.iter().enumerate() {
            tensor::with(&part.weight, |w| {
                let right = part.weight.operand(w, 0..part.n, false, dy.len() / width);
                pool::for_each_rows(dx, k, ROWS, |first, dx| {
                    let dy = &dy[first * width + part.begin..];
                    let dy = View::strided(dy, dx.len() / k, part.n, width);
                    right.matmul(dx, k, dy, i > 0);
                });
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Op for Project {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        Ok(vec![self.outputs(inputs[0])?])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, dy) = (pass.inputs[0], pass.gradient()?);
        self.weights_backward(x, dy);
        let mut dx = memory::zeros(if pass.wants(0) { x.len() } else { 0 });
        if pass.wants(0) {
            self.input_backward(&mut dx, dy)?;
        }
        Ok(vec![dx, vec![]])
    }
}
