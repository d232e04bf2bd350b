//! The number of frames in each row of a batch.

use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::{Error, Result};

/// Frames of each row, `[b]`; `None` means that every row has all frames. Later frames do not exist: their outputs are
/// undefined, they give no gradient, and the state after the sequence is the state after the last frame.
pub type Lengths = Option<Arc<[usize]>>;

/// Checks that each row has a length, and that none exceeds the sequence.
pub fn check_lengths(lengths: &Lengths, batch: usize, time: usize) -> Result<()> {
    let Some(lengths) = lengths else { return Ok(()) };
    if lengths.len() != batch {
        return Err(Error::mismatch("lengths of a batch", batch, lengths.len()));
    }
    match lengths.iter().find(|&&length| length > time) {
        Some(&n) => Err(Error::out_of_range("length of a row", n as f64, 0.0, time as f64)),
        None => Ok(()),
    }
}

/// A mask of the frames that exist, `[b, t, 1]` of 0 and 1; `None` where all exist.
pub(crate) fn present(lengths: &Lengths, time: usize, device: &Device) -> Result<Option<Tensor>> {
    let Some(lengths) = lengths else { return Ok(None) };
    let frames = lengths.iter().flat_map(|&length| (0..time).map(move |t| u8::from(t < length)));
    Ok(Some(Tensor::from_iter(frames, device)?.reshape((lengths.len(), time, 1))?))
}

/// `y [b, t, c]` with zeros in the frames that do not exist.
pub(crate) fn blank(y: Tensor, lengths: &Lengths) -> Result<Tensor> {
    match present(lengths, y.dim(1)?, y.device())? {
        Some(present) => Ok(present.broadcast_as(y.shape())?.where_cond(&y, &y.zeros_like()?)?),
        None => Ok(y),
    }
}

/// Frames of each row on the card of `x`, i32 `[b]`; `None` where every row has all frames.
pub(crate) fn on_card(lengths: &Lengths, x: &Tensor) -> Result<Option<Tensor>> {
    let Some(lengths) = lengths else { return Ok(None) };
    let lengths: Vec<i32> = lengths.iter().map(|&n| i32::try_from(n).unwrap_or(i32::MAX)).collect();
    Ok(Some(Tensor::from_slice(&lengths, lengths.len(), x.device())?))
}

/// The rows that still have a frame, by time step.
pub(crate) struct Rows(Option<Tensor>);

impl Rows {
    /// The mask of a sequence `x [b, t, c]`.
    pub(crate) fn of(x: &Tensor, lengths: &Lengths) -> Result<Self> {
        Ok(Rows(present(lengths, x.dim(1)?, x.device())?))
    }

    /// The state `new [b, ..]` in rows that have frame t, and `old` in rows that have ended.
    pub(crate) fn step(&self, t: usize, new: &Tensor, old: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Some(present) => {
                let mut shape = vec![1; new.rank()];
                shape[0] = present.dim(0)?;
                let present = present
                    .narrow(1, t, 1)?
                    .squeeze(1)?
                    .reshape(shape)?
                    .broadcast_as(new.shape())?;
                Ok(present.where_cond(new, old)?)
            }
            None => Ok(new.clone()),
        }
    }
}
