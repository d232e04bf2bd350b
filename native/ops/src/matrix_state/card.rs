//! Recurrences whose state is a matrix, on a card.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::MATRIX_STATE;

use crate::Result;
use crate::columns::card::sum_of_parts;
use crate::device::launch::{Launch, output, suffix, unwritten};
use crate::lengths::on_card;
use crate::matrix_state::options::{Decay, Options};
use crate::op::card::{Op, Pass, apply_all};
use crate::rotary::Rotary;

const WARP: usize = 32;
/// Frames between saved states.
const FRAMES: usize = 8;
/// Rows of a state per block, and state values per thread.
const VALUES: usize = 32;
const TILE: usize = 16;
/// Keys of a warp.
const KEYS: usize = 16;
/// The most keys of each kernel.
const MOST_KEYS: [usize; 2] = [64, 128];
/// Threads of a block of the gather kernel.
const THREADS: usize = 128;

/// Whether there is a kernel for such states: the keys are not too wide, and the columns of queries, keys and values do
/// not overlap.
pub(super) fn has_states_of(options: &Options) -> bool {
    let Options { heads, key, value, q, k, v, .. } = *options;
    let keys = options.groups() * key;
    let apart = |[a, width]: [usize; 2], [b, other]: [usize; 2]| a + width <= b || b + other <= a;
    let [q, k, v] = [[q, keys], [k, keys], [v, heads * value]];
    most_keys(key).is_some() && apart(q, k) && apart(k, v) && apart(v, q)
}

fn most_keys(key: usize) -> Option<usize> {
    MOST_KEYS.into_iter().find(|&most| key <= most)
}

/// The values read from the state before the readout, `[b, t, heads, wide]`, and the state after the last frame.
pub(super) fn matrix_state(
    streams: &Tensor,
    gates: Option<&Tensor>,
    state: &Tensor,
    options: &Options,
) -> Result<(Tensor, Tensor)> {
    let constant = match &options.decay {
        Decay::Constant(logs) => Some(Tensor::from_slice(logs, logs.len(), streams.device())?),
        _ => None,
    };
    let turns = options.rotary.as_ref().map(|rotary| turns(rotary, streams)).transpose()?;
    let lengths = on_card(&options.lengths, streams)?;
    let op = States { options: options.clone(), wide: state.dim(2)?, constant, turns, lengths };
    let single = state.to_dtype(DType::F32)?;
    let gates = gates.filter(|_| op.constant.is_none());
    let gates = gates.map(|gates| gates.to_dtype(streams.dtype())).transpose()?;
    let inputs: Vec<&Tensor> = [streams, &single].into_iter().chain(&gates).collect();
    let [y, last] = apply_all(op, &inputs)?;
    Ok((y, last.to_dtype(state.dtype())?))
}

/// Cosines and sines of the frames of a chunk and of the frame after it, `[.., 2, key / 2]`. A sequence shorter than a
/// chunk may have fewer positions.
fn turns(rotary: &Rotary, x: &Tensor) -> Result<Tensor> {
    let positions = rotary.last().min(FRAMES) + 1;
    let turns: Vec<f32> = (0..positions).flat_map(|i| rotary.rotation(i).concat()).collect();
    Ok(Tensor::from_slice(&turns, (positions, rotary.dim()), x.device())?)
}

struct States {
    options: Options,
    /// Rows of a head's state.
    wide: usize,
    /// Constant decays `[heads]`, if the decay is the same in all frames.
    constant: Option<Tensor>,
    turns: Option<Tensor>,
    lengths: Option<Tensor>,
}

impl States {
    /// The number of blocks of a head.
    fn slices(&self) -> usize {
        self.wide.div_ceil(VALUES)
    }

    /// The number of blocks of a row.
    fn blocks(&self) -> usize {
        self.options.heads * self.slices()
    }

    fn threads(&self) -> usize {
        self.options.key.div_ceil(KEYS) * WARP
    }

    /// The kernels' code for the kind of decay.
    fn kind(&self) -> usize {
        match self.options.decay {
            Decay::Constant(_) => 0,
            Decay::Head => 1,
            Decay::HeadAndInput => 2,
            Decay::Key => 3,
        }
    }

    /// A launch with all inputs except the state.
    fn launch(&self, step: &str, inputs: &[Tensor]) -> candle_core::Result<Launch> {
        let streams = &inputs[0];
        let Some(most) = most_keys(self.options.key) else {
            candle_core::bail!("no kernel for keys of {} numbers", self.options.key)
        };
        let kernel = format!("matrix_state_{}_{step}_{most}", suffix(streams));
        let launch = Launch::of(MATRIX_STATE, &kernel, streams)?.tensor(streams)?;
        let given = [inputs.get(2), self.constant.as_ref(), self.lengths.as_ref()];
        let given = given.into_iter().chain([self.turns.as_ref()]);
        given.into_iter().try_fold(launch, Launch::option)
    }

    /// Runs a launch after adding the sizes that end its arguments.
    fn run(&self, launch: Launch, streams: &Tensor) -> candle_core::Result<()> {
        let Options { heads, heads_per_group, key, value, q, k, v, scale, .. } = self.options;
        let (batch, time, width) = streams.dims3()?;
        let sizes = [batch, time, width, heads, heads_per_group, key, value, self.wide];
        let sizes = sizes.into_iter().chain([q, k, v, self.kind()]);
        let launch = sizes.fold(launch, Launch::int).float(scale);
        // SAFETY: as matrix_state.cu requires, warps for all keys, slices of heads, rows.
        unsafe { launch.run([batch, self.blocks(), 1], [self.threads(), 1, 1], 0) }
    }

    /// Sums the gradients of queries and keys, f32 `[parts, frames, 2, keys]`, into the streams' gradient.
    fn gather(&self, d_keys: &Tensor, d_streams: &Tensor) -> candle_core::Result<()> {
        let Options { heads, value, q, k, v, .. } = self.options;
        let (parts, frames, _, keys) = d_keys.dims4()?;
        let width = d_streams.dim(2)?;
        let kernel = format!("matrix_state_{}_gather", suffix(d_streams));
        let launch = Launch::of(MATRIX_STATE, &kernel, d_streams)?;
        let launch = launch.tensor(d_keys)?.tensor(d_streams)?.long(frames);
        let launch =
            [width, q, k, v, keys, heads * value, parts].into_iter().fold(launch, Launch::int);
        // SAFETY: as matrix_state.cu requires, a thread for each value.
        unsafe { launch.run([(frames * width).div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }
    }
}

impl Op for States {
    /// Saves the states before each chunk.
    fn forward(
        &self,
        inputs: &[Tensor],
        track: bool,
    ) -> candle_core::Result<(Tensor, Vec<Tensor>)> {
        let [streams, state, ..] = inputs else {
            candle_core::bail!("a recurrence takes inputs and a state")
        };
        let (batch, time, _) = streams.dims3()?;
        let shape = (batch, time, self.options.heads, self.wide);
        let y = output(shape, streams.dtype(), streams, track)?;
        let mut others = vec![output(state.shape(), DType::F32, streams, track)?];
        if track {
            let chunks = batch * time.div_ceil(FRAMES);
            let shape = (chunks, self.blocks(), TILE * self.threads());
            others.push(unwritten(shape, DType::F32, streams)?);
        }
        let launch = self.launch("forward", inputs)?.tensor(state)?.tensor(&y)?;
        self.run(launch.tensor(&others[0])?.option(others.get(1))?, streams)?;
        Ok((y, others))
    }

    fn backward(&self, pass: &Pass) -> candle_core::Result<Vec<Option<Tensor>>> {
        let Pass { inputs, kept: [kept], dy, d_others: [d_last], .. } = pass else {
            candle_core::bail!("a recurrence saves states and has two outputs")
        };
        let (streams, options) = (&inputs[0], &self.options);
        let (batch, time, _) = streams.dims3()?;
        let keys = options.groups() * options.key;
        let d_streams = unwritten(streams.shape(), streams.dtype(), streams)?;
        let d_state = unwritten(inputs[1].shape(), DType::F32, streams)?;
        let parts = (options.heads_per_group * self.slices(), batch * time, 2, keys);
        let d_keys = unwritten(parts, DType::F32, streams)?;
        let d_gates = inputs.get(2).map(|gates| {
            let shape = [&[self.slices()], gates.dims()].concat();
            unwritten(shape, DType::F32, streams)
        });
        let d_gates = d_gates.transpose()?;
        let launch = self.launch("backward", inputs)?.tensor(kept)?.tensor(dy)?;
        let launch = launch.option(d_last.as_ref())?.tensor(&d_streams)?.tensor(&d_state)?;
        self.run(launch.tensor(&d_keys)?.option(d_gates.as_ref())?, streams)?;
        self.gather(&d_keys, &d_streams)?;
        let mut gradients = vec![Some(d_streams), Some(d_state)];
        if let Some(parts) = d_gates {
            gradients.push(Some(sum_of_parts(&parts)?.to_dtype(streams.dtype())?));
        }
        Ok(gradients)
    }
}
