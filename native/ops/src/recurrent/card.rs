//! LSTM, GRU and sLSTM on a card: each frame runs a product with the recurrent weight and a kernel of the cell, or, if
//! the product is small, one kernel for both. Longer sequences of narrow LSTMs and GRUs have one launch for all frames
//! ([`walk`]). Products that do not depend on the previous frame are computed for all frames at once, before or after the
//! frames.
//!
//! Operands of products have the precision of [`Precision::current`]; for f16 they are f32.

use candle_core::{DType, Result, Tensor, bail};
use sconce_cuda::kernels::RECURRENT;

use self::walk::Way;
use crate::Precision;
use crate::columns::card::column_sums;
use crate::device::launch::{Launch, MOST_ALONG_Y, output, pointer, suffix, unwritten};
use crate::lengths::{Lengths, on_card};
use crate::matmul::card::{nn, nt, rounded, tn};
use crate::matmul::matrices::{Matrices, product};
use crate::op::card::{Op, Pass, apply, apply_all};
use crate::recurrent::Gates;

mod slstm;
mod walk;

pub(super) use self::slstm::slstm;

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
