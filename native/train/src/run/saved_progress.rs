//! Reads the progress of a run from its last saved state.

use std::path::Path;

use sconce_nn::checkpoint;
use sconce_tensor::{Precision, Result};
use serde::Serialize;

use super::folder::{Folder, Kind};
use super::resume::progress;
use crate::options::TrainOptions;
use crate::report::Point;

/// The last saved state of a run, without its weights.
#[derive(Debug, Clone, Serialize)]
pub struct SavedProgress {
    /// Number of completed steps.
    pub steps: u64,
    /// Duration of these steps in seconds.
    pub seconds: f64,
    /// The step of the best validation.
    pub best_step: Option<u64>,
    /// Windows that are computed together.
    pub micro_batch: usize,
    /// The precision in use; the options have the requested precision.
    pub precision: Precision,
    /// Updates that were skipped because a gradient overflowed f16.
    pub skipped_updates: u64,
    /// Points of the learning curve.
    pub history: Vec<Point>,
    /// The options of the run.
    pub options: TrainOptions,
}

/// Reads the last saved state of the run in the folder, whether the run has ended or not.
///
/// # Errors
/// `NotFound` if the folder has no saved state; `Corrupt` if that file is damaged or is no state of a run.
pub fn read_progress(out: &Path) -> Result<SavedProgress> {
    let path = Folder::new(out).file(Kind::Last);
    let progress = progress(&path, &checkpoint::manifest(&path)?)?;
    Ok(SavedProgress {
        steps: progress.step,
        seconds: progress.seconds,
        best_step: progress.best_step,
        micro_batch: progress.micro_batch.unwrap_or(progress.options.data.batch_size),
        precision: progress.precision,
        skipped_updates: progress.loss_scale.as_ref().map_or(0, |scale| scale.skipped()),
        history: progress.history,
        options: progress.options,
    })
}
