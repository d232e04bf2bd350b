//! What the options of a run are to its parts.

use sconce_data::LoaderOptions;
use sconce_tensor::Result;

use super::evaluate::{EvalOptions, Mode};
use super::train::{LrSchedule, TrainOptions};
use crate::optimiser::OptimiserConfig;
use crate::schedule::{Schedule, ScheduleKind};
use crate::unroll::Unroll;

impl TrainOptions {
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
