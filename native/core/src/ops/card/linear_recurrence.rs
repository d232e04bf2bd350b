//! Linear recurrences by channel.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::LINEAR_RECURRENCE;

use super::launch::{Launch, suffix, unwritten};
use super::lengths_on_card;
use super::op::{Op, Pass, apply};
use crate::Result;
use crate::ops::lengths::Lengths;

/// Threads of a block.
const THREADS: usize = 128;

pub fn linear_recurrence(a: &Tensor, b: &Tensor, h0: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    let a = a.broadcast_as(b.shape())?;
    recurrence("linear_recurrence", &[], &[&a, b], h0, lengths)
}

pub fn min_gru(projected: &Tensor, h0: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    recurrence("min_gru", &[], &[projected], h0, lengths)
}

pub fn min_lstm(projected: &Tensor, h0: &Tensor, eps: f32, lengths: &Lengths) -> Result<Tensor> {
    recurrence("min_lstm", &[eps], &[projected], h0, lengths)
}

/// By the kernels of a cell, whose inputs lie in tensors `x [b, t, n * c]`.
fn recurrence(
    cell: &'static str,
    constants: &[f32],
    x: &[&Tensor],
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    let lengths = lengths_on_card(lengths, h0)?;
    let h0 = h0.to_dtype(DType::F32)?;
    let inputs: Vec<&Tensor> = x.iter().copied().chain([&h0]).collect();
    apply(Recurrence { cell, constants: constants.to_vec(), lengths }, &inputs)
}

struct Recurrence {
    cell: &'static str,
    constants: Vec<f32>,
    lengths: Option<Tensor>,
}

/// Rows, frames, channels, of inputs of which the last one is `h0 [b, c]`.
fn sizes(inputs: &[Tensor]) -> candle_core::Result<[usize; 3]> {
    let [x, .., h0] = inputs else { candle_core::bail!("a recurrence has inputs and a state") };
    Ok([x.dim(0)?, x.dim(1)?, h0.dim(1)?])
}

impl Recurrence {
    fn launch(&self, step: &str, inputs: &[Tensor]) -> candle_core::Result<Launch> {
        let x = &inputs[0];
        let kernel = format!("{}_{}_{step}", self.cell, suffix(x));
        let launch = Launch::of(LINEAR_RECURRENCE, &kernel, x)?;
        inputs.iter().try_fold(launch, Launch::tensor)?.option(self.lengths.as_ref())
    }

    /// With the sizes and constants that end the arguments of all.
    fn run(&self, launch: Launch, [batch, time, channels]: [usize; 3]) -> candle_core::Result<()> {
        let launch = self
            .constants
            .iter()
            .fold(launch.int(time).int(channels), |launch, &value| launch.float(value));
        // SAFETY: as linear_recurrence.cu says: a thread for each channel of each row.
        unsafe { launch.run([channels.div_ceil(THREADS), batch, 1], [THREADS, 1, 1], 0) }
    }
}

impl Op for Recurrence {
    fn name(&self) -> &'static str {
        self.cell
    }

    fn forward(
        &self,
        inputs: &[Tensor],
        _track: bool,
    ) -> candle_core::Result<(Tensor, Vec<Tensor>)> {
        let sizes = sizes(inputs)?;
        let h = unwritten(&sizes[..], inputs[0].dtype(), &inputs[0])?;
        self.run(self.launch("forward", inputs)?.tensor(&h)?, sizes)?;
        Ok((h, vec![]))
    }

    fn backward(&self, pass: &Pass) -> candle_core::Result<Vec<Option<Tensor>>> {
        let gradients = pass.inputs.iter().map(|x| unwritten(x.shape(), x.dtype(), x));
        let gradients = gradients.collect::<candle_core::Result<Vec<_>>>()?;
        let launch = self.launch("backward", pass.inputs)?.tensor(pass.y)?.tensor(pass.dy)?;
        let launch = gradients.iter().try_fold(launch, Launch::tensor)?;
        self.run(launch, sizes(pass.inputs)?)?;
        Ok(gradients.into_iter().map(Some).collect())
    }
}
