//! The form of an op. The front door of an op picks it once, by the device of its input; a form calls no other form.

use candle_core::{DType, Tensor};

/// A form of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Sconce's own code on f32 slices.
    Cpu,
    /// Kernels on an NVIDIA card, for f32 and bf16.
    Card,
    /// Composed of other ops and candle's, on any device and for any type. In f64 it is the reference of the other
    /// forms; a card runs it where an op has no kernel for a size.
    Composed,
}

impl Form {
    /// The form of an op that takes `x`.
    pub fn of(x: &Tensor) -> Self {
        match (x.device().is_cpu(), x.dtype()) {
            (_, DType::F64) => Form::Composed,
            (true, _) => Form::Cpu,
            (false, _) if is_for_kernels(x) => Form::Card,
            (false, _) => Form::Composed,
        }
    }
}

/// Whether kernels accept this tensor.
pub fn is_for_kernels(x: &Tensor) -> bool {
    x.device().is_cuda() && matches!(x.dtype(), DType::F32 | DType::BF16)
}
