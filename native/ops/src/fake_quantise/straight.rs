//! Fake quantisation with given steps.

use super::{Codes, Groups, positive};
use crate::op::{Op, Pass};
use crate::simd::dispatch;
use crate::{Result, memory, pool};

pub(super) struct Straight {
    pub(super) codes: Codes,
    pub(super) groups: Groups,
}

dispatch! {
    fn round(y: &mut [f32], x: &[f32], step: f32, range: [f32; 2]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = step * (x / step).round_ties_even().clamp(range[0], range[1]);
        }
    }
}

dispatch! {
    fn mask(dx: &mut [f32], x: &[f32], dy: &[f32], step: f32, range: [f32; 2]) {
        for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
            let code = (x / step).round_ties_even();
            *dx = if code >= range[0] && code <= range[1] { *dy } else { 0.0 };
        }
    }
}

impl Straight {
    /// The range of the codes of group `at` less its zero.
    fn range(&self, zero: Option<&&[f32]>, at: usize) -> [f32; 2] {
        let zero = zero.and_then(|zero| zero.get(at)).copied().unwrap_or(0.0);
        [self.codes.lo as f32 - zero, self.codes.hi as f32 - zero]
    }

    /// Calls `each(part of all, first number, step, range)` for every group.
    fn each(
        &self,
        all: &mut [f32],
        inputs: &[&[f32]],
        each: impl Fn(&mut [f32], usize, f32, [f32; 2]) + Sync + Send,
    ) {
        let [_, cols, _] = self.groups.sizes();
        pool::for_each_rows(all, cols, self.groups.shard(), |first, rows| {
            let mut from = first * cols;
            for (at, part) in self.groups.of_mut(rows).enumerate() {
                let (group, count) = (first * self.groups.per_row() + at, part.len());
                each(part, from, inputs[1][group], self.range(inputs.get(2), group));
                from += count;
            }
        });
    }
}

impl Op for Straight {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        positive(inputs[1])?;
        let mut y = memory::zeros(inputs[0].len());
        self.each(&mut y, inputs, |y, from, step, range| {
            round(y, &inputs[0][from..from + y.len()], step, range);
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, dy) = (pass.inputs[0], pass.gradient()?);
        let mut dx = memory::zeros(if pass.wants(0) { x.len() } else { 0 });
        if pass.wants(0) {
            self.each(&mut dx, pass.inputs, |dx, from, step, range| {
                let own = from..from + dx.len();
                mask(dx, &x[own.clone()], &dy[own], step, range);
            });
        }
        // The grid is given, so steps and zeros have no gradient.
        let grid = pass.inputs.iter().skip(1).map(|_| vec![]);
        Ok(std::iter::once(dx).chain(grid).collect())
    }
}
