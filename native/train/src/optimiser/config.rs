//! The kinds of optimisers, and their hyperparameters.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// The optimisers. g is the gradient, m and v are moments, and a hat marks a moment corrected for its initial bias,
/// `m / (1 - beta^t)`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Loshchilov & Hutter 2019, algorithm 2: Adam with decoupled weight decay.
    #[default]
    AdamW,
    /// Kingma & Ba 2015, algorithm 1: `p -= lr m^ / (sqrt(v^) + eps)`.
    Adam,
    /// Polyak 1964: `m = momentum m + g, p -= lr m`; by Nesterov `p -= lr (g + momentum m)`
    /// (Sutskever et al. 2013).
    Sgd,
    /// Tieleman & Hinton 2012: `v = beta2 v + (1 - beta2) g^2, p -= lr g / (sqrt(v) + eps)`.
    RmsProp,
    /// Liu et al. 2020, algorithm 2: Adam, without v until its variance is tractable.
    RAdam,
    /// You et al. 2020, algorithm 2: `r = m^ / (sqrt(v^) + eps) + decay p, p -= lr (|p| / |r|) r`,
    /// with one ratio for each parameter, which is 1 where a norm is 0.
    Lamb,
    /// Zhuang et al. 2020, algorithm 2: Adam with `v = beta2 v + (1 - beta2) (g - m)^2 + eps`.
    AdaBelief,
    /// Zaheer et al. 2018, algorithm 2: Adam with `v -= (1 - beta2) sign(v - g^2) g^2`. As in common implementations,
    /// bias is corrected and v begins at 1e-6.
    Yogi,
    /// Chen et al. 2023, algorithm 2: `p -= lr sign(beta1 m + (1 - beta1) g), m = beta2 m + (1 - beta2) g`.
    Lion,
}

/// The way in which weight decay changes a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decay {
    /// The decay is added to the gradient, as the gradient of `decay / 2 |p|^2`.
    Coupled,
    /// The decay is applied apart from the gradient: `p -= lr decay p`.
    Decoupled,
    /// The decay is part of the rule's own direction.
    Own,
}

/// An optimiser and its hyperparameters. A hyperparameter that the optimiser does not have is `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimiserConfig {
    /// The optimiser.
    pub kind: Kind,
    /// Decay rate of the mean of gradients.
    pub beta1: Option<f64>,
    /// Decay rate of the mean of squared gradients; for Lion, of the mean of gradients.
    pub beta2: Option<f64>,
    /// Constant added to the denominator of an update.
    pub eps: Option<f64>,
    /// Decay rate of SGD's momentum.
    pub momentum: Option<f64>,
    /// Whether SGD applies its momentum one step ahead.
    pub nesterov: Option<bool>,
    /// Weight decay of matrices.
    pub weight_decay: f64,
}

impl Default for OptimiserConfig {
    fn default() -> Self {
        Self::new(Kind::default())
    }
}

impl OptimiserConfig {
    /// The default hyperparameters: PyTorch's, or the paper's for an optimiser that PyTorch does not have.
    pub fn new(kind: Kind) -> Self {
        let none = OptimiserConfig {
            kind,
            beta1: None,
            beta2: None,
            eps: None,
            momentum: None,
            nesterov: None,
            weight_decay: 0.0,
        };
        let moments = |beta1, beta2| OptimiserConfig { beta1: Some(beta1), beta2, ..none };
        let adam = |eps| OptimiserConfig { eps: Some(eps), ..moments(0.9, Some(0.999)) };
        match kind {
            Kind::AdamW => OptimiserConfig { weight_decay: 0.01, ..adam(1e-8) },
            Kind::Lamb => OptimiserConfig { weight_decay: 0.01, ..adam(1e-6) },
            Kind::Adam | Kind::RAdam | Kind::AdaBelief => adam(1e-8),
            Kind::Yogi => adam(1e-3),
            Kind::Lion => moments(0.9, Some(0.99)),
            Kind::RmsProp => OptimiserConfig { beta2: Some(0.99), eps: Some(1e-8), ..none },
            Kind::Sgd => OptimiserConfig { momentum: Some(0.9), nesterov: Some(false), ..none },
        }
    }

    /// Sets a hyperparameter if a value is given. One that the optimiser does not have is an error that names it.
    pub(crate) fn set<T>(
        &mut self,
        name: &str,
        given: Option<T>,
        of: impl FnOnce(&mut Self) -> &mut Option<T>,
    ) -> Result<()> {
        let Some(given) = given else { return Ok(()) };
        let kind = self.kind;
        match of(self) {
            Some(number) => *number = given,
            None => {
                let got = format!("{kind:?}").to_lowercase();
                return Err(Error::mismatch(name, "an optimizer that has one", got));
            }
        }
        Ok(())
    }

    pub(super) fn decay(&self) -> Decay {
        match self.kind {
            Kind::Adam | Kind::Sgd | Kind::RmsProp | Kind::RAdam | Kind::Yogi => Decay::Coupled,
            Kind::AdamW | Kind::AdaBelief | Kind::Lion => Decay::Decoupled,
            Kind::Lamb => Decay::Own,
        }
    }

    /// The moments of a parameter: their names in PyTorch, and their initial values.
    pub(super) fn memory(&self) -> &'static [(&'static str, f32)] {
        match self.kind {
            Kind::Sgd => &[("momentum_buffer", 0.0)],
            Kind::RmsProp => &[("square_avg", 0.0)],
            Kind::Lion => &[("exp_avg", 0.0)],
            Kind::AdaBelief => &[("exp_avg", 0.0), ("exp_avg_var", 0.0)],
            Kind::Yogi => &[("exp_avg", 0.0), ("exp_avg_sq", 1e-6)],
            Kind::AdamW | Kind::Adam | Kind::RAdam | Kind::Lamb => {
                &[("exp_avg", 0.0), ("exp_avg_sq", 0.0)]
            }
        }
    }
}
