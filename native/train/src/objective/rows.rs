//! What an objective sees of a batch.

use std::ops::Range;

use sconce_data::Batch;
use sconce_tensor::Tensor;

/// What a policy, and those who look on, say to some frames.
#[derive(Debug)]
pub struct Outputs {
    /// `[n, num_logits]`
    pub logits: Tensor,
    /// Of each [companion](super::Objective::companion), in the order of the objectives.
    pub companions: Vec<Vec<f32>>,
}

/// Some rows of a batch: frames, row-major.
#[derive(Debug, Clone)]
pub struct Rows<'a> {
    /// The learner's, `[n, num_logits]`,
    pub logits: &'a [f32],
    /// and those of the objective's [companion](super::Objective::companion).
    pub companion: &'a [f32],
    /// All of the batch that these rows are in,
    pub batch: &'a Batch,
    /// and which of its rows they are.
    pub range: Range<usize>,
}

impl<'a> Rows<'a> {
    /// `[n, num_labels]`
    pub fn labels(&self) -> &'a [f32] {
        self.of(&self.batch.labels)
    }

    /// The inputs before, `[n, num_labels]`, [`NONE`](sconce_nn::heads::NONE) where there was none.
    pub fn previous(&self) -> &'a [f32] {
        self.of(&self.batch.frames.previous)
    }

    /// How much each counts, `[n]`; one of weight 0 is not part of the batch at all.
    pub fn weights(&self) -> &'a [f32] {
        self.of(&self.batch.weights)
    }

    /// These rows of a column.
    pub(super) fn of<T>(&self, column: &'a [T]) -> &'a [T] {
        let width = column.len() / self.batch.weights.len().max(1);
        &column[self.range.start * width..self.range.end * width]
    }
}
