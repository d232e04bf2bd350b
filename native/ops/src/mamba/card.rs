//! One frame of a few games through a Mamba layer with its norm and residual sum, on a card.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::MAMBA_STEP;

use crate::dense::card::{BLOCK, FEW, layer};
use crate::device::launch::{Launch, unwritten};
use crate::lengths::Lengths;
use crate::selective_scan::card::MOST_STATES;
use crate::{Activation, MambaWeights, Precision, Residual, Result, tape};

/// Threads of a block, and threads of each column or channel.
const THREADS: usize = 128;
const WARP: usize = 32;

/// `x + mamba(norm(x))` of `x [b, 1, h]` and the states after the frame; `None` if there is no kernel: for inputs that
/// want a gradient, for more than `FEW` games, and for products in a lower precision.
pub(super) fn mamba_step(
    x: &Tensor,
    residual: &Residual,
    [conv, ssm]: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: &Lengths,
) -> Result<Option<(Tensor, [Tensor; 2])>> {
    let MambaWeights { in_proj, conv: taps, x_proj, dt_proj, a_log, out_proj, .. } = *weights;
    let (rows, time, h) = x.dims3()?;
    let ((c, n), rank, taps_of) = (a_log.dims2()?, dt_proj.dim(1)?, taps.dim(2)?);
    let Residual { norm, dropout: None } = residual else { return Ok(None) };
    let few = (1..=FEW).contains(&rows) && time == 1 && lengths.is_none() && norm.bias.is_none();
    let small = n <= MOST_STATES && taps_of <= WARP && Precision::current() == Precision::F32;
    let given = [x, conv, ssm, &norm.weight, in_proj, taps, weights.conv_bias, weights.dt_bias];
    let given = given.into_iter().chain([&**x_proj, dt_proj, a_log, weights.d, out_proj]);
    let plain = given.into_iter().all(|t| t.dtype() == DType::F32 && !tape::wants(t));
    if !(few && small && plain) {
        return Ok(None);
    }
    let [x, conv, ssm] = [x.contiguous()?, conv.contiguous()?, ssm.contiguous()?];
    let wide = || unwritten((rows, 1, c), DType::F32, &x);
    let like = |state: &Tensor| unwritten(state.shape(), DType::F32, &x);
    let (u, z, next_conv) = (wide()?, wide()?, like(&conv)?);
    let launch =
        Launch::of(MAMBA_STEP, "mamba_step_inward", &x)?.tensor(&x)?.tensor(&norm.weight)?;
    let launch = launch.tensor(in_proj)?.tensor(taps)?.tensor(weights.conv_bias)?.tensor(&conv)?;
    let launch = launch.tensor(&u)?.tensor(&z)?.tensor(&next_conv)?.int(rows).int(h).int(c);
    let blocks = |warps: usize, rows: usize| [(warps * WARP).div_ceil(THREADS), rows, 1];
    let grid = blocks(2 * c, rows.div_ceil(BLOCK));
    // SAFETY: as mamba_step.cu requires, a warp for each column, and a block for every eight rows.
    unsafe { launch.int(taps_of).float(norm.eps).run(grid, [THREADS, 1, 1], 0) }?;

    let low = layer(&u, x_proj, None, Activation::None, None)?;
    let (y, next_ssm) = (wide()?, like(&ssm)?);
    let launch = Launch::of(MAMBA_STEP, "mamba_step_scan", &x)?.tensor(&low)?.tensor(dt_proj)?;
    let launch = launch.tensor(weights.dt_bias)?.tensor(a_log)?.tensor(weights.d)?.tensor(&u)?;
    let launch = launch.tensor(&z)?.tensor(&ssm)?.tensor(&y)?.tensor(&next_ssm)?;
    let launch = [rows, c, rank, n].into_iter().fold(launch, Launch::int);
    // SAFETY: as mamba_step.cu requires, a warp for each channel of each row.
    unsafe { launch.run(blocks(rows * c, 1), [THREADS, 1, 1], 0) }?;
    let y = layer(&y, out_proj, None, Activation::None, Some(&x))?;
    Ok(Some((y, [next_conv, next_ssm])))
}
