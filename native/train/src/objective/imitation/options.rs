//! Options of the imitation loss.

use sconce_tensor::{Error, Result};

pub use crate::options::{FocalHeads, LossOptions, PosWeight, Reduction};

impl LossOptions {
    /// Options whose loss is the negative log-likelihood of the action in nats, without other terms.
    pub fn plain() -> Self {
        LossOptions {
            button_weight: 1.0,
            bernoulli_reduction: Reduction::Sum,
            pos_weight: PosWeight::None,
            label_smoothing: 0.0,
            focal_gamma: None,
            focal_heads: FocalHeads::All,
            stick_edge_weight: None,
            entropy_weight: 0.0,
            head_normalize: false,
            clamp: 60.0,
        }
    }

    /// Replaces [`PosWeight::Auto`] by weights; `rates` has one press rate per bit.
    pub fn with_press_rates(mut self, rates: &[f64]) -> Self {
        if self.pos_weight == PosWeight::Auto {
            self.pos_weight = PosWeight::Given(pos_weight_auto(rates));
        }
        self
    }
}

/// Weights of pressed bits: `sqrt((1 - r) / r)` clamped to 1..30, where the press rate r is at least 1e-4.
pub fn pos_weight_auto(rates: &[f64]) -> Vec<f32> {
    let weight = |r: &f64| ((1.0 - r.max(1e-4)) / r.max(1e-4)).sqrt().clamp(1.0, 30.0) as f32;
    rates.iter().map(weight).collect()
}

pub(super) fn pos_weights(option: &PosWeight, bits: usize) -> Result<Vec<f32>> {
    match option {
        PosWeight::None => Ok(vec![1.0; bits]),
        PosWeight::Auto => {
            Err(Error::mismatch("pos_weight", "numbers from the press rates", "auto"))
        }
        PosWeight::Given(w) if w.len() != bits => {
            Err(Error::mismatch("pos_weight", format!("{bits} numbers"), w.len()))
        }
        PosWeight::Given(w) => match w.iter().find(|v| !(v.is_finite() && **v >= 0.0)) {
            Some(&v) => Err(Error::out_of_range("pos_weight", v.into(), 0.0, f32::MAX.into())),
            None => Ok(w.clone()),
        },
    }
}
