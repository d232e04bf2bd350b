//! From logits to a choice, with the randomness given from outside.

use serde::{Deserialize, Serialize};

use crate::rng::Rng;
use crate::{Error, Result};

/// How a choice is drawn. The defaults sample what the policy believes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Logits are divided by it, of every head: towards 0 the choice becomes the most likely one.
    pub temperature: f32,
    /// The most likely choice of every head.
    pub deterministic: bool,
    /// The most likely bits, sampled classes.
    pub deterministic_buttons: bool,
    /// A released bit is pressed above this probability; for deterministic bits.
    pub press_threshold: f32,
    /// A held bit is released at or below this probability; for deterministic bits.
    pub release_threshold: f32,
}

/// Where choices come from: drawn, each row with a generator of its own, or given.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    pub sampling: &'a Sampling,
    pub rngs: &'a [Rng],
    /// `[n, num_labels]`: nothing is drawn, and logits are those of this action. Of autoregressive
    /// heads that is the only way to score an action.
    pub given: Option<&'a [f32]>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            deterministic: false,
            deterministic_buttons: false,
            press_threshold: 0.5,
            release_threshold: 0.5,
        }
    }
}

impl Sampling {
    pub fn validate(&self) -> Result<()> {
        let bounded = |field: &str, value: f32, min: f32, max: f32| match value {
            v if v >= min && v <= max => Ok(()),
            v => Err(Error::out_of_range(field, v.into(), min.into(), max.into())),
        };
        bounded("temperature", self.temperature, 1e-3, 1e3)?;
        bounded("press_threshold", self.press_threshold, 0.0, 1.0)?;
        bounded("release_threshold", self.release_threshold, 0.0, 1.0)
    }
}
