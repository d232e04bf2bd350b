//! The selective scan on a card.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::SELECTIVE_SCAN;

use crate::columns::card::sum_of_parts;
use crate::device::launch::{Launch, output, suffix, unwritten};
use crate::lengths::{Lengths, on_card};
use crate::op::card::{Op, Pass, apply_all};
use crate::{Result, Selective};

/// Threads of a block.
const THREADS: usize = 64;
/// State values per thread.
const STATES: usize = 8;
/// Frames between saved states.
const FRAMES: usize = 8;

/// The largest state of a channel that has a kernel.
pub(crate) const MOST_STATES: usize = 64;

pub(crate) fn selective_scan(inputs: Selective<'_>, lengths: &Lengths) -> Result<(Tensor, Tensor)> {
    let Selective { u, dt, dt_bias, dt_softplus, a, a_log, b, c, d, z, h } = inputs;
    let scan = Scan {
        steady: dt.rank() == 1,
        softplus: dt_softplus,
        log: a_log,
        bias: dt_bias.is_some(),
        skip: d.is_some(),
        gate: z.is_some(),
        lengths: on_card(lengths, u)?,
    };
    let own = |t: &Tensor| t.to_dtype(u.dtype());
    let single = |t: &Tensor| t.to_dtype(DType::F32);
    let dt = if scan.steady { single(dt)? } else { own(dt)? };
    let mut all = vec![u.clone(), dt, single(a)?, own(b)?, own(c)?, single(h)?];
    all.extend(dt_bias.map(single).transpose()?);
    all.extend(d.map(single).transpose()?);
    all.extend(z.map(own).transpose()?);
    let [y, last] = apply_all(scan, &all.iter().collect::<Vec<_>>())?;
    Ok((y, last.to_dtype(h.dtype())?))
}

/// Inputs are u, dt, a, b, c, h, then dt_bias, d and z if given.
struct Scan {
    /// Whether one `dt` applies to all frames.
    steady: bool,
    softplus: bool,
    log: bool,
    bias: bool,
    skip: bool,
    gate: bool,
    lengths: Option<Tensor>,
}

/// Rows, frames, channels, and state values per channel.
struct Sizes {
    batch: usize,
    time: usize,
    channels: usize,
    n: usize,
}

impl Sizes {
    fn of(inputs: &[Tensor]) -> candle_core::Result<Self> {
        let (batch, time, channels) = inputs[0].dims3()?;
        Ok(Sizes { batch, time, channels, n: inputs[2].dim(1)? })
    }

    /// State values in the kernel.
    fn width(&self) -> usize {
        self.n.next_power_of_two().max(16)
    }

    /// The number of blocks of a row.
    fn blocks(&self) -> usize {
        self.channels.div_ceil(THREADS * STATES / self.width())
    }
}

impl Scan {
    /// A launch with all inputs except the state.
    fn launch(&self, step: &str, inputs: &[Tensor]) -> candle_core::Result<Launch> {
        let [u, dt, a, b, c, _, given @ ..] = inputs else {
            candle_core::bail!("a scan takes at least six inputs")
        };
        let mut given = given.iter();
        let [bias, d, z] =
            [self.bias, self.skip, self.gate].map(|is| if is { given.next() } else { None });
        let kernel = format!("selective_scan_{}_{step}_{}", suffix(u), Sizes::of(inputs)?.width());
        let launch = Launch::of(SELECTIVE_SCAN, &kernel, u)?.tensor(u)?.tensor(dt)?.option(bias)?;
        let launch = launch.tensor(a)?.tensor(b)?.tensor(c)?.option(d)?.option(z)?;
        launch.option(self.lengths.as_ref())
    }

    /// Runs a launch after adding the sizes that end its arguments.
    fn run(&self, launch: Launch, sizes: &Sizes) -> candle_core::Result<()> {
        let Sizes { batch, time, channels, n } = *sizes;
        let launch = [batch, time, channels, n].into_iter().fold(launch, Launch::int);
        let flags = [self.steady, self.softplus, self.log].map(usize::from);
        let launch = flags.into_iter().fold(launch, Launch::int);
        // SAFETY: as selective_scan.cu requires, the grid is blocks of a row by rows.
        unsafe { launch.run([batch, sizes.blocks(), 1], [THREADS, 1, 1], 0) }
    }
}

impl Op for Scan {
    /// Saves the states before each chunk.
    fn forward(
        &self,
        inputs: &[Tensor],
        track: bool,
    ) -> candle_core::Result<(Tensor, Vec<Tensor>)> {
        let (u, h, sizes) = (&inputs[0], &inputs[5], Sizes::of(inputs)?);
        let y = output(u.shape(), u.dtype(), u, track)?;
        let last = output(h.shape(), DType::F32, h, track)?;
        let mut others = vec![last];
        if track {
            let chunks = sizes.batch * sizes.time.div_ceil(FRAMES);
            others.push(unwritten((chunks, sizes.blocks(), STATES * THREADS), DType::F32, u)?);
        }
        let launch = self.launch("forward", inputs)?.tensor(h)?.tensor(&y)?.tensor(&others[0])?;
        self.run(launch.option(others.get(1))?, &sizes)?;
        Ok((y, others))
    }

    fn backward(&self, pass: &Pass) -> candle_core::Result<Vec<Option<Tensor>>> {
        let Pass { inputs, kept: [kept], dy, d_others: [d_last], .. } = pass else {
            candle_core::bail!("a scan saves states and has two outputs")
        };
        let (u, sizes) = (&inputs[0], Sizes::of(inputs)?);
        let Sizes { batch, time, channels, n } = sizes;
        let wide = |is: bool| is.then(|| unwritten(u.shape(), u.dtype(), u)).transpose();
        let (du, d_dt, dz) = (wide(true)?, wide(!self.steady)?, wide(self.gate)?);
        let dh = unwritten((batch, channels, n), DType::F32, u)?;
        let d_bc = unwritten((sizes.blocks(), 2, batch, time, n), DType::F32, u)?;
        let parts = unwritten((batch, (n + 2) * channels), DType::F32, u)?;
        let launch = self.launch("backward", inputs)?.tensor(kept)?.tensor(dy)?;
        let launch = launch.option(d_last.as_ref())?.option(du.as_ref())?;
        let launch = launch.option(d_dt.as_ref())?.option(dz.as_ref())?;
        self.run(launch.tensor(&dh)?.tensor(&d_bc)?.tensor(&parts)?, &sizes)?;

        let (d_bc, sums) = (sum_of_parts(&d_bc)?, sum_of_parts(&parts)?);
        let da = sums.narrow(0, 0, channels * n)?.reshape((channels, n))?;
        let d_bias = sums.narrow(0, channels * n, channels)?;
        let dd = sums.narrow(0, channels * (n + 1), channels)?;
        let d_dt = if self.steady { Some(d_bias.clone()) } else { d_dt };
        let [db, dc] = [0, 1].map(|i| d_bc.get(i)?.to_dtype(u.dtype()));
        let mut gradients = vec![du, d_dt, Some(da), Some(db?), Some(dc?), Some(dh)];
        gradients.extend(self.bias.then_some(Some(d_bias)));
        gradients.extend(self.skip.then_some(Some(dd)));
        gradients.extend(self.gate.then_some(dz));
        Ok(gradients)
    }
}
