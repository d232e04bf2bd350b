//! The integers that weights become, and when in a run.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// Integers of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// 8 bits, with a scale for each row.
    Int8,
    /// 4 bits, with a scale for each group of columns of a row.
    Int4,
}

impl Format {
    /// Bits of a code.
    pub fn bits(self) -> u32 {
        match self {
            Format::Int8 => 8,
            Format::Int4 => 4,
        }
    }
}

/// The source of the steps of a grid: the distances between its neighbouring numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steps {
    /// The largest magnitude of a row or group, over the largest code.
    #[default]
    Largest,
    /// Steps that are trained beside the weights (LSQ).
    Learned,
}

/// Quantisation of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantisation {
    /// The integers.
    pub format: Format,
    /// Columns of a group of int4; `None` is 32.
    pub group: Option<usize>,
    /// Share of the run before the weights begin to move to their grid.
    pub after: f64,
    /// Share of the run in which they move there.
    pub ramp: f64,
    /// The source of the steps of the grid.
    pub steps: Steps,
    /// Whether products of quantised matrices round their inputs as packed steps do.
    pub activations: bool,
}

impl Quantisation {
    /// Refuses weights that would not be on their grid at the end of the run, and groups that packed steps read in f32.
    ///
    /// # Errors
    /// `OutOfRange` for the ramp, `Mismatch` for a group beside quantised activations.
    pub fn check(&self) -> Result<()> {
        if let Some(group) = self.group.filter(|group| self.activations && group % 32 != 0) {
            let expected = "a multiple of 32 beside quantise_activations";
            return Err(Error::mismatch("quantise_group", expected, group));
        }
        check_ramp("quantise_ramp", self.after, self.ramp)
    }

    /// How far weights are on the way to their grid when the share `done` of the run has passed: from 0 to 1.
    pub fn annealed(&self, done: f64) -> f64 {
        annealed(self.after, self.ramp, done)
    }
}

/// Refuses a ramp after the share `after` of the run that would end after the run.
///
/// # Errors
/// `OutOfRange` with the name of the ramp.
pub(super) fn check_ramp(name: &str, after: f64, ramp: f64) -> Result<()> {
    let most = 1.0 - after;
    // Rounding errors of decimal fractions are far below this.
    match ramp <= most + 1e-9 {
        true => Ok(()),
        false => Err(Error::out_of_range(name, ramp, 0.0, most)),
    }
}

/// How far a ramp after the share `after` of the run is when the share `done` has passed: from 0 to 1.
pub(super) fn annealed(after: f64, ramp: f64, done: f64) -> f64 {
    if done >= (after + ramp).min(1.0) {
        return 1.0;
    }
    ((done - after) / ramp).clamp(0.0, 1.0)
}
