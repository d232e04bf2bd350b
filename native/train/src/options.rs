//! What a run and an evaluation may be told, and its bounds.

use std::path::PathBuf;

use candle_core::Device;
use sconce_core::device::Devices;
use sconce_core::{Error, Precision, Result, device};
use sconce_data::{LoaderOptions, Sampling};
use serde::{Deserialize, Serialize};

use crate::divergence::Direction;
use crate::loss::LossOptions;
use crate::optimiser::{Kind, OptimiserConfig};
use crate::schedule::{Schedule, ScheduleKind};
use crate::unroll::Unroll;

/// How much of the past the policy sees at each frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The last frames alone, from a zero state, padded at the start with copies of the first.
    Window,
    /// The whole game, its state carried through.
    Carry,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalOptions {
    pub mode: Mode,
    pub window_size: usize,
    /// Every how many frames one is scored; carried, every frame is.
    pub stride: usize,
    pub frame_delay: usize,
}

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

/// How a finished policy is scored; what is not given is what it was trained with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluateOptions {
    pub mode: Option<Mode>,
    pub window_size: Option<usize>,
    pub stride: Option<usize>,
    pub frame_delay: Option<usize>,
    pub threads: Option<usize>,
    /// Of the products, also where that gains nothing. A policy plays in f32.
    pub precision: Precision,
    /// As [`TrainOptions::device`]; none: the CPU.
    pub device: Option<String>,
}

impl EvaluateOptions {
    pub fn is_on_cpu(&self) -> bool {
        self.device.as_deref().is_none_or(|device| device.starts_with("cpu"))
    }

    /// Opens the device that the policy is scored on.
    ///
    /// # Errors
    /// `NoDevice` for one that is not there.
    pub fn open_device(&self) -> Result<Device> {
        device::named(self.device.as_deref().unwrap_or("cpu"))
    }

    pub(crate) fn validate(&self) -> Result<()> {
        bounded("threads", self.threads.unwrap_or(1) as f64)
    }
}

/// The least and the most that a number may be, both included, by its option. `Sconce.Trainer.Settings` and
/// `Sconce.Loader` have the same bounds in their tables, which a test compares.
#[rustfmt::skip]
const BOUNDS: &[(&str, f64, f64)] = &[
    ("batch_size", 1.0, 65_536.0),
    ("window_size", 1.0, 65_536.0),
    ("stride", 1.0, MAX_STEPS),
    ("truncate_bptt", 1.0, 65_536.0),
    ("checkpoint_every", 1.0, 1024.0),
    ("epochs", 1.0, 1_000_000.0),
    ("steps", 1.0, MAX_STEPS),
    ("accumulation_steps", 1.0, 65_536.0),
    ("learning_rate", 0.0, 1000.0),
    ("warmup_steps", 0.0, MAX_STEPS),
    ("decay_steps", 1.0, MAX_STEPS),
    ("decay_rate", 0.0, 1.0),
    ("restart_period", 1.0, MAX_STEPS),
    ("restart_mult", 1.0, 1000.0),
    ("weight_decay", 0.0, 1000.0),
    ("beta1", 0.0, ALMOST_ONE),
    ("beta2", 0.0, ALMOST_ONE),
    ("eps", 1e-30, 1.0),
    ("momentum", 0.0, ALMOST_ONE),
    ("ema_decay", 0.0, ALMOST_ONE),
    ("noise", 0.0, 1.0),
    ("noise_scale", 0.0, 1_000_000.0),
    ("previous_dropout", 0.0, 1.0),
    ("mirror", 0.0, 1.0),
    ("action_oversample", 1.0, 1_000_000.0),
    ("neutral_weight", 0.0, 1_000_000.0),
    ("transition_weight", 0.0, 1_000_000.0),
    ("scheduled_sampling", 0.0, 1.0),
    ("scheduled_sampling_steps", 0.0, MAX_STEPS),
    ("scheduled_sampling_slots", 1.0, 256.0),
    ("frame_delay", 0.0, 10_000.0),
    ("frame_delay_max", 0.0, 10_000.0),
    ("burn_in", 0.0, 65_535.0),
    ("prefetch", 0.0, 4096.0),
    ("loader_threads", 1.0, 4096.0),
    ("loader_deadline_ms", 1.0, 4_294_967_295.0),
    ("val_split", 0.0, 1.0),
    ("validate_every", 1.0, MAX_STEPS),
    ("save_every", 1.0, MAX_STEPS),
    ("save_minutes", 0.0, 1_000_000.0),
    ("keep_last", 0.0, 1_000_000.0),
    ("keep_best", 0.0, 1_000_000.0),
    ("validation_stride", 1.0, MAX_STEPS),
    ("patience", 1.0, MAX_STEPS),
    ("min_delta", 0.0, 1_000_000.0),
    ("teacher_weight", 0.0, 1_000_000.0),
    ("gradient_report", 1.0, MAX_STEPS),
    ("threads", 1.0, 4096.0),
    ("max_minutes", 0.001, 1_000_000.0),
];

/// The most updates of a run. Times the most `accumulation_steps` they number its batches in 46 bits.
const MAX_STEPS: f64 = 1_000_000_000.0;

/// Refuses a number outside the bounds of its option.
fn bounded(option: &str, value: f64) -> Result<()> {
    match BOUNDS.iter().find(|(name, ..)| *name == option) {
        Some(&(_, min, max)) => at_least(option, value, min, max),
        None => Err(Error::not_found(format!("bounds of {option}"))),
    }
}

impl TrainOptions {
    /// The numbers that have [`BOUNDS`], where they are given.
    fn numbers(&self) -> Vec<(&'static str, Option<f64>)> {
        let some = |value: u64| Some(value as f64);
        let count = |value: usize| Some(value as f64);
        let maybe = |value: Option<u64>| value.map(|value| value as f64);
        vec![
            ("batch_size", count(self.batch_size)),
            ("window_size", count(self.window_size)),
            ("stride", count(self.stride)),
            ("truncate_bptt", self.truncate_bptt.map(|n| n as f64)),
            ("checkpoint_every", count(self.checkpoint_every)),
            ("epochs", some(self.epochs)),
            ("steps", maybe(self.steps)),
            ("accumulation_steps", some(self.accumulation_steps)),
            ("learning_rate", Some(self.learning_rate)),
            ("warmup_steps", some(self.warmup_steps)),
            ("decay_steps", maybe(self.decay_steps)),
            ("decay_rate", Some(self.decay_rate)),
            ("restart_period", some(self.restart_period)),
            ("restart_mult", some(self.restart_mult)),
            ("weight_decay", self.weight_decay),
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("eps", self.eps),
            ("momentum", self.momentum),
            ("ema_decay", self.ema_decay),
            ("noise", Some(self.noise.into())),
            ("noise_scale", Some(self.noise_scale.into())),
            ("previous_dropout", Some(self.previous_dropout.into())),
            ("mirror", Some(self.mirror.into())),
            ("action_oversample", Some(self.action_oversample)),
            ("neutral_weight", Some(self.neutral_weight.into())),
            ("transition_weight", Some(self.transition_weight.into())),
            ("scheduled_sampling", Some(self.scheduled_sampling.into())),
            ("scheduled_sampling_steps", some(self.scheduled_sampling_steps)),
            ("scheduled_sampling_slots", self.scheduled_sampling_slots.map(|n| n as f64)),
            ("frame_delay", count(self.frame_delay)),
            ("frame_delay_max", self.frame_delay_max.map(|n| n as f64)),
            ("burn_in", count(self.burn_in)),
            ("prefetch", count(self.prefetch)),
            ("loader_threads", count(self.loader_threads)),
            ("loader_deadline_ms", some(self.loader_deadline_ms)),
            ("val_split", Some(self.val_split)),
            ("validate_every", maybe(self.validate_every)),
            ("save_every", maybe(self.save_every)),
            ("save_minutes", self.save_minutes),
            ("keep_last", count(self.keep_last)),
            ("keep_best", count(self.keep_best)),
            ("validation_stride", count(self.validation_stride)),
            ("patience", maybe(self.patience)),
            ("min_delta", Some(self.min_delta)),
            ("teacher_weight", Some(self.teacher_weight)),
            ("gradient_report", maybe(self.gradient_report)),
            ("threads", self.threads.map(|n| n as f64)),
            ("max_minutes", self.max_minutes),
        ]
    }

    pub(crate) fn validate(&self) -> Result<()> {
        for (option, value) in self.numbers() {
            value.map_or(Ok(()), |value| bounded(option, value))?;
        }
        let frames = self.batch_size.saturating_mul(self.window_size);
        if frames > MAX_FRAMES {
            // The gates, projections and gradients of a frame are some tens of kilobytes.
            let bytes = (frames as u64).saturating_mul(32 << 10);
            return Err(Error::out_of_memory("a step (batch_size x window_size)", bytes));
        }
        at_least("burn_in", self.burn_in as f64, 0.0, self.window_size as f64 - 1.0)?;
        at_least("max_grad_norm", self.max_grad_norm, f64::MIN_POSITIVE, f64::MAX)?;
        self.check_meant()?;
        self.optimiser()?;
        self.loader().validate()
    }

    /// Refuses a run of more updates than any may have, where an epoch has this many.
    pub(crate) fn check_steps(&self, epoch_steps: u64) -> Result<()> {
        // A budget of time ends a run that counts its epochs in millions.
        match self.max_minutes {
            Some(_) => Ok(()),
            None => bounded("steps", self.total_steps(epoch_steps) as f64),
        }
    }

    /// An option that means nothing beside the others, and is given, is an error that names it.
    fn check_meant(&self) -> Result<()> {
        use LrSchedule::{CosineRestarts, Exponential};
        let own = TrainOptions::default();
        let schedule = self.lr_schedule;
        let falls = schedule.falls();
        let decays = schedule == Exponential;
        let restarts = schedule == CosineRestarts;
        let weighted = self.sampling == Sampling::Weighted;
        let transitions = self.sampling == Sampling::Transitions;
        let oversampled = self.action_oversample != own.action_oversample;
        let scaled = self.noise_scale != own.noise_scale;
        let taught = self.teacher.is_some();
        let pulled = self.teacher_weight != own.teacher_weight;
        let ramps = self.scheduled_sampling_steps > 0;
        let some_slots = self.scheduled_sampling_slots.is_some();
        let (scheduled, beside) = (self.scheduled_sampling > 0.0, "scheduled_sampling above 0");
        let turned = self.teacher_direction != own.teacher_direction;
        let (forced, rounds) = (self.force_precision, self.precision != Precision::F32);
        let (period, mult) = (self.restart_period, self.restart_mult);
        let rows = [
            ("decay_steps", self.decay_steps.is_some(), falls, "another lr_schedule"),
            ("decay_rate", self.decay_rate != own.decay_rate, decays, "lr_schedule exponential"),
            (
                "restart_period",
                period != own.restart_period,
                restarts,
                "lr_schedule cosine_restarts",
            ),
            ("restart_mult", mult != own.restart_mult, restarts, "lr_schedule cosine_restarts"),
            ("weights", !self.weights.is_empty(), weighted, "sampling weighted"),
            ("action_oversample", oversampled, transitions, "sampling transitions"),
            ("teacher_weight", pulled, taught, "a teacher"),
            ("teacher_direction", turned, taught, "a teacher"),
            ("noise_scale", scaled, self.noise > 0.0, "noise above 0"),
            ("scheduled_sampling_steps", ramps, scheduled, beside),
            ("scheduled_sampling_slots", some_slots, scheduled, beside),
            ("force_precision", forced, rounds, "precision bf16 or f16"),
        ];
        match rows.into_iter().find(|&(_, given, meant, _)| given && !meant) {
            Some((field, _, _, beside)) => Err(Error::mismatch(field, beside, "no such")),
            None => Ok(()),
        }
    }

    /// What a run computes in on this machine: what was asked for where that gains something or is to be
    /// whether or not, and else f32.
    pub fn precision_here(&self) -> Precision {
        match self.force_precision || !self.is_on_cpu() || self.precision.gains() {
            true => self.precision,
            false => Precision::F32,
        }
    }

    pub fn is_on_cpu(&self) -> bool {
        self.device.starts_with("cpu")
    }

    /// Opens the devices that the run is on.
    ///
    /// # Errors
    /// As [`open_device`](Self::open_device), and `Mismatch` for a batch that they cannot share alike.
    pub(crate) fn open_devices(&self) -> Result<Devices> {
        self.check_device()?;
        let (count, windows) = (device::count(&self.device), self.batch_size);
        if !windows.is_multiple_of(count) {
            return Err(Error::mismatch(
                "batch_size",
                format!("a multiple of {count}, the cards of {}", self.device),
                windows,
            ));
        }
        device::several(&self.device)
    }

    /// Opens the one device that a measurement is on.
    ///
    /// # Errors
    /// `NoDevice` for one that is not there, `Unavailable` for an option that only a CPU has.
    pub(crate) fn open_device(&self) -> Result<Device> {
        self.check_device()?;
        device::named(&self.device)
    }

    fn check_device(&self) -> Result<()> {
        let of_cpu = [
            ("gradient_checkpoint", self.gradient_checkpoint, "blocks run again on a CPU only"),
            (
                "memory_limit",
                self.memory_limit.is_some(),
                "a card's is memory_budget, see Sconce.Config",
            ),
        ];
        match of_cpu.into_iter().find(|(_, given, _)| *given && !self.is_on_cpu()) {
            Some((option, _, reason)) => Err(Error::Unavailable {
                what: format!("{option} on {}", self.device),
                reason: reason.into(),
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn optimiser(&self) -> Result<OptimiserConfig> {
        let mut config = OptimiserConfig::new(self.optimizer);
        config.set("beta1", self.beta1, |c| &mut c.beta1)?;
        config.set("beta2", self.beta2, |c| &mut c.beta2)?;
        config.set("eps", self.eps, |c| &mut c.eps)?;
        config.set("momentum", self.momentum, |c| &mut c.momentum)?;
        config.set("nesterov", self.nesterov.then_some(true), |c| &mut c.nesterov)?;
        let weight_decay = self.weight_decay.unwrap_or(config.weight_decay);
        Ok(OptimiserConfig { weight_decay, ..config })
    }

    /// Whether there may be games to measure on.
    pub(crate) fn may_validate(&self) -> bool {
        self.validation.is_some() || self.val_split > 0.0
    }

    pub(crate) fn loader(&self) -> LoaderOptions {
        LoaderOptions {
            prefetch: self.prefetch,
            threads: self.loader_threads,
            deadline_ms: self.loader_deadline_ms,
            ..LoaderOptions::default()
        }
    }

    pub(crate) fn unroll(&self) -> Unroll {
        Unroll {
            truncate_bptt: self.truncate_bptt,
            recompute: self.gradient_checkpoint.then_some(self.checkpoint_every),
            micro_batch: None,
            carry: self.unroll == Mode::Carry,
        }
    }

    pub(crate) fn eval(&self, stride: usize) -> EvalOptions {
        EvalOptions {
            mode: self.validation_mode,
            window_size: self.window_size,
            stride,
            frame_delay: self.frame_delay,
        }
    }

    /// Updates of the run, where an epoch has so many.
    pub(crate) fn total_steps(&self, epoch_steps: u64) -> u64 {
        self.steps.unwrap_or(self.epochs.saturating_mul(epoch_steps))
    }

    pub(crate) fn schedule(&self, total_steps: u64) -> Schedule {
        let kind = match self.lr_schedule {
            LrSchedule::Constant => ScheduleKind::Constant,
            LrSchedule::Linear => ScheduleKind::Linear { min: 0.0 },
            LrSchedule::Cosine => ScheduleKind::Cosine { min: 0.0 },
            LrSchedule::CosineRestarts => ScheduleKind::CosineRestarts {
                min: 0.0,
                period: self.restart_period,
                mult: self.restart_mult,
            },
            LrSchedule::Exponential => ScheduleKind::Exponential { rate: self.decay_rate },
        };
        // A short run still has more of a course than of a warm-up.
        let warmup_steps = self.warmup_steps.min(total_steps / 2);
        let TrainOptions { learning_rate: base, decay_steps, .. } = *self;
        Schedule { kind, base, warmup_steps, total_steps, decay_steps }
    }
}

impl EvalOptions {
    pub(crate) fn validate(&self) -> Result<()> {
        bounded("window_size", self.window_size as f64)?;
        bounded("stride", self.stride as f64)?;
        bounded("frame_delay", self.frame_delay as f64)
    }
}

/// Frames of one step: more would not fit into the memory of the machines this is for.
pub(crate) const MAX_FRAMES: usize = 1 << 20;

/// The largest share of itself that a mean may keep.
const ALMOST_ONE: f64 = 1.0 - f64::EPSILON;

/// A number outside its bounds is an error that names it.
pub(crate) fn at_least(field: &str, value: f64, min: f64, max: f64) -> Result<()> {
    match value {
        v if v >= min && v <= max => Ok(()),
        v => Err(Error::out_of_range(field, v, min, max)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_core::spec::MAX_DELAY;

    #[test]
    fn options_of_runs_before_there_were_other_optimisers_are_adamw() {
        let text = r#"{"batch_size": 8, "lr_schedule": "linear", "weight_decay": 0.03}"#;
        let options: TrainOptions = serde_json::from_str(text).unwrap();
        let adamw = OptimiserConfig { weight_decay: 0.03, ..OptimiserConfig::new(Kind::AdamW) };
        assert_eq!(options.optimiser().unwrap(), adamw);
        assert_eq!((options.accumulation_steps, options.ema_decay), (1, None));
        // A run that was told of no minutes goes on without any.
        let options: TrainOptions = serde_json::from_str(r#"{"save_minutes": null}"#).unwrap();
        assert_eq!((options.save_minutes, TrainOptions::default().save_minutes), (None, Some(5.0)));
    }

    #[test]
    fn a_number_that_the_optimizer_does_not_have_is_named() {
        let options = TrainOptions { momentum: Some(0.5), ..TrainOptions::default() };
        let error = options.optimiser().unwrap_err().to_string();
        assert_eq!(error, "momentum: expected an optimizer that has one, got adamw");
        let sgd = TrainOptions { optimizer: Kind::Sgd, nesterov: true, ..options };
        let config = sgd.optimiser().unwrap();
        assert_eq!((config.momentum, config.nesterov), (Some(0.5), Some(true)));
    }

    #[test]
    fn an_option_that_means_nothing_beside_the_others_is_named() {
        let own = TrainOptions::default;
        let exponential = || TrainOptions { lr_schedule: LrSchedule::Exponential, ..own() };
        let constant = || TrainOptions { lr_schedule: LrSchedule::Constant, ..own() };
        let restarts = || TrainOptions { lr_schedule: LrSchedule::CosineRestarts, ..own() };
        let refused = [
            ("decay_steps", TrainOptions { decay_steps: Some(5), ..constant() }),
            ("decay_steps", TrainOptions { decay_steps: Some(5), ..restarts() }),
            ("decay_rate", TrainOptions { decay_rate: 0.5, ..own() }),
            ("restart_period", TrainOptions { restart_period: 5, ..own() }),
            ("restart_mult", TrainOptions { restart_mult: 3, ..exponential() }),
            ("weights", TrainOptions { weights: vec![1.0], ..own() }),
            ("action_oversample", TrainOptions { action_oversample: 2.0, ..own() }),
            ("noise_scale", TrainOptions { noise_scale: 0.5, ..own() }),
            ("force_precision", TrainOptions { force_precision: true, ..own() }),
            ("teacher_weight", TrainOptions { teacher_weight: 0.5, ..own() }),
            ("teacher_direction", TrainOptions { teacher_direction: Direction::Reverse, ..own() }),
        ];
        for (field, options) in refused {
            let error = options.validate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{field}: expected ")), "{error}");
        }
        let (weighted, transitions) = (Sampling::Weighted, Sampling::Transitions);
        let meant = [
            TrainOptions { decay_steps: Some(5), ..own() },
            TrainOptions { decay_steps: Some(5), decay_rate: 0.5, ..exponential() },
            TrainOptions { restart_period: 5, restart_mult: 3, ..restarts() },
            TrainOptions { weights: vec![1.0], sampling: weighted, ..own() },
            TrainOptions { action_oversample: 2.0, sampling: transitions, ..own() },
            TrainOptions { noise_scale: 0.5, noise: 0.1, ..own() },
            TrainOptions { force_precision: true, precision: Precision::Bf16, ..own() },
        ];
        assert!(meant.iter().all(|options| options.validate().is_ok()));
    }

    #[test]
    fn a_precision_that_gains_nothing_is_that_of_f32_unless_it_is_forced() {
        let here = |precision, force_precision| {
            TrainOptions { precision, force_precision, ..TrainOptions::default() }.precision_here()
        };
        let unit = sconce_core::ops::matmul::has_unit();
        let bf16 = if unit { Precision::Bf16 } else { Precision::F32 };
        assert_eq!(here(Precision::F16, false), Precision::F32);
        assert_eq!(here(Precision::Bf16, false), bf16);
        for precision in [Precision::Bf16, Precision::F16] {
            assert_eq!(here(precision, true), precision);
        }
    }

    #[test]
    fn what_only_a_cpu_has_is_refused_by_its_name_on_another_device() {
        let on = |name: &str| TrainOptions { device: name.into(), ..TrainOptions::default() };
        type Set = fn(&mut TrainOptions);
        let of_cpu: [(&str, Set); 2] = [
            ("gradient_checkpoint", |options| options.gradient_checkpoint = true),
            ("memory_limit", |options| options.memory_limit = Some(1 << 30)),
        ];
        for (name, set) in of_cpu {
            let (mut cpu, mut card) = (on("cpu"), on("cuda:1"));
            set(&mut cpu);
            set(&mut card);
            assert!(cpu.open_device().is_ok());
            let error = card.open_device().unwrap_err();
            assert_eq!(error.kind(), sconce_core::Kind::Unavailable);
            assert!(error.to_string().starts_with(&format!("{name} on cuda:1: ")), "{error}");
        }
        // A card gains by each.
        let card = TrainOptions { precision: Precision::F16, ..on("cuda:1") };
        assert_eq!(card.precision_here(), Precision::F16);
        assert!(matches!(card.open_device(), Err(Error::NoDevice { .. })));
    }

    #[test]
    fn cards_that_cannot_share_a_batch_alike_are_refused_before_any_is_looked_for() {
        let on = |name: &str| TrainOptions { device: name.into(), ..TrainOptions::default() };
        let odd = TrainOptions { batch_size: 63, ..on("cuda:0,1") };
        let error = odd.open_devices().err().map(|error| error.to_string());
        let said = "batch_size: expected a multiple of 2, the cards of cuda:0,1, got 63";
        assert_eq!(error.as_deref(), Some(said));
        assert!(matches!(on("cuda:0,1").open_devices(), Err(Error::NoDevice { .. })));
        assert!(on("cpu").open_devices().is_ok_and(|devices| devices.all.len() == 1));
        // What has one device alone.
        assert!(matches!(on("cuda:0,1").open_device(), Err(Error::Mismatch { .. })));
    }

    #[test]
    fn every_number_has_bounds_and_both_ends_of_them_are_refused_by_name() {
        let own = TrainOptions::default();
        let named: Vec<_> = own.numbers().into_iter().map(|(option, _)| option).collect();
        assert_eq!(named, BOUNDS.iter().map(|(option, ..)| *option).collect::<Vec<_>>());
        let all = serde_json::to_value(&own).unwrap();
        let numbers = all.as_object().unwrap().iter().filter(|(_, value)| value.is_number());
        // `seed` may be any; `max_grad_norm` has no largest.
        let unbounded = ["seed", "max_grad_norm"];
        for (option, _) in numbers.filter(|(option, _)| !unbounded.contains(&option.as_str())) {
            assert!(named.contains(&option.as_str()), "{option}");
        }
        for &(option, _, max) in BOUNDS {
            let beyond =
                if max.fract() == 0.0 { serde_json::json!(max as u64 + 1) } else { 1.into() };
            let mut options = all.clone();
            options[option] = beyond;
            let options: TrainOptions = serde_json::from_value(options).unwrap();
            let error = options.validate().unwrap_err();
            assert_eq!(error.kind(), sconce_core::Kind::OutOfRange, "{option}");
            assert!(error.to_string().starts_with(option), "{error}");
        }
        assert_eq!(
            BOUNDS.iter().find(|(name, ..)| *name == "frame_delay").unwrap().2,
            MAX_DELAY as f64
        );
        let long = TrainOptions { epochs: 1_000_000, ..own };
        assert!(long.check_steps(1000).is_ok());
        assert!(long.check_steps(u64::MAX).unwrap_err().to_string().starts_with("steps: "));
    }

    #[test]
    fn numbers_of_the_optimizer_have_bounds() {
        let forgetful = TrainOptions { beta2: Some(1.0), ..TrainOptions::default() };
        let error = forgetful.validate().unwrap_err().to_string();
        assert!(error.starts_with("beta2: 1 is outside 0.."), "{error}");
        let sudden = TrainOptions { eps: Some(0.0), ..TrainOptions::default() };
        assert!(sudden.validate().unwrap_err().to_string().starts_with("eps: 0 is outside"));
    }

    #[test]
    fn a_run_without_any_time_is_refused() {
        let none = TrainOptions { max_minutes: Some(0.0), ..TrainOptions::default() };
        let error = none.validate().unwrap_err().to_string();
        assert!(error.starts_with("max_minutes: 0 is outside 0.001.."), "{error}");
    }
}
