//! Kernel launches on NVIDIA cards, and access to the tensors that kernels read and write. The API exists in every
//! build. Without CUDA each call returns an error.

use candle_core::{DType, Tensor};

#[cfg(feature = "cuda")]
pub use super::cuda::launch::{Launch, output, overwrite, pointer, unwritten};
#[cfg(feature = "cuda")]
pub use super::cuda::product::product;
#[cfg(not(feature = "cuda"))]
pub use super::none::launch::{Launch, output, overwrite, pointer, product, unwritten};
pub use super::operand::{Address, MOST_ALONG_Y, Operand};

/// The suffix of kernel names for the dtype of `x`.
pub fn suffix(x: &Tensor) -> &'static str {
    if x.dtype() == DType::BF16 { "bf16" } else { "f32" }
}
