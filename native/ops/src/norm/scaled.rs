//! The common part of norms with a scale and without a shift: rows in shards, and one gradient of
//! the scale.

use candle_core::Tensor;

use crate::op::{self, Op, Pass};
use crate::simd::add_assign;
use crate::{Result, memory, pool};

/// A norm of rows as wide as its weight.
pub(super) trait Rows: Send + Sync + 'static {
    /// Rows of one shard.
    const SHARD: usize;

    fn forward(&self, y: &mut [f32], x: &[f32], weight: &[f32]);

    /// Computes `dx` of some rows and adds their part to `dw`.
    fn backward(&self, dx: &mut [f32], dw: &mut [f32], x: &[f32], dy: &[f32], weight: &[f32]);
}

/// Applies a norm of `weight [d]` to `x [.., d]`.
pub(super) fn scaled(x: &Tensor, weight: &Tensor, norm: impl Rows) -> Result<Tensor> {
    op::apply(Scaled(norm), &[x, weight], x.shape())
}

struct Scaled<N>(N);

impl<N: Rows> Scaled<N> {
    /// Gradients of x and of the weight. Parts of `dw` are summed in shard order.
    fn gradients(&self, x: &[f32], w: &[f32], dy: &[f32]) -> [Vec<f32>; 2] {
        let d = w.len();
        let mut dx = memory::zeros(x.len());
        let zero = || memory::zeros(d);
        let parts = pool::sum_rows(&mut dx, d, N::SHARD, zero, |first, dx, dw| {
            let span = first * d..first * d + dx.len();
            self.0.backward(dx, dw, &x[span.clone()], &dy[span], w);
        });
        let mut dw = zero();
        parts.iter().for_each(|part| add_assign(&mut dw, part));
        [dx, dw]
    }
}

impl<N: Rows> Op for Scaled<N> {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, w) = (inputs[0], inputs[1]);
        let mut y = memory::zeros(x.len());
        pool::for_each_rows(&mut y, w.len(), N::SHARD, |first, y| {
            let begin = first * w.len();
            self.0.forward(y, &x[begin..begin + y.len()], w);
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        Ok(self.gradients(pass.inputs[0], pass.inputs[1], pass.gradient()?).into())
    }
}
