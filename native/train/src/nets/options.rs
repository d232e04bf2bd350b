//! Options of a run.

use std::path::PathBuf;

use sconce_tensor::Result;
use serde::{Deserialize, Serialize};

use super::loss::Loss;
use crate::optimiser::{Kind, OptimiserConfig};
use crate::schedule::{Schedule, ScheduleKind};

/// Options of a run; names and meanings are those of `Sconce.Net.fit/4`, which checks their bounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitOptions {
    /// The loss.
    pub loss: Loss,
    /// Examples of a step.
    pub batch_size: usize,
    /// Passes over the examples.
    pub epochs: u64,
    /// Steps of the run; replaces `epochs`.
    pub steps: Option<u64>,
    /// Update rule of the weights.
    pub optimizer: Kind,
    /// Weight decay of matrices and kernels; `None` is the optimizer's default.
    pub weight_decay: Option<f64>,
    /// Decay rate of the mean of gradients.
    pub beta1: Option<f64>,
    /// Decay rate of the mean of squared gradients.
    pub beta2: Option<f64>,
    /// Constant in the denominator of an update.
    pub eps: Option<f64>,
    /// Momentum of SGD.
    pub momentum: Option<f64>,
    /// Largest norm of the gradient.
    pub max_grad_norm: Option<f64>,
    /// Learning rate after the warm-up.
    pub learning_rate: f64,
    /// Decay of the learning rate.
    pub lr_schedule: Decay,
    /// Steps in which the learning rate rises from 0.
    pub warmup_steps: u64,
    /// Share of the examples that are kept for validation.
    pub val_split: f64,
    /// Validations without an improvement before the run ends.
    pub patience: Option<u64>,
    /// Whether each epoch has an order of its own.
    pub shuffle: bool,
    /// Whether the last batch of an epoch is left out if it is not full.
    pub drop_last: bool,
    /// Seed of the validation split and of the orders.
    pub seed: u64,
    /// File of the state of the run.
    #[serde(default, skip_serializing)]
    pub checkpoint: Option<PathBuf>,
    /// Epochs from one state to the next; 0 counts as 1.
    #[serde(default, skip_serializing)]
    pub checkpoint_every: u64,
    /// Whether the run continues from the state in the file.
    #[serde(default, skip_serializing)]
    pub resume: bool,
}

/// Decay of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// No decay.
    Constant,
    /// Linear fall to 0.
    Linear,
    /// Half a period of a cosine, to 0.
    Cosine,
}

impl FitOptions {
    /// Options that a resumed run may change: those of its end.
    pub(super) const MAY_DIFFER: [&str; 3] = ["epochs", "steps", "patience"];

    /// The optimiser's hyperparameters.
    ///
    /// # Errors
    /// `Mismatch` for a hyperparameter that the optimiser does not have.
    pub(super) fn optimiser(&self) -> Result<OptimiserConfig> {
        let mut config = OptimiserConfig::new(self.optimizer);
        config.set("beta1", self.beta1, |c| &mut c.beta1)?;
        config.set("beta2", self.beta2, |c| &mut c.beta2)?;
        config.set("eps", self.eps, |c| &mut c.eps)?;
        config.set("momentum", self.momentum, |c| &mut c.momentum)?;
        let weight_decay = self.weight_decay.unwrap_or(config.weight_decay);
        Ok(OptimiserConfig { weight_decay, ..config })
    }

    pub(super) fn schedule(&self, total_steps: u64) -> Schedule {
        let kind = match self.lr_schedule {
            Decay::Constant => ScheduleKind::Constant,
            Decay::Linear => ScheduleKind::Linear { min: 0.0 },
            Decay::Cosine => ScheduleKind::Cosine { min: 0.0 },
        };
        Schedule {
            kind,
            base: self.learning_rate,
            warmup_steps: self.warmup_steps,
            total_steps,
            decay_steps: None,
        }
    }
}
