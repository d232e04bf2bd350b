//! The batch that a step learns from, and its parts.

use std::borrow::Cow;
use std::ops::Range;

use sconce_data::Batch;
use sconce_nn::backbone::State;

use crate::objective::Denominators;

/// A batch to learn from, or windows of one.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// Frames, labels and weights.
    pub batch: &'a Batch,
    /// State of the learner before the windows.
    pub state: &'a State,
    /// States of the companions before the windows; zero states if none are given.
    pub companions: &'a [State],
    /// Number of the batch, which seeds dropout.
    pub draw: u64,
    /// Factor on the batch's gradient in the next update.
    pub share: f64,
    /// Index of the first window in the whole batch, if several replicas share that batch. It makes dropout the same as
    /// for the whole batch.
    pub first: usize,
    /// Denominators of the whole batch that replicas share, so that the shares' losses and gradients add up to the
    /// batch's.
    pub denominators: Option<&'a [Denominators]>,
}

impl<'a> Task<'a> {
    /// A whole batch with a share of 1.
    pub fn new(batch: &'a Batch, state: &'a State, draw: u64) -> Self {
        Task { batch, state, companions: &[], draw, share: 1.0, first: 0, denominators: None }
    }

    /// Whether all frames have weight 0.
    pub(super) fn is_silent(&self) -> bool {
        self.batch.weights.iter().all(|weight| *weight == 0.0)
    }
}

/// Some frames of some windows of a batch, or all of it.
pub(super) struct Part<'a> {
    pub rows: Range<usize>,
    pub range: Range<usize>,
    /// Frames of a whole window.
    pub window: usize,
    pub batch: Cow<'a, Batch>,
}

impl<'a> Part<'a> {
    pub(super) fn cut(batch: &'a Batch, rows: Range<usize>, range: Range<usize>) -> Self {
        let (windows, window) = (batch.frames.batch, batch.frames.time);
        let batch = match (&rows, &range) == (&(0..windows), &(0..window)) {
            true => Cow::Borrowed(batch),
            false => Cow::Owned(batch.part(&rows, &range)),
        };
        Part { rows, range, window, batch }
    }
}
