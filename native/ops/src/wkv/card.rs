//! The weighted average of the past, on a card.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::WKV;

use crate::columns::card::sum_of_parts;
use crate::device::launch::{Launch, output, suffix, unwritten};
use crate::lengths::{Lengths, on_card};
use crate::op::card::{Op, Pass, apply_all};
use crate::{Result, Wkv};

/// Threads of a block.
const THREADS: usize = 128;

pub(super) fn wkv(inputs: Wkv<'_>, lengths: &Lengths) -> Result<[Tensor; 3]> {
    let Wkv { k, v, w, u, mean, weight } = inputs;
    let lengths = on_card(lengths, k)?;
    let single = |t: &Tensor| t.to_dtype(DType::F32);
    let (w, u, m, s) = (single(w)?, single(u)?, single(mean)?, single(weight)?);
    let [y, m, s] = apply_all(Average { lengths }, &[k, v, &w, &u, &m, &s])?;
    Ok([y, m.to_dtype(mean.dtype())?, s.to_dtype(weight.dtype())?])
}

struct Average {
    lengths: Option<Tensor>,
}

impl Average {
    fn launch(&self, step: &str, inputs: &[Tensor]) -> candle_core::Result<Launch> {
        let kernel = format!("wkv_{}_{step}", suffix(&inputs[0]));
        let launch = Launch::of(WKV, &kernel, &inputs[0])?;
        inputs.iter().try_fold(launch, Launch::tensor)?.option(self.lengths.as_ref())
    }
}

fn run(launch: Launch, (batch, time, channels): (usize, usize, usize)) -> candle_core::Result<()> {
    let launch = launch.int(time).int(channels);
    // SAFETY: as wkv.cu requires, a thread for each channel of each row.
    unsafe { launch.run([channels.div_ceil(THREADS) * batch, 1, 1], [THREADS, 1, 1], 0) }
}

impl Op for Average {
    /// Saves the states before each frame.
    fn forward(
        &self,
        inputs: &[Tensor],
        track: bool,
    ) -> candle_core::Result<(Tensor, Vec<Tensor>)> {
        let k = &inputs[0];
        let sizes @ (batch, time, channels) = k.dims3()?;
        let state = || output((batch, channels), DType::F32, k, track);
        let y = output(k.shape(), k.dtype(), k, track)?;
        let mut others = vec![state()?, state()?];
        if track {
            let frames = || unwritten((batch, time, channels), DType::F32, k);
            others.extend([frames()?, frames()?]);
        }
        let launch = self.launch("forward", inputs)?.tensor(&y)?;
        let launch = (0..4).try_fold(launch, |launch, i| launch.option(others.get(i)))?;
        run(launch, sizes)?;
        Ok((y, others))
    }

    fn backward(&self, pass: &Pass) -> candle_core::Result<Vec<Option<Tensor>>> {
        let (k, weights) = (&pass.inputs[0], &pass.inputs[..4]);
        let sizes @ (batch, _, channels) = k.dims3()?;
        let gradient = |x: &Tensor| unwritten(x.shape(), x.dtype(), x);
        let [dk, dv] = [gradient(k)?, gradient(k)?];
        let state = || unwritten((batch, channels), DType::F32, k);
        let [dm, ds] = [state()?, state()?];
        let parts = unwritten((batch, 2, channels), DType::F32, k)?;
        let launch =
            pass.kept.iter().try_fold(self.launch("backward", weights)?, Launch::tensor)?;
        let launch = launch.tensor(pass.dy)?;
        let launch =
            pass.d_others.iter().try_fold(launch, |launch, d| launch.option(d.as_ref()))?;
        let launch = [&dk, &dv, &dm, &ds, &parts].into_iter().try_fold(launch, Launch::tensor)?;
        run(launch, sizes)?;
        let sums = sum_of_parts(&parts)?;
        let all = [dk, dv, sums.get(0)?, sums.get(1)?, dm, ds];
        Ok(all.into_iter().map(Some).collect())
    }
}
