//! Fake quantisation with learned steps and offsets.

use super::{Codes, Groups, positive};
use crate::op::{Op, Pass};
use crate::simd::dispatch;
use crate::{Result, memory, pool};

pub(super) struct Learned {
    pub(super) codes: Codes,
    pub(super) groups: Groups,
}

/// The grid of a group.
#[derive(Clone, Copy)]
struct Grid {
    lo: f32,
    hi: f32,
    step: f32,
    offset: f32,
}

dispatch! {
    fn round(y: &mut [f32], x: &[f32], grid: Grid) {
        let Grid { lo, hi, step, offset } = grid;
        for (y, x) in y.iter_mut().zip(x) {
            *y = step * ((x - offset) / step).clamp(lo, hi).round_ties_even() + offset;
        }
    }
}

/// Partial sums of a reduction. Their number fixes the order of addition on every CPU.
const LANES: usize = 16;

dispatch! {
    /// Writes the gradients of `x`, and the sums of those of the step and the offset to `sums`, without the factor g.
    fn gradients(dx: &mut [f32], x: &[f32], dy: &[f32], grid: Grid, sums: &mut [f64; 2]) {
        let Grid { lo, hi, step, offset } = grid;
        let (mut steps, mut offsets) = ([0.0f32; LANES], [0.0f32; LANES]);
        let all = dx.chunks_mut(LANES).zip(x.chunks(LANES)).zip(dy.chunks(LANES));
        for ((dx, x), dy) in all {
            for (i, ((dx, x), dy)) in dx.iter_mut().zip(x).zip(dy).enumerate() {
                let ratio = (x - offset) / step;
                let code = ratio.clamp(lo, hi).round_ties_even();
                let inside = ratio > lo && ratio < hi;
                *dx = if inside { *dy } else { 0.0 };
                steps[i] += dy * if inside { code - ratio } else { code };
                offsets[i] += if inside { 0.0 } else { *dy };
            }
        }
        *sums = [steps, offsets].map(|lanes| lanes.iter().map(|v| f64::from(*v)).sum());
    }
}

impl Learned {
    fn grid(&self, inputs: &[&[f32]], group: usize) -> Grid {
        let offset = inputs.get(2).and_then(|all| all.get(group)).copied().unwrap_or(0.0);
        let (lo, hi) = (self.codes.lo as f32, self.codes.hi as f32);
        Grid { lo, hi, step: inputs[1][group], offset }
    }
}

impl Op for Learned {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        positive(inputs[1])?;
        let [_, cols, _] = self.groups.sizes();
        let mut y = memory::zeros(inputs[0].len());
        pool::for_each_rows(&mut y, cols, self.groups.shard(), |first, rows| {
            let mut rest = &inputs[0][first * cols..];
            for (at, y) in self.groups.of_mut(rows).enumerate() {
                let (x, after) = rest.split_at(y.len());
                round(y, x, self.grid(inputs, first * self.groups.per_row() + at));
                rest = after;
            }
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (groups, inputs, dy) = (self.groups, pass.inputs, pass.gradient()?);
        let ([rows, cols, _], per_row) = (groups.sizes(), groups.per_row());
        let mut dx = memory::zeros(inputs[0].len());
        let [mut steps, mut offsets] = [(); 2].map(|()| memory::zeros(groups.count()));
        let buffers = [(&mut dx[..], cols), (&mut steps, per_row), (&mut offsets, per_row)];
        pool::for_each_shard(rows, groups.shard(), buffers, |own, [dx, steps, offsets]| {
            let numbers = own.start * cols..own.end * cols;
            let (x, dy) = (&inputs[0][numbers.clone()], &dy[numbers]);
            let all = groups.of_mut(dx).zip(groups.of(x)).zip(groups.of(dy));
            for (at, ((dx, x), dy)) in all.enumerate() {
                let (grid, mut sums) = (self.grid(inputs, own.start * per_row + at), [0.0; 2]);
                gradients(dx, x, dy, grid, &mut sums);
                let g = 1.0 / (x.len() as f64 * f64::from(self.codes.hi)).sqrt();
                (steps[at], offsets[at]) = ((sums[0] * g) as f32, (sums[1] * g) as f32);
            }
        });
        let found = [dx, steps, offsets].into_iter().enumerate().take(inputs.len());
        Ok(found.map(|(i, d)| if pass.wants(i) { d } else { vec![] }).collect())
    }
}
