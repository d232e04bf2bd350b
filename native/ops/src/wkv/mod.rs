//! The weighted average of the past in RWKV-4 (Peng et al. 2023, eq. 16).

mod card;
mod composed;

use std::ops::Range;

use candle_core::{Shape, Tensor};

use crate::columns::{Grid, Output, copy, fill, load, outputs, store};
use crate::form::Form;
use crate::lengths::Lengths;
use crate::op::{self, Op, Pass};
use crate::simd::{LANES, add_rows, dispatch, exp_with, ln_1p, mul_add, sigmoid_with};
use crate::{Result, memory, tensor};

/// The logarithm of the weight 0: the state before the first frame of a game.
pub const NOTHING: f32 = -1e30;

/// Inputs of a [`wkv()`].
#[derive(Clone, Copy)]
pub struct Wkv<'a> {
    /// Keys, the logarithms of the weights of values, `[b, t, c]`.
    pub k: &'a Tensor,
    /// Values, `[b, t, c]`.
    pub v: &'a Tensor,
    /// Logarithm of the decay rate, `[c]`.
    pub w: &'a Tensor,
    /// Bonus of the current frame, `[c]`.
    pub u: &'a Tensor,
    /// Mean of the values before the first frame, `[b, c]`.
    pub mean: &'a Tensor,
    /// Logarithm of the total weight of the values before the first frame, `[b, c]`.
    pub weight: &'a Tensor,
}

/// `y [b, t, c]` and the state after the last frame.
///
/// Frame i before t has the weight `exp(k_i - (t - 1 - i) exp(w))`, frame t has `exp(u + k_t)`, and `y_t` is the
/// average of the values `v`. The published form keeps two sums, which overflow. Here the state is the ratio of these
/// sums, the mean m of the past, and the logarithm s of the past's total weight:
///
/// ```text
/// y = m + sigmoid(u + k - s) (v - m)
/// g = sigmoid(k - (s - exp(w)))      m = m + g (v - m)      s = log(exp(s - exp(w)) + exp(k))
/// ```
///
/// Every term is bounded by the inputs, at any k, and smooth: no gradient passes through a maximum. Frames past the
/// length of a row give 0 and leave the state unchanged.
pub fn wkv(inputs: Wkv<'_>, lengths: Lengths) -> Result<[Tensor; 3]> {
    let Wkv { k, v, w, u, mean, weight } = inputs;
    let (batch, time, c) = k.dims3()?;
    let check = |what: &str, expected: &[usize], got: &Tensor| {
        tensor::check_shape(format_args!("{what} of a wkv"), expected, got.dims())
    };
    check("value", &[batch, time, c], v)?;
    check("decay", &[c], w)?;
    check("bonus", &[c], u)?;
    check("mean", &[batch, c], mean)?;
    check("weight", &[batch, c], weight)?;
    let grid = Grid::new(batch, time, c, lengths)?;
    match Form::of(k) {
        Form::Cpu => {}
        Form::Card => return card::wkv(inputs, &grid.lengths),
        Form::Composed => return composed::wkv(inputs, grid.lengths),
    }
    let state = Shape::from((batch, c));
    let shapes = [k.shape().clone(), state.clone(), state];
    op::apply_all(Average { grid }, &[k, v, w, u, mean, weight], shapes)
}

struct Average {
    grid: Grid,
}

/// Frames of one row in a block of its channels: `time` frames, `stride` apart.
#[derive(Clone, Copy)]
struct Block<'a> {
    k: &'a [f32],
    v: &'a [f32],
    /// The decay rate `exp(w)`.
    decay: &'a [f32],
    u: &'a [f32],
    stride: usize,
    frames: usize,
}

/// One frame of one channel: the output and the next state.
#[inline(always)]
fn frame<const FMA: bool>(k: f32, v: f32, decay: f32, u: f32, m: f32, s: f32) -> [f32; 3] {
    let y = mul_add::<FMA>(sigmoid_with::<FMA>(u + k - s), v - m, m);
    let past = s - decay;
    let apart = k - past;
    let e = exp_with::<FMA>(-apart.abs());
    let g = if apart > 0.0 { 1.0 } else { e } / (1.0 + e);
    [y, mul_add::<FMA>(g, v - m, m), past.max(k) + ln_1p(e)]
}

dispatch! {
    /// One frame of one row: writes the output, and advances the mean and the weight. `decay` is `exp(w)`; all slices
    /// are `[c]`.
    pub fn step(y: &mut [f32], state: [&mut [f32]; 2], inputs: [&[f32]; 2], weights: [&[f32]; 2]) {
        let c = y.len();
        let ([k, v], [decay, u]) = (inputs.map(|x| &x[..c]), weights.map(|w| &w[..c]));
        let [m, s] = state.map(|part| &mut part[..c]);
        for i in 0..c {
            [y[i], m[i], s[i]] = frame::<FMA>(k[i], v[i], decay[i], u[i], m[i], s[i]);
        }
    }
}

dispatch! {
    /// Walks a block. Writes `y` if given, and the state before each frame to `states`, `[time, 2, width]`, unless
    /// `states` is empty.
    fn walk(block: Block<'_>, y: Option<(Output<'_>, usize)>, states: &mut [f32], m: &mut [f32], s: &mut [f32]) {
        let width = m.len();
        let whole = width - width % LANES;
        for t in 0..block.frames {
            let span = t * block.stride..t * block.stride + width;
            let (k, v) = (&block.k[span.clone()], &block.v[span]);
            if let Some(states) = states.get_mut(t * 2 * width..(t + 1) * 2 * width) {
                let (before_m, before_s) = states.split_at_mut(width);
                before_m.copy_from_slice(m);
                before_s.copy_from_slice(s);
            }
            // SAFETY: only this shard writes these columns of this row.
            let mut y = y.map(|(y, begin)| unsafe { y.range(begin + t * block.stride, width) });
            let mut lanes = |at: usize, full: bool| {
                let get = |x: &[f32]| if full { load::<true>(x, at) } else { load::<false>(x, at) };
                let (k, v, d, u) = (get(k), get(v), get(block.decay), get(block.u));
                let (mut ms, mut ss, mut ys) = (get(m), get(s), [0.0; LANES]);
                for l in 0..LANES {
                    [ys[l], ms[l], ss[l]] = frame::<FMA>(k[l], v[l], d[l], u[l], ms[l], ss[l]);
                }
                if full {
                    store::<true>(m, at, &ms);
                    store::<true>(s, at, &ss);
                    if let Some(y) = &mut y {
                        fill::<true>(y, at, &ys);
                    }
                } else {
                    store::<false>(m, at, &ms);
                    store::<false>(s, at, &ss);
                    if let Some(y) = &mut y {
                        fill::<false>(y, at, &ys);
                    }
                }
            };
            for at in (0..whole).step_by(LANES) {
                lanes(at, true);
            }
            if whole < width {
                lanes(whole, false);
            }
        }
    }
}

/// Gradients of a block: of the state's `m` and `s`, of `decay` and `u`, and outputs for the gradients of k and v.
struct Back<'a> {
    dm: &'a mut [f32],
    ds: &'a mut [f32],
    d_decay: &'a mut [f32],
    du: &'a mut [f32],
    dk: Output<'a>,
    dv: Output<'a>,
    /// The index of this block in `dk` and `dv`.
    begin: usize,
}

dispatch! {
    /// Walks a block backwards over the `states` that [`walk`] saved.
    fn walk_back(block: Block<'_>, back: Back<'_>, dy: Option<&[f32]>, states: &[f32]) {
        let width = back.dm.len();
        let whole = width - width % LANES;
        let zeros = memory::zeros(width);
        for t in (0..block.frames).rev() {
            let span = t * block.stride..t * block.stride + width;
            let (k, v) = (&block.k[span.clone()], &block.v[span.clone()]);
            let dy = dy.map_or(&zeros[..], |dy| &dy[span.clone()]);
            let (m, s) = states[t * 2 * width..(t + 1) * 2 * width].split_at(width);
            // SAFETY: only this shard writes these columns of this row.
            let dk = unsafe { back.dk.range(back.begin + t * block.stride, width) };
            // SAFETY: as for `dk`.
            let dv = unsafe { back.dv.range(back.begin + t * block.stride, width) };
            let mut lanes = |at: usize, full: bool| {
                let get = |x: &[f32]| if full { load::<true>(x, at) } else { load::<false>(x, at) };
                let (k, v, d, u, dy) = (get(k), get(v), get(block.decay), get(block.u), get(dy));
                let (m, s) = (get(m), get(s));
                let (mut dm, mut ds) = (get(back.dm), get(back.ds));
                let (mut dd, mut du) = (get(back.d_decay), get(back.du));
                let (mut dks, mut dvs) = ([0.0; LANES], [0.0; LANES]);
                for l in 0..LANES {
                    let ahead = v[l] - m[l];
                    let p = sigmoid_with::<FMA>(u[l] + k[l] - s[l]);
                    let dp = dy[l] * ahead * p * (1.0 - p);
                    let g = sigmoid_with::<FMA>(k[l] - (s[l] - d[l]));
                    // The derivative of the new s is g by k and 1 - g by the old s, just as the derivative of the new m
                    // is g by v and 1 - g by the old m.
                    let dg = dm[l] * ahead * g * (1.0 - g);
                    let past = ds[l] * (1.0 - g) - dg;
                    dks[l] = dp + ds[l] * g + dg;
                    dvs[l] = dy[l] * p + dm[l] * g;
                    du[l] += dp;
                    dd[l] -= past;
                    dm[l] = dy[l] * (1.0 - p) + dm[l] * (1.0 - g);
                    ds[l] = past - dp;
                }
                if full {
                    fill::<true>(dk, at, &dks);
                    fill::<true>(dv, at, &dvs);
                    store::<true>(back.dm, at, &dm);
                    store::<true>(back.ds, at, &ds);
                    store::<true>(back.d_decay, at, &dd);
                    store::<true>(back.du, at, &du);
                } else {
                    fill::<false>(dk, at, &dks);
                    fill::<false>(dv, at, &dvs);
                    store::<false>(back.dm, at, &dm);
                    store::<false>(back.ds, at, &ds);
                    store::<false>(back.d_decay, at, &dd);
                    store::<false>(back.du, at, &du);
                }
            };
            for at in (0..whole).step_by(LANES) {
                lanes(at, true);
            }
            if whole < width {
                lanes(whole, false);
            }
        }
    }
}

impl Average {
    fn block<'a>(&self, row: usize, columns: &Range<usize>, inputs: [&'a [f32]; 4]) -> Block<'a> {
        let Grid { time, channels: c, .. } = self.grid;
        let [k, v, decay, u] = inputs;
        let begin = row * time * c + columns.start;
        let end = (row + 1) * time * c;
        Block {
            k: k.get(begin..end).unwrap_or_default(),
            v: v.get(begin..end).unwrap_or_default(),
            decay: &decay[columns.clone()],
            u: &u[columns.clone()],
            stride: c,
            frames: self.grid.frames(row),
        }
    }

    /// Writes zeros to the frames past a row's length.
    fn blank(&self, row: usize, columns: &Range<usize>, output: Output<'_>) {
        let Grid { time, channels: c, .. } = self.grid;
        for t in self.grid.frames(row)..time {
            // SAFETY: only this shard writes these columns of this row.
            let range =
                unsafe { output.range((row * time + t) * c + columns.start, columns.len()) };
            range.iter_mut().for_each(|v| _ = v.write(0.0));
        }
    }
}

fn decays(w: &[f32]) -> Vec<f32> {
    w.iter().map(|w| w.exp()).collect()
}

impl Op for Average {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let [k, v, w, u, mean, weight] = op::numbers(inputs)?;
        let Grid { batch, time, channels: c, .. } = self.grid;
        let decay = decays(w);
        let sizes = [batch * time * c, batch * c, batch * c];
        // SAFETY: the grid visits every row and column; `walk` writes the frames that exist, `blank` the others.
        let all = unsafe {
            outputs(sizes, |[y, last_m, last_s]| {
                self.grid.for_each(|row, columns| {
                    let own = row * c + columns.start;
                    let block = self.block(row, &columns, [k, v, &decay, u]);
                    let mut m = mean[own..own + columns.len()].to_vec();
                    let mut s = weight[own..own + columns.len()].to_vec();
                    let begin = row * time * c + columns.start;
                    walk(block, Some((y, begin)), &mut [], &mut m, &mut s);
                    self.blank(row, &columns, y);
                    copy(last_m.range(own, columns.len()), &m);
                    copy(last_s.range(own, columns.len()), &s);
                });
            })
        };
        Ok(all.into())
    }

    /// Recomputes the states, which the forward pass does not save.
    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let [k, v, w, u, mean, weight] = op::numbers(pass.inputs)?;
        let [dy, d_mean, d_weight] = op::numbers(pass.gradients)?;
        let Grid { batch, time, channels: c, .. } = self.grid;
        let decay = decays(w);
        let (long, short) = (batch * time * c, batch * c);
        // SAFETY: as in `forward`, with `walk_back`.
        let [dk, dv, dw, du, dm, ds] = unsafe {
            outputs([long, long, short, short, short, short], |[dk, dv, dw, du, dm, ds]| {
                self.grid.for_each(|row, columns| {
                    let (own, width) = (row * c + columns.start, columns.len());
                    let block = self.block(row, &columns, [k, v, &decay, u]);
                    let mut states = memory::zeros(block.frames * 2 * width);
                    let take = |from: &[f32]| from[own..own + width].to_vec();
                    walk(block, None, &mut states, &mut take(mean), &mut take(weight));
                    let given = |from: Option<&[f32]>| from.map_or(memory::zeros(width), take);
                    let (mut m, mut s) = (given(d_mean), given(d_weight));
                    let (mut d_decay, mut d_u) = (memory::zeros(width), memory::zeros(width));
                    let begin = row * time * c + columns.start;
                    let back = Back {
                        dm: &mut m,
                        ds: &mut s,
                        d_decay: &mut d_decay,
                        du: &mut d_u,
                        dk,
                        dv,
                        begin,
                    };
                    walk_back(block, back, dy.map(|dy| &dy[begin..(row + 1) * time * c]), &states);
                    self.blank(row, &columns, dk);
                    self.blank(row, &columns, dv);
                    for (output, values) in [(dw, &d_decay), (du, &d_u), (dm, &m), (ds, &s)] {
                        copy(output.range(own, width), values);
                    }
                });
            })
        };
        let sum = |rows: &[f32]| {
            let mut sum = memory::zeros(c);
            add_rows(&mut sum, rows);
            sum
        };
        let mut dw = sum(&dw);
        dw.iter_mut().zip(&decay).for_each(|(d, decay)| *d *= decay);
        Ok(vec![dk, dv, dw, sum(&du), dm, ds])
    }
}
