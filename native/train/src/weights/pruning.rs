//! The weights that a run removes, and when.

use sconce_tensor::Result;
use serde::{Deserialize, Serialize};

use super::quantisation::{annealed, check_ramp};

/// The weights that stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Two of four consecutive inputs of an output.
    TwoFour,
    /// The largest of an output.
    Unstructured,
}

/// Pruning of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// The weights that stay.
    pub pattern: Pattern,
    /// The part that is removed, if the pattern does not tell it.
    pub sparsity: f64,
    /// Share of the run before the first weights are removed.
    pub after: f64,
    /// Share of the run in which they are removed.
    pub ramp: f64,
}

impl Pruning {
    /// Refuses a run at whose end weights would still be removed.
    ///
    /// # Errors
    /// `OutOfRange` for the ramp.
    pub fn check(&self) -> Result<()> {
        check_ramp("prune_ramp", self.after, self.ramp)
    }

    /// The share of the ramp that has passed with the share `done` of the run.
    pub fn annealed(&self, done: f64) -> f64 {
        annealed(self.after, self.ramp, done)
    }
}
