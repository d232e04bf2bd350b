//! Enlargement of signals and images by whole factors.

use candle_core::Tensor;

use crate::op::{self, Op, Pass};
use crate::planes::{planes, shape};
use crate::{Error, Result, memory, pool};

/// Values of one shard, at least.
const SHARD: usize = 1 << 14;

/// `y[i] = x[i / factor]` on each axis of `x [b, c, ..]` (nearest upsampling). `factors` has one number for each axis.
///
/// # Errors
/// `Mismatch` for a shape that does not fit; `OutOfRange` for a factor of 0 or a result that overflows. `Unavailable` for
/// tensors that are not f32 on a CPU.
pub fn upsample(x: &Tensor, factors: &[usize]) -> Result<Tensor> {
    let [rows, columns] = match *factors {
        [columns] => [1, columns],
        [rows, columns] => [rows, columns],
        _ => return Err(Error::mismatch("axes of upsampling", "1 or 2", factors.len())),
    };
    if rows == 0 || columns == 0 {
        return Err(Error::out_of_range("factor", 0.0, 1.0, f64::from(u32::MAX)));
    }
    let (lead, input) = planes("upsampling", x, factors.len())?;
    let output = [input[0].saturating_mul(rows), input[1].saturating_mul(columns)];
    let shape = shape(factors.len(), lead, output)?;
    op::apply(Upsample { factors: [rows, columns], input }, &[x], shape)
}

struct Upsample {
    factors: [usize; 2],
    input: [usize; 2],
}

impl Upsample {
    /// Values of an input plane.
    fn plane(&self) -> usize {
        self.input[0] * self.input[1]
    }

    /// Values of an output plane.
    fn output(&self) -> usize {
        self.plane() * self.factors[0] * self.factors[1]
    }

    /// Planes of a shard.
    fn per_shard(&self) -> usize {
        SHARD.div_ceil(self.output().max(1))
    }

    /// Writes the larger plane.
    fn enlarge(&self, y: &mut [f32], x: &[f32]) {
        let ([_, w], [rows, columns]) = (self.input, self.factors);
        let blocks = y.chunks_exact_mut(rows * columns * w);
        for (block, x) in blocks.zip(x.chunks_exact(w)) {
            let (first, others) = block.split_at_mut(columns * w);
            first.chunks_exact_mut(columns).zip(x).for_each(|(y, x)| y.fill(*x));
            others.chunks_exact_mut(columns * w).for_each(|y| y.copy_from_slice(first));
        }
    }

    /// Writes the sum of the gradients of each value.
    fn reduce(&self, dx: &mut [f32], dy: &[f32]) {
        let ([_, w], [rows, columns]) = (self.input, self.factors);
        let blocks = dy.chunks_exact(rows * columns * w);
        for (dx, block) in dx.chunks_exact_mut(w).zip(blocks) {
            for dy in block.chunks_exact(columns * w) {
                let sums = dy.chunks_exact(columns).map(|dy| dy.iter().sum::<f32>());
                dx.iter_mut().zip(sums).for_each(|(dx, sum)| *dx += sum);
            }
        }
    }
}

impl Op for Upsample {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, plane, output) = (inputs[0], self.plane(), self.output());
        let mut y = memory::zeros(x.len() * self.factors[0] * self.factors[1]);
        pool::for_each_rows(&mut y, output, self.per_shard(), |first, y| {
            let planes = x[first * plane..].chunks_exact(plane);
            y.chunks_exact_mut(output).zip(planes).for_each(|(y, x)| self.enlarge(y, x));
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (dy, plane, output) = (pass.gradient()?, self.plane(), self.output());
        let mut dx = memory::zeros(pass.inputs[0].len());
        pool::for_each_rows(&mut dx, plane, self.per_shard(), |first, dx| {
            let outputs = dy[first * output..].chunks_exact(output);
            dx.chunks_exact_mut(plane).zip(outputs).for_each(|(dx, dy)| self.reduce(dx, dy));
        });
        Ok(vec![dx])
    }
}
