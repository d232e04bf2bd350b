//! Grids of integer codes: `number = scale (code - zero)` (Jacob et al. 2018, eq. 1).

use sconce_ops::{Codes, Groups};
use sconce_tensor::Result;
use serde::{Deserialize, Serialize};

/// The numbers that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// All numbers.
    Tensor,
    /// A row.
    Row,
    /// This many consecutive columns of a row; the last group may be shorter.
    Group(usize),
}

impl Per {
    /// The groups of a matrix.
    ///
    /// # Errors
    /// `OutOfRange` for groups of 0 columns.
    pub fn groups(self, rows: usize, cols: usize) -> Result<Groups> {
        match self {
            Per::Tensor => Groups::whole(rows * cols),
            Per::Row => Groups::rows(rows, cols),
            Per::Group(width) => Groups::new(rows, cols, width),
        }
    }
}

/// The form of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// Bits of a code, 2 to 8.
    pub bits: u32,
    /// The numbers that share a scale.
    pub per: Per,
    /// Codes `0..2^bits - 1` with a zero point for each scale, instead of `-hi..hi` with `hi = 2^(bits - 1) - 1`.
    pub zero_point: bool,
}

/// Scale and zero point of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fit {
    pub(crate) scale: f32,
    pub(crate) zero: i16,
}

impl Grid {
    /// The range of the codes.
    ///
    /// # Errors
    /// `OutOfRange` unless there are 2 to 8 bits.
    pub fn codes(self) -> Result<Codes> {
        if self.zero_point { Codes::unsigned(self.bits) } else { Codes::symmetric(self.bits) }
    }

    /// The finest grid that contains the numbers and 0. The scale of zeros is 1.
    pub(crate) fn fit(self, codes: Codes, numbers: impl Iterator<Item = f64> + Clone) -> Fit {
        let top = numbers.clone().fold(0.0, f64::max);
        let low = numbers.fold(0.0, f64::min);
        let width = if self.zero_point { top - low } else { top.max(-low) };
        let scale = (width / f64::from(codes.hi)) as f32;
        // A width that f32 cannot divide is as good as 0.
        let scale = if scale > 0.0 { scale } else { 1.0 };
        let zero = if self.zero_point { (-low / f64::from(scale)).round_ties_even() } else { 0.0 };
        Fit { scale, zero: (zero as i16).min(codes.hi as i16) }
    }
}
