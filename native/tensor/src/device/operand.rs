//! What a launch is told of.

use candle_core::DType;

/// An address that kernels can reach.
pub type Address = u64;

/// Blocks of a grid along y or z at most.
pub const MOST_ALONG_Y: usize = 65_535;

/// Matrices of one size in a product: the address of the first, the numbers between two of them and between two rows.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    pub place: Address,
    pub apart: usize,
    pub row: usize,
    pub dtype: DType,
    /// Whether each is read as its transpose.
    pub turned: bool,
}
