//! How far a run has come, and whether another may go on from there.

use sconce_core::checkpoint::{self, Optimiser};
use sconce_core::{Error, Policy, Result, Spec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::folder::{Folder, Kind};
use crate::options::TrainOptions;
use crate::report::{Pace, Point};

/// What `last.safetensors` notes beside weights and moments.
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
    /// Windows that are worked through together.
    #[serde(default)]
    pub micro_batch: Option<usize>,
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
            micro_batch: None,
            history: vec![],
            options: options.clone(),
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

pub type Resumed = (Policy, Progress, Option<Optimiser>);

/// What an earlier run left in the folder, if it may be gone on with.
pub fn resumable(
    folder: &Folder,
    spec: &Spec,
    options: &TrainOptions,
    digest: &str,
) -> Result<Option<Resumed>> {
    let path = folder.file(Kind::Last);
    match (path.exists(), options.resume) {
        (false, _) => return Ok(None),
        (true, false) => {
            let expected = "an empty folder, or resume: true";
            return Err(Error::mismatch(
                folder.path().display().to_string(),
                expected,
                "an earlier run",
            ));
        }
        (true, true) => {}
    }
    let file = checkpoint::load(&path)?;
    let what = path.display().to_string();
    let progress: Progress = serde_json::from_value(file.manifest.notes.clone())
        .map_err(|e| Error::corrupt(&what, e))?;
    if file.manifest.spec != *spec {
        return Err(Error::mismatch(format!("spec of {what}"), "that of this run", "another"));
    }
    if progress.digest != digest {
        return Err(Error::mismatch(format!("games of {what}"), "those of this run", "others"));
    }
    // How it is computed and until when may change; what is computed may not.
    let comparable = |o: &TrainOptions| TrainOptions {
        resume: false,
        threads: None,
        // Windows that were halved stay so.
        memory_limit: None,
        max_minutes: None,
        evaluate: false,
        gradient_checkpoint: false,
        checkpoint_every: 1,
        // Said or not, it is the same number.
        weight_decay: o.optimiser().ok().map(|config| config.weight_decay),
        save_every: None,
        save_minutes: None,
        keep_last: 0,
        keep_best: 0,
        prefetch: 0,
        loader_threads: 1,
        loader_deadline_ms: 1,
        ..o.clone()
    };
    let (before, now) = (comparable(&progress.options), comparable(options));
    if let Some((name, before, now)) = first_difference(&before, &now) {
        return Err(Error::mismatch(format!("{name} of a resumed run"), before, now));
    }
    let policy = Policy::from_checkpoint(file.manifest, file.weights)?;
    Ok(Some((policy, progress, Some(file.optimiser))))
}

/// The first option in which two runs differ, and both its values.
fn first_difference(before: &TrainOptions, now: &TrainOptions) -> Option<(String, Value, Value)> {
    let fields = |o| serde_json::to_value(o).unwrap_or_default();
    let (before, now) = (fields(before), fields(now));
    let differs = |(name, value): (&String, &Value)| {
        (now.get(name) != Some(value))
            .then(|| (name.clone(), value.clone(), now.get(name).cloned().unwrap_or_default()))
    };
    before.as_object()?.iter().find_map(differs)
}
