//! The progress of a run.

use sconce_tensor::Precision;
use serde::{Deserialize, Serialize};

use super::room::Growth;
use crate::loss_scale::LossScale;
use crate::objective::Figures;
use crate::options::TrainOptions;
use crate::report::{Pace, Point};
use crate::schedule::Schedule;

/// The state of a run in `last.safetensors`, besides weights and moments.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Number of completed steps.
    pub step: u64,
    /// Updates of the optimiser; skipped ones do not count.
    pub updates: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// NLL of the best validation.
    pub best_nll: Option<f64>,
    /// Step of the best policy.
    pub best_step: Option<u64>,
    /// Consecutive validations without an improvement.
    pub without_better: u64,
    /// The step of the last validation.
    pub validated: u64,
    /// Steps and NLLs of the validations whose policies are kept, best first.
    #[serde(default)]
    pub kept: Vec<(u64, f64)>,
    /// Training losses since the last point of the history.
    #[serde(default)]
    pub recent_losses: Tally,
    /// Training losses of this epoch.
    #[serde(default)]
    pub epoch_losses: Tally,
    #[serde(default)]
    pub pace: Pace,
    /// Windows that are computed together.
    #[serde(default)]
    pub micro_batch: Option<usize>,
    /// The known sizes of micro-batches, for a run whose micro-batch grows again.
    #[serde(default)]
    pub growth: Option<Growth>,
    /// Number of warm-up steps, which does not change after the start of the run.
    #[serde(default)]
    pub warmup_steps: Option<u64>,
    /// Precision of the run, which is kept on any machine where it resumes.
    #[serde(default)]
    pub precision: Precision,
    #[serde(default)]
    pub loss_scale: Option<LossScale>,
    /// Learning rate that a callback set instead of the schedule.
    #[serde(default)]
    pub learning_rate: Option<f64>,
    /// How far quantised weights are on the way to their grid, or pruned weights on that to their sparsity, from 0 to 1. It
    /// never falls, so that a run that is lengthened does not turn back.
    #[serde(default)]
    pub annealed: f64,
    /// Step of the last callback.
    #[serde(default)]
    pub asked: u64,
    pub history: Vec<Point>,
    /// The options. If the run was lengthened, the schedule has its original lengths.
    pub options: TrainOptions,
    /// The options as given, if they differ from `options`.
    #[serde(default)]
    pub said: Option<TrainOptions>,
    /// Digest of the games of both sides.
    pub digest: String,
    /// Digests of the teachers' files.
    #[serde(default)]
    pub teacher: Option<String>,
}

/// Sum of the losses of steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Tally {
    losses: Figures,
    steps: u64,
}

impl Tally {
    pub(super) fn add(&mut self, losses: &Figures) {
        self.losses.add(losses, 1.0);
        self.steps += 1;
    }

    /// Takes the mean figures and empties the tally; `None` without steps.
    pub(super) fn take(&mut self) -> Option<Figures> {
        let Tally { losses, steps } = std::mem::take(self);
        (steps > 0).then(|| losses.over(steps as f64))
    }
}

impl Progress {
    pub(super) fn new(options: &TrainOptions, digest: String, teacher: Option<String>) -> Self {
        Progress {
            step: 0,
            updates: 0,
            seconds: 0.0,
            best_nll: None,
            best_step: None,
            without_better: 0,
            validated: 0,
            kept: vec![],
            recent_losses: Tally::default(),
            pace: Pace::default(),
            epoch_losses: Tally::default(),
            micro_batch: None,
            growth: None,
            warmup_steps: None,
            precision: options.precision_here(),
            loss_scale: None,
            learning_rate: None,
            annealed: 0.0,
            asked: 0,
            history: vec![],
            options: options.begun(),
            said: None,
            digest,
            teacher,
        }
    }

    /// The schedule of a run of `total_steps`.
    pub(super) fn schedule(&self, total_steps: u64) -> Schedule {
        let schedule = self.options.schedule(total_steps);
        let warmup_steps = self.warmup_steps.unwrap_or(schedule.warmup_steps);
        Schedule { warmup_steps, ..schedule }
    }

    /// The options as the user gave them.
    pub(super) fn said(&self) -> &TrainOptions {
        self.said.as_ref().unwrap_or(&self.options)
    }

    /// Counts a validation. Returns whether its policy is the best, by at least `min_delta`. Without validation games
    /// the latest policy counts as the best.
    pub(super) fn rate(&mut self, nll: Option<f64>, min_delta: f64) -> bool {
        self.validated = self.step;
        let best = match (nll, self.best_nll) {
            (Some(nll), Some(best)) => nll < best - min_delta,
            _ => true,
        };
        if best {
            (self.best_nll, self.best_step, self.without_better) = (nll, Some(self.step), 0);
        } else {
            self.without_better += 1;
        }
        best
    }

    /// Whether the policy of this step is among the best `keep`. Among equal policies the earlier one is better.
    pub(super) fn keep(&mut self, nll: Option<f64>, keep: usize) -> bool {
        if let Some(nll) = nll {
            let place = self.kept.partition_point(|(_, other)| *other <= nll);
            self.kept.insert(place, (self.step, nll));
        }
        self.kept.truncate(keep);
        self.kept.iter().any(|(step, _)| *step == self.step)
    }
}
