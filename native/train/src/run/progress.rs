//! How far a run has come.

use serde::{Deserialize, Serialize};

use crate::options::TrainOptions;
use crate::report::{Pace, Point};

/// What `last.safetensors` has of a run beside weights and moments.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Progress {
    pub step: u64,
    pub updates: u64,
    pub seconds: f64,
    pub best_nll: Option<f64>,
    pub best_step: Option<u64>,
    pub without_better: u64,
    /// The step of the last validation.
    pub validated: u64,
    /// Steps and NLLs of the validations whose policies are kept, the best first.
    #[serde(default)]
    pub kept: Vec<(u64, f64)>,
    /// Sum and number of training losses since the last point of the history.
    pub recent: (f64, u64),
    #[serde(default)]
    pub pace: Pace,
    /// Sum and number of training losses of this epoch.
    #[serde(default)]
    pub epoch: (f64, u64),
    pub history: Vec<Point>,
    pub options: TrainOptions,
    /// Of the games of both sides.
    pub digest: String,
}

impl Progress {
    pub fn new(options: &TrainOptions, digest: String) -> Self {
        Progress {
            step: 0,
            updates: 0,
            seconds: 0.0,
            best_nll: None,
            best_step: None,
            without_better: 0,
            validated: 0,
            kept: vec![],
            recent: (0.0, 0),
            pace: Pace::default(),
            epoch: (0.0, 0),
            history: vec![],
            options: TrainOptions { resume: false, ..options.clone() },
            digest,
        }
    }

    /// Counts a validation; whether its policy is the best, by at least `min_delta`. Without games to
    /// measure on the latest is.
    pub fn rate(&mut self, nll: Option<f64>, min_delta: f64) -> bool {
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

    /// Whether the policy of this step is among the best `keep`. Of equal ones the earlier is better.
    pub fn keep(&mut self, nll: Option<f64>, keep: usize) -> bool {
        if let Some(nll) = nll {
            let place = self.kept.partition_point(|(_, other)| *other <= nll);
            self.kept.insert(place, (self.step, nll));
        }
        self.kept.truncate(keep);
        self.kept.iter().any(|(step, _)| *step == self.step)
    }
}
