//! LayerNorm of each query and key, before rotation.

use candle_core::Tensor;

use super::parameters::{self, Gradients, HeadNorms};
use super::row_norm::row_norm;
use crate::form::Form;
use crate::op::{self, Op, Pass};
use crate::{Error, Result, memory, pool, tensor};

/// Frames of one shard.
const ROWS: usize = 64;

/// Norm of each head of the queries and of the keys in `qkv [.., 3 * heads * d]`; values are unchanged (Henry et al.
/// 2020; Dehghani et al. 2023, section 2.1). The norm bounds the scores for any projection. Gradients of weights
/// accumulate in the weights.
pub fn head_norm(qkv: &Tensor, norms: &HeadNorms) -> Result<Tensor> {
    let width = tensor::rows(qkv.dims()).1;
    norms.check(width)?;
    if Form::of(qkv) != Form::Cpu {
        return by_rows(qkv, norms, width);
    }
    let op = HeadNorm { norms: norms.clone(), width };
    op::apply(op, &[qkv, &norms.queries.weight], qkv.shape())
}

/// The norms of the queries and of the keys by [`row_norm`](crate::row_norm()).
fn by_rows(qkv: &Tensor, norms: &HeadNorms, width: usize) -> Result<Tensor> {
    let (rows, d) = (tensor::rows(qkv.dims()).0, norms.queries.weight.elem_count());
    let all = qkv.reshape((rows, 3, width / 3 / d, d))?;
    let queries = row_norm(&all.narrow(1, 0, 1)?, &norms.queries)?;
    let keys = row_norm(&all.narrow(1, 1, 1)?, &norms.keys)?;
    let values = all.narrow(1, 2, 1)?;
    Ok(Tensor::cat(&[queries, keys, values], 1)?.reshape(qkv.shape())?)
}

struct HeadNorm {
    norms: HeadNorms,
    /// Width of the queries, keys and values of a frame.
    width: usize,
}

/// The values of [`HeadNorms`].
pub(crate) struct Values([parameters::Values; 2]);

impl HeadNorms {
    /// Checks that the norms fit queries, keys and values of this total width.
    pub(crate) fn check(&self, width: usize) -> Result<()> {
        let d = self.queries.weight.elem_count();
        self.queries.check(d)?;
        self.keys.check(d)?;
        if !width.is_multiple_of(3 * d) || width == 0 {
            let expected = format!("a multiple of {}", 3 * d);
            return Err(Error::mismatch("width of queries, keys and values", expected, width));
        }
        Ok(())
    }

    pub(crate) fn values(&self) -> candle_core::Result<Values> {
        Ok(Values([self.queries.values()?, self.keys.values()?]))
    }

    /// Accumulates gradients in the weights, summed in the order of the shards.
    pub(crate) fn accumulate(&self, parts: &[[Gradients; 2]]) {
        self.queries.accumulate(parts.iter().map(|[queries, _]| queries));
        self.keys.accumulate(parts.iter().map(|[_, keys]| keys));
    }
}

impl Values {
    pub(crate) fn forward(&self, qkv: &[f32], width: usize) -> Vec<f32> {
        let part = width / 3;
        let mut y = memory::copied(qkv);
        pool::for_each_rows(&mut y, width, ROWS, |first, y| {
            let rows = qkv[first * width..].chunks_exact(width);
            for (y, x) in y.chunks_exact_mut(width).zip(rows) {
                let parts = y.chunks_exact_mut(part).zip(x.chunks_exact(part));
                self.0.iter().zip(parts).for_each(|(norm, (y, x))| norm.forward(y, x));
            }
        });
        y
    }

    /// Turns the gradient of the output into the gradient of `qkv`, in place.
    pub(crate) fn backward(&self, d: &mut [f32], qkv: &[f32], width: usize) -> Vec<[Gradients; 2]> {
        let part = width / 3;
        let zero = || self.0.each_ref().map(parameters::Values::zeros);
        pool::sum_rows(d, width, ROWS, zero, |first, d, sums| {
            let rows = qkv[first * width..].chunks_exact(width);
            for (d, x) in d.chunks_exact_mut(width).zip(rows) {
                let parts = d.chunks_exact_mut(part).zip(x.chunks_exact(part));
                for ((norm, sums), (d, x)) in self.0.iter().zip(sums.iter_mut()).zip(parts) {
                    norm.backward(d, sums, x);
                }
            }
        })
    }
}

impl Op for HeadNorm {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        Ok(vec![self.norms.values()?.forward(inputs[0], self.width)])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (values, mut dx) = (self.norms.values()?, memory::copied(pass.gradient()?));
        self.norms.accumulate(&values.backward(&mut dx, pass.inputs[0], self.width));
        Ok(vec![dx, vec![]])
    }
}
