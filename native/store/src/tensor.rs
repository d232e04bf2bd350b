//! Types, shapes and blocks of a tensor.

use sconce_tensor::{Error, Result, header};

use crate::codec::int8::{self, Real};
use crate::queue::Id;

/// Largest number of bytes in a block.
pub const MAX_BLOCK: u64 = 1 << 26;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dtype(u8);

/// Name, code and bytes of each type.
const DTYPES: [(&str, u8); 12] = [
    ("u8", 1),
    ("s8", 1),
    ("u16", 2),
    ("s16", 2),
    ("f16", 2),
    ("bf16", 2),
    ("u32", 4),
    ("s32", 4),
    ("f32", 4),
    ("u64", 8),
    ("s64", 8),
    ("f64", 8),
];

impl Dtype {
    /// The type of a name.
    ///
    /// # Errors
    /// `NotFound` for an unknown name.
    pub fn named(name: &str) -> Result<Dtype> {
        let at = DTYPES.iter().position(|(own, _)| *own == name);
        at.map(|at| Dtype(at as u8)).ok_or_else(|| Error::not_found(format!("type {name:?}")))
    }

    /// The type of a code in a file.
    pub fn of(code: u8) -> Option<Dtype> {
        (usize::from(code) < DTYPES.len()).then_some(Dtype(code))
    }

    /// The code in a file.
    pub fn code(self) -> u8 {
        self.0
    }

    /// The name.
    pub fn name(self) -> &'static str {
        DTYPES.get(usize::from(self.0)).map_or("u8", |(name, _)| name)
    }

    /// The type of elements that may be stored in eight bits.
    pub fn real(self) -> Option<Real> {
        match self.name() {
            "f32" => Some(Real::F32),
            "f16" => Some(Real::F16),
            "bf16" => Some(Real::Bf16),
            _ => None,
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> u8 {
        DTYPES.get(usize::from(self.0)).map_or(1, |(_, size)| *size)
    }
}

/// How a block may be stored in eight bits an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Int8Form {
    pub(crate) real: Real,
    /// Elements of a scale.
    pub(crate) group: u32,
}

/// A tensor of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The type of the elements.
    pub dtype: Dtype,
    /// The sizes.
    pub shape: Vec<u64>,
    /// Whether blocks that have gone cold may lose something.
    pub lossy: bool,
    /// Bytes of each block but the last.
    pub block: u64,
    /// The blocks, in the order of the bytes.
    pub blocks: Vec<Id>,
}

impl Tensor {
    /// A tensor whose blocks hold about `target` bytes and, if a row fits, whole rows.
    ///
    /// # Errors
    /// `OutOfRange` and `OutOfMemory` for a shape of more dimensions or bytes than there may be.
    pub fn new(name: &str, dtype: Dtype, shape: Vec<u64>, target: u64) -> Result<Tensor> {
        let mut tensor = Tensor { dtype, shape, lossy: false, block: 1, blocks: vec![] };
        let bytes = tensor.checked_bytes().ok_or_else(|| {
            Error::mismatch(format!("shape of {name:?}"), "fewer than 2^63 bytes", "more")
        })?;
        if tensor.shape.len() > header::MAX_RANK {
            let most = header::MAX_RANK as f64;
            return Err(Error::out_of_range("rank", tensor.shape.len() as f64, 0.0, most));
        }
        let row = tensor.row_bytes(bytes);
        tensor.block = match row {
            0 => 1,
            _ if row <= target => target / row * row,
            _ => target.next_multiple_of(8),
        };
        Ok(tensor)
    }

    /// How blocks that have gone cold may be stored in eight bits an element.
    pub(crate) fn cold(&self) -> Option<Int8Form> {
        let real = self.dtype.real().filter(|_| self.lossy)?;
        Some(Int8Form { real, group: int8::group_of(&self.shape) })
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.checked_bytes().unwrap_or_default()
    }

    pub(crate) fn checked_bytes(&self) -> Option<u64> {
        let size = u64::from(self.dtype.size());
        let bytes = self.shape.iter().try_fold(size, |product, size| product.checked_mul(*size))?;
        (bytes < 1 << 63).then_some(bytes)
    }

    fn row_bytes(&self, bytes: u64) -> u64 {
        match self.shape.first() {
            None => bytes,
            Some(0) => 0,
            Some(rows) => bytes / rows,
        }
    }

    /// The bytes of `count` rows from row `first`. A tensor without dimensions has one row.
    ///
    /// # Errors
    /// `OutOfRange` for rows that do not exist.
    pub fn rows(&self, first: u64, count: u64) -> Result<std::ops::Range<u64>> {
        let rows = self.shape.first().copied().unwrap_or(1);
        match first.checked_add(count) {
            Some(end) if end <= rows => {
                let row = self.row_bytes(self.bytes());
                Ok(first * row..end * row)
            }
            end => {
                let end = end.map_or(f64::MAX, |end| end as f64);
                Err(Error::out_of_range("rows", end, 0.0, rows as f64))
            }
        }
    }

    /// The bytes of block `at`.
    pub(crate) fn block_bytes(&self, at: u64) -> u64 {
        self.bytes().saturating_sub(at.saturating_mul(self.block)).min(self.block)
    }

    /// How many blocks the tensor needs.
    pub(crate) fn num_blocks(&self) -> u64 {
        self.bytes().div_ceil(self.block)
    }
}
