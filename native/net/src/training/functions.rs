//! The function of a number that no op has.

use sconce_ops::op::{self, Op, Pass};
use sconce_tensor::Tensor;
use sconce_tensor::{memory, pool};

use crate::Result;

/// Values of one shard.
const SHARD: usize = 1 << 14;

/// `x min(max(x + 3, 0), 6) / 6` (Howard et al. 2019).
pub(super) fn hard_swish(x: &Tensor) -> Result<Tensor> {
    op::apply(HardSwish, &[x], x.shape())
}

struct HardSwish;

impl Op for HardSwish {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let mut y = memory::copied(inputs[0]);
        pool::for_each_rows(&mut y, 1, SHARD, |_, y| {
            y.iter_mut().for_each(|x| *x *= (*x + 3.0).clamp(0.0, 6.0) / 6.0);
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, mut dx) = (pass.inputs[0], memory::copied(pass.gradient()?));
        pool::for_each_rows(&mut dx, 1, SHARD, |first, dx| {
            for (dx, x) in dx.iter_mut().zip(&x[first..]) {
                *dx *= match x {
                    ..-3.0 => 0.0,
                    3.0.. => 1.0,
                    x => (2.0 * x + 3.0) / 6.0,
                };
            }
        });
        Ok(vec![dx])
    }
}
