//! The choice of an opponent.

use serde::{Deserialize, Serialize};

/// Share of the episodes whose opponent is chosen uniformly also by priority. Otherwise a beaten opponent would never
/// return, and its record would stay as it was.
const UNIFORM_SHARE: f64 = 0.1;
/// Sum of weights below which all opponents are beaten, and the choice is uniform.
const NO_WEIGHT: f64 = 1e-10;

/// How an opponent is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Each with the same probability.
    #[default]
    Uniform,
    /// Prioritised fictitious self-play (Vinyals et al. 2019): weight `(1 - win rate)^p`, and a small uniform share.
    Prioritised,
}

impl Choice {
    /// The probability of each opponent, given the win rates of the learner against them.
    pub fn probabilities(self, win_rates: &[f64], priority: f64) -> Vec<f64> {
        let each = 1.0 / win_rates.len().max(1) as f64;
        let weights: Vec<f64> = match self {
            Choice::Uniform => vec![1.0; win_rates.len()],
            Choice::Prioritised => {
                win_rates.iter().map(|rate| (1.0 - rate).max(0.0).powf(priority)).collect()
            }
        };
        let sum: f64 = weights.iter().sum();
        if sum < NO_WEIGHT {
            return vec![each; win_rates.len()];
        }
        let mixed = |weight: f64| UNIFORM_SHARE * each + (1.0 - UNIFORM_SHARE) * weight / sum;
        weights.into_iter().map(mixed).collect()
    }
}

/// The entry at `share`, in 0..1, of the sum of the probabilities.
pub(super) fn pick<T: Copy>(chances: &[(T, f64)], share: f32) -> Option<T> {
    let mut rest = f64::from(share);
    let found = chances.iter().find(|(_, chance)| {
        rest -= chance;
        rest < 0.0
    });
    // A rounding error may leave a small rest.
    found.or(chances.last()).map(|(own, _)| *own)
}
