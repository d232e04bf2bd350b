//! Options of drawing a choice from logits, and the random generators.

use serde::{Deserialize, Serialize};

use crate::rng::Rng;
use crate::{Error, Result};

/// Options of drawing a choice. The defaults sample from the policy's distribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Divides the logits of every head. As the temperature approaches 0, the choice becomes the most likely one.
    pub temperature: f32,
    /// Takes the most likely choice of every head.
    pub deterministic: bool,
    /// Takes the most likely bits and samples classes.
    pub deterministic_buttons: bool,
    /// With deterministic bits, a released bit is pressed above this probability.
    pub press_threshold: f32,
    /// With deterministic bits, a held bit is released at or below this probability.
    pub release_threshold: f32,
}

/// Source of choices: drawn with one random generator per row, or given.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// Options of drawing.
    pub sampling: &'a Sampling,
    /// One generator per row.
    pub rngs: &'a [Rng],
    /// Given labels `[n, num_labels]`. Nothing is drawn, and the logits are conditioned on these labels. This is the
    /// only way to score an action of autoregressive heads.
    pub given: Option<&'a [f32]>,
    /// Action masks `[n, mask_size]`, 0 where a bit must not be set or a class must not be chosen. The logits of such
    /// actions become [`FORBIDDEN`].
    pub mask: Option<&'a [u8]>,
}

/// The logit of an action that is not allowed. No draw chooses it.
pub const FORBIDDEN: f32 = -1e9;

/// The smallest logit of an action that is allowed beside others that are not.
const LEAST: f32 = -1e8;

/// Makes the logits of actions that are not allowed [`FORBIDDEN`]. The softmax of the logits is then the distribution
/// over the allowed actions.
///
/// # Shapes
/// `logits` and `mask` `[n]`; 0 in the mask is an action that is not allowed.
pub fn forbid<T: PartialEq + Default>(logits: &mut [f32], mask: &[T]) {
    for (logit, allowed) in logits.iter_mut().zip(mask) {
        if *allowed == T::default() {
            *logit = FORBIDDEN;
        } else if *logit < LEAST {
            // NaN stays, so that the policy that has it is refused.
            *logit = LEAST;
        }
    }
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
    /// Checks that every option is in its range.
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
