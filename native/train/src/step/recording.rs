//! A recorded step on a card: its graph, and the fixed addresses that it reads and writes.

use sconce_nn::backbone::State;
use sconce_nn::policy::Placed;
use sconce_ops::rows::{Intake, copy};
use sconce_tensor::device::{Graph, Uploads, launch};
use sconce_tensor::{Result, Tensor, tensor};

use crate::objective::Denominators;

/// Maximum number of steps whose figures wait on a card.
pub const MOST_PENDING: usize = 16;

/// A recorded step for batches of one shape.
pub(super) struct Recording {
    /// `None` if the card refused to record it.
    pub graph: Option<Graph>,
    pub shape: [usize; 2],
    pub buffers: Buffers,
    pub uploads: Uploads,
    /// Addresses of the gradients that the graph writes.
    pub gradients: Vec<u64>,
}

pub(super) struct Buffers {
    pub words: Tensor,
    pub intake: Intake,
    pub placed: Placed,
    pub labels: Tensor,
    pub weights: Tensor,
    /// States before and after the windows.
    pub before: State,
    pub after: State,
    /// Counter that seeds the dropout masks, i64.
    pub counter: Tensor,
    /// Figures of pending steps, f64 `[MOST_PENDING, sums + 3]`.
    pub results: Tensor,
}

/// A step whose figures are on the card.
pub(super) struct Pending {
    pub denominators: Vec<Denominators>,
}

/// Number of values in `AdamW::state_there`.
pub(super) const STATE: usize = 3;

impl Buffers {
    /// Writes the inputs that are small, or already on the card.
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
