//! Linear recurrences by channel, on a card.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::LINEAR_RECURRENCE;

use crate::Result;
use crate::columns::card::sum_of_parts;
use crate::device::launch::{Launch, output, suffix, unwritten};
use crate::lengths::{Lengths, on_card};
use crate::op::card::{Op, Pass, apply};

/// Threads of a block.
const THREADS: usize = 128;

pub(super) fn linear_recurrence(
    a: &Tensor,
    b: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    recurrence("linear_recurrence", &[], [&[a, b], &[]], h0, lengths)
}

/// A recurrence with one gate `a [c]` for all frames.
pub(super) fn constant_recurrence(
    a: &Tensor,
    b: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    recurrence("constant_recurrence", &[], [&[b], &[a]], h0, lengths)
}

pub(super) fn min_gru(projected: &Tensor, h0: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    recurrence("min_gru", &[], [&[projected], &[]], h0, lengths)
}

pub(super) fn min_lstm(
    projected: &Tensor,
    h0: &Tensor,
    eps: f32,
    lengths: &Lengths,
) -> Result<Tensor> {
    recurrence("min_lstm", &[eps], [&[projected], &[]], h0, lengths)
}

pub(super) fn rg_lru(
    gates: &Tensor,
    x: &Tensor,
    lambda: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    recurrence("rg_lru", &[], [&[gates, x], &[lambda]], h0, lengths)
}

pub(super) fn hgrn(
    projected: &Tensor,
    bound: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    recurrence("hgrn", &[], [&[projected], &[bound]], h0, lengths)
}

pub(super) fn diagonal_ssm(
    u: &Tensor,
    a_log: &Tensor,
    dt_log: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    recurrence("diagonal_ssm", &[], [&[u], &[a_log, dt_log]], h0, lengths)
}

/// The states of a cell by its kernels; inputs are tensors `x [b, t, n * c]`, weights `w [c]`.
fn recurrence(
    cell: &'static str,
    constants: &[f32],
    [x, w]: [&[&Tensor]; 2],
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    let lengths = on_card(lengths, h0)?;
    let singles = w.iter().chain([&h0]).map(|t| t.to_dtype(DType::F32));
    let singles = singles.collect::<candle_core::Result<Vec<_>>>()?;
    let inputs: Vec<&Tensor> = x.iter().copied().chain(&singles).collect();
    let (constants, weights) = (constants.to_vec(), w.len());
    apply(Recurrence { cell, constants, weights, lengths }, &inputs)
}

struct Recurrence {
    cell: &'static str,
    constants: Vec<f32>,
    /// The number of inputs that are weights: those just before the last one.
    weights: usize,
    lengths: Option<Tensor>,
}

/// Rows, frames and channels of the inputs; the last input is `h0 [b, c]`.
fn sizes(inputs: &[Tensor]) -> candle_core::Result<[usize; 3]> {
    let [x, .., h0] = inputs else { candle_core::bail!("a recurrence takes inputs and a state") };
    Ok([x.dim(0)?, x.dim(1)?, h0.dim(1)?])
}

impl Recurrence {
    fn launch(&self, step: &str, inputs: &[Tensor]) -> candle_core::Result<Launch> {
        let x = &inputs[0];
        let kernel = format!("{}_{}_{step}", self.cell, suffix(x));
        let launch = Launch::of(LINEAR_RECURRENCE, &kernel, x)?;
        inputs.iter().try_fold(launch, Launch::tensor)?.option(self.lengths.as_ref())
    }

    /// Runs a launch after adding the sizes and constants that end the arguments of all kernels.
    fn run(&self, launch: Launch, [batch, time, channels]: [usize; 3]) -> candle_core::Result<()> {
        let launch = self
            .constants
            .iter()
            .fold(launch.int(time).int(channels), |launch, &value| launch.float(value));
        // SAFETY: as linear_recurrence.cu requires, a thread for each channel of each row.
        unsafe { launch.run([channels.div_ceil(THREADS) * batch, 1, 1], [THREADS, 1, 1], 0) }
    }
}

impl Op for Recurrence {
    fn forward(
        &self,
        inputs: &[Tensor],
        track: bool,
    ) -> candle_core::Result<(Tensor, Vec<Tensor>)> {
        let sizes = sizes(inputs)?;
        let h = output(&sizes[..], inputs[0].dtype(), &inputs[0], track)?;
        self.run(self.launch("forward", inputs)?.tensor(&h)?, sizes)?;
        Ok((h, vec![]))
    }

    fn backward(&self, pass: &Pass) -> candle_core::Result<Vec<Option<Tensor>>> {
        let sizes @ [batch, _, channels] = sizes(pass.inputs)?;
        let first = pass.inputs.len() - 1 - self.weights;
        let gradient = |x: &Tensor| unwritten(x.shape(), x.dtype(), x);
        let (x, rest) = pass.inputs.split_at(first);
        let mut gradients = x.iter().map(gradient).collect::<candle_core::Result<Vec<_>>>()?;
        let dh0 = gradient(&rest[self.weights])?;
        let launch = self.launch("backward", pass.inputs)?.tensor(pass.y)?.tensor(pass.dy)?;
        let launch = gradients.iter().try_fold(launch, Launch::tensor)?.tensor(&dh0)?;
        if self.weights > 0 {
            let parts = unwritten((batch, self.weights, channels), DType::F32, &dh0)?;
            self.run(launch.tensor(&parts)?, sizes)?;
            let sums = sum_of_parts(&parts)?;
            gradients.extend(
                (0..self.weights).map(|i| sums.get(i)).collect::<candle_core::Result<Vec<_>>>()?,
            );
        } else {
            self.run(launch, sizes)?;
        }
        gradients.push(dh0);
        Ok(gradients.into_iter().map(Some).collect())
    }
}
