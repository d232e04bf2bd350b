//! Launches of kernels on an NVIDIA card, and the tensors that they read and write. The API is part of every build: in
//! one without CUDA there is no card, and each call answers so.

use candle_core::{DType, Tensor};

#[cfg(feature = "cuda")]
pub use super::cuda::launch::{Launch, output, overwrite, pointer, unwritten};
#[cfg(feature = "cuda")]
pub use super::cuda::product::product;
#[cfg(not(feature = "cuda"))]
pub use super::none::launch::{Launch, output, overwrite, pointer, product, unwritten};

/// An address that kernels can reach.
pub type Place = u64;

/// Blocks of a grid along y or z at most.
pub const MOST_ALONG_Y: usize = 65_535;

/// The end of the names of the kernels for the type of a tensor's numbers.
pub fn suffix(x: &Tensor) -> &'static str {
    if x.dtype() == DType::BF16 { "bf16" } else { "f32" }
}

/// Matrices of one size in a product: the address of the first, the numbers between two of them and between two rows.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    pub place: Place,
    pub apart: usize,
    pub row: usize,
    pub dtype: DType,
    /// Whether each is read as its transpose.
    pub turned: bool,
}
