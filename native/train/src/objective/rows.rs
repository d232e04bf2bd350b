//! Rows of a batch in the form that an objective takes.

use std::ops::Range;

use sconce_data::Batch;
use sconce_tensor::Tensor;

/// Outputs of the learner and of companions for some frames.
#[derive(Debug)]
pub struct Outputs {
    /// Logits of the learner, `[n, num_logits]`.
    pub logits: Tensor,
    /// Logits of each [companion](super::Objective::companions), in the order of the objectives.
    pub companions: Vec<Vec<f32>>,
}

/// Consecutive frames of a batch, row-major.
#[derive(Debug, Clone)]
pub struct Rows<'a> {
    /// Logits of the learner, `[n, num_logits]`.
    pub logits: &'a [f32],
    /// Logits of each of the objective's [companions](super::Objective::companions).
    pub companions: Vec<&'a [f32]>,
    /// The whole batch.
    pub batch: &'a Batch,
    /// Indices of these rows in the batch.
    pub range: Range<usize>,
}

impl<'a> Rows<'a> {
    /// Labels, `[n, num_labels]`.
    pub fn labels(&self) -> &'a [f32] {
        self.of(&self.batch.labels)
    }

    /// Previous actions, `[n, num_labels]`; [`NONE`](sconce_nn::heads::NONE) where there is none.
    pub fn previous(&self) -> &'a [f32] {
        self.of(&self.batch.frames.previous)
    }

    /// Weights, `[n]`. A row of weight 0 is not part of the batch.
    pub fn weights(&self) -> &'a [f32] {
        self.of(&self.batch.weights)
    }

    /// Selects these rows of a column.
    pub fn of<T>(&self, column: &'a [T]) -> &'a [T] {
        let width = column.len() / self.batch.weights.len().max(1);
        &column[self.range.start * width..self.range.end * width]
    }
}
