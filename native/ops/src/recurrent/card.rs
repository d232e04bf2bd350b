//! LSTM, GRU and sLSTM on a card: each frame runs a product with the recurrent weight and a kernel of the cell, or, if
//! the product is small, one kernel for both. Longer sequences of narrow LSTMs and GRUs have one launch for all frames
//! ([`walk`]). Products that do not depend on the previous frame are computed for all frames at once, before or after the
//! frames. The file is long because the three cells share one walk over the frames.
//!
//! Operands of products have the precision of [`Precision::current`]; for f16 they are f32.

use candle_core::{DType, Result, Tensor, bail};
use sconce_cuda::kernels::RECURRENT;

use self::walk::Way;
use super::state::SlstmState;
use crate::Precision;
use crate::columns::card::column_sums;
use crate::device::launch::{Launch, MOST_ALONG_Y, output, pointer, suffix, unwritten};
use crate::lengths::{Lengths, on_card};
use crate::matmul::card::{nn, nt, rounded, tn};
use crate::matmul::matrices::{Matrices, product};
use crate::op::card::{Op, Pass, apply, apply_all};
use crate::recurrent::Gates;
use crate::weights::Weight;

mod walk;

/// Threads of a block.
const THREADS: usize = 128;
/// For a block that also computes a product: its threads, rows of the batch and state values.
const WHOLE_THREADS: usize = 256;
const TILE: [usize; 2] = [32, 16];
/// Maximum multiplications of a small product. For larger ones cuBLAS is worth a launch, because it tiles better and
/// uses bf16 matrix units.
const SMALL: usize = 1 << 26;
/// Bytes that a kernel with a product loads at once.
const AT_ONCE: u64 = 16;

pub(super) fn lstm(
    x: &Tensor,
    gates: &Gates,
    h0: &Tensor,
    c0: &Tensor,
    lengths: &Lengths,
) -> crate::Result<(Tensor, Tensor, Tensor)> {
    let op = Lstm { frames: Frames::of(x, h0, lengths)? };
    let [bias_ih, bias_hh, first] = f32s([&gates.bias_ih, &gates.bias_hh, c0])?;
    let inputs = [x, &gates.weight_ih, &gates.weight_hh, &bias_ih, &bias_hh, h0, &first];
    let [y, c] = apply_all(op, &inputs)?;
    Ok((y.clone(), last(&y)?, c.to_dtype(c0.dtype())?))
}

pub(super) fn gru(
    x: &Tensor,
    gates: &Gates,
    h0: &Tensor,
    lengths: &Lengths,
) -> crate::Result<(Tensor, Tensor)> {
    let op = Gru { frames: Frames::of(x, h0, lengths)? };
    let [bias_ih, bias_hh] = f32s([&gates.bias_ih, &gates.bias_hh])?;
    let y = apply(op, &[x, &gates.weight_ih, &gates.weight_hh, &bias_ih, &bias_hh, h0])?;
    Ok((y.clone(), last(&y)?))
}

pub(super) fn slstm(
    projected: &Tensor,
    weight: &Weight,
    heads: usize,
    state: &SlstmState,
    lengths: &Lengths,
) -> crate::Result<(Tensor, SlstmState)> {
    let frames = Frames::of(projected, &state.h, lengths)?;
    let [c0, n0, m0] = f32s([&state.c, &state.n, &state.m])?;
    let op = Slstm { m0: m0.detach(), heads, frames };
    let [y, h, c, n, m] = apply_all(op, &[projected, weight, &state.h, &c0, &n0])?;
    let given = |t: Tensor| t.to_dtype(state.c.dtype());
    Ok((y, SlstmState { h, c: given(c)?, n: given(n)?, m: given(m.detach())? }))
}

fn f32s<const N: usize>(tensors: [&Tensor; N]) -> crate::Result<[Tensor; N]> {
    let tensors = tensors.into_iter().map(|t| t.to_dtype(DType::F32));
    crate::op::take(tensors.collect::<Result<_>>()?)
}

/// The last frame `[b, h]` of `y [b, t, h]`.
fn last(y: &Tensor) -> Result<Tensor> {
    y.narrow(1, y.dim(1)? - 1, 1)?.squeeze(1)
}

/// Shapes of sequences of states `[b, t, h]`, and how their products are computed.
struct Frames {
    batch: usize,
    time: usize,
    width: usize,
    lengths: Option<Tensor>,
    precision: Precision,
}

impl Frames {
    /// The shapes of inputs `x [b, t, ..]` and first states `[b, h]`.
    fn of(x: &Tensor, first: &Tensor, lengths: &Lengths) -> crate::Result<Self> {
        let precision = match Precision::current() {
            Precision::F16 => Precision::F32,
            kept => kept,
        };
        let lengths = on_card(lengths, x)?;
        Ok(Frames { batch: x.dim(0)?, time: x.dim(1)?, width: first.dim(1)?, lengths, precision })
    }

    /// The dtype of product operands for inputs `x`.
    fn operands(&self, x: &Tensor) -> DType {
        if self.precision == Precision::Bf16 { DType::BF16 } else { x.dtype() }
    }

    /// An uninitialised `[b, t, parts * h]` on the device of `x`.
    fn sequence(&self, parts: usize, dtype: DType, x: &Tensor) -> Result<Tensor> {
        unwritten((self.batch, self.time, parts * self.width), dtype, x)
    }

    /// An output `[b, t, h]` on the device of `x`.
    fn output(&self, x: &Tensor, track: bool) -> Result<Tensor> {
        output((self.batch, self.time, self.width), x.dtype(), x, track)
    }

    /// An output `[b, h]` on the device of `x`.
    fn last(&self, dtype: DType, x: &Tensor, track: bool) -> Result<Tensor> {
        output((self.batch, self.width), dtype, x, track)
    }

    /// An uninitialised `[b, h]` on the device of `x`.
    fn state(&self, dtype: DType, x: &Tensor) -> Result<Tensor> {
        unwritten((self.batch, self.width), dtype, x)
    }

    /// Two buffers for states, used alternately for the states before and after a frame: a kernel with a product must
    /// not overwrite states that other blocks still read.
    fn two_states(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        Ok([self.state(self.operands(x), x)?, self.state(self.operands(x), x)?])
    }

    /// A buffer for the gates of a frame, `[b, parts * h]`, on the device of `x`.
    fn gates(&self, parts: usize, dtype: DType, x: &Tensor) -> Result<Tensor> {
        unwritten((self.batch, parts * self.width), dtype, x)
    }

    /// `x W^T`, `[b, t, n]`, from rounded operands.
    fn projected(&self, x: &Tensor, weight: &Tensor, dtype: DType) -> Result<Tensor> {
        nt(x, weight, dtype)?.reshape((self.batch, self.time, weight.dim(0)?))
    }

    /// `gates [b, n] = h W^T` of `h [b, h]`.
    fn recur(&self, gates: &Tensor, h: &Tensor, weight: &Tensor) -> Result<()> {
        let (n, width) = (weight.dim(0)?, self.width);
        let (h, weight) = (Matrices::rows(h, width), Matrices::rows(weight, width).turned());
        product(Matrices::rows(gates, n), h, weight, 1, [self.batch, n, width])
    }

    /// `dh [b, h] = d W` of frame t of `d [b, t, n]`.
    fn back(&self, dh: &Tensor, d: &Tensor, weight: &Tensor, t: usize) -> Result<()> {
        let (n, width) = (weight.dim(0)?, self.width);
        let d = Matrices::new(d, [t * n, 0, self.time * n]);
        let (dh, weight) = (Matrices::rows(dh, width), Matrices::rows(weight, width));
        product(dh, d, weight, 1, [self.batch, width, n])
    }

    /// Whether one kernel computes both the cell and the frame's product of these operands, which has `gates` times the
    /// width.
    fn is_whole(&self, gates: usize, operands: &[&Tensor]) -> Result<bool> {
        let Frames { batch, width, .. } = *self;
        let fits = width.is_multiple_of(TILE[1]) && batch <= MOST_ALONG_Y * TILE[0];
        let small = gates * batch * width * width <= SMALL;
        let places = operands.iter().map(|x| pointer(x)).collect::<Result<Vec<_>>>()?;
        Ok(fits && small && places.iter().all(|place| place.is_multiple_of(AT_ONCE)))
    }

    fn launch(&self, cell: &str, step: &str, x: &Tensor) -> Result<Launch> {
        let mixed = self.operands(x) != x.dtype();
        let suffix = if mixed { "mixed" } else { suffix(x) };
        Launch::of(RECURRENT, &format!("{cell}_{suffix}_{step}"), x)
    }

    /// Adds the last arguments, which all kernels share.
    fn end(&self, launch: Launch, t: usize) -> Result<Launch> {
        let launch = launch.option(self.lengths.as_ref())?.int(t).int(self.time);
        Ok(launch.int(self.batch).int(self.width))
    }

    fn run_whole(&self, launch: Launch, t: usize) -> Result<()> {
        let grid = [self.width.div_ceil(TILE[1]), self.batch.div_ceil(TILE[0]), 1];
        // SAFETY: as frame_product.cuh requires, a block for each tile of the batch's states.
        unsafe { self.end(launch, t)?.run(grid, [WHOLE_THREADS, 1, 1], 0) }
    }

    fn run(&self, launch: Launch, t: usize) -> Result<()> {
        let threads = self.width.next_multiple_of(32).min(THREADS);
        let launch = self.end(launch, t)?;
        let grid = [self.width.div_ceil(threads), self.batch.min(MOST_ALONG_Y), 1];
        // SAFETY: as recurrent.cu requires, a thread for each channel, which walks over the rows.
        unsafe { launch.run(grid, [threads, 1, 1], 0) }
    }
}

fn all<'a>(launch: Launch, tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<Launch> {
    tensors.into_iter().try_fold(launch, Launch::tensor)
}

/// The gradient of the first state: the carried gradient plus the gradient through the weight.
fn first_gradient(carried: &Tensor, through: &Tensor, first: &Tensor) -> Result<Tensor> {
    (carried + through)?.to_dtype(first.dtype())
}

/// Whether the gradient through the weight is needed after frame t of an LSTM or a GRU: kernels with a product compute
/// it themselves, and before the first frame it is needed only for the gradient of h0.
fn reads_through(pass: &Pass, whole: bool, t: usize) -> bool {
    if t == 0 { pass.wanted[5] } else { !whole }
}

/// Operands of the products of an LSTM or a GRU: x and both weights.
fn operands(inputs: &[Tensor], frames: &Frames) -> Result<[Tensor; 3]> {
    let [x, weight_ih, weight_hh, ..] = inputs else {
        bail!("a recurrent layer takes an input and weights")
    };
    let round = |t| rounded(t, frames.precision);
    Ok([round(x)?, round(weight_ih)?, round(weight_hh)?])
}

/// The gradients of x, both weights and both biases, which LSTM and GRU share.
fn layer_gradients(
    pass: &Pass,
    [d_projected, d_recurrent, previous]: [&Tensor; 3],
) -> Result<Vec<Option<Tensor>>> {
    let ([x, weight_ih, weight_hh, ..], [x_operand, ih_operand, ..]) = (pass.inputs, pass.kept)
    else {
        bail!("a recurrent layer takes an input and weights")
    };
    let wanted = |i: usize| pass.wanted[i];
    let dx = || nn(d_projected, ih_operand, x.dtype())?.reshape(x.shape());
    let bias_ih = wanted(3).then(|| column_sums(d_projected)).transpose()?;
    let bias_hh = match &bias_ih {
        // Separate tensors, because gradients are summed over several cards in place.
        Some(sums) if d_recurrent.id() == d_projected.id() => Some(sums.copy()?),
        _ => wanted(4).then(|| column_sums(d_recurrent)).transpose()?,
    };
    Ok(vec![
        wanted(0).then(dx).transpose()?,
        wanted(1).then(|| tn(d_projected, x_operand, weight_ih.dtype())).transpose()?,
        wanted(2).then(|| tn(d_recurrent, previous, weight_hh.dtype())).transpose()?,
        bias_ih,
        bias_hh,
    ])
}

/// The names of the cells in kernels, and their gates.
const LSTM: (&str, usize) = ("lstm", 4);
const GRU: (&str, usize) = ("gru", 3);

/// Inputs are x, both weights, both biases, h0 and c0.
struct Lstm {
    frames: Frames,
}

impl Op for Lstm {
    /// The second output is the last c.
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, _, _, bias_ih, bias_hh, h0, c0] = inputs else {
            bail!("an LSTM takes seven inputs")
        };
        let frames = &self.frames;
        let [x_operand, weight_ih, weight_hh] = operands(inputs, frames)?;
        // The gates overwrite the projected inputs.
        let gates = frames.projected(&x_operand, &weight_ih, x.dtype())?;
        let y = frames.output(x, track)?;
        let cells = track.then(|| frames.sequence(1, DType::F32, x)).transpose()?;
        let c = frames.last(DType::F32, x, track)?;
        let kept = |launch: Launch| launch.option(track.then_some(&gates))?.option(cells.as_ref());
        if let Some(walk) = frames.walk(LSTM, Way::Forward, x, &[h0, &weight_hh, &y])? {
            walk.run(|launch| {
                let first = [&gates, &weight_hh, bias_ih, bias_hh, h0, c0, &y, &c];
                kept(all(launch, first)?)
            })?;
        } else {
            let recurrent = frames.gates(4, DType::F32, x)?;
            let first = rounded(h0, frames.precision)?;
            let states = frames.two_states(x)?;
            let whole = frames.is_whole(4, &[&first, &weight_hh])?;
            for t in 0..frames.time {
                let before = if t == 0 { &first } else { &states[(t - 1) % 2] };
                let launch = if whole {
                    all(frames.launch("lstm", "whole_forward", x)?, [&gates, before, &weight_hh])?
                } else {
                    frames.recur(&recurrent, before, &weight_hh)?;
                    all(frames.launch("lstm", "forward", x)?, [&gates, &recurrent])?
                };
                let launch = all(launch, [bias_ih, bias_hh, h0, if t == 0 { c0 } else { &c }])?;
                let launch = kept(all(launch, [&y, &c, &states[t % 2]])?)?;
                if whole { frames.run_whole(launch, t)? } else { frames.run(launch, t)? }
            }
        }
        Ok((y, [c, x_operand, weight_ih, weight_hh, gates].into_iter().chain(cells).collect()))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, .., h0, c0], [_, _, weight_hh, gates, cells]) = (pass.inputs, pass.kept) else {
            bail!("an LSTM takes seven inputs")
        };
        let frames = &self.frames;
        let of = frames.operands(x);
        let (dgates, previous) = (frames.sequence(4, of, x)?, frames.sequence(1, of, x)?);
        let state = || frames.state(DType::F32, x);
        let (through, dh, dc, d_last) = (state()?, state()?, state()?, pass.d_others[0].as_ref());
        if let Some(walk) = frames.walk(LSTM, Way::Backward, x, &[&dgates])? {
            walk.run(|launch| {
                let launch = all(launch, [gates, c0, cells, h0, pass.y, pass.dy, weight_hh])?;
                all(launch.option(d_last)?, [&dh, &dc, &dgates, &previous])
            })?;
            if pass.wanted[5] {
                frames.back(&through, &dgates, weight_hh, 0)?;
            }
        } else {
            let whole = frames.is_whole(4, &[&dgates, weight_hh])?;
            for t in (0..frames.time).rev() {
                let later = t + 1 < frames.time;
                let step = if whole { "whole_backward" } else { "backward" };
                let launch = frames.launch("lstm", step, x)?;
                let launch = all(launch, [gates, c0, cells, h0, pass.y, pass.dy])?;
                let launch = match whole {
                    true => launch.tensor(weight_hh)?,
                    false => launch.option(later.then_some(&through))?,
                };
                let launch = launch.option(later.then_some(&dh))?;
                let launch = launch.option(if later { Some(&dc) } else { d_last })?;
                let launch = all(launch, [&dh, &dc, &dgates, &previous])?;
                if whole {
                    frames.run_whole(launch, t)?
                } else {
                    frames.run(launch, t)?
                }
                if reads_through(pass, whole, t) {
                    frames.back(&through, &dgates, weight_hh, t)?;
                }
            }
        }
        let mut gradients = layer_gradients(pass, [&dgates, &dgates, &previous])?;
        let dh0 = || first_gradient(&dh, &through, h0);
        gradients.extend([pass.wanted[5].then(dh0).transpose()?, Some(dc)]);
        Ok(gradients)
    }
}

/// Inputs are x, both weights, both biases and h0.
struct Gru {
    frames: Frames,
}

impl Op for Gru {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, _, _, bias_ih, bias_hh, h0] = inputs else { bail!("a GRU takes six inputs") };
        let frames = &self.frames;
        let [x_operand, weight_ih, weight_hh] = operands(inputs, frames)?;
        let gates = frames.projected(&x_operand, &weight_ih, x.dtype())?;
        let y = frames.output(x, track)?;
        let reset = track.then(|| frames.sequence(1, x.dtype(), x)).transpose()?;
        let (first_h, h) = (h0.to_dtype(DType::F32)?, frames.state(DType::F32, x)?);
        let kept = |launch: Launch| launch.option(track.then_some(&gates))?.option(reset.as_ref());
        if let Some(walk) = frames.walk(GRU, Way::Forward, x, &[h0, &weight_hh, &y])? {
            walk.run(|launch| {
                let first = [&gates, &weight_hh, bias_ih, bias_hh, h0, &first_h, &y, &h];
                kept(all(launch, first)?)
            })?;
        } else {
            let recurrent = frames.gates(3, DType::F32, x)?;
            let first = rounded(h0, frames.precision)?;
            let states = frames.two_states(x)?;
            let whole = frames.is_whole(3, &[&first, &weight_hh])?;
            for t in 0..frames.time {
                let before = if t == 0 { &first } else { &states[(t - 1) % 2] };
                let launch = if whole {
                    all(frames.launch("gru", "whole_forward", x)?, [&gates, before, &weight_hh])?
                } else {
                    frames.recur(&recurrent, before, &weight_hh)?;
                    all(frames.launch("gru", "forward", x)?, [&gates, &recurrent])?
                };
                let launch = all(launch, [bias_ih, bias_hh, if t == 0 { &first_h } else { &h }])?;
                let launch = kept(all(launch, [&y, &h, &states[t % 2]])?)?;
                if whole { frames.run_whole(launch, t)? } else { frames.run(launch, t)? }
            }
        }
        Ok((y, [x_operand, weight_ih, weight_hh, gates].into_iter().chain(reset).collect()))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, .., h0], [_, _, weight_hh, gates, reset]) = (pass.inputs, pass.kept) else {
            bail!("a GRU takes six inputs")
        };
        let frames = &self.frames;
        let of = frames.operands(x);
        let (d_projected, d_recurrent) = (frames.sequence(3, of, x)?, frames.sequence(3, of, x)?);
        let previous = frames.sequence(1, of, x)?;
        let (through, dh) = (frames.state(DType::F32, x)?, frames.state(DType::F32, x)?);
        if let Some(walk) = frames.walk(GRU, Way::Backward, x, &[&d_recurrent])? {
            walk.run(|launch| {
                let launch = all(launch, [gates, reset, h0, pass.y, pass.dy, weight_hh])?;
                all(launch, [&dh, &d_projected, &d_recurrent, &previous])
            })?;
            if pass.wanted[5] {
                frames.back(&through, &d_recurrent, weight_hh, 0)?;
            }
        } else {
            let whole = frames.is_whole(3, &[&d_recurrent, weight_hh])?;
            for t in (0..frames.time).rev() {
                let later = t + 1 < frames.time;
                let step = if whole { "whole_backward" } else { "backward" };
                let launch = frames.launch("gru", step, x)?;
                let launch = all(launch, [gates, reset, h0, pass.y, pass.dy])?;
                let launch = match whole {
                    true => launch.tensor(weight_hh)?,
                    false => launch.option(later.then_some(&through))?,
                };
                let launch = launch.option(later.then_some(&dh))?;
                let launch = all(launch, [&dh, &d_projected, &d_recurrent, &previous])?;
                if whole {
                    frames.run_whole(launch, t)?
                } else {
                    frames.run(launch, t)?
                }
                if reads_through(pass, whole, t) {
                    frames.back(&through, &d_recurrent, weight_hh, t)?;
                }
            }
        }
        let mut gradients = layer_gradients(pass, [&d_projected, &d_recurrent, &previous])?;
        let dh0 = || first_gradient(&dh, &through, h0);
        gradients.push(pass.wanted[5].then(dh0).transpose()?);
        Ok(gradients)
    }
}

/// Inputs are the projected gates, the weight, and the first h, c and n.
struct Slstm {
    frames: Frames,
    heads: usize,
    m0: Tensor,
}

impl Slstm {
    /// Width of a head.
    fn head(&self) -> usize {
        self.frames.width / self.heads
    }

    /// The weight `[4h, w]` with the gates of each head side by side, `[heads, 4w, w]`, as an operand.
    fn blocks(&self, weight: &Tensor) -> Result<Tensor> {
        let w = self.head();
        let weight = rounded(weight, self.frames.precision)?.reshape((4, self.heads, w, w))?;
        weight.transpose(0, 1)?.contiguous()?.reshape((self.heads, 4 * w, w))
    }

    /// The blocks, the gates of each head `[b, heads * 4w]`, and each head's part of `h [b, heads * w]`.
    fn of_heads<'a>(
        &self,
        blocks: &'a Tensor,
        gates: &'a Tensor,
        h: &'a Tensor,
    ) -> [Matrices<'a>; 3] {
        let (width, w) = (self.frames.width, self.head());
        [
            Matrices::new(blocks, [0, 4 * w * w, w]),
            Matrices::new(gates, [0, 4 * w, 4 * width]),
            Matrices::new(h, [0, w, width]),
        ]
    }

    /// `gates = h R^T`.
    fn recur(&self, gates: &Tensor, h: &Tensor, blocks: &Tensor) -> Result<()> {
        let w = self.head();
        let [blocks, gates, h] = self.of_heads(blocks, gates, h);
        product(gates, h, blocks.turned(), self.heads, [self.frames.batch, 4 * w, w])
    }

    /// `dh = gates R`.
    fn back(&self, dh: &Tensor, gates: &Tensor, blocks: &Tensor) -> Result<()> {
        let w = self.head();
        let [blocks, gates, dh] = self.of_heads(blocks, gates, dh);
        product(dh, gates, blocks, self.heads, [self.frames.batch, w, 4 * w])
    }

    /// The gradient of the weight, `[4h, w]`: for each gate and head `d^T h` over all frames of `d [b, t, 4h]` and
    /// `previous [b, t, h]`.
    fn weight_gradient(&self, d: &Tensor, previous: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let (width, w) = (self.frames.width, self.head());
        let d = rounded(d, self.frames.precision)?;
        let d_weight = unwritten(weight.shape(), weight.dtype(), weight)?;
        let previous = Matrices::new(previous, [0, w, width]);
        for gate in 0..4 {
            let to = Matrices::new(&d_weight, [gate * width * w, w * w, w]);
            let d = Matrices::new(&d, [gate * width, w, 4 * width]).turned();
            product(to, d, previous, self.heads, [w, w, self.frames.batch * self.frames.time])?;
        }
        Ok(d_weight)
    }
}

impl Op for Slstm {
    /// The other outputs are the last h, c, n and m.
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, weight, h0, c0, n0] = inputs else { bail!("an sLSTM takes five inputs") };
        let frames = &self.frames;
        let blocks = self.blocks(weight)?;
        let y = frames.output(x, track)?;
        let recurrent = frames.gates(4, DType::F32, x)?;
        // Gates, the slopes of the logarithm of the forget gate, c and n.
        let mut kept = vec![];
        if track {
            for (parts, dtype) in [(4, x.dtype()), (1, x.dtype()), (1, DType::F32), (1, DType::F32)]
            {
                kept.push(frames.sequence(parts, dtype, x)?);
            }
        }
        let (first, operand) =
            (rounded(h0, frames.precision)?, frames.state(frames.operands(x), x)?);
        let state = |dtype| frames.last(dtype, x, track);
        let last = [state(x.dtype())?, state(DType::F32)?, state(DType::F32)?, state(DType::F32)?];
        for t in 0..frames.time {
            let (h, states) = match t {
                0 => (&first, [h0, c0, n0, &self.m0]),
                _ => (&operand, last.each_ref()),
            };
            self.recur(&recurrent, h, &blocks)?;
            let launch = frames.launch("slstm", "forward", x)?;
            let launch = all(all(launch, [x, &recurrent])?, states)?.tensor(&y)?;
            let launch = all(launch, &last)?.tensor(&operand)?;
            let launch = (0..4).try_fold(launch, |launch, i| launch.option(kept.get(i)))?;
            frames.run(launch.int(self.head()), t)?;
        }
        kept.push(blocks);
        Ok((y, last.into_iter().chain(kept).collect()))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, weight, h0, c0, n0], [gates, slopes, cells, norms, blocks]) =
            (pass.inputs, pass.kept)
        else {
            bail!("an sLSTM takes five inputs")
        };
        let frames = &self.frames;
        let of = frames.operands(x);
        let (dx, previous) = (frames.sequence(4, x.dtype(), x)?, frames.sequence(1, of, x)?);
        let recurrent = frames.gates(4, of, x)?;
        let state = || frames.state(DType::F32, x);
        let (through, dh, dc, dn) = (state()?, state()?, state()?, state()?);
        let [dh_last, dc_last, dn_last, _] = pass.d_others else {
            bail!("an sLSTM has four other outputs")
        };
        let dh_last = dh_last.as_ref().map(|dh| dh.to_dtype(DType::F32)).transpose()?;
        for t in (0..frames.time).rev() {
            let later = t + 1 < frames.time;
            let launch = frames.launch("slstm", "backward", x)?;
            let launch = all(launch, [gates, slopes, c0, n0, cells, norms, h0, pass.y, pass.dy])?;
            let launch = launch.option(if later { Some(&through) } else { dh_last.as_ref() })?;
            let launch = launch.option(later.then_some(&dh))?;
            let launch = launch.option(if later { Some(&dc) } else { dc_last.as_ref() })?;
            let launch = launch.option(if later { Some(&dn) } else { dn_last.as_ref() })?;
            let launch = all(launch, [&dh, &dc, &dn, &dx, &recurrent, &previous])?;
            frames.run(launch.int(self.head()), t)?;
            self.back(&through, &recurrent, blocks)?;
        }
        let d_weight = self.weight_gradient(&dx, &previous, weight)?;
        let dh0 = first_gradient(&dh, &through, h0)?;
        Ok([dx, d_weight, dh0, dc, dn].map(Some).into())
    }
}
