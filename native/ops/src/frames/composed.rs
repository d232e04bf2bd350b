//! Ops along the frames of a sequence, composed of candle's ops.

use candle_core::Tensor;

use crate::Result;
use crate::lengths::{Lengths, blank};

/// The last `count` frames of each row, `[b, count, c]`; in `x [b, count + t, c]` the first `count` frames precede the
/// row's own.
fn ends(x: &Tensor, lengths: &Lengths, count: usize) -> Result<Tensor> {
    let (batch, all, channels) = x.dims3()?;
    let length = |row: usize| lengths.as_ref().map_or(all - count, |lengths| lengths[row]);
    let from = |row: usize| row * all + length(row);
    let frames = (0..batch).flat_map(|row| (from(row)..from(row) + count).map(|i| i as u32));
    let frames = Tensor::from_iter(frames, x.device())?;
    let ends = x.reshape((batch * all, channels))?.index_select(&frames, 0)?;
    Ok(ends.reshape((batch, count, channels))?)
}

pub(crate) fn causal_conv(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    state: &Tensor,
    silu: bool,
    lengths: Lengths,
) -> Result<(Tensor, Tensor)> {
    let (time, past) = (x.dim(1)?, state.dim(2)?);
    let (all, next) = match past {
        0 => (x.clone(), state.clone()),
        _ => {
            let all = Tensor::cat(&[&state.transpose(1, 2)?, x], 1)?;
            let next = ends(&all, &lengths, past)?.transpose(1, 2)?.contiguous()?;
            (all, next)
        }
    };
    let mut y = match bias {
        Some(bias) => bias.broadcast_as(x.shape())?,
        None => x.zeros_like()?,
    };
    for tap in 0..=past {
        let weight = weight.narrow(2, tap, 1)?.flatten_all()?;
        y = (y + all.narrow(1, tap, time)?.broadcast_mul(&weight)?)?;
    }
    let y = if silu { y.silu()? } else { y };
    Ok((blank(y, &lengths)?, next))
}

pub(crate) fn token_shift(
    x: &Tensor,
    before: &Tensor,
    mix: &Tensor,
    lengths: Lengths,
) -> Result<Vec<Tensor>> {
    let earlier = Tensor::cat(&[&before.unsqueeze(1)?, x], 1)?.narrow(1, 0, x.dim(1)?)?;
    let ahead = (x - &earlier)?;
    let mixed = |k| blank((ahead.broadcast_mul(&mix.get(k)?)? + &earlier)?, &lengths);
    (0..mix.dim(0)?).map(mixed).collect()
}

pub(crate) fn last(states: &Tensor, first: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    let all = Tensor::cat(&[&first.unsqueeze(1)?, states], 1)?;
    Ok(ends(&all, lengths, 1)?.squeeze(1)?)
}
