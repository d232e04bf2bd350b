//! What a step learns from, and parts of it.

use std::borrow::Cow;
use std::ops::Range;

use sconce_data::Batch;
use sconce_nn::backbone::State;

use crate::objective::Denominators;

/// A batch to learn from, or windows of one.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    pub batch: &'a Batch,
    /// The learner's, before the windows,
    pub state: &'a State,
    /// and those of its objectives' companions; if none are given, of games that begin.
    pub companions: &'a [State],
    /// Dropout is drawn from it.
    pub draw: u64,
    /// How much its gradient counts for in the next update.
    pub share: f64,
    /// The first of the windows in a batch of which others have the rest: dropout falls as it would in all of them
    /// together.
    pub first: usize,
    /// Those of that whole batch, so that what they learn, and the losses, add up to its own.
    pub denominators: Option<&'a [Denominators]>,
}

impl<'a> Task<'a> {
    /// A whole batch, which counts for 1.
    pub fn new(batch: &'a Batch, state: &'a State, draw: u64) -> Self {
        Task { batch, state, companions: &[], draw, share: 1.0, first: 0, denominators: None }
    }

    /// Whether no frame counts.
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
