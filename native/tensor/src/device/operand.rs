//! Arguments of kernel launches and matrix products.

use candle_core::DType;

/// An address in a card's address space.
pub type Address = u64;

/// The largest number of blocks of a grid along y or z.
pub const MOST_ALONG_Y: usize = 65_535;

/// A batch of equally sized matrices in a product.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// The address of the first matrix.
    pub place: Address,
    /// Elements from the start of one matrix to the start of the next.
    pub apart: usize,
    /// Elements from the start of one row to the start of the next.
    pub row: usize,
    /// The type of the elements.
    pub dtype: DType,
    /// Whether each matrix is transposed when it is read.
    pub turned: bool,
}
