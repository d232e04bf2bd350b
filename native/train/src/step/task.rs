//! What a step learns from, and parts of it.

use std::borrow::Cow;
use std::ops::Range;

use sconce_nn::policy::{Frames, part};

use crate::loss::{Denominators, LabelledLogits};

/// What a step learns from.
#[derive(Debug, Clone, Copy)]
pub struct Examples<'a> {
    pub frames: &'a Frames,
    /// `[b, t, num_labels]`
    pub labels: &'a [u16],
    /// `[b, t]`, how much a frame counts.
    pub weights: &'a [f32],
}

/// What a stepper knows of a batch of which it has some windows and others have the rest. What they learn,
/// and its losses, add up to those of the whole.
#[derive(Debug, Clone, Copy)]
pub struct Among<'a> {
    /// The first of its windows: dropout falls as it would in all of them together.
    pub first: usize,
    /// Of the whole batch.
    pub denominators: &'a Denominators,
}

impl Examples<'_> {
    /// How much a frame counts on average.
    pub fn mean_weight(&self) -> f64 {
        mean_weight(self.weights)
    }
}

pub(crate) fn mean_weight(weights: &[f32]) -> f64 {
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    total / weights.len().max(1) as f64
}

/// Some frames of some windows of a batch, or all of it.
pub(super) struct Part<'a> {
    pub rows: Range<usize>,
    pub range: Range<usize>,
    /// Frames of a whole window.
    pub window: usize,
    pub frames: Cow<'a, Frames>,
    pub labels: Cow<'a, [u16]>,
    pub weights: Cow<'a, [f32]>,
}

impl<'a> Part<'a> {
    pub(super) fn cut(x: Examples<'a>, rows: Range<usize>, range: Range<usize>) -> Self {
        let shape @ [batch, window] = [x.frames.batch, x.frames.time];
        if (&rows, &range) == (&(0..batch), &(0..window)) {
            let (labels, weights) = (Cow::Borrowed(x.labels), Cow::Borrowed(x.weights));
            return Part { rows, range, window, frames: Cow::Borrowed(x.frames), labels, weights };
        }
        Part {
            labels: Cow::Owned(part(x.labels, shape, &rows, &range)),
            weights: Cow::Owned(part(x.weights, shape, &rows, &range)),
            frames: Cow::Owned(x.frames.part(&rows, &range)),
            rows,
            range,
            window,
        }
    }

    pub(super) fn examples(&self) -> Examples<'_> {
        Examples { frames: &self.frames, labels: &self.labels, weights: &self.weights }
    }
}

/// Rows `first..first + count` of examples whose logits are `[n, width]`.
pub(super) fn rows<'a>(
    logits: &'a [f32],
    width: usize,
    x: Examples<'a>,
) -> impl Fn(usize, usize) -> LabelledLogits<'a> + Sync {
    let labels = x.labels.len() / x.weights.len().max(1);
    move |first, count| LabelledLogits {
        logits: &logits[first * width..(first + count) * width],
        labels: &x.labels[first * labels..(first + count) * labels],
        weights: Some(&x.weights[first..first + count]),
    }
}
