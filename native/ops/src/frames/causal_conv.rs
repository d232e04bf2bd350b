//! Causal depthwise convolution: each channel sees its own last `k` inputs.

use std::mem::MaybeUninit;
use std::ops::Range;

use candle_core::Tensor;

use super::{card, composed};
use crate::columns::{filled, filled_and_summed};
use crate::form::Form;
use crate::lengths::{Lengths, check_lengths};
use crate::op::{self, Op, Pass};
use crate::simd::{LANES, add_assign, dispatch, load, mul_add, sigmoid_with, store};
use crate::uninit::{self, zeroed};
use crate::{Error, Result, memory, tensor};

/// `y [b, t, c]` and the state after the last frame (the convolution of Gu and Dao 2023, fig. 3).
///
/// ```text
/// y[t] = f(bias + sum over j < k of weight[:, 0, j] * x[t - (k - 1) + j])
/// ```
///
/// Here `f` is SiLU or the identity. `x [b, t, c]`, `weight [c, 1, k]`, `bias [c]`; `state [b, c, k - 1]` holds the
/// inputs before the first frame, oldest first. Row r has `lengths[r]` frames: later ones give 0 and do not enter the
/// state.
pub fn causal_conv(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    state: &Tensor,
    silu: bool,
    lengths: Lengths,
) -> Result<(Tensor, Tensor)> {
    let (batch, time, channels) = x.dims3()?;
    let window = Window::of([batch, time, channels], weight, bias, state, lengths.clone())?;
    match Form::of(x) {
        Form::Cpu => {}
        Form::Card if window.kernel <= card::TAPS => {
            return card::causal_conv(x, weight, bias, state, silu, &lengths);
        }
        Form::Card | Form::Composed => {
            return composed::causal_conv(x, weight, bias, state, silu, lengths);
        }
    }
    let all: Vec<&Tensor> = [x, weight, state].into_iter().chain(bias).collect();
    let shapes = [x.shape().clone(), state.shape().clone()];
    let [y, state] = op::apply_all(Conv { window, silu }, &all, shapes)?;
    Ok((y, state))
}

/// Shapes of one convolution.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    batch: usize,
    time: usize,
    channels: usize,
    kernel: usize,
    lengths: Lengths,
}

impl Window {
    /// Checks all shapes against an input `[b, t, c]`.
    pub(crate) fn of(
        [batch, time, channels]: [usize; 3],
        weight: &Tensor,
        bias: Option<&Tensor>,
        state: &Tensor,
        lengths: Lengths,
    ) -> Result<Self> {
        let (_, _, kernel) = weight.dims3()?;
        tensor::check_shape(
            "weight of a causal convolution",
            &[channels, 1, kernel.max(1)],
            weight.dims(),
        )?;
        if let Some(bias) = bias {
            tensor::check_shape("bias of a causal convolution", &[channels], bias.dims())?;
        }
        tensor::check_shape(
            "state of a causal convolution",
            &[batch, channels, kernel - 1],
            state.dims(),
        )?;
        check_lengths(&lengths, batch, time)?;
        if batch * time * channels == 0 {
            return Err(Error::mismatch("frames of a window", "at least 1", 0));
        }
        Ok(Window { batch, time, channels, kernel, lengths })
    }

    /// The number of frames that exist in a row.
    fn length(&self, row: usize) -> usize {
        self.lengths.as_ref().map_or(self.time, |l| l[row])
    }

    /// Rows of the batch in one shard: at most eight shards, each large enough to pay for a thread.
    fn shard(&self) -> usize {
        const SMALLEST: usize = 1 << 14;
        self.batch.div_ceil(8).max(SMALLEST.div_ceil((self.time * self.channels).max(1)))
    }

    /// Joins the state and the first inputs, `[2 (k - 1), c]`: all inputs of the frames that see the state.
    fn head(&self, x: &[f32], state: &[f32]) -> Vec<f32> {
        let (c, past) = (self.channels, self.kernel - 1);
        let mut head = memory::zeros(2 * past * c);
        let frames = past.min(self.time) * c;
        head[past * c..][..frames].copy_from_slice(&x[..frames]);
        turn(&mut head[..past * c], state, c, past);
        head
    }
}

/// `to [n, m] = from [m, n]` transposed.
fn turn(to: &mut [f32], from: &[f32], m: usize, n: usize) {
    if n == 0 {
        return;
    }
    for (i, row) in from.chunks_exact(n).enumerate() {
        for (j, v) in row.iter().enumerate() {
            to[j * m + i] = *v;
        }
    }
}

/// Weights as `[k, c]`, so that channels are contiguous, and the bias.
struct Taps {
    weight: Vec<f32>,
    bias: Vec<f32>,
    silu: bool,
}

impl Taps {
    fn new(given: &[f32], bias: &[f32], channels: usize, kernel: usize, silu: bool) -> Self {
        let mut weight = memory::zeros(channels * kernel);
        turn(&mut weight, given, channels, kernel);
        let bias = if bias.is_empty() { memory::zeros(channels) } else { bias.to_vec() };
        Taps { weight, bias, silu }
    }
}

/// `bias + sum of weight * x` for `n` channels from `at` on.
#[inline(always)]
fn convolve<const FMA: bool>(x: &[f32], taps: &Taps, at: usize, n: usize) -> [f32; LANES] {
    let c = taps.bias.len();
    let mut sum = load(&taps.bias, at, n);
    for (weight, x) in taps.weight.chunks_exact(c).zip(x.chunks_exact(c)) {
        let (w, x) = (load(weight, at, n), load(x, at, n));
        for i in 0..LANES {
            sum[i] = mul_add::<FMA>(w[i], x[i], sum[i]);
        }
    }
    sum
}

/// The output of one frame for `n` channels from `at` on; the frame sees the first k frames of `x`.
#[inline(always)]
fn output<const FMA: bool>(
    y: &mut [MaybeUninit<f32>],
    x: &[f32],
    taps: &Taps,
    at: usize,
    n: usize,
) {
    let mut sum = convolve::<FMA>(x, taps, at, n);
    if taps.silu {
        for s in &mut sum {
            *s *= sigmoid_with::<FMA>(*s);
        }
    }
    uninit::store(y, at, n, sum);
}

dispatch! {
    /// The frames of one row; frame i of `y` sees frames i to i + k - 1 of `x`.
    fn forward(y: &mut [MaybeUninit<f32>], x: &[f32], taps: &Taps) {
        let c = taps.bias.len();
        let whole = c - c % LANES;
        for (i, y) in y.chunks_exact_mut(c).enumerate() {
            for at in (0..whole).step_by(LANES) {
                output::<FMA>(y, &x[i * c..], taps, at, LANES);
            }
            if whole < c {
                output::<FMA>(y, &x[i * c..], taps, whole, c - whole);
            }
        }
    }
}

/// Accumulated gradients of the inputs `[.., c]`, of the weight `[k, c]` and of the bias.
struct Gradients<'a> {
    dx: &'a mut [f32],
    dw: &'a mut [f32],
    db: &'a mut [f32],
}

impl Gradients<'_> {
    /// Adds the gradients through one frame for `n` channels from `at` on; the frame sees the first k frames of `x` and
    /// `dx`.
    #[inline(always)]
    fn add<const FMA: bool>(
        &mut self,
        frame: usize,
        (dy, x): (&[f32], &[f32]),
        taps: &Taps,
        at: usize,
        n: usize,
    ) {
        let c = taps.bias.len();
        let mut d = load(dy, at, n);
        if taps.silu {
            let sum = convolve::<FMA>(x, taps, at, n);
            for i in 0..LANES {
                let s = sigmoid_with::<FMA>(sum[i]);
                d[i] *= s * (1.0 + sum[i] * (1.0 - s));
            }
        }
        let mut to = load(self.db, at, n);
        for i in 0..LANES {
            to[i] += d[i];
        }
        store(self.db, at, n, to);
        let rows = x.chunks_exact(c).zip(self.dx[frame * c..].chunks_exact_mut(c));
        let taps = taps.weight.chunks_exact(c).zip(self.dw.chunks_exact_mut(c));
        for ((x, dx), (weight, dw)) in rows.zip(taps) {
            let (x, w) = (load(x, at, n), load(weight, at, n));
            let (mut to_x, mut to_w) = (load(dx, at, n), load(dw, at, n));
            for i in 0..LANES {
                to_x[i] = mul_add::<FMA>(w[i], d[i], to_x[i]);
                to_w[i] = mul_add::<FMA>(d[i], x[i], to_w[i]);
            }
            store(dx, at, n, to_x);
            store(dw, at, n, to_w);
        }
    }
}

dispatch! {
    /// Adds the gradients through the frames of `dy`; `dx` is laid out as `x`.
    fn backward(to: &mut Gradients<'_>, dy: &[f32], x: &[f32], taps: &Taps) {
        let c = taps.bias.len();
        let whole = c - c % LANES;
        for (i, dy) in dy.chunks_exact(c).enumerate() {
            for at in (0..whole).step_by(LANES) {
                to.add::<FMA>(i, (dy, &x[i * c..]), taps, at, LANES);
            }
            if whole < c {
                to.add::<FMA>(i, (dy, &x[i * c..]), taps, whole, c - whole);
            }
        }
    }
}

pub(crate) struct Conv {
    pub(crate) window: Window,
    pub(crate) silu: bool,
}

impl Conv {
    fn outputs(&self, x: &[f32], taps: &Taps, state: &[f32]) -> Vec<f32> {
        let Window { batch, time, channels: c, kernel, .. } = self.window;
        let past = kernel - 1;
        let work = |rows: Range<usize>, [y]: [&mut [MaybeUninit<f32>]; 1]| {
            for (y, row) in y.chunks_exact_mut(time * c).zip(rows) {
                let x = &x[row * time * c..][..time * c];
                let head = self.window.head(x, &state[row * c * past..][..c * past]);
                let (y, missing) = y.split_at_mut(self.window.length(row) * c);
                zeroed(missing);
                let (first, rest) = y.split_at_mut(self.seeing_state(row) * c);
                forward(first, &head, taps);
                forward(rest, x, taps);
            }
        };
        // SAFETY: each row writes all of its own values.
        let [y] = unsafe { filled(batch, self.window.shard(), [time * c], work) };
        y
    }

    /// The number of frames of a row that see the state.
    fn seeing_state(&self, row: usize) -> usize {
        self.window.length(row).min(self.window.kernel - 1)
    }

    /// Gradients of `x`, the weight, the state and the bias; the shards' gradients of weight and bias are summed in the
    /// order of the shards.
    fn gradients(&self, x: &[f32], taps: &Taps, state: &[f32], dy: &[f32]) -> [Vec<f32>; 4] {
        let Window { batch, time, channels: c, kernel, .. } = self.window;
        let past = kernel - 1;
        let zero = || memory::zeros((kernel + 1) * c);
        let work = |rows: Range<usize>,
                    [dx, d_state]: [&mut [MaybeUninit<f32>]; 2],
                    part: &mut Option<_>| {
            let (dw, db) = part.get_or_insert_with(zero).split_at_mut(kernel * c);
            for (i, (row, dx)) in rows.zip(dx.chunks_exact_mut(time * c)).enumerate() {
                let (dx, d_state) = (zeroed(dx), zeroed(&mut d_state[i * c * past..][..c * past]));
                let span = row * time * c..(row + 1) * time * c;
                let (x, dy) = (&x[span.clone()], &dy[span]);
                let head = self.window.head(x, &state[row * c * past..][..c * past]);
                let mut d_head = memory::zeros(head.len());
                let (first, rest) =
                    dy[..self.window.length(row) * c].split_at(self.seeing_state(row) * c);
                backward(&mut Gradients { dx, dw, db }, rest, x, taps);
                backward(&mut Gradients { dx: &mut d_head, dw, db }, first, &head, taps);
                let (d_past, d_first) = d_head.split_at(past * c);
                let frames = past.min(time) * c;
                add_assign(&mut dx[..frames], &d_first[..frames]);
                turn(d_state, d_past, past, c);
            }
        };
        let (widths, shard) = ([time * c, c * past], self.window.shard());
        // SAFETY: each row writes all of its own values.
        let ([dx, d_state], parts) = unsafe { filled_and_summed(batch, shard, widths, work) };
        let mut sum = zero();
        parts.iter().flatten().for_each(|part| add_assign(&mut sum, part));
        let db = sum.split_off(kernel * c);
        let mut dw = memory::zeros(kernel * c);
        turn(&mut dw, &sum, kernel, c);
        [dx, dw, d_state, db]
    }

    fn taps(&self, inputs: &[&[f32]]) -> Taps {
        let Window { channels, kernel, .. } = self.window;
        let bias = inputs.get(3).copied().unwrap_or_default();
        Taps::new(inputs[1], bias, channels, kernel, self.silu)
    }

    /// The last `k - 1` inputs of each row, `[b, c, k - 1]`.
    fn carry(&self, x: &[f32], state: &[f32]) -> Vec<f32> {
        let Window { time, channels: c, kernel, .. } = self.window;
        let past = kernel - 1;
        let mut next = memory::zeros(state.len());
        for (row, next) in next.chunks_exact_mut((c * past).max(1)).enumerate() {
            for (slot, source) in self.sources(row) {
                let (from, step) = match source {
                    Source::Frame(t) => (&x[(row * time + t) * c..], 1),
                    Source::Slot(s) => (&state[row * c * past + s..], past),
                };
                let from = from.iter().step_by(step);
                next[slot..].iter_mut().step_by(past).zip(from).for_each(|(next, v)| *next = *v);
            }
        }
        next
    }

    /// Adds the gradient of the state after the sequence.
    fn carry_backward(&self, dx: &mut [f32], d_state: &mut [f32], d_next: &[f32]) {
        let Window { time, channels: c, kernel, .. } = self.window;
        let past = kernel - 1;
        for (row, d_next) in d_next.chunks_exact((c * past).max(1)).enumerate() {
            for (slot, source) in self.sources(row) {
                let (to, step) = match source {
                    Source::Frame(t) => (&mut dx[(row * time + t) * c..], 1),
                    Source::Slot(s) => (&mut d_state[row * c * past + s..], past),
                };
                let d_slot = d_next[slot..].iter().step_by(past);
                to.iter_mut().step_by(step).zip(d_slot).for_each(|(to, d)| *to += d);
            }
        }
    }

    /// The source of each slot of the state after a row.
    fn sources(&self, row: usize) -> impl Iterator<Item = (usize, Source)> {
        let (past, length) = (self.window.kernel - 1, self.window.length(row));
        (0..past).map(move |slot| match (slot + length).checked_sub(past) {
            Some(frame) => (slot, Source::Frame(frame)),
            None => (slot, Source::Slot(slot + length)),
        })
    }
}

enum Source {
    /// A frame of this window.
    Frame(usize),
    /// A slot of the state before the sequence.
    Slot(usize),
}

/// Inputs are x, weight, state, and a bias if there is one.
impl Op for Conv {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let (x, state) = (inputs[0], inputs[2]);
        Ok(vec![self.outputs(x, &self.taps(inputs), state), self.carry(x, state)])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let &Pass { inputs, gradients, .. } = pass;
        let (x, state) = (inputs[0], inputs[2]);
        let silent = memory::zeros(if gradients[0].is_none() { x.len() } else { 0 });
        let dy = gradients[0].unwrap_or(&silent);
        let [mut dx, dw, mut d_state, db] = self.gradients(x, &self.taps(inputs), state, dy);
        if let Some(d_next) = gradients[1] {
            self.carry_backward(&mut dx, &mut d_state, d_next);
        }
        let mut all = vec![dx, dw, d_state];
        all.extend((inputs.len() > 3).then_some(db));
        Ok(all)
    }
}
