//! Events and reports of a run and of an evaluation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use sconce_data::{Flow, LeftOut, View};
use sconce_nn::Spec;
use sconce_tensor::Precision;
use sconce_tensor::digest::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::gradients::WeightGradient;
use crate::metrics::Report;
use crate::objective::figures;
use crate::options::{EvalOptions, TrainOptions};

/// An event of a run or of an evaluation.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run begins, or continues.
    Start {
        /// Steps of the whole run.
        steps: u64,
        /// Steps of an epoch.
        epoch_steps: u64,
        /// Number of weights.
        weights: usize,
        /// Games to train on.
        train_games: usize,
        /// Frames of the training views.
        train_frames: usize,
        /// Games to validate on.
        validation_games: usize,
        /// Frames of the validation views.
        validation_frames: usize,
        /// Threads of the pool.
        threads: usize,
        /// Views that are too short to learn from.
        skipped_views: usize,
        /// Training views that the filters left out, by reason.
        left_out: LeftOut,
        /// Precision of the steps.
        precision: Precision,
    },
    /// A new run takes weights from a policy file.
    Began {
        /// File of the policy.
        policy: PathBuf,
        /// Number of weight tensors that come from the file.
        taken: usize,
        /// Names of weights that the policy does not have, so that they are initialised anew.
        new: Vec<String>,
    },
    /// The requested precision is not faster on this machine, so the run computes in another.
    Precision {
        /// Requested precision.
        asked: Precision,
        /// Precision that the run uses.
        used: Precision,
    },
    /// An earlier run continues from its last state.
    Resumed {
        /// Step of the last state.
        step: u64,
    },
    /// From now on, fewer windows of a batch are computed together, to fit into memory.
    OutOfMemory {
        /// Steps so far.
        step: u64,
        /// Windows that are computed together.
        micro_batch: usize,
        /// Bytes that a step takes, if they were measured or planned.
        bytes: Option<u64>,
        /// The limit that the options set, in bytes.
        memory_limit: Option<u64>,
    },
    /// From now on, more windows of a batch are computed together again, after steps that went well.
    Grown {
        /// Steps so far.
        step: u64,
        /// Windows that are computed together.
        micro_batch: usize,
    },
    /// A step was completed.
    Step {
        /// Steps so far, this one included.
        step: u64,
        /// Steps of the whole run.
        steps: u64,
        /// Epochs completed so far.
        epoch: u64,
        /// Training loss.
        loss: f64,
        /// Learning rate of the step.
        learning_rate: f64,
        /// Norm of the gradient before the clip; `None` for a gradient that overflowed.
        grad_norm: Option<f64>,
        /// Frames of the step divided by its seconds.
        frames_per_second: f64,
        /// Duration of the step in seconds.
        step_seconds: f64,
        /// Seconds of the step spent waiting for its batch.
        data_wait: f64,
        /// Training loss of each head.
        heads: Vec<HeadLoss>,
        /// Other figures of the objectives by name, such as `teacher_kl`, the divergence from the teacher in nats.
        figures: BTreeMap<String, f64>,
        /// Seconds of training.
        seconds: f64,
    },
    /// A gradient overflowed f16: the loss scale was halved, and nothing else changed.
    Overflow {
        /// Steps so far, this one included.
        step: u64,
        /// The new scale of the loss.
        loss_scale: f64,
        /// Updates that were skipped so far.
        skipped_updates: u64,
    },
    /// Statistics of the gradients of a step, if requested.
    Gradients {
        /// Steps so far, this one included.
        step: u64,
        /// Statistics of each weight.
        weights: Vec<WeightGradient>,
    },
    /// A validation was completed.
    Validation {
        /// Steps so far.
        step: u64,
        /// Epochs completed so far.
        epoch: u64,
        /// NLL in nats a frame.
        nll: f64,
        /// NLL on frames whose action differs from the previous action, in nats a frame.
        nll_changed: Option<f64>,
        /// Accuracy, as a mean over heads.
        accuracy: f64,
        /// NLL of each head.
        heads: Vec<HeadNll>,
        /// Whether it is the best validation so far.
        best: bool,
        /// Duration of the validation in seconds.
        seconds: f64,
    },
    /// An epoch ended. The event follows the epoch's last step and a validation, if one is due.
    Epoch {
        /// Steps so far.
        step: u64,
        /// Epochs completed so far, this one included.
        epoch: u64,
        /// Mean training loss of the epoch's steps.
        avg_loss: f64,
        /// NLL of the latest validation.
        val_loss: Option<f64>,
        /// Mean training loss of each head.
        heads: Vec<HeadLoss>,
        /// Means of the other figures of the objectives by name.
        figures: BTreeMap<String, f64>,
        /// Seconds of training.
        seconds: f64,
    },
    /// A state from which a run can be resumed was written.
    Checkpoint {
        /// The written file.
        path: PathBuf,
        /// Step of the state.
        step: u64,
    },
    /// A file could not be written. The run continues, and the earlier file stays.
    SaveFailed {
        /// The file that could not be written.
        path: PathBuf,
        /// Step of the save.
        step: u64,
        /// The error as text.
        reason: String,
    },
    /// The callback did not answer in time after a step. The run continues unchanged.
    CallbackLate {
        /// Steps so far.
        step: u64,
    },
    /// Progress of an evaluation.
    Evaluating {
        /// Frames scored so far.
        done: usize,
        /// Frames to score in total.
        total: usize,
    },
}

/// A point of the learning curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Steps so far.
    pub step: u64,
    /// Mean training loss since the previous point; `None` without steps since then.
    pub loss: Option<f64>,
    /// Mean training loss of each head since the previous point.
    #[serde(default)]
    pub losses: Vec<HeadLoss>,
    /// Means of the other figures of the objectives by name, since the previous point.
    #[serde(default, alias = "teacher_kl", deserialize_with = "figures")]
    pub figures: BTreeMap<String, f64>,
    /// Learning rate at this point.
    pub learning_rate: f64,
    /// Frames a second in the steps since the previous point, without validations.
    #[serde(default)]
    pub frames_per_second: Option<f64>,
    /// Share of the steps' time since the previous point that was spent waiting for data.
    #[serde(default)]
    pub data_wait: Option<f64>,
    /// NLL of a validation at this step, in nats a frame.
    pub nll: Option<f64>,
    /// NLL of each head in that validation.
    #[serde(default)]
    pub heads: Vec<HeadNll>,
    /// Seconds of training.
    pub seconds: f64,
}

/// The NLL of a head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadNll {
    /// Name of the head.
    pub name: String,
    /// NLL in nats a frame.
    pub nll: f64,
}

/// The training loss of a head: its mean over frames and steps, without frame weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadLoss {
    /// Name of the head.
    pub name: String,
    /// Mean loss.
    pub loss: f64,
}

/// Frames of some steps, and their duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Number of frames.
    pub frames: u64,
    /// Seconds of the steps.
    pub seconds: f64,
    /// Seconds that the steps spent waiting for data.
    pub data_wait: f64,
}

impl Pace {
    /// Adds the frames and times of other steps.
    pub fn add(&mut self, other: Pace) {
        self.frames += other.frames;
        self.seconds += other.seconds;
        self.data_wait += other.data_wait;
    }

    /// Frames a second.
    pub fn frames_per_second(&self) -> f64 {
        self.frames as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Share of the time that the steps spent waiting for data.
    pub fn waiting(&self) -> f64 {
        self.data_wait / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// The reason why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// The run completed all steps.
    Finished,
    /// The last `patience` validations brought no improvement.
    Early,
    /// The time budget `max_minutes` was used up.
    Budget,
    /// The run was cancelled, or stopped by its callback.
    Stopped,
}

/// The games of one side of a split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Number of games.
    pub games: usize,
    /// Number of frames in their views with an answer to learn from.
    pub frames: usize,
    /// Digest of the frames. Scores on frames with different digests are not comparable.
    #[serde(default)]
    pub digest: Option<String>,
}

impl Side {
    /// Describes a side of `games` games with these views.
    pub fn new(games: usize, views: &[View], frame_delay: usize) -> Self {
        let frames = views.iter().map(|view| view.answered(frame_delay).len()).sum();
        Side { games, frames, digest: Some(digest_of_frames(views, frame_delay)) }
    }
}

/// Digest of the frames of some views: their games, players and lengths.
fn digest_of_frames(views: &[View], delay: usize) -> String {
    let of = |view: &View| {
        let info = view.info();
        format!("{} {} {} {}", info.digest, info.contents, view.player(), view.len(delay))
    };
    let mut hash = Sha256::new();
    views.iter().map(of).collect::<BTreeSet<_>>().iter().for_each(|view| hash.update(view));
    hex(&hash.finalize())
}

/// Saves of a run since this process started or resumed it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Saves {
    /// Number of states that were written.
    pub written: u64,
    /// Step of the last written state.
    pub step: Option<u64>,
    /// Seconds spent writing, in parallel to the run.
    pub seconds: f64,
    /// Seconds that the run waited for writes.
    pub wait_seconds: f64,
    /// Files that could not be written.
    pub failed: Vec<SaveFailure>,
}

/// A file that could not be written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SaveFailure {
    /// The file that could not be written.
    pub path: PathBuf,
    /// The error as text.
    pub reason: String,
    /// Step of the last failure.
    pub step: u64,
    /// Number of failures.
    pub times: u64,
}

/// The report at the end of a run; `report.json` in its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// Why the run ended.
    pub stopped: Stopped,
    /// Steps so far.
    pub steps: u64,
    /// Step of the best validation.
    pub best_step: Option<u64>,
    /// Seconds of training.
    pub seconds: f64,
    /// Number of weights.
    pub weights: usize,
    /// Windows that were computed together at the end of the run.
    #[serde(default)]
    pub micro_batch: Option<usize>,
    /// Precision that the run used; the options have the requested precision.
    #[serde(default)]
    pub precision: Precision,
    /// Number of steps whose gradient overflowed f16.
    #[serde(default)]
    pub skipped_updates: u64,
    /// Spec of the policy.
    pub spec: Spec,
    /// Options of the run.
    pub options: TrainOptions,
    /// Figures of the loader in this process; a resumed run counts from 0.
    pub loader: Flow,
    /// Saves of the run in this process.
    #[serde(default)]
    pub saves: Saves,
    /// Scores of the best policy; `None` if it was not evaluated.
    pub policy: Option<Report>,
    /// Scores of the baselines.
    pub baselines: Vec<BaselineReport>,
    /// Points of the learning curve.
    pub history: Vec<Point>,
    /// Training games.
    pub train: Side,
    /// Validation games.
    pub validation: Side,
}

/// The scores of a policy, which `mix sconce.eval` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Options of the evaluation.
    pub options: EvalOptions,
    /// Precision of the products.
    pub precision: Precision,
    /// Number of weights.
    pub weights: usize,
    /// Spec of the policy.
    pub spec: Spec,
    /// Scores of the policy.
    pub policy: Report,
    /// Share of frames whose likeliest action differs from that of another policy; `None` without one.
    pub differs: Option<f64>,
    /// Scores of baselines fitted on the training games; empty without these games.
    pub baselines: Vec<BaselineReport>,
    /// The scored games.
    pub validation: Side,
}

/// A baseline's name and scores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaselineReport {
    /// Name of the baseline.
    pub name: String,
    /// Scores of the baseline.
    pub report: Report,
}
