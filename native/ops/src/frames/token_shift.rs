//! A mix of each frame with the frame before it (Peng et al. 2023, eq. 11 to 13).

use candle_core::Tensor;

use super::{card, composed};
use crate::columns::Grid;
use crate::form::Form;
use crate::lengths::Lengths;
use crate::op::{self, Op, Pass};
use crate::pool::for_each_shard;
use crate::simd::{add_rows, dispatch};
use crate::{Result, memory, tensor};

/// Returns one tensor `[b, t, c]` of `m * x_t + (1 - m) * x_{t-1}` for each row `m` of `mix [n, c]`.
///
/// `x [b, t, c]`; `before [b, c]` is the frame before the first one. Frames of a row from its length on give 0.
pub fn token_shift(
    x: &Tensor,
    before: &Tensor,
    mix: &Tensor,
    lengths: Lengths,
) -> Result<Vec<Tensor>> {
    let (batch, time, channels) = x.dims3()?;
    let (n, _) = mix.dims2()?;
    tensor::check_shape("mix of a token shift", &[n, channels], mix.dims())?;
    tensor::check_shape("frame before a token shift", &[batch, channels], before.dims())?;
    let grid = Grid::new(batch, time, channels, lengths)?;
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card => return card::token_shift(x, before, mix, &grid.lengths),
        Form::Composed => return composed::token_shift(x, before, mix, grid.lengths),
    }
    let shapes = vec![x.shape().clone(); n];
    op::apply_some(Shift { grid, n }, &[x, before, mix], &shapes)
}

struct Shift {
    grid: Grid,
    /// The number of mixes.
    n: usize,
}

dispatch! {
    /// Computes one frame of one mix.
    pub fn blend(y: &mut [f32], x: &[f32], before: &[f32], mix: &[f32]) {
        for (((y, x), before), m) in y.iter_mut().zip(x).zip(before).zip(mix) {
            *y = before + m * (x - before);
        }
    }
}

dispatch! {
    /// Adds the gradients of one frame of one mix.
    fn blend_backward(dx: &mut [f32], d_before: &mut [f32], dm: &mut [f32], dy: &[f32], x: &[f32], before: &[f32], mix: &[f32]) {
        let n = dx.len();
        let (d_before, dm, dy) = (&mut d_before[..n], &mut dm[..n], &dy[..n]);
        let (x, before, mix) = (&x[..n], &before[..n], &mix[..n]);
        for i in 0..n {
            dm[i] += dy[i] * (x[i] - before[i]);
            dx[i] += dy[i] * mix[i];
            d_before[i] += dy[i] * (1.0 - mix[i]);
        }
    }
}

impl Shift {
    /// Frame `t` of a row and the frame before it.
    fn pair<'a>(&self, row: usize, t: usize, x: &'a [f32], first: &'a [f32]) -> [&'a [f32]; 2] {
        let c = self.grid.channels;
        let at = (row * self.grid.time + t) * c;
        [&x[at..at + c], if t > 0 { &x[at - c..at] } else { &first[row * c..][..c] }]
    }
}

impl Op for Shift {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, first, mix) = (inputs[0], inputs[1], inputs[2]);
        let Grid { batch, time, channels: c, .. } = self.grid;
        let one = |mix: &[f32]| {
            let mut y = memory::zeros(batch * time * c);
            crate::pool::for_each_rows(&mut y, (time * c).max(1), 1, |row, y| {
                for (t, y) in y.chunks_exact_mut(c).enumerate().take(self.grid.frames(row)) {
                    let [x, before] = self.pair(row, t, x, first);
                    blend(y, x, before, mix);
                }
            });
            y
        };
        Ok(mix.chunks_exact(c).map(one).collect())
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, first, mix) = (pass.inputs[0], pass.inputs[1], pass.inputs[2]);
        let Grid { batch, time, channels: c, .. } = self.grid;
        let (n, width) = (self.n, time * c);
        let mut dx = memory::zeros(batch * width);
        let mut d_first = memory::zeros(batch * c);
        let mut d_mix = memory::zeros(batch * n * c);
        let buffers = [(&mut dx[..], width), (&mut d_first[..], c), (&mut d_mix[..], n * c)];
        for_each_shard(batch, 1, buffers, |rows, [dx, d_first, d_mix]| {
            let row = rows.start;
            for (k, dy) in pass.gradients.iter().enumerate() {
                let Some(dy) = dy else { continue };
                let (mix, dm) = (&mix[k * c..][..c], &mut d_mix[k * c..][..c]);
                for t in 0..self.grid.frames(row) {
                    let [x, before] = self.pair(row, t, x, first);
                    let dy = &dy[row * width + t * c..][..c];
                    let (head, now) = dx[..(t + 1) * c].split_at_mut(t * c);
                    let d_before = if t > 0 { &mut head[(t - 1) * c..] } else { &mut d_first[..] };
                    blend_backward(now, d_before, dm, dy, x, before, mix);
                }
            }
        });
        let mut sum = memory::zeros(n * c);
        add_rows(&mut sum, &d_mix);
        Ok(vec![dx, d_first, sum])
    }
}
