//! Losses of single examples. Each loss is a sum; [`Score::mean`] divides it by the number of its terms.

use serde::{Deserialize, Serialize};

/// A loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// `log(sum_c exp(y_c)) - y_t` of the logits of classes, the first axis of the output.
    CrossEntropy,
    /// `log(1 + exp(y)) - t y` of each number of the output, a logit.
    Binary,
    /// `(y - t)^2` of each number of the output.
    Squared,
}

/// Sums over examples.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Score {
    loss: f64,
    /// Terms of the loss.
    terms: u64,
    /// Terms whose likeliest class is the target.
    correct: u64,
}

impl Score {
    /// The mean loss.
    pub(super) fn mean(&self) -> f64 {
        self.loss / self.terms.max(1) as f64
    }

    /// The share of terms whose likeliest class is the target.
    pub(super) fn accuracy(&self) -> f64 {
        self.correct as f64 / self.terms.max(1) as f64
    }

    pub(super) fn add(&mut self, other: Score) {
        self.loss += other.loss;
        self.terms += other.terms;
        self.correct += other.correct;
    }

    fn term(&mut self, loss: f64, correct: bool) {
        self.loss += loss;
        self.terms += 1;
        self.correct += u64::from(correct);
    }

    /// Cross entropy of `output [classes, places]` at the classes `targets [places]`.
    pub(super) fn classes(
        &mut self,
        targets: &[[u8; 4]],
        output: &[f32],
        mut gradient: Option<(&mut [f32], f64)>,
    ) {
        let places = targets.len().max(1);
        for (place, target) in targets.iter().enumerate() {
            let target = u32::from_le_bytes(*target) as usize;
            let logits = || output[place..].iter().step_by(places).map(|y| f64::from(*y));
            let max = logits().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits().map(|y| (y - max).exp()).sum();
            let own = logits().nth(target).unwrap_or(f64::NAN);
            self.term(sum.ln() + max - own, own == max);
            if let Some((gradient, scale)) = &mut gradient {
                let places = gradient[place..].iter_mut().step_by(places);
                for (class, (d, y)) in places.zip(logits()).enumerate() {
                    let hit = if class == target { 1.0 } else { 0.0 };
                    *d = (*scale * ((y - max).exp() / sum - hit)) as f32;
                }
            }
        }
    }

    /// Binary cross entropy of logits.
    pub(super) fn bits(
        &mut self,
        targets: &[[u8; 4]],
        output: &[f32],
        mut gradient: Option<(&mut [f32], f64)>,
    ) {
        for (i, (target, y)) in targets.iter().zip(output).enumerate() {
            let (target, y) = (f64::from(f32::from_le_bytes(*target)), f64::from(*y));
            let loss = y.max(0.0) - target * y + (-y.abs()).exp().ln_1p();
            self.term(loss, (y > 0.0) == (target > 0.5));
            if let Some((gradient, scale)) = &mut gradient {
                gradient[i] = (*scale * (1.0 / (1.0 + (-y).exp()) - target)) as f32;
            }
        }
    }

    /// Squared error.
    pub(super) fn squares(
        &mut self,
        targets: &[[u8; 4]],
        output: &[f32],
        mut gradient: Option<(&mut [f32], f64)>,
    ) {
        for (i, (target, y)) in targets.iter().zip(output).enumerate() {
            let error = f64::from(*y) - f64::from(f32::from_le_bytes(*target));
            self.term(error * error, false);
            if let Some((gradient, scale)) = &mut gradient {
                gradient[i] = (*scale * 2.0 * error) as f32;
            }
        }
    }
}
