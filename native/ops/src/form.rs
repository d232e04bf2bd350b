//! Which form of an op runs. The front door of an op picks it once, by where its input lies; a form calls no other.

use candle_core::{DType, Tensor};

/// A form of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Sconce's own, on slices of f32.
    Cpu,
    /// Kernels, on an NVIDIA card, of f32 and bf16.
    Card,
    /// Made of other ops and of candle's, on any device and of any type: what the others are compared with in f64, and
    /// what a card runs where an op has no kernel for a size.
    Composed,
}

impl Form {
    /// The form of an op that reads `x`.
    pub fn of(x: &Tensor) -> Self {
        match (x.device().is_cpu(), x.dtype()) {
            (_, DType::F64) => Form::Composed,
            (true, _) => Form::Cpu,
            (false, _) if is_for_kernels(x) => Form::Card,
            (false, _) => Form::Composed,
        }
    }
}

/// Whether kernels take this tensor.
pub fn is_for_kernels(x: &Tensor) -> bool {
    x.device().is_cuda() && matches!(x.dtype(), DType::F32 | DType::BF16)
}
