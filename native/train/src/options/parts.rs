//! Options of a run, converted to the form that other modules take.

use sconce_data::LoaderOptions;
use sconce_tensor::Result;

use super::evaluate::{EvalOptions, Mode};
use super::train::{LrSchedule, OptimiserOptions, ScheduleOptions, TrainOptions};
use crate::optimiser::OptimiserConfig;
use crate::schedule::{Schedule, ScheduleKind};
use crate::unroll::Unroll;
use crate::weights::pruning::Pruning;
use crate::weights::quantisation::Quantisation;

impl TrainOptions {
    /// Number of batches over which the shares of a mix move from their first values to their last.
    pub(crate) fn mix_draws(&self) -> u64 {
        self.data.mix_steps.saturating_mul(self.optimiser.accumulation_steps)
    }

    pub(crate) fn optimiser(&self) -> Result<OptimiserConfig> {
        let mut config = OptimiserConfig::new(self.optimiser.optimizer);
        config.set("beta1", self.optimiser.beta1, |c| &mut c.beta1)?;
        config.set("beta2", self.optimiser.beta2, |c| &mut c.beta2)?;
        config.set("eps", self.optimiser.eps, |c| &mut c.eps)?;
        config.set("momentum", self.optimiser.momentum, |c| &mut c.momentum)?;
        config.set("nesterov", self.optimiser.nesterov.then_some(true), |c| &mut c.nesterov)?;
        let weight_decay = self.optimiser.weight_decay.unwrap_or(config.weight_decay);
        Ok(OptimiserConfig { weight_decay, ..config })
    }

    /// The quantisation of the weights, if the run has one.
    pub(crate) fn quantisation(&self) -> Option<Quantisation> {
        let OptimiserOptions { quantise_group: group, quantise_after: after, .. } = self.optimiser;
        let ramp = self.optimiser.quantise_ramp;
        let steps = self.optimiser.quantise_steps;
        let activations = self.optimiser.quantise_activations;
        let own = |format| Quantisation { format, group, after, ramp, steps, activations };
        self.optimiser.quantise.map(own)
    }

    /// The pruning of the weights, if the run has one.
    pub(crate) fn pruning(&self) -> Option<Pruning> {
        let OptimiserOptions { prune_sparsity: sparsity, prune_after: after, .. } = self.optimiser;
        let ramp = self.optimiser.prune_ramp;
        self.optimiser.prune.map(|pattern| Pruning { pattern, sparsity, after, ramp })
    }

    /// How far the transforms that anneal are when the share `done` of the run has passed: from 0 to 1. `None` without any.
    pub(crate) fn annealed(&self, done: f64) -> Option<f64> {
        let quantised = self.quantisation().map(|own| own.annealed(done));
        quantised.or_else(|| self.pruning().map(|own| own.annealed(done)))
    }

    /// Returns the options to record, without `resume`.
    pub(crate) fn begun(&self) -> Self {
        let mut options = self.clone();
        options.machine.resume = false;
        options
    }

    /// Whether the run may have validation games.
    pub(crate) fn may_validate(&self) -> bool {
        self.data.validation.is_some() || self.data.val_split > 0.0
    }

    pub(crate) fn loader(&self) -> LoaderOptions {
        LoaderOptions {
            prefetch: self.data.prefetch,
            threads: self.data.loader_threads,
            deadline_ms: self.data.loader_deadline_ms,
            ..LoaderOptions::default()
        }
    }

    pub(crate) fn unroll(&self) -> Unroll {
        Unroll {
            truncate_bptt: self.optimiser.truncate_bptt,
            recompute: self.machine.gradient_checkpoint.then_some(self.machine.checkpoint_every),
            micro_batch: None,
            carry: self.data.unroll == Mode::Carry,
        }
    }

    pub(crate) fn eval(&self, stride: usize) -> EvalOptions {
        EvalOptions {
            mode: self.saving.validation_mode,
            window_size: self.data.window_size,
            stride,
            frame_delay: self.data.frame_delay,
        }
    }

    /// Number of updates of the run, with `epoch_steps` updates in an epoch.
    pub(crate) fn total_steps(&self, epoch_steps: u64) -> u64 {
        self.schedule.steps.unwrap_or(self.schedule.epochs.saturating_mul(epoch_steps))
    }

    pub(crate) fn schedule(&self, total_steps: u64) -> Schedule {
        let kind = match self.schedule.lr_schedule {
            LrSchedule::Constant => ScheduleKind::Constant,
            LrSchedule::Linear => ScheduleKind::Linear { min: 0.0 },
            LrSchedule::Cosine => ScheduleKind::Cosine { min: 0.0 },
            LrSchedule::CosineRestarts => ScheduleKind::CosineRestarts {
                min: 0.0,
                period: self.schedule.restart_period,
                mult: self.schedule.restart_mult,
            },
            LrSchedule::Exponential => ScheduleKind::Exponential { rate: self.schedule.decay_rate },
        };
        // In a short run the warm-up takes at most half of the steps.
        let warmup_steps = self.schedule.warmup_steps.min(total_steps / 2);
        let TrainOptions {
            schedule: ScheduleOptions { learning_rate: base, decay_steps, .. }, ..
        } = *self;
        Schedule { kind, base, warmup_steps, total_steps, decay_steps }
    }
}
