//! Options of a run that are refused: out of bounds, or without meaning beside the others.

use sconce_data::Sampling;
use sconce_nn::spec::Spec;
use sconce_tensor::{Error, Precision, Result};

use super::bounds::{MAX_FRAMES, at_least, bounded};
use super::evaluate::Mode;
use super::train::{LrSchedule, TrainOptions};

impl TrainOptions {
    /// The numbers that have [`BOUNDS`], where they are given.
    pub(super) fn numbers(&self) -> Vec<(&'static str, Option<f64>)> {
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

    /// The same for a run of a policy of this Spec.
    pub(crate) fn validate_for(&self, spec: &Spec) -> Result<()> {
        self.validate()?;
        let carried = self.carries() || self.validation_mode == Mode::Carry;
        if carried { spec.backbone.check_carried() } else { Ok(()) }
    }

    /// Whether a step hands states on: from batch to batch, or from chunk to chunk of a window.
    pub(crate) fn carries(&self) -> bool {
        self.unroll == Mode::Carry || self.truncate_bptt.is_some_and(|n| n < self.window_size)
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
}
