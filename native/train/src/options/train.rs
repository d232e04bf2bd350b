//! What a run may be told.

use std::path::PathBuf;

use sconce_data::Sampling;
use sconce_tensor::Precision;
use serde::{Deserialize, Serialize};

use super::evaluate::Mode;
use crate::objective::imitation::LossOptions;
use crate::objective::teacher::Direction;
use crate::optimiser::Kind;

/// What a run may be told; names and meanings are those of `Sconce.Trainer`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainOptions {
    pub batch_size: usize,
    pub window_size: usize,
    /// Frames between the starts of neighbouring windows; carried, windows follow each other.
    pub stride: usize,
    /// Whether a window begins anew, or where the row's window of the step before ended.
    pub unroll: Mode,
    /// Frames of one backward pass; the whole window if not given.
    pub truncate_bptt: Option<usize>,
    /// Keep of each block only what it read, and run it again in the backward pass. Nothing that is
    /// computed depends on it.
    pub gradient_checkpoint: bool,
    /// Blocks that are run again together.
    pub checkpoint_every: usize,
    pub epochs: u64,
    /// Updates of the run, instead of `epochs`.
    pub steps: Option<u64>,
    /// Batches whose mean gradient makes one update, which is what a step is.
    pub accumulation_steps: u64,
    pub learning_rate: f64,
    pub lr_schedule: LrSchedule,
    pub warmup_steps: u64,
    /// Updates of the decay after the warm-up; all that are left of the run if not given.
    pub decay_steps: Option<u64>,
    /// What the exponential schedule leaves of the rate after `decay_steps`.
    pub decay_rate: f64,
    /// Updates before the first restart of the cosine.
    pub restart_period: u64,
    /// How many times as long as the one before each further period is.
    pub restart_mult: u64,
    pub optimizer: Kind,
    /// This and the next four are the optimiser's own numbers if not given.
    pub weight_decay: Option<f64>,
    pub beta1: Option<f64>,
    pub beta2: Option<f64>,
    pub eps: Option<f64>,
    pub momentum: Option<f64>,
    pub nesterov: bool,
    /// Of the average of the weights over the updates, by which the policy is validated and kept.
    pub ema_decay: Option<f64>,
    pub max_grad_norm: f64,
    /// Of the products of forward and backward pass, see [`Self::precision_here`],
    pub precision: Precision,
    /// also where nothing is gained by it.
    pub force_precision: bool,
    pub sampling: Sampling,
    /// Of the games of the corpus, for [`Sampling::Weighted`].
    pub weights: Vec<f64>,
    pub action_oversample: f64,
    /// Only views of these characters (internal ids after the first frame) and of these players (tags),
    /// also to measure on; all of them if empty.
    pub characters: Vec<u8>,
    pub players: Vec<String>,
    /// Probability of a window with noise, and the standard deviation of that.
    pub noise: f32,
    pub noise_scale: f32,
    /// Probability of a frame whose previous action is forgotten.
    pub previous_dropout: f32,
    /// Probability of an input that the policy reads as it would have given it itself, see
    /// [`crate::scheduled`], the updates in which it rises to that from 0, and how many of the inputs of a
    /// frame it concerns, the newest first; all of them if not given.
    pub scheduled_sampling: f32,
    pub scheduled_sampling_steps: u64,
    pub scheduled_sampling_slots: Option<usize>,
    /// Probability of a left-right mirrored window; carried, of a mirrored game.
    pub mirror: f32,
    pub frame_delay: usize,
    /// Each window has a delay from `frame_delay` to this one; carried, each game.
    pub frame_delay_max: Option<usize>,
    /// Frames at the start of a window that carry no loss; carried, at the start of a game.
    pub burn_in: usize,
    pub neutral_weight: f32,
    pub transition_weight: f32,
    pub seed: u64,
    /// Batches that are made ahead, with so many threads, and how long one may take; not a bit of the
    /// result depends on them.
    pub prefetch: usize,
    pub loader_threads: usize,
    pub loader_deadline_ms: u64,
    /// Share of the games that is measured on and never trained on.
    pub val_split: f64,
    /// A corpus of its own to measure on; then no game of the other is held back.
    pub validation: Option<PathBuf>,
    /// Steps between validations; an epoch if not given.
    pub validate_every: Option<u64>,
    /// Steps and minutes between states that are saved beside those of validations. A VM that ends without a
    /// signal that it may handle (Ctrl-C, SIGKILL) loses no more than these.
    pub save_every: Option<u64>,
    pub save_minutes: Option<f64>,
    /// Numbered checkpoints that stay, beside `last` and `best`: of the latest states and of the policies
    /// of the best validations.
    pub keep_last: usize,
    pub keep_best: usize,
    pub validation_mode: Mode,
    pub validation_stride: usize,
    /// Validations without a better one before the run ends early.
    pub patience: Option<u64>,
    /// How much better is better, in nats.
    pub min_delta: f64,
    /// File of a frozen policy whose divergence is added to the loss, times `teacher_weight`.
    pub teacher: Option<PathBuf>,
    pub teacher_weight: f64,
    pub teacher_direction: Direction,
    /// Updates between looks at the gradients of every weight.
    pub gradient_report: Option<u64>,
    /// Start the prior of the heads at log P(a_t | a_{t-1}) of the training games.
    pub fit_prior: bool,
    pub threads: Option<usize>,
    /// What it runs on, in the words that reports have for it: several cards by data parallelism, see
    /// [`crate::replicas`].
    pub device: String,
    /// Bytes that the run may take, see [`crate::plan`]: batches that would take more are worked through
    /// in halves, quarters and so on, whose gradients differ from the batch's by the order of sums.
    pub memory_limit: Option<u64>,
    /// Go on from `last.safetensors`, or begin where there is none.
    pub resume: bool,
    /// Ends the run; the schedule then follows the clock where that is ahead of the steps, so such a
    /// run does not repeat to the bit.
    pub max_minutes: Option<f64>,
    /// Score the best policy and the baselines at the end.
    pub evaluate: bool,
    pub loss: LossOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    Constant,
    Linear,
    Cosine,
    CosineRestarts,
    Exponential,
}

impl LrSchedule {
    /// Whether it has a decay, which is as long as the run where nobody says how long.
    pub(crate) fn falls(self) -> bool {
        !matches!(self, LrSchedule::Constant | LrSchedule::CosineRestarts)
    }
}

impl Default for TrainOptions {
    fn default() -> Self {
        TrainOptions {
            batch_size: 64,
            window_size: 60,
            stride: 30,
            unroll: Mode::Window,
            truncate_bptt: None,
            gradient_checkpoint: false,
            checkpoint_every: 1,
            epochs: 10,
            steps: None,
            accumulation_steps: 1,
            learning_rate: 1e-3,
            lr_schedule: LrSchedule::Cosine,
            warmup_steps: 100,
            decay_steps: None,
            decay_rate: 0.95,
            restart_period: 1000,
            restart_mult: 2,
            optimizer: Kind::AdamW,
            weight_decay: None,
            beta1: None,
            beta2: None,
            eps: None,
            momentum: None,
            nesterov: false,
            ema_decay: None,
            max_grad_norm: 1.0,
            precision: Precision::F32,
            force_precision: false,
            sampling: Sampling::Shuffled,
            weights: vec![],
            action_oversample: 3.0,
            characters: vec![],
            players: vec![],
            noise: 0.0,
            noise_scale: 0.01,
            previous_dropout: 0.0,
            scheduled_sampling: 0.0,
            scheduled_sampling_steps: 0,
            scheduled_sampling_slots: None,
            mirror: 0.0,
            frame_delay: 0,
            frame_delay_max: None,
            burn_in: 0,
            neutral_weight: 1.0,
            transition_weight: 1.0,
            seed: 0,
            prefetch: 2,
            loader_threads: 1,
            loader_deadline_ms: 60_000,
            val_split: 0.1,
            validation: None,
            validate_every: None,
            save_every: None,
            save_minutes: Some(5.0),
            keep_last: 0,
            keep_best: 0,
            validation_mode: Mode::Window,
            validation_stride: 10,
            patience: None,
            min_delta: 0.0,
            teacher: None,
            teacher_weight: 0.1,
            teacher_direction: Direction::Forward,
            gradient_report: None,
            fit_prior: true,
            threads: None,
            device: "cpu".into(),
            memory_limit: None,
            resume: false,
            max_minutes: None,
            evaluate: true,
            loss: LossOptions::default(),
        }
    }
}
