//! Sources of batches.

use sconce_tensor::Result;

use crate::batch::Batch;
use crate::mixture::Mixture;
use crate::tracks::{Track, Tracks};

/// The result of a step: a batch and, for tracks, the part of a view in each row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drawn {
    /// The batch of the step.
    pub batch: Batch,
    /// One entry per row for [`Draws::Tracks`], otherwise empty.
    pub tracks: Vec<Track>,
}

/// A deterministic source that makes the batch of any step.
pub trait Draw: Clone + Send + 'static {
    /// Makes the batch of `step`. The same step always gives the same batch.
    fn draw(&mut self, step: u64) -> Result<Drawn>;

    /// Bytes of one batch.
    fn bytes(&self) -> u64;

    /// Advances towards a step by a bounded amount of work. Returns whether the batch of that step can be made
    /// now.
    fn approach(&mut self, _step: u64) -> bool {
        true
    }
}

/// Draws windows from one or several corpora, or tracks. The first `burn_in` frames of each window or game
/// have weight 0.
#[derive(Debug, Clone)]
pub enum Draws {
    /// Windows drawn at random.
    Windows {
        /// The corpora and their shares.
        sampler: Mixture,
        /// Windows in a batch.
        batch_size: usize,
        /// Frames of weight 0 at the start of each window.
        burn_in: usize,
    },
    /// Games walked in order.
    Tracks {
        /// One track per row of the batch.
        tracks: Box<Tracks>,
        /// Frames of weight 0 at the start of each game.
        burn_in: usize,
    },
}

impl Draw for Draws {
    fn draw(&mut self, step: u64) -> Result<Drawn> {
        match self {
            Draws::Windows { sampler, batch_size, burn_in } => {
                let mut batch = sampler.batch(step, *batch_size)?;
                let window = batch.frames.time.max(1);
                for window in batch.weights.chunks_exact_mut(window) {
                    window.iter_mut().take(*burn_in).for_each(|weight| *weight = 0.0);
                }
                Ok(Drawn { batch, tracks: vec![] })
            }
            Draws::Tracks { tracks, burn_in } => {
                let (batch, tracks) = tracks.batch(step, *burn_in)?;
                Ok(Drawn { batch, tracks })
            }
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Draws::Windows { sampler, batch_size, .. } => {
                sampler.reader().bytes(*batch_size, sampler.options().window)
            }
            Draws::Tracks { tracks, .. } => tracks.bytes(),
        }
    }

    fn approach(&mut self, step: u64) -> bool {
        match self {
            Draws::Windows { .. } => true,
            Draws::Tracks { tracks, .. } => tracks.approach(step),
        }
    }
}
