//! What the loss adds up, and how.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// What the loss adds up, and how. `Default` is the full stack that an app trains with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossOptions {
    /// Multiplies each bernoulli head.
    pub button_weight: f32,
    /// Whether a bernoulli head is the mean over its bits or their sum.
    pub bernoulli_reduction: Reduction,
    /// Multiplies the loss of a pressed bit.
    pub pos_weight: PosWeight,
    /// Probability taken from the true class and shared by the others. Never of bits, where
    /// together with `pos_weight` it teaches a policy to press what nobody presses.
    pub label_smoothing: f32,
    /// Exponent of the focal factor `(1 - p)^gamma`.
    pub focal_gamma: Option<f32>,
    pub focal_heads: FocalHeads,
    /// Weight of a `main_x` or `main_y` label at the edge; the centre has 1, between them a line.
    pub stick_edge_weight: Option<f32>,
    /// Multiplies the entropy, in nats, that is subtracted from the loss.
    pub entropy_weight: f32,
    /// Divides each head by its mean loss over the batch (not below 0.1), taken as a constant.
    pub head_normalize: bool,
    /// Logits are cut to this on both sides; beyond it the gradient is 0.
    pub clamp: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    Mean,
    Sum,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PosWeight {
    None,
    /// From the press rates of the training data; see [`LossOptions::with_press_rates`].
    Auto,
    /// One weight per bit, bernoulli heads in order.
    Given(Vec<f32>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FocalHeads {
    All,
    /// For comparison with runs that had the factor on the bits alone.
    Bernoulli,
}

impl Default for LossOptions {
    fn default() -> Self {
        LossOptions {
            button_weight: 2.0,
            pos_weight: PosWeight::Auto,
            bernoulli_reduction: Reduction::Mean,
            label_smoothing: 0.1,
            focal_gamma: Some(3.0),
            stick_edge_weight: Some(2.0),
            entropy_weight: 0.01,
            ..LossOptions::plain()
        }
    }
}

impl LossOptions {
    /// The negative log-likelihood of the action in nats, and nothing else.
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

    /// Puts numbers in the place of [`PosWeight::Auto`]; `rates` has one number per bit.
    pub fn with_press_rates(mut self, rates: &[f64]) -> Self {
        if self.pos_weight == PosWeight::Auto {
            self.pos_weight = PosWeight::Given(pos_weight_auto(rates));
        }
        self
    }
}

/// Weights of pressed bits: `sqrt((1 - r) / r)` within 1..30, where a rate r is at least 1e-4.
pub fn pos_weight_auto(rates: &[f64]) -> Vec<f32> {
    let weight = |r: &f64| ((1.0 - r.max(1e-4)) / r.max(1e-4)).sqrt().clamp(1.0, 30.0) as f32;
    rates.iter().map(weight).collect()
}

pub(super) fn check_options(options: &LossOptions) -> Result<()> {
    let within = |field: &str, value: f32, min: f32, max: f32| match value {
        v if v >= min && v <= max => Ok(()),
        _ => Err(Error::out_of_range(field, value.into(), min.into(), max.into())),
    };
    within("button_weight", options.button_weight, 0.0, f32::MAX)?;
    within("label_smoothing", options.label_smoothing, 0.0, 1.0)?;
    within("focal_gamma", options.focal_gamma.unwrap_or(0.0), 0.0, 100.0)?;
    within("stick_edge_weight", options.stick_edge_weight.unwrap_or(1.0), 0.0, f32::MAX)?;
    within("entropy_weight", options.entropy_weight, 0.0, f32::MAX)?;
    // The largest logit whose exponential is far from overflowing.
    within("clamp", options.clamp, 1e-3, 70.0)
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
