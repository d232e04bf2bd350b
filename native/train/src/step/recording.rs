//! A step on a card that is recorded: its graph, and the fixed places that it reads and writes.

use sconce_nn::backbone::State;
use sconce_nn::policy::Placed;
use sconce_ops::rows::{Intake, copy};
use sconce_tensor::device::{Graph, Uploads, launch};
use sconce_tensor::{Result, Tensor, tensor};

use crate::objective::Denominators;

/// Steps whose figures may wait on a card.
pub const MOST_PENDING: usize = 16;

/// A step of batches of one shape.
pub(super) struct Recording {
    /// None where the card did not let it be recorded.
    pub graph: Option<Graph>,
    pub shape: [usize; 2],
    pub buffers: Buffers,
    pub uploads: Uploads,
    /// Where the graph has its gradients.
    pub gradients: Vec<u64>,
}

pub(super) struct Buffers {
    pub words: Tensor,
    pub intake: Intake,
    pub placed: Placed,
    pub labels: Tensor,
    pub weights: Tensor,
    /// What windows begin with and end with.
    pub before: State,
    pub after: State,
    /// i64: what masks are drawn from.
    pub counter: Tensor,
    /// f64 `[MOST_PENDING, sums + 3]`
    pub results: Tensor,
}

/// A step whose figures are on the card.
pub(super) struct Pending {
    pub denominators: Vec<Denominators>,
}

/// Numbers of [`card::adamw::AdamW::state_there`].
pub(super) const STATE: usize = 3;

impl Buffers {
    /// Writes what is small, or on the card already.
    pub(super) fn set(&self, state: &State, draw: u64, carry: bool) -> Result<()> {
        launch::overwrite(&self.counter, &[draw as i64])?;
        if carry {
            for (from, to) in state.0.iter().zip(&self.before.0) {
                copy(&tensor::moved(from, to)?, to)?;
            }
        }
        Ok(())
    }
}
