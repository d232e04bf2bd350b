//! Dynamic scale of the loss of steps in f16, so that small gradients do not underflow. The scale is as large as
//! gradients allow (Micikevicius et al. 2018, section 3.2).
//!
//! Constants and rules are those of PyTorch's `GradScaler`: a gradient that is not finite is dropped and the scale
//! halved, and after 2000 updates in a row the scale is doubled. Unlike in PyTorch, the scale does not fall below 1: a
//! gradient that overflows even without a scale overflows for another reason than f16.

use serde::{Deserialize, Serialize};

const FIRST: f64 = 65536.0;
const LEAST: f64 = 1.0;
/// Number of consecutive updates after which the scale is doubled.
const INTERVAL: u64 = 2000;

/// The scale of the loss, and the updates that it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    factor: f64,
    /// Updates since the scale changed.
    updates: u64,
    /// Gradients that were dropped as not finite.
    skipped: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale { factor: FIRST, updates: 0, skipped: 0 }
    }
}

impl LossScale {
    /// The factor on the loss.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Updates that were skipped because their gradient was not finite.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Counts an update, and doubles the scale after 2000 consecutive updates.
    pub fn updated(&mut self) {
        self.updates += 1;
        let more = 2.0 * self.factor;
        if self.updates == INTERVAL {
            self.updates = 0;
            // Gradients are f32, so the scale stays within f32.
            self.factor = if more > f64::from(f32::MAX) { self.factor } else { more };
        }
    }

    /// Called for a gradient that is not finite. Halves the scale and returns true if the gradient is to be dropped.
    /// Returns false if the scale is already at its minimum.
    pub fn halve(&mut self) -> bool {
        if self.factor <= LEAST {
            return false;
        }
        *self = LossScale { factor: self.factor / 2.0, updates: 0, skipped: self.skipped + 1 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(updates: u64, mut scale: LossScale) -> LossScale {
        (0..updates).for_each(|_| scale.updated());
        scale
    }

    #[test]
    fn the_scale_doubles_after_2000_updates_in_a_row_and_no_fewer() {
        let scale = LossScale::default();
        assert_eq!(after(1999, scale).factor(), 65536.0);
        assert_eq!(after(2000, scale).factor(), 131_072.0);
        assert_eq!(after(4000, scale).factor(), 262_144.0);
        let mut interrupted = after(1999, scale);
        assert!(interrupted.halve());
        assert_eq!(after(1999, interrupted).factor(), 32768.0);
        assert_eq!(after(2000, interrupted).factor(), 65536.0);
    }

    #[test]
    fn the_scale_stays_within_f32_and_does_not_fall_below_1() {
        let scale = after(2000 * 200, LossScale::default());
        assert_eq!(scale.factor(), 2f64.powi(127));
        let mut scale = LossScale::default();
        let halved = (0..100).take_while(|_| scale.halve()).count();
        assert_eq!((halved, scale.factor(), scale.skipped()), (16, 1.0, 16));
    }
}
