//! Which form of an op runs. The front door of an op picks it once, by where its input lies; a form calls no other.

use candle_core::Tensor;

use super::{card, composed};

/// A form of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Sconce's own, on slices.
    Cpu,
    /// Kernels, on an NVIDIA card.
    Card,
    /// Made of other ops and of candle's, on any device.
    Composed,
}

impl Form {
    /// The form of an op that reads `x`.
    pub fn of(x: &Tensor) -> Self {
        match x.device().is_cpu() {
            true if composed::is_forced() => Form::Composed,
            true => Form::Cpu,
            false if card::wanted(x) => Form::Card,
            false => Form::Composed,
        }
    }
}
