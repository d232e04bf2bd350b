//! What is learned: outputs of a policy and a batch in, figures and gradients out.
//!
//! An objective is a file or a folder here and a line in [`TABLE`]. What it has to say is host code over some rows, which
//! runs on any device; it may have a form [on a card](Objective::on_card) beside that. Several are learned together: the
//! sum of their losses.
//!
//! A batch is cut into shards of [`SHARD_ROWS`] rows whose [`Sums`] are added in order, so any number of threads gives the
//! same bits:
//!
//! 1. [`Objective::rows`] of every shard without a gradient, if the objective takes [two passes](Objective::two_passes);
//! 2. [`Objective::denominators`] of the whole batch;
//! 3. [`Objective::rows`] of every shard, its sums added in order;
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

pub use card::{OnCard, PlacedRows};
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

/// Rows of a shard. Part of the result's last bits, so it is not an option.
pub const SHARD_ROWS: usize = 256;

/// What an objective of a run is made from.
pub(crate) struct Setup<'a> {
    pub options: &'a TrainOptions,
    pub spec: &'a Spec,
    /// How often each bit of the heads is set in the training games.
    pub press_rates: &'a [f64],
    pub device: &'a Device,
    /// P(a_t given a_{t-1}) in the training games, for a run that stays close to it.
    pub prior: Option<&'a Baseline>,
}

/// Makes an objective, if the options of the run ask for it.
type Make = fn(&Setup<'_>) -> Result<Option<Box<dyn Objective>>>;

/// What it then reads of frames beside their labels.
type Reads = fn(&TrainOptions) -> Vec<Extra>;

/// All objectives, in the order in which their gradients are added.
pub(crate) const TABLE: &[(Make, Reads)] = &[
    (imitation::of, nothing),
    (advantage::of, advantage::columns),
    (teacher::of, nothing),
    (prior::of, nothing),
];

/// Of an objective that reads labels alone.
fn nothing(_options: &TrainOptions) -> Vec<Extra> {
    vec![]
}

/// What the objectives of a run read of frames beside their labels.
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
/// `NotFound`
pub(crate) fn check_columns(options: &TrainOptions, has: &[Beside]) -> Result<()> {
    let stored = |extra: &Extra| match extra {
        Extra::Return { .. } => Beside::Reward,
        Extra::Stored(column) => *column,
    };
    match columns(options).iter().map(stored).find(|column| !has.contains(column)) {
        Some(column) => Err(Error::not_found(format!("column {} of the corpus", column.name()))),
        None => Ok(()),
    }
}

/// What is learned from a batch.
pub trait Objective: Send + Sync {
    /// What its states are called in the file of a run.
    fn name(&self) -> &'static str;

    /// The same for a learner on another device.
    fn copy_on(&self, device: &Device) -> Result<Box<dyn Objective>>;

    /// A frozen policy whose outputs it wants beside the learner's.
    fn companion(&self) -> Option<&Companion> {
        None
    }

    /// What a batch has to be, which kernels do not look at: [`rows`](Self::rows) says the same of its rows.
    fn check(&self, batch: &Batch) -> Result<()> {
        let _ = batch;
        Ok(())
    }

    /// Whether [`denominators`](Self::denominators) wants the sums of a first pass.
    fn two_passes(&self) -> bool {
        false
    }

    /// What some rows have to know of the whole batch.
    ///
    /// # Errors
    /// `OutOfRange` for a weight that is no number from 0 on, or if all are 0.
    fn denominators(&self, batch: &Batch, first: Option<&Sums>) -> Result<Denominators> {
        let _ = first;
        Denominators::of(&batch.weights)
    }

    /// What these rows add to the sums; writes the gradient of the whole batch's loss at their outputs, `[n, num_logits]`.
    fn rows(
        &self,
        rows: &Rows<'_>,
        whole: &Denominators,
        gradient: Option<&mut [f32]>,
    ) -> Result<Sums>;

    /// Its loss and its other figures from the sums of all rows.
    ///
    /// # Errors
    /// `NonFinite` for a loss that is not.
    fn finish(&self, sums: &Sums, whole: &Denominators) -> Result<Figures>;

    /// Its form where these outputs are, if they are on a card and it has one.
    fn on_card(&self, outputs: &Tensor) -> Result<Option<&dyn OnCard>> {
        let _ = outputs;
        Ok(None)
    }
}
