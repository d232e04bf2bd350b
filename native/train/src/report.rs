//! What a run and an evaluation tell: events on the way, a report at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use sconce_data::{Flow, View};
use sconce_nn::Spec;
use sconce_tensor::Precision;
use sconce_tensor::digest::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::gradients::WeightGradient;
use crate::metrics::Report;
use crate::objective::figures;
use crate::options::{EvalOptions, TrainOptions};

/// What happens, as it happens.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Start {
        steps: u64,
        epoch_steps: u64,
        weights: usize,
        train_games: usize,
        train_frames: usize,
        validation_games: usize,
        validation_frames: usize,
        threads: usize,
        skipped_views: usize,
        precision: Precision,
    },
    /// A new run takes weights from a policy; `new` names those that the policy does not have.
    Began {
        policy: PathBuf,
        taken: usize,
        new: Vec<String>,
    },
    /// The precision that was asked for gains nothing here, and the run computes in another.
    Precision {
        asked: Precision,
        used: Precision,
    },
    Resumed {
        step: u64,
    },
    /// Less of a batch is worked through together from now on.
    OutOfMemory {
        step: u64,
        micro_batch: usize,
        bytes: Option<u64>,
        memory_limit: Option<u64>,
    },
    Step {
        step: u64,
        steps: u64,
        epoch: u64,
        loss: f64,
        learning_rate: f64,
        /// None of a gradient that overflowed.
        grad_norm: Option<f64>,
        frames_per_second: f64,
        /// How long it took,
        step_seconds: f64,
        /// and how much of that it waited for its batch.
        data_wait: f64,
        heads: Vec<HeadLoss>,
        /// What else the objectives tell, by its name: `teacher_kl`, how far from the teacher it is, in nats.
        figures: BTreeMap<String, f64>,
        seconds: f64,
    },
    /// A gradient overflowed f16, and nothing has changed but the scale of the loss.
    Overflow {
        step: u64,
        loss_scale: f64,
        skipped_updates: u64,
    },
    /// What the gradients of a step looked like; only where it was asked for.
    Gradients {
        step: u64,
        weights: Vec<WeightGradient>,
    },
    Validation {
        step: u64,
        epoch: u64,
        nll: f64,
        nll_changed: Option<f64>,
        accuracy: f64,
        heads: Vec<HeadNll>,
        best: bool,
        seconds: f64,
    },
    /// After the last step of an epoch and a validation there.
    Epoch {
        step: u64,
        epoch: u64,
        /// Mean training loss of its steps.
        avg_loss: f64,
        /// The latest validation.
        val_loss: Option<f64>,
        heads: Vec<HeadLoss>,
        figures: BTreeMap<String, f64>,
        seconds: f64,
    },
    /// A state that a run can go on from has been written.
    Checkpoint {
        path: PathBuf,
        step: u64,
    },
    /// A file that could not be written; the run goes on, and the one before it stays.
    SaveFailed {
        path: PathBuf,
        step: u64,
        reason: String,
    },
    /// Nobody said in time what to do after a step, and the run goes on as it was.
    CallbackLate {
        step: u64,
    },
    Evaluating {
        done: usize,
        total: usize,
    },
}

/// A point of the learning curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub step: u64,
    /// Mean training loss since the point before.
    pub loss: Option<f64>,
    /// that of each head,
    #[serde(default)]
    pub losses: Vec<HeadLoss>,
    /// and what else the objectives told, by its name.
    #[serde(default, alias = "teacher_kl", deserialize_with = "figures")]
    pub figures: BTreeMap<String, f64>,
    pub learning_rate: f64,
    /// Of the steps since the point before, without validations: frames a second,
    #[serde(default)]
    pub frames_per_second: Option<f64>,
    /// and the share of their time in which they waited for data.
    #[serde(default)]
    pub data_wait: Option<f64>,
    /// Validation, where one was made.
    pub nll: Option<f64>,
    #[serde(default)]
    pub heads: Vec<HeadNll>,
    pub seconds: f64,
}

/// What a head has of the NLL.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadNll {
    pub name: String,
    pub nll: f64,
}

/// What a head has of the training loss: its mean over frames and steps, without the frames' weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadLoss {
    pub name: String,
    pub loss: f64,
}

/// What steps went through, and what it took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    pub frames: u64,
    pub seconds: f64,
    /// Of these it waited for data.
    pub data_wait: f64,
}

impl Pace {
    pub fn add(&mut self, other: Pace) {
        self.frames += other.frames;
        self.seconds += other.seconds;
        self.data_wait += other.data_wait;
    }

    pub fn frames_per_second(&self) -> f64 {
        self.frames as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Share of the time.
    pub fn waiting(&self) -> f64 {
        self.data_wait / self.seconds.max(f64::MIN_POSITIVE)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    Finished,
    /// No better validation for `patience` times.
    Early,
    /// `max_minutes` are over.
    Budget,
    /// Somebody asked.
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    pub games: usize,
    pub frames: usize,
    /// Of the frames that are seen: what was measured on others is not to be compared.
    #[serde(default)]
    pub digest: Option<String>,
}

impl Side {
    pub fn new(games: usize, views: &[View], frame_delay: usize) -> Self {
        let frames = views.iter().map(|view| view.len(frame_delay)).sum();
        Side { games, frames, digest: Some(digest_of_frames(views, frame_delay)) }
    }
}

/// Digest of the frames that some views show: their games, players and lengths.
fn digest_of_frames(views: &[View], delay: usize) -> String {
    let of = |view: &View| {
        let info = view.info();
        format!("{} {} {} {}", info.digest, info.contents, view.player(), view.len(delay))
    };
    let mut hash = Sha256::new();
    views.iter().map(of).collect::<BTreeSet<_>>().iter().for_each(|view| hash.update(view));
    hex(&hash.finalize())
}

/// How the checkpoints of a run were written, since this process began with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Saves {
    pub written: u64,
    /// The step of the last state that was.
    pub step: Option<u64>,
    /// What writing took beside the run,
    pub seconds: f64,
    /// and how long the run waited for it.
    pub wait_seconds: f64,
    pub failed: Vec<SaveFailure>,
}

/// A file that could not be written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SaveFailure {
    pub path: PathBuf,
    pub reason: String,
    /// The last time.
    pub step: u64,
    pub times: u64,
}

/// What a run ends with; `report.json` in its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    pub stopped: Stopped,
    pub steps: u64,
    pub best_step: Option<u64>,
    pub seconds: f64,
    pub weights: usize,
    /// Windows that were worked through together at the end.
    #[serde(default)]
    pub micro_batch: Option<usize>,
    /// What it computed in; the options have what was asked for.
    #[serde(default)]
    pub precision: Precision,
    /// Steps whose gradient overflowed f16.
    #[serde(default)]
    pub skipped_updates: u64,
    pub spec: Spec,
    pub options: TrainOptions,
    /// Of this process: a run that was resumed counts anew.
    pub loader: Flow,
    #[serde(default)]
    pub saves: Saves,
    pub policy: Option<Report>,
    pub baselines: Vec<BaselineReport>,
    pub history: Vec<Point>,
    pub train: Side,
    pub validation: Side,
}

/// What `mix sconce.eval` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    pub options: EvalOptions,
    pub precision: Precision,
    pub weights: usize,
    pub spec: Spec,
    pub policy: Report,
    /// Fitted on the training games; empty without them.
    pub baselines: Vec<BaselineReport>,
    pub validation: Side,
}

/// A baseline's name and score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaselineReport {
    pub name: String,
    pub report: Report,
}
