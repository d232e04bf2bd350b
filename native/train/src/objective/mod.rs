//! Objectives: outputs of a policy and a batch in, figures and gradients out.
//!
//! To add an objective, add a file or a folder here and a line to [`TABLE`]. An objective is host code over some rows,
//! which serves any device; it may also have a form [on a card](Objective::on_card). The loss of several objectives is
//! the sum of their losses.
//!
//! A batch is cut into shards of [`SHARD_ROWS`] rows. The [`Sums`] of shards are added in order, so results are
//! bit-identical with any number of threads:
//!
//! 1. [`Objective::rows`] of every shard without a gradient, if it takes [two passes](Objective::two_passes);
//! 2. [`Objective::denominators`] of the whole batch;
//! 3. [`Objective::rows`] of every shard, whose sums are added in order;
//! 4. [`Objective::finish`].

pub mod advantage;
mod card;
mod companion;
mod figures;
pub mod imitation;
mod objectives;
mod prior;
mod rows;
mod sums;
pub mod teacher;

pub use card::{OnCard, PlacedRows, add_parts};
pub use companion::Companion;
pub use figures::{Figures, figures};
pub use objectives::Objectives;
pub(crate) use objectives::Total;
pub use rows::{Outputs, Rows};
use sconce_data::{Batch, Beside, Extra};
use sconce_nn::Spec;
use sconce_tensor::{Device, Error, Result, Tensor};
pub use sums::{Denominators, Sums};

use crate::baselines::Baseline;
use crate::options::TrainOptions;

/// Rows of a shard. The rounding of a result depends on this number, so it is not an option.
pub const SHARD_ROWS: usize = 256;

/// Inputs from which the objectives of a run are made.
pub(crate) struct Setup<'a> {
    pub options: &'a TrainOptions,
    pub spec: &'a Spec,
    /// Share of the training frames in which each bit of the heads is set, one for each bit.
    pub press_rates: &'a [f64],
    pub device: &'a Device,
    /// P(a_t given a_{t-1}) in the training games, for a run with a `prior_weight`.
    pub prior: Option<&'a Baseline>,
}

/// Makes an objective, if the options of the run ask for it.
type Make = fn(&Setup<'_>) -> Result<Option<Box<dyn Objective>>>;

/// Columns that the objective reads beside the labels.
type Reads = fn(&TrainOptions) -> Vec<Extra>;

/// All objectives, in the order in which their gradients are added.
pub(crate) const TABLE: &[(Make, Reads)] = &[
    (imitation::of, nothing),
    (advantage::of, advantage::columns),
    (teacher::of, nothing),
    (prior::of, nothing),
];

/// Returns no columns, for an objective that reads labels alone.
fn nothing(_options: &TrainOptions) -> Vec<Extra> {
    vec![]
}

/// Columns that the objectives of a run read beside the labels.
pub(crate) fn columns(options: &TrainOptions) -> Vec<Extra> {
    let mut all: Vec<Extra> = vec![];
    for extra in TABLE.iter().flat_map(|(_, reads)| reads(options)) {
        if !all.contains(&extra) {
            all.push(extra);
        }
    }
    all
}

/// Refuses a corpus without the columns that the objectives of a run read.
///
/// # Errors
/// `NotFound` for the first missing column.
pub(crate) fn check_columns(options: &TrainOptions, has: &[Beside]) -> Result<()> {
    let stored = |extra: &Extra| match extra {
        Extra::Return { .. } => Some(Beside::Reward),
        Extra::Stored(column) => Some(*column),
        Extra::Played(_) => None,
    };
    match columns(options).iter().filter_map(stored).find(|column| !has.contains(column)) {
        Some(column) => Err(Error::not_found(format!("column {} of the corpus", column.name()))),
        None => Ok(()),
    }
}

/// A loss that is learned from batches.
pub trait Objective: Send + Sync {
    /// Name of the objective's states in the file of a run.
    fn name(&self) -> &'static str;

    /// A copy for a learner on another device.
    fn copy_on(&self, device: &Device) -> Result<Box<dyn Objective>>;

    /// Frozen policies whose outputs the objective reads beside the learner's.
    fn companions(&self) -> &[Companion] {
        &[]
    }

    /// Checks a whole batch before kernels run, which check nothing. [`rows`](Self::rows) on the host checks its own
    /// rows.
    fn check(&self, batch: &Batch) -> Result<()> {
        let _ = batch;
        Ok(())
    }

    /// Whether [`denominators`](Self::denominators) needs the sums of a first pass.
    fn two_passes(&self) -> bool {
        false
    }

    /// Denominators of the whole batch, which every shard needs.
    ///
    /// # Errors
    /// `OutOfRange` for a weight that is negative or not finite, or if all weights are 0.
    fn denominators(&self, batch: &Batch, first: Option<&Sums>) -> Result<Denominators> {
        let _ = first;
        Denominators::of(&batch.weights)
    }

    /// Returns the sums of these rows. Writes the gradient of the whole batch's loss at their logits,
    /// `[n, num_logits]`.
    fn rows(
        &self,
        rows: &Rows<'_>,
        whole: &Denominators,
        gradient: Option<&mut [f32]>,
    ) -> Result<Sums>;

    /// Computes the loss and other figures of the batch from the sums of all rows.
    ///
    /// # Errors
    /// `NonFinite` for a loss that is not finite.
    fn finish(&self, sums: &Sums, whole: &Denominators) -> Result<Figures>;

    /// The objective's form on the card of these outputs; `None` if they are on no card or there is no such form.
    fn on_card(&self, outputs: &Tensor) -> Result<Option<&dyn OnCard>> {
        let _ = outputs;
        Ok(None)
    }
}
