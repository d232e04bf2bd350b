//! Launches of kernels on an NVIDIA card, and the tensors that they read and write. The API is part of every build: in
//! one without CUDA there is no card, and each call answers so.

use candle_core::{DType, Tensor};

#[cfg(feature = "cuda")]
pub use super::cuda::launch::{Launch, output, overwrite, pointer, unwritten};
#[cfg(feature = "cuda")]
pub use super::cuda::product::product;
#[cfg(not(feature = "cuda"))]
pub use super::none::launch::{Launch, output, overwrite, pointer, product, unwritten};
pub use super::operand::{Address, MOST_ALONG_Y, Operand};

/// The end of the names of the kernels for the type of a tensor's numbers.
pub fn suffix(x: &Tensor) -> &'static str {
    if x.dtype() == DType::BF16 { "bf16" } else { "f32" }
}
