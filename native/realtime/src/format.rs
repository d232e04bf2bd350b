//! Formats of packed weights.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize, Serializer};

/// The requested format of a plan's matrices. A matrix is f32 where the CPU would not read the format faster.
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
    /// 4 bits in groups of 32 inputs for a matrix if its [`Packed::error`] is within this bound and the CPU reads it
    /// faster in 4 bits; otherwise as with `Int8`.
    Int4(f64),
    /// The codes of matrices that have them, and 2:4 for matrices that have two weights of each four inputs, if the CPU
    /// reads them faster than f32; otherwise `F32`.
    Stored,
}

/// The encoding of one packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// 32-bit floats.
    F32,
    /// Weights rounded to 8 bits of significand. The vectors stay f32.
    Bf16,
    /// Weights that are one of 255 multiples of a scale per output. The vectors are rounded to 16 bits.
    Int8,
    /// Weights that are one of 16 multiples (-8 to 7) of a scale per group of this many inputs of an output. The vectors
    /// are rounded to 8 bits, with a scale per 32 values.
    Int4(usize),
    /// The weights of which each four inputs have at most two that are not 0 (Mishra et al. 2021), as f32. Nothing is
    /// rounded.
    TwoFour,
}

/// As its name.
impl Serialize for Encoding {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A matrix of an arena, as a file names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`Packed::name`]
    pub name: String,
    /// The name of the encoding.
    pub weights: String,
    /// [`Packed::group`]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// [`Packed::error`]
    pub error: f64,
    /// [`Packed::ratios`]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratios: Option<Ratios>,
    /// [`Packed::factors`]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub factors: Vec<Factor>,
}

/// The time of a product in 2:4 as a part of its time in f32, if no input is 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// With one vector.
    one: f64,
    /// With several vectors.
    several: f64,
}

impl Ratios {
    pub(crate) fn new(one: f64, several: f64) -> Self {
        Ratios { one, several }
    }

    pub(crate) fn of(self, rows: usize) -> f64 {
        if rows == 1 { self.one } else { self.several }
    }
}

/// A matrix of a product: the right one, whose outputs are the ranks of all parts, or the left one of a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Factor {
    /// The outputs of the right matrix, or the inputs of a left one.
    pub rank: usize,
    /// The name of the encoding.
    pub weights: String,
    /// Inputs that share a scale, for `Int4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
}

impl Factor {
    pub(crate) fn new(rank: usize, encoding: Encoding) -> Self {
        Factor { rank, weights: encoding.name().into(), group: encoding.group() }
    }

    /// # Errors
    /// `Mismatch` for an unknown encoding.
    pub(crate) fn encoding(&self) -> Result<Encoding> {
        named("factor", &self.weights, self.group)
    }
}

/// The encoding of a file. Errors call its matrix `about`.
fn named(about: &str, weights: &str, group: Option<usize>) -> Result<Encoding> {
    match (weights, group) {
        ("f32", None) => Ok(Encoding::F32),
        ("bf16", None) => Ok(Encoding::Bf16),
        ("int8", None) => Ok(Encoding::Int8),
        ("int4", Some(group)) => Ok(Encoding::Int4(group)),
        ("two_four", None) => Ok(Encoding::TwoFour),
        (other, _) => Err(Error::mismatch(about, "an encoding of weights", other)),
    }
}

impl Record {
    /// # Errors
    /// `Mismatch` for an unknown encoding.
    pub(crate) fn encoding(&self) -> Result<Encoding> {
        match named(&self.name, &self.weights, self.group)? {
            Encoding::TwoFour => Ok(Encoding::TwoFour),
            other if self.ratios.is_none() => Ok(other),
            _ => Err(Error::mismatch(&self.name, "times of 2:4 for 2:4 only", &self.weights)),
        }
    }
}

impl From<&Packed> for Record {
    fn from(packed: &Packed) -> Self {
        let Packed { name, encoding, group, error, ratios, factors, .. } = packed;
        let (name, weights, factors) = (name.clone(), encoding.name().into(), factors.clone());
        Record { name, weights, group: *group, error: *error, ratios: *ratios, factors }
    }
}

impl Encoding {
    /// The name in reports and files; the group of `Int4` is reported beside it.
    fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::Bf16 => "bf16",
            Encoding::Int8 => "int8",
            Encoding::Int4(_) => "int4",
            Encoding::TwoFour => "two_four",
        }
    }

    /// Inputs that share a scale; none for encodings without groups of inputs.
    pub(crate) fn group(self) -> Option<usize> {
        match self {
            Encoding::Int4(group) => Some(group),
            _ => None,
        }
    }

    /// Bits of a weight. In 2:4, four weights have two values of 32 bits, and a place of 2 bits for each.
    pub fn bits(self) -> u32 {
        match self {
            Encoding::F32 => 32,
            Encoding::TwoFour => 17,
            Encoding::Bf16 => 16,
            Encoding::Int8 => 8,
            Encoding::Int4(_) => 4,
        }
    }
}

/// The report of a packed matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Packed {
    /// The name of the weight, or one name for weights with the same input that are one matrix.
    pub name: String,
    /// The names of these weights.
    #[serde(skip)]
    pub parts: Vec<String>,
    /// Rows of the weight.
    pub outputs: usize,
    /// Columns of the weight.
    pub inputs: usize,
    /// The encoding that was chosen.
    #[serde(rename = "weights")]
    pub encoding: Encoding,
    /// Bits of a weight, without its scale.
    pub bits: u32,
    /// Inputs that share a scale, for `Int4`.
    pub group: Option<usize>,
    /// Numbers between the two matrices of a product; `None` for one matrix.
    pub rank: Option<usize>,
    /// The largest relative rounding error of an output, `|w - packed w| / |w|` over the output's weights `w`.
    pub error: f64,
    /// For 2:4, the times that say with which vectors the panels of f32 beside it are read.
    #[serde(skip)]
    pub(crate) ratios: Option<Ratios>,
    /// The matrices of a product: the right one of all parts, and the left one of each.
    #[serde(skip)]
    pub(crate) factors: Vec<Factor>,
}

impl Format {
    /// Checks the bound of [`Format::Int8`] and [`Format::Int4`].
    ///
    /// # Errors
    /// `OutOfRange` for a bound outside of 0..1.
    pub fn validate(self) -> Result<()> {
        match self {
            Format::Int8(bound) if !(0.0..=1.0).contains(&bound) => {
                Err(Error::out_of_range("bound of int8", bound, 0.0, 1.0))
            }
            Format::Int4(bound) if !(0.0..=1.0).contains(&bound) => {
                Err(Error::out_of_range("bound of int4", bound, 0.0, 1.0))
            }
            _ => Ok(()),
        }
    }
}
