//! Removes missing frames from the input of a backbone.

use std::sync::Arc;

use sconce_realtime::Packer;
use sconce_tensor::Tensor;

use super::{Backbone, Context, State};
use crate::ops::arrange::reshape;
use crate::packed::Step;
use crate::weights::MAX_NUMBERS;
use crate::{Error, Result, ops};

/// Moves the present frames of each row together, so that a backbone must support sequences of different lengths but no
/// gaps. Rejects oversized states before allocating them, since a long window or a wide head makes a large state even
/// if every weight is small.
pub(super) struct Compact {
    net: Box<dyn Backbone>,
    /// Number of f32 in the state of one game.
    numbers: usize,
}

impl Compact {
    pub(super) fn new(net: Box<dyn Backbone>) -> Result<Self> {
        let numbers =
            |part: &Tensor| part.dims().iter().skip(1).fold(1usize, |n, d| n.saturating_mul(*d));
        // The state of 0 games has the same shapes and takes no memory.
        let parts = net.zero_state(0)?.0;
        let numbers = parts.iter().map(numbers).fold(0, usize::saturating_add);
        let net = Compact { net, numbers };
        net.check(1)?;
        Ok(net)
    }

    fn check(&self, batch: usize) -> Result<()> {
        match self.numbers.saturating_mul(batch) {
            0..=MAX_NUMBERS => Ok(()),
            numbers => {
                let bytes = (numbers as u64).saturating_mul(4);
                Err(Error::out_of_memory(format!("state of {batch} games"), bytes))
            }
        }
    }
}

impl Backbone for Compact {
    fn zero_state(&self, batch: usize) -> Result<State> {
        self.check(batch)?;
        self.net.zero_state(batch)
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let (batch, time, _) = x.dims3()?;
        if time == 0 {
            return Err(Error::mismatch("frames of a window", "at least 1", 0));
        }
        let (y, state) = match &context.mask {
            None => self.net.forward(x, state, context)?,
            Some(mask) => {
                let moves = Moves::new(mask, batch, time)?;
                let within = context.compact(moves.lengths);
                let (y, state) = self.net.forward(&pick(x, moves.together)?, state, &within)?;
                (pick(&y, moves.apart)?, state)
            }
        };
        context.tap("trunk", &y);
        Ok((y, state))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        self.net.pack(packer)
    }
}

/// Selects frames of `x [b, t, d]` by their indices in `b * t`.
fn pick(x: &Tensor, ids: Arc<[u32]>) -> Result<Tensor> {
    let (b, t, d) = x.dims3()?;
    reshape(&ops::gather(&reshape(x, [b * t, d])?, ids, "frames")?, [b, t, d])
}

struct Moves {
    /// Index of the source of each frame of the compact sequence. Beyond the end of the sequence, any frame of the row.
    together: Arc<[u32]>,
    /// Index of each frame's output in the compact sequence: the frame's own, or that of the last present frame before.
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
