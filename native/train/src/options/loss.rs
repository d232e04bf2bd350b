//! Values of the options of the imitation loss.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    #[default]
    Mean,
    Sum,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PosWeight {
    None,
    /// From the press rates of the training data; see [`LossOptions::with_press_rates`](super::LossOptions::with_press_rates).
    #[default]
    Auto,
    /// One weight per bit, bernoulli heads in order.
    Given(Vec<f32>),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FocalHeads {
    #[default]
    All,
    /// For comparison with runs that had the factor on the bits alone.
    Bernoulli,
}
