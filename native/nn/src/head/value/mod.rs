//! The value of a frame: an estimate of the return. It is not a part of an action.

use super::distribution::{BaselineKind, Chance, Direction, Distribution, Pair, PriorRead, Shape};
use crate::Result;
use crate::bounds::within;

/// The expected return. Files store a size, which is always 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value(pub(super) usize);

impl Distribution for Value {
    fn logits(&self) -> usize {
        self.0
    }

    fn labels(&self) -> usize {
        0
    }

    fn bounds(&self) -> [f32; 2] {
        [f32::MIN, f32::MAX]
    }

    fn on_card(&self) -> Option<i32> {
        Some(3)
    }

    fn validate(&self, field: &str) -> Result<()> {
        within(&format!("{field}.size"), self.0, 1, 1)
    }

    fn choose(&self, _logits: &[f32], _chance: &Chance<'_>, _out: &mut [f32]) {}

    /// A value makes no choice, so it is never uncertain.
    fn confidence(&self, _logits: &[f32]) -> f32 {
        1.0
    }

    fn is_likely(&self, _logits: &[f32], _label: &[f32]) -> bool {
        true
    }

    fn features(&self) -> usize {
        0
    }

    fn encode(&self, _label: &[f32], _out: &mut [f32]) {}

    fn nll(&self, _logits: &[f32], _label: &[f32]) -> f64 {
        0.0
    }

    fn entropy(&self, _logits: &[f32]) -> f64 {
        0.0
    }

    fn learn(
        &self,
        _logits: &[f32],
        _label: &[f32],
        _shape: &Shape<'_>,
        _pull: Pair,
        gradient: &mut [f32],
    ) -> Pair {
        gradient.fill(0.0);
        Pair::default()
    }

    fn divergence(
        &self,
        _direction: Direction,
        _x: &[f32],
        _y: &[f32],
        _scale: f64,
        _gradient: &mut [f32],
    ) -> f64 {
        0.0
    }

    fn prior(&self) -> [usize; 2] {
        [0, 0]
    }

    fn prior_read(&self) -> PriorRead {
        PriorRead::Rows(0)
    }

    fn prior_key(&self, _previous: Option<&[f32]>, _out: &mut Vec<u32>) {}

    fn add_prior(&self, _table: &[f32], _previous: Option<&[f32]>, _logits: &mut [f32]) {}

    fn counts(&self) -> usize {
        0
    }

    fn count(&self, _previous: Option<&[f32]>, _label: &[f32], _counts: &mut [f64]) {}

    fn fit(&self, _baseline: BaselineKind, _counts: &[f64]) -> Vec<f32> {
        vec![]
    }
}
