//! Values of the options of the imitation loss.

use serde::{Deserialize, Serialize};

/// Reduction of the loss over the bits of a head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Mean over the bits.
    #[default]
    Mean,
    /// Sum over the bits.
    Sum,
}

/// Factors on the loss of pressed bits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PosWeight {
    /// No factors.
    None,
    /// Factors from the press rates of the training data, see
    /// [`LossOptions::with_press_rates`](super::LossOptions::with_press_rates).
    #[default]
    Auto,
    /// One factor per bit, bernoulli heads in order.
    Given(Vec<f32>),
}

/// Heads that have the focal factor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FocalHeads {
    /// All heads.
    #[default]
    All,
    /// Only bernoulli heads, for comparison with runs that had the factor on these heads alone.
    Bernoulli,
}
