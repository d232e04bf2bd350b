//! Batches: windows of frames and the columns to learn from, which a [`Reader`] makes from views.
//!
//! A batch depends only on (seed, step). The thread count does not change a batch, and a resumed run needs
//! only the step.

mod reader;
mod shard;

use std::ops::Range;

use sconce_nn::policy::{self, Frames};

pub(crate) use reader::Look;
pub use reader::Reader;
pub(crate) use shard::{Shard, fill};

use crate::schema::Beside;

/// Windows of frames and the columns to learn from, all row-major.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Embedded frames, `[b, t]`.
    pub frames: Frames,
    /// The frames as other policies read them, such as teachers.
    pub seen: Seen,
    /// Labels of the inputs that the state does not show yet, `[b, t, queue_depth, num_labels]`; [`NONE`](sconce_nn::heads::NONE)
    /// where there is no input.
    pub queue: Vec<f32>,
    /// Labels of the input to predict, `[b, t, num_labels]`.
    pub labels: Vec<f32>,
    /// Frame weights of the loss, `[b, t]`; 0 for padding.
    pub weights: Vec<f32>,
    /// The requested extra columns, each `[b, t]` but for [`Played::Mask`].
    pub beside: Columns,
}

/// The frames of a batch as other policies read them beside the learner.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The frames in each embedding that differs from the learner's, `[b, t]`.
    pub frames: Vec<Frames>,
    /// For each of these policies the index of its frames; `None` if it reads those of the learner.
    pub by: Vec<Option<usize>>,
}

impl Seen {
    /// The frames that policy `i` reads, if they are not those of the learner.
    pub fn of(&self, i: usize) -> Option<&Frames> {
        self.by.get(i).copied().flatten().and_then(|own| self.frames.get(own))
    }
}

/// The requested extra columns of a batch, by kind.
pub type Columns = Vec<(Extra, Vec<f32>)>;

/// An extra column beside the labels of a frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Extra {
    /// A column that the corpus stores.
    Stored(Beside),
    /// The discounted return.
    Return {
        /// Discount of the rewards per frame.
        discount: f32,
    },
    /// A column of a batch that was played, which no corpus has.
    Played(Played),
}

/// A column of a batch that a policy played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Played {
    /// Advantage of the action.
    Advantage,
    /// Target of the value.
    Target,
    /// Log-likelihood of the action under the weights that chose it, in nats.
    LogLikelihood,
    /// Value under the weights that chose the action.
    Value,
    /// Action mask, `[b, t, mask_size]`: 0 where a class must not be chosen or a bit must not be set.
    Mask,
}

impl Played {
    /// Name of the column in errors.
    pub fn name(self) -> &'static str {
        match self {
            Played::Advantage => "advantages of a batch",
            Played::Target => "targets of a batch",
            Played::LogLikelihood => "log-likelihoods of a batch",
            Played::Value => "values of a batch",
            Played::Mask => "masks of a batch",
        }
    }
}

impl Batch {
    /// Bytes of the batch.
    pub fn bytes(&self) -> u64 {
        let frames =
            |frames: &Frames| frames.continuous.len() + frames.ids.len() + frames.previous.len();
        let beside: usize = self.beside.iter().map(|(_, column)| column.len()).sum();
        let own = self.queue.len() + self.labels.len() + self.weights.len() + beside;
        let words = frames(&self.frames) + self.seen.frames.iter().map(frames).sum::<usize>() + own;
        (size_of::<f32>() * words) as u64
    }

    /// Mean of the frame weights.
    pub fn mean_weight(&self) -> f64 {
        let total: f64 = self.weights.iter().map(|&weight| f64::from(weight)).sum();
        total / self.weights.len().max(1) as f64
    }

    /// Concatenates labels, weights and extra columns of these batches, without their frames.
    pub fn columns<'a>(all: impl Iterator<Item = &'a Batch>) -> Batch {
        let mut columns = Batch::default();
        for batch in all {
            columns.labels.extend(&batch.labels);
            columns.weights.extend(&batch.weights);
            for (i, (extra, numbers)) in batch.beside.iter().enumerate() {
                match columns.beside.get_mut(i) {
                    Some((_, all)) => all.extend(numbers),
                    None => columns.beside.push((*extra, numbers.clone())),
                }
            }
        }
        columns
    }

    /// Copies frames `range` of windows `rows`.
    pub fn part(&self, rows: &Range<usize>, range: &Range<usize>) -> Batch {
        let shape = [self.frames.batch, self.frames.time];
        Batch {
            frames: self.frames.part(rows, range),
            seen: Seen {
                frames: self.seen.frames.iter().map(|seen| seen.part(rows, range)).collect(),
                by: self.seen.by.clone(),
            },
            queue: policy::part(&self.queue, shape, rows, range),
            labels: policy::part(&self.labels, shape, rows, range),
            weights: policy::part(&self.weights, shape, rows, range),
            beside: self
                .beside
                .iter()
                .map(|(extra, all)| (*extra, policy::part(all, shape, rows, range)))
                .collect(),
        }
    }

    /// The first extra column whose kind satisfies `wanted`, if one was requested.
    pub fn column(&self, wanted: impl Fn(Extra) -> bool) -> Option<&[f32]> {
        let found = self.beside.iter().find(|(extra, _)| wanted(*extra));
        found.map(|(_, numbers)| numbers.as_slice())
    }
}
