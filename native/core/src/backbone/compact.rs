//! Missing frames, taken out before a backbone sees them.

use std::sync::Arc;

use candle_core::Tensor;

use super::{Backbone, Context, State};
use crate::{Error, Result, ops};

/// Moves the present frames of each row together, so that a backbone knows sequences of several
/// lengths and nothing of gaps.
pub struct Compact(pub Box<dyn Backbone>);

impl Backbone for Compact {
    fn zero_state(&self, batch: usize) -> Result<State> {
        self.0.zero_state(batch)
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let (batch, time, _) = x.dims3()?;
        if time == 0 {
            return Err(Error::mismatch("frames of a window", "at least 1", 0));
        }
        let (y, state) = match &context.mask {
            None => self.0.forward(x, state, context)?,
            Some(mask) => {
                let moves = Moves::new(mask, batch, time)?;
                let within = context.compact(moves.lengths);
                let (y, state) = self.0.forward(&pick(x, moves.together)?, state, &within)?;
                (pick(&y, moves.apart)?, state)
            }
        };
        context.tap("trunk", &y);
        Ok((y, state))
    }
}

/// Frames of `x [b, t, d]` by their index in `b * t`.
fn pick(x: &Tensor, ids: Arc<[u32]>) -> Result<Tensor> {
    let (b, t, d) = x.dims3()?;
    Ok(ops::gather(&x.reshape((b * t, d))?, ids, "frames")?.reshape((b, t, d))?)
}

struct Moves {
    /// Where a frame of the compact sequence comes from; beyond the end, from anywhere in its row.
    together: Arc<[u32]>,
    /// Where the output of a frame is found: at itself, or at the last present one before it.
    apart: Arc<[u32]>,
    lengths: Arc<[usize]>,
}

impl Moves {
    fn new(mask: &[bool], batch: usize, time: usize) -> Result<Self> {
        if mask.len() != batch * time {
            return Err(Error::mismatch("mask", batch * time, mask.len()));
        }
        let (mut together, mut apart, mut lengths) = (vec![], vec![], vec![]);
        for (row, mask) in mask.chunks_exact(time).enumerate() {
            let first = (row * time) as u32;
            let present = (0..time as u32).filter(|&t| mask[t as usize]);
            together.extend(present.map(|t| first + t));
            let length = together.len() - row * time;
            together.resize((row + 1) * time, first);
            lengths.push(length);
            apart.extend(mask.iter().scan(0u32, |seen, &present| {
                *seen += u32::from(present);
                Some(first + seen.saturating_sub(1))
            }));
        }
        Ok(Moves { together: together.into(), apart: apart.into(), lengths: lengths.into() })
    }
}
