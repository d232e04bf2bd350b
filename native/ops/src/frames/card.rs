//! Ops along the frames of a sequence, on a card.

use candle_core::{DType, Result, Tensor, bail};
use sconce_cuda::kernels::{CAUSAL_CONV, LAST};

use crate::columns::card::column_sums;
use crate::device::launch::{Launch, MOST_ALONG_Y, output, suffix, unwritten};
use crate::lengths::{Lengths, on_card};
use crate::op::card::{Op, Pass, apply, apply_all};

/// Threads of a block.
const THREADS: usize = 128;
/// The most inputs that an output sees.
pub(super) const TAPS: usize = 8;
/// Frames of the stretch that a thread walks, and the most parts of the weights' gradients.
const STRETCH: usize = 16;
const PARTS: usize = 256;

pub(super) fn causal_conv(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    state: &Tensor,
    silu: bool,
    lengths: &Lengths,
) -> crate::Result<(Tensor, Tensor)> {
    convolve(x, weight, bias, state, Conv { silu, lengths: on_card(lengths, x)? })
}

/// Token shift as a convolution of two taps, `m` and `1 - m`.
pub(super) fn token_shift(
    x: &Tensor,
    before: &Tensor,
    mix: &Tensor,
    lengths: &Lengths,
) -> crate::Result<Vec<Tensor>> {
    let lengths = on_card(lengths, x)?;
    let (taps, state) = (Tensor::stack(&[&(1.0 - mix)?, mix], 2)?, before.unsqueeze(2)?);
    let mixed = |k| {
        let op = Conv { silu: false, lengths: lengths.clone() };
        Ok(convolve(x, &taps.get(k)?.unsqueeze(1)?, None, &state, op)?.0)
    };
    (0..mix.dim(0)?).map(mixed).collect()
}

fn convolve(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    state: &Tensor,
    op: Conv,
) -> crate::Result<(Tensor, Tensor)> {
    let weight = weight.to_dtype(DType::F32)?;
    let bias = bias.map(|bias| bias.to_dtype(DType::F32)).transpose()?;
    let inputs: Vec<&Tensor> = [x, &weight, state].into_iter().chain(&bias).collect();
    if state.elem_count() == 0 {
        return Ok((apply(op, &inputs)?, state.clone()));
    }
    let [y, next] = apply_all(op, &inputs)?;
    Ok((y, next))
}

/// Inputs are x, weight, state, and a bias if there is one.
struct Conv {
    silu: bool,
    lengths: Option<Tensor>,
}

/// Sizes of one pass.
struct Sizes {
    time: usize,
    channels: usize,
    taps: usize,
    /// Stretches of all rows.
    stretches: usize,
    threads: usize,
}

impl Sizes {
    fn of(inputs: &[Tensor]) -> Result<Self> {
        let [x, weight, ..] = inputs else { bail!("a convolution takes an input and a weight") };
        let ((batch, time, channels), taps) = (x.dims3()?, weight.dim(2)?);
        let stretches = batch * time.div_ceil(STRETCH);
        let threads = channels.next_multiple_of(32).min(THREADS);
        Ok(Sizes { time, channels, taps, stretches, threads })
    }

    /// Adds the sizes that end the arguments of all launches.
    fn end(&self, launch: Launch, silu: bool) -> Launch {
        let launch = launch.int(self.taps).int(usize::from(silu)).long(self.stretches);
        launch.int(STRETCH).int(self.time).int(self.channels)
    }

    /// Runs a launch with a thread for each channel and `rows` rows of blocks.
    fn run(&self, launch: Launch, rows: usize) -> Result<()> {
        let grid = [self.channels.div_ceil(self.threads), rows, 1];
        // SAFETY: the grid and block are those of causal_conv.cu.
        unsafe { launch.run(grid, [self.threads, 1, 1], 0) }
    }
}

impl Conv {
    /// A launch with the arguments that both kernels begin with.
    fn launch(&self, step: &str, inputs: &[Tensor]) -> Result<Launch> {
        let [x, weight, state, bias @ ..] = inputs else { bail!("a convolution takes a state") };
        let launch = Launch::of(CAUSAL_CONV, &format!("causal_conv_{}_{step}", suffix(x)), x)?;
        // A convolution of one tap has no state.
        let state = (weight.dim(2)? > 1).then_some(state);
        let launch = launch.tensor(x)?.option(state)?.tensor(weight)?.option(bias.first())?;
        launch.option(self.lengths.as_ref())
    }
}

impl Op for Conv {
    /// The second output is the state after the last frame.
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, _, state, ..] = inputs else { bail!("a convolution takes a state") };
        let sizes = Sizes::of(inputs)?;
        let y = output(x.shape(), x.dtype(), x, track)?;
        let next = output(state.shape(), state.dtype(), x, track)?;
        let launch = self.launch("forward", inputs)?.tensor(&y)?.tensor(&next)?;
        sizes.run(sizes.end(launch, self.silu), sizes.stretches.min(MOST_ALONG_Y))?;
        Ok((y, vec![next]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let [x, weight, state, bias @ ..] = pass.inputs else {
            bail!("a convolution takes a state")
        };
        let sizes = Sizes::of(pass.inputs)?;
        let Sizes { channels, taps, stretches, .. } = sizes;
        let per_part = stretches.div_ceil(PARTS);
        let count = stretches.div_ceil(per_part.max(1));
        let dx = unwritten(x.shape(), x.dtype(), x)?;
        let d_state = unwritten(state.shape(), state.dtype(), x)?;
        let parts = unwritten((count, channels * (taps + 1)), DType::F32, x)?;
        let launch = self.launch("backward", pass.inputs)?.tensor(pass.dy)?;
        let launch = launch.option(pass.d_others.first().and_then(Option::as_ref))?;
        let launch = launch.tensor(&dx)?.tensor(&d_state)?.tensor(&parts)?;
        sizes.run(sizes.end(launch, self.silu).int(per_part), count)?;

        let sums = column_sums(&parts)?;
        let d_weight = sums.narrow(0, 0, channels * taps)?.reshape(weight.shape())?;
        let d_bias = sums.narrow(0, channels * taps, channels)?;
        let all = [dx, d_weight, d_state].into_iter().chain(bias.first().map(|_| d_bias));
        Ok(all.map(Some).collect())
    }
}

/// [`last`](super::last()) for rows of unequal length.
pub(super) fn last(states: &Tensor, first: &Tensor, lengths: &Lengths) -> crate::Result<Tensor> {
    let lengths = on_card(lengths, states)?;
    let lengths = lengths.ok_or_else(|| crate::Error::not_found("lengths of rows"))?;
    apply(Last { lengths }, &[states, first])
}

/// Inputs are the states and the first state.
struct Last {
    lengths: Tensor,
}

impl Last {
    fn run(launch: Launch, states: &Tensor) -> Result<()> {
        let (batch, time, channels) = states.dims3()?;
        let threads = channels.next_multiple_of(32).min(THREADS);
        let grid = [channels.div_ceil(threads), batch.min(MOST_ALONG_Y), 1];
        let launch = launch.int(time).int(batch).int(channels);
        // SAFETY: the grid and block are those of last.cu.
        unsafe { launch.run(grid, [threads, 1, 1], 0) }
    }
}

impl Op for Last {
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [states, first] = inputs else { bail!("`last` takes states and a first state") };
        let y = output(first.shape(), states.dtype(), states, track)?;
        let launch = Launch::of(LAST, &format!("last_{}_forward", suffix(states)), states)?;
        let launch = launch.tensor(states)?.tensor(first)?.tensor(&self.lengths)?.tensor(&y)?;
        Self::run(launch, states)?;
        Ok((y, vec![]))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let [states, first] = pass.inputs else { bail!("`last` takes states and a first state") };
        let d_states = unwritten(states.shape(), states.dtype(), states)?;
        let d_first = unwritten(first.shape(), first.dtype(), states)?;
        let launch = Launch::of(LAST, &format!("last_{}_backward", suffix(states)), states)?;
        let launch = launch.tensor(&self.lengths)?.tensor(pass.dy)?;
        Self::run(launch.tensor(&d_states)?.tensor(&d_first)?, states)?;
        Ok(vec![Some(d_states), Some(d_first)])
    }
}
