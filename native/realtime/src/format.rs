//! How weights are written.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// How the matrices of a plan are to be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    #[default]
    F32,
    Bf16,
    /// In 8 bits those whose [`Packed::error`] then is within a bound, and that are read in less time so; the others
    /// as `Bf16`.
    Int8(f64),
}

/// How a weight is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    F32,
    /// Rounded to 8 bits of its number, and read as f32: what it is multiplied with is not rounded.
    Bf16,
    /// One of 255 multiples of a number that the weights of an output share; what it is multiplied with is rounded to
    /// 16 bits.
    Int8,
}

/// What became of a matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Packed {
    /// Of its weight.
    pub name: String,
    pub outputs: usize,
    pub inputs: usize,
    #[serde(rename = "weights")]
    pub encoding: Encoding,
    /// `|w - written w| / |w|` over the weights `w` of an output, of the one where it is largest.
    pub error: f64,
}

impl Format {
    pub fn validate(self) -> Result<()> {
        match self {
            Format::Int8(bound) if !(0.0..=1.0).contains(&bound) => {
                Err(Error::out_of_range("bound of int8", bound, 0.0, 1.0))
            }
            _ => Ok(()),
        }
    }
}
