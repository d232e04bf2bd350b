//! sLSTM over a whole sequence, with the input projection outside the loop.

use candle_core::{Shape, Tensor};

use super::state::SlstmState;
use super::{card, composed};
use crate::form::Form;
use crate::lengths::{Lengths, check_lengths};
use crate::matmul::{View, matmul};
use crate::op::{self, Op, Pass};
use crate::pool::for_each_shard;
use crate::simd::{add_assign, dispatch, exp, sigmoid, softplus, tanh};
use crate::stabiliser::unit;
use crate::weights::Weight;
use crate::{Error, Result, memory, pool, tensor};

/// The states h `[b, t, h]` after each frame, and the state after the last frame (Beck et al. 2024, eq. 8 to 17, with
/// sigmoid forget gates).
///
/// `projected [b, t, 4h] = W x + b` in the order i, f, z, o; `weight [4h, h / heads]` in the same order. Each row
/// multiplies only the state of its own head (block-diagonal R, eq. 18).
///
/// ```text
/// i, f, z, o = projected + R h       m' >= max(log sigmoid(f) + m, i)
/// i' = e^(i - m')                    f' = e^(log sigmoid(f) + m - m')
/// c' = f' c + i' tanh(z)             n' = f' n + i'            h' = sigmoid(o) c' / n'
/// ```
///
/// Here m' is the least multiple of 1/64 that satisfies the bound. While n is 0, no frame has been seen, and the bound
/// is m' >= i. The stabiliser m only scales the stored state and no h depends on m, so no gradient flows through m and
/// all gradients are exact.
pub fn slstm(
    projected: &Tensor,
    weight: &Weight,
    heads: usize,
    state: &SlstmState,
    lengths: Lengths,
) -> Result<(Tensor, SlstmState)> {
    let (batch, time, width) = projected.dims3()?;
    let h = width / 4;
    let head = h / heads.max(1);
    if heads == 0 || head * heads != h {
        return Err(Error::mismatch("width of an sLSTM", format!("a multiple of {heads}"), h));
    }
    tensor::check_shape(
        "projected input of an sLSTM",
        &[batch, time, 4 * h],
        &[batch, time, width],
    )?;
    tensor::check_shape("recurrent weight of an sLSTM", &[4 * h, head], weight.dims())?;
    for part in [&state.h, &state.c, &state.n, &state.m] {
        tensor::check_shape("state of an sLSTM", &[batch, h], part.dims())?;
    }
    check_lengths(&lengths, batch, time)?;
    match Form::of(projected) {
        Form::Cpu => {}
        Form::Card => return card::slstm(projected, weight, heads, state, &lengths),
        Form::Composed => {
            return composed::slstm(projected, weight, heads, state, lengths);
        }
    }
    let op = Slstm {
        weight: weight.clone(),
        turned: tensor::with(weight, |weight| Ok(turned(weight, heads)))?,
        batch,
        time,
        h,
        heads,
        lengths,
        kept: Kept::default(),
    };
    let inputs = [projected, &state.h, &state.c, &state.n, &state.m.detach(), weight];
    let shapes = std::array::from_fn(|i| match i {
        0 => Shape::from((batch, time, h)),
        _ => Shape::from((batch, h)),
    });
    let [y, h, c, n, m] = op::apply_all(op, &inputs, shapes)?;
    Ok((y, SlstmState { h, c, n, m: m.detach() }))
}

/// The weight `[4h, head]` with the four gates of each head side by side: `[heads, 4 * head, head]`.
pub fn turned(weight: &[f32], heads: usize) -> Vec<f32> {
    let mut turned = memory::zeros(weight.len());
    let block = (weight.len() / (4 * heads).max(1)).max(1);
    for (at, to) in turned.chunks_exact_mut(block).enumerate() {
        let (own, gate) = (at / 4, at % 4);
        to.copy_from_slice(&weight[(gate * heads + own) * block..][..block]);
    }
    turned
}

struct Slstm {
    weight: Weight,
    turned: Vec<f32>,
    batch: usize,
    time: usize,
    h: usize,
    heads: usize,
    lengths: Lengths,
    kept: Kept,
}

/// Values of each frame, saved for the backward pass.
#[derive(Default)]
struct Kept {
    /// The states c and n, `[b, t, 2h]`.
    cells: Vec<f32>,
    /// The gates i', f', tanh(z), sigmoid(o), `[b, t, 4h]`.
    gates: Vec<f32>,
    /// The slope of the logarithm of the forget gate, sigmoid(-f), `[b, t, h]`.
    slopes: Vec<f32>,
}

/// Inputs and outputs of one frame of one row and head.
pub struct Frame<'a> {
    /// On entry `R h`, the four gates side by side; on return i', f', tanh(z), sigmoid(o).
    pub gates: &'a mut [f32],
    /// On return sigmoid(-f).
    pub slopes: &'a mut [f32],
    /// The cell state c before the frame, then after it.
    pub c: &'a mut [f32],
    /// The normaliser n before the frame, then after it.
    pub n: &'a mut [f32],
    /// The stabiliser m before the frame, then after it.
    pub m: &'a mut [f32],
    /// On return the output h.
    pub y: &'a mut [f32],
}

dispatch! {
    /// Computes one frame. `input` is the projected frame from the head's first column on; gates are `stride` apart.
    pub fn cell(frame: Frame<'_>, input: &[f32], stride: usize) {
        let Frame { gates, slopes, c, n, m, y } = frame;
        let w = y.len();
        let (xi, xf) = (&input[..w], &input[stride..stride + w]);
        let (xz, xo) = (&input[2 * stride..2 * stride + w], &input[3 * stride..3 * stride + w]);
        let (i, rest) = gates[..4 * w].split_at_mut(w);
        let (f, rest) = rest.split_at_mut(w);
        let (z, o) = rest.split_at_mut(w);
        let (slopes, c, n, m) = (&mut slopes[..w], &mut c[..w], &mut n[..w], &mut m[..w]);
        for k in 0..w {
            let (pre, forget) = (xi[k] + i[k], xf[k] + f[k]);
            let log = softplus(-forget);
            let now = unit(if n[k] == 0.0 { pre } else { pre.max(m[k] - log) });
            // Before the first frame there is no state to forget, whatever the change of m.
            f[k] = if n[k] == 0.0 { 0.0 } else { exp((m[k] - now) - log) };
            i[k] = exp(pre - now);
            z[k] = tanh(xz[k] + z[k]);
            o[k] = sigmoid(xo[k] + o[k]);
            slopes[k] = sigmoid(-forget);
            m[k] = now;
            c[k] = f[k] * c[k] + i[k] * z[k];
            n[k] = f[k] * n[k] + i[k];
            y[k] = o[k] * c[k] / n[k];
        }
    }
}

/// Inputs of the backward pass of one frame of one row and head.
#[derive(Clone, Copy)]
struct Before<'a> {
    /// The gates i', f', tanh(z), sigmoid(o), `stride` apart.
    gates: &'a [f32],
    stride: usize,
    slopes: &'a [f32],
    /// Cell state and normaliser after the frame; `before` has their values before the frame.
    after: [&'a [f32]; 2],
    before: [&'a [f32]; 2],
}

dispatch! {
    /// Writes the gradients of the four pre-activations, side by side, to `d`, from the gradient of h'. `dc` and `dn`
    /// hold the gradients of c' and n' on entry, and of c and n on return.
    fn cell_backward(d: &mut [f32], dc: &mut [f32], dn: &mut [f32], dh: &[f32], from: Before<'_>) {
        let w = dh.len();
        let s = from.stride;
        let (i, f) = (&from.gates[..w], &from.gates[s..s + w]);
        let (z, o) = (&from.gates[2 * s..2 * s + w], &from.gates[3 * s..3 * s + w]);
        let [c, n] = from.after.map(|x| &x[..w]);
        let [c0, n0] = from.before.map(|x| &x[..w]);
        let slopes = &from.slopes[..w];
        let (di, rest) = d[..4 * w].split_at_mut(w);
        let (df, rest) = rest.split_at_mut(w);
        let (dz, d_o) = rest.split_at_mut(w);
        let (dc, dn) = (&mut dc[..w], &mut dn[..w]);
        for k in 0..w {
            let ratio = c[k] / n[k];
            let through = dh[k] * o[k] / n[k];
            let (c_all, n_all) = (dc[k] + through, dn[k] - through * ratio);
            di[k] = (c_all * z[k] + n_all) * i[k];
            df[k] = (c_all * c0[k] + n_all * n0[k]) * f[k] * slopes[k];
            dz[k] = c_all * i[k] * (1.0 - z[k] * z[k]);
            d_o[k] = dh[k] * ratio * o[k] * (1.0 - o[k]);
            dc[k] = c_all * f[k];
            dn[k] = n_all * f[k];
        }
    }
}

impl Slstm {
    fn head(&self) -> usize {
        self.h / self.heads
    }

    fn length(&self, row: usize) -> usize {
        self.lengths.as_ref().map_or(self.time, |lengths| lengths[row])
    }

    /// Rows of the batch in one shard.
    fn shard(&self) -> usize {
        self.batch.div_ceil(4).max(8)
    }

    /// The recurrent weight of a head, `[4 * head, head]`.
    fn block(&self, head: usize) -> View<'_> {
        let w = self.head();
        View::rows(&self.turned[head * 4 * w * w..], 4 * w, w)
    }

    /// The output y, the last h, c, n and m, and the values saved for the backward pass.
    fn run(&self, inputs: &[&[f32]], track: bool) -> ([Vec<f32>; 5], Kept) {
        let (time, h, w) = (self.time, self.h, self.head());
        let projected = inputs[0];
        let mut y = memory::zeros(self.batch * time * h);
        let [mut state, mut c, mut n, mut m] = [1, 2, 3, 4].map(|i| inputs[i].to_vec());
        let kept = |width: usize| if track { time * width } else { 0 };
        let mut cells = memory::zeros(self.batch * kept(2 * h));
        let mut gates = memory::zeros(self.batch * kept(4 * h));
        let mut slopes = memory::zeros(self.batch * kept(h));
        let buffers = [
            (&mut y[..], time * h),
            (&mut state[..], h),
            (&mut c[..], h),
            (&mut n[..], h),
            (&mut m[..], h),
            (&mut cells[..], kept(2 * h)),
            (&mut gates[..], kept(4 * h)),
            (&mut slopes[..], kept(h)),
        ];
        for_each_shard(self.batch, self.shard(), buffers, |rows, buffers| {
            let [y, state, c, n, m, cells, gates, slopes] = buffers;
            let count = rows.len();
            let mut pre = memory::zeros(count * 4 * h);
            let mut slope = memory::zeros(h);
            for t in 0..time {
                for head in 0..self.heads {
                    let own = View::strided(&state[head * w..], count, w, h);
                    matmul(
                        &mut pre[head * 4 * w..],
                        4 * h,
                        own,
                        self.block(head).transposed(),
                        false,
                    );
                }
                for (i, row) in rows.clone().enumerate().filter(|(_, row)| t < self.length(*row)) {
                    let at = i * time + t;
                    let input = &projected[(row * time + t) * 4 * h..][..4 * h];
                    for head in 0..self.heads {
                        let own = i * h + head * w..i * h + (head + 1) * w;
                        let frame = Frame {
                            gates: &mut pre[i * 4 * h + head * 4 * w..][..4 * w],
                            slopes: &mut slope[head * w..],
                            c: &mut c[own.clone()],
                            n: &mut n[own.clone()],
                            m: &mut m[own],
                            y: &mut y[at * h + head * w..][..w],
                        };
                        cell(frame, &input[head * w..], h);
                    }
                    state[i * h..][..h].copy_from_slice(&y[at * h..][..h]);
                    if track {
                        cells[at * 2 * h..][..h].copy_from_slice(&c[i * h..][..h]);
                        cells[at * 2 * h + h..][..h].copy_from_slice(&n[i * h..][..h]);
                        gates[at * 4 * h..][..4 * h].copy_from_slice(&pre[i * 4 * h..][..4 * h]);
                        slopes[at * h..][..h].copy_from_slice(&slope);
                    }
                }
            }
        });
        ([y, state, c, n, m], Kept { cells, gates, slopes })
    }

    /// Gradients of the projected input and of the first h, c and n.
    fn through_time(
        &self,
        kept: &Kept,
        first: [&[f32]; 2],
        dy: Option<&[f32]>,
        d_last: [Vec<f32>; 3],
    ) -> [Vec<f32>; 4] {
        let (time, h, w) = (self.time, self.h, self.head());
        let mut d_projected = memory::zeros(self.batch * time * 4 * h);
        let [mut dh, mut dc, mut dn] = d_last;
        let buffers = [
            (&mut d_projected[..], time * 4 * h),
            (&mut dh[..], h),
            (&mut dc[..], h),
            (&mut dn[..], h),
        ];
        for_each_shard(self.batch, self.shard(), buffers, |rows, [d_projected, dh, dc, dn]| {
            let count = rows.len();
            // The gradients of a head's four gates side by side, and the gradients through the weight.
            let mut d = memory::zeros(count * 4 * h);
            for t in (0..time).rev() {
                for (i, row) in rows.clone().enumerate() {
                    let d = &mut d[i * 4 * h..][..4 * h];
                    if t >= self.length(row) {
                        d.fill(0.0);
                        continue;
                    }
                    let at = row * time + t;
                    let dh = &mut dh[i * h..][..h];
                    if let Some(dy) = dy {
                        add_assign(dh, &dy[at * h..][..h]);
                    }
                    for head in 0..self.heads {
                        let (own, end) = (head * w, (head + 1) * w);
                        let cells = |at: usize| {
                            let cells = &kept.cells[at * 2 * h..][..2 * h];
                            [&cells[own..end], &cells[h + own..h + end]]
                        };
                        let before = match t {
                            0 => first.map(|x| &x[row * h + own..row * h + end]),
                            _ => cells(at - 1),
                        };
                        let from = Before {
                            gates: &kept.gates[at * 4 * h + head * 4 * w..],
                            stride: w,
                            slopes: &kept.slopes[at * h + own..],
                            after: cells(at),
                            before,
                        };
                        let (dc, dn) = (&mut dc[i * h + own..], &mut dn[i * h + own..]);
                        let d = &mut d[head * 4 * w..][..4 * w];
                        cell_backward(d, dc, dn, &dh[own..end], from);
                        let to = &mut d_projected[(i * time + t) * 4 * h..][..4 * h];
                        for (gate, d) in d.chunks_exact(w).enumerate() {
                            to[gate * h + own..gate * h + end].copy_from_slice(d);
                        }
                    }
                    // h enters h' only through the gates, so the gradient of h comes through the weight alone.
                    dh.fill(0.0);
                }
                for head in 0..self.heads {
                    let own = View::strided(&d[head * 4 * w..], count, 4 * w, 4 * h);
                    matmul(&mut dh[head * w..], h, own, self.block(head), true);
                }
            }
        });
        [d_projected, dh, dc, dn]
    }

    /// Computes `dR [4h, head]` by a product for each gate and head.
    fn weight_gradient(&self, dw: &mut [f32], d: &[f32], previous: &[f32], accumulate: bool) {
        let (h, w, frames) = (self.h, self.head(), self.batch * self.time);
        pool::for_each_rows(dw, w, w, |first, dw| {
            let own = first % h / w * w;
            let d = View::strided(&d[first..], frames, w, 4 * h).transposed();
            matmul(dw, w, d, View::strided(&previous[own..], frames, w, h), accumulate);
        });
    }

    /// The state h before each frame.
    fn previous(&self, y: &[f32], first: &[f32]) -> Vec<f32> {
        let mut previous = memory::with_capacity(y.len());
        let rows = y.chunks_exact(self.time * self.h).zip(first.chunks_exact(self.h));
        for (y, first) in rows {
            previous.extend_from_slice(first);
            previous.extend_from_slice(&y[..(self.time - 1) * self.h]);
        }
        previous
    }
}

impl Op for Slstm {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let (outputs, kept) = self.run(inputs, track);
        self.kept = kept;
        Ok(outputs.into())
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let &Pass { inputs, outputs, gradients, .. } = pass;
        let d_last = [1, 2, 3].map(|i| match gradients[i] {
            Some(d) => memory::copied(d),
            None => memory::zeros(self.batch * self.h),
        });
        let first = [inputs[2], inputs[3]];
        let [d, dh, dc, dn] = self.through_time(&self.kept, first, gradients[0], d_last);
        let previous = self.previous(outputs[0], inputs[1]);
        self.weight.accumulate(|dw, accumulate| {
            self.weight_gradient(dw, &d, &previous, accumulate);
        });
        Ok(vec![d, dh, dc, dn, vec![], vec![]])
    }
}
