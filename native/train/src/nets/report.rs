//! Events and the report of a run.

use serde::Serialize;

use super::evaluate::Evaluation;

/// Reason for the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// All steps are done.
    Finished,
    /// Validations stopped improving.
    Early,
    /// The caller stopped the run.
    Stopped,
    /// A number was not finite.
    Failed,
}

/// An event of a run.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A step is done.
    Step {
        /// The step, counted from 1.
        step: u64,
        /// The epoch, counted from 1.
        epoch: u64,
        /// Mean loss of the batch before the update.
        loss: f64,
        /// Learning rate of the update.
        learning_rate: f64,
    },
    /// An epoch is done, or the run.
    Epoch {
        /// The epoch, counted from 1.
        epoch: u64,
        /// The last step, counted from 1.
        step: u64,
        /// Mean loss of the steps of the epoch.
        loss: f64,
        /// Figures of the validation, if there is one.
        validation: Option<Evaluation>,
    },
}

/// A validation of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Validation {
    /// Steps so far.
    pub step: u64,
    /// Mean loss.
    pub loss: f64,
    /// Share of targets that are the likeliest class; `None` without classes.
    pub accuracy: Option<f64>,
}

/// A number that was not finite.
#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    /// The name of the number.
    pub what: String,
    /// The number as text.
    pub value: String,
    /// The step, counted from 1.
    pub step: u64,
}

/// The report of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Reason for the end.
    pub stopped: Stopped,
    /// Steps that changed the weights.
    pub steps: u64,
    /// Whole epochs.
    pub epochs: u64,
    /// Duration.
    pub seconds: f64,
    /// Mean loss of the batch of each step.
    pub losses: Vec<f64>,
    /// Validations.
    pub validation: Vec<Validation>,
    /// The step whose weights the network has.
    pub step: u64,
    /// Cause of [`Stopped::Failed`].
    pub failure: Option<Failure>,
}
