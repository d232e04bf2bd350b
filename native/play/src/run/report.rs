//! Events and the report of a run that learns from play.

use std::path::{Path, PathBuf};

use sconce_nn::Spec;
use sconce_tensor::{Error, Result, fs};
use sconce_train::run::Folder;
use serde::{Deserialize, Serialize};

use super::Run;
use super::progress::Point;
use crate::league::{Faced, League};
use crate::options::PpoOptions;

/// An event of a run.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run begins, or continues.
    Start {
        /// Name of the environment.
        env: String,
        /// Rows that play side by side.
        rows: usize,
        /// Updates of the whole run.
        updates: u64,
        /// Steps of the whole run.
        steps: u64,
        /// Number of weights.
        weights: usize,
        /// Threads of the pool.
        threads: usize,
    },
    /// An earlier run continues from its last state.
    Resumed {
        /// Steps of the last state.
        step: u64,
    },
    /// An update was completed.
    Update {
        /// Updates of the whole run.
        updates_in_all: u64,
        /// Figures of the update.
        #[serde(flatten)]
        point: Point,
    },
    /// A state was saved.
    Saved {
        /// Updates of the state.
        update: u64,
        /// Its file.
        path: PathBuf,
    },
    /// An update failed, and the run ends with an error.
    Failed {
        /// Number of the update.
        update: u64,
        /// The error.
        reason: String,
    },
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// All steps were played.
    Finished,
    /// The mean return reached `target_return`.
    Target,
    /// `max_minutes` have passed.
    Budget,
    /// The run was stopped.
    Stopped,
}

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlayReport {
    /// Why the run ended.
    pub stopped: Stopped,
    /// Name of the environment.
    pub env: String,
    /// Updates.
    pub updates: u64,
    /// Steps of all environments.
    pub steps: u64,
    /// Seconds.
    pub seconds: f64,
    /// Episodes.
    pub episodes: u64,
    /// Mean return of the last 100 episodes; `None` if none has ended.
    pub mean_return: Option<f64>,
    /// Best mean return of 100 episodes.
    pub best_return: Option<f64>,
    /// Update of the best policy.
    pub best_update: Option<u64>,
    /// Number of weights.
    pub weights: usize,
    /// The Spec of the policy.
    pub spec: Spec,
    /// The options.
    pub options: PpoOptions,
    /// Elo of the policy in its league.
    #[serde(default)]
    pub elo: Option<f64>,
    /// The opponents, and the policy's results against each.
    #[serde(default)]
    pub opponents: Vec<Faced>,
    /// The learning curve.
    pub history: Vec<Point>,
}

impl Run<'_> {
    pub(super) fn report(&mut self, stopped: Stopped) -> PlayReport {
        self.progress.settle();
        let returns = self.has_returns();
        let (policy, progress) = (self.learner.stepper().policy(), &self.progress);
        PlayReport {
            stopped,
            env: self.env.into(),
            updates: progress.updates,
            steps: progress.steps,
            seconds: progress.seconds,
            episodes: progress.episodes,
            mean_return: if returns { progress.mean_return() } else { None },
            best_return: progress.best.map(|(mean, _)| mean),
            best_update: progress.best.map(|(_, update)| update),
            weights: policy.num_weights(),
            spec: self.statistics.spec(policy.spec()),
            options: self.options.clone(),
            elo: self.league.as_ref().map(|league| league.state().elo),
            opponents: self.league.as_ref().map_or(vec![], League::faced),
            history: progress.history.clone(),
        }
    }
}

/// Maximum size of `report.json` in bytes.
const MAX_REPORT: u64 = 1 << 26;

/// Reads the report in the folder of a run.
///
/// # Errors
/// `NotFound` without a report, `Corrupt` for another file.
pub fn read_report(out: &Path) -> Result<PlayReport> {
    let path = Folder::new(out).report();
    let text = fs::read(&path, MAX_REPORT)?;
    let report: PlayReport =
        serde_json::from_slice(&text).map_err(|e| Error::corrupt(path.display().to_string(), e))?;
    report.spec.validate()?;
    Ok(report)
}
