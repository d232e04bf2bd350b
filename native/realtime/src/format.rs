//! Formats of packed weights.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// The requested format of a plan's matrices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16.
    Bf16,
    /// 8 bits for a matrix if its [`Packed::error`] is within this bound and the CPU reads it faster in 8 bits;
    /// otherwise `Bf16`.
    Int8(f64),
}

/// The encoding of one packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// 32-bit floats.
    F32,
    /// Weights rounded to 8 bits of significand. The vectors stay f32.
    Bf16,
    /// Weights rounded to one of 255 multiples of a scale per output. The vectors are rounded to 16 bits.
    Int8,
}

/// The report of a packed matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Packed {
    /// The name of the weight.
    pub name: String,
    /// Rows of the weight.
    pub outputs: usize,
    /// Columns of the weight.
    pub inputs: usize,
    /// The encoding that was chosen.
    #[serde(rename = "weights")]
    pub encoding: Encoding,
    /// The largest relative rounding error of an output, `|w - packed w| / |w|` over the output's weights `w`.
    pub error: f64,
}

impl Format {
    /// Checks the bound of [`Format::Int8`].
    ///
    /// # Errors
    /// `OutOfRange` for a bound outside of 0..1.
    pub fn validate(self) -> Result<()> {
        match self {
            Format::Int8(bound) if !(0.0..=1.0).contains(&bound) => {
                Err(Error::out_of_range("bound of int8", bound, 0.0, 1.0))
            }
            _ => Ok(()),
        }
    }
}
