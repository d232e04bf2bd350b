//! Columns: types, and the values of a column before it is written.

use safetensors::Dtype as TensorType;
use serde::{Deserialize, Serialize};

/// The type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 8-bit integer.
    U8,
    /// A value of the game's metadata, not a column.
    Json,
}

impl Dtype {
    /// The type's name in a manifest, such as `"f32"`.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::I32 => "i32",
            Dtype::U16 => "u16",
            Dtype::U8 => "u8",
            Dtype::Json => "json",
        }
    }

    /// Bytes of one value; 0 for [`Dtype::Json`].
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::U16 => 2,
            Dtype::U8 => 1,
            Dtype::Json => 0,
        }
    }

    pub(crate) fn tensor(self) -> TensorType {
        match self {
            Dtype::F32 => TensorType::F32,
            Dtype::I32 => TensorType::I32,
            Dtype::U16 => TensorType::U16,
            Dtype::U8 | Dtype::Json => TensorType::U8,
        }
    }
}

/// The values of a column before they are written, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// Signed 32-bit integers.
    I32(Vec<i32>),
    /// Unsigned 16-bit integers.
    U16(Vec<u16>),
    /// Unsigned 8-bit integers.
    U8(Vec<u8>),
}

impl Column {
    /// Converts values to `dtype`, and clamps values outside the range of `dtype`.
    pub fn collect(dtype: Dtype, values: impl Iterator<Item = f32>) -> Self {
        match dtype {
            Dtype::F32 => Column::F32(values.collect()),
            Dtype::I32 => Column::I32(values.map(|v| v as i32).collect()),
            Dtype::U16 => Column::U16(values.map(|v| v as u16).collect()),
            Dtype::U8 | Dtype::Json => Column::U8(values.map(|v| v as u8).collect()),
        }
    }

    /// A column of `len` zeros.
    pub fn zeros(dtype: Dtype, len: usize) -> Self {
        Column::collect(dtype, std::iter::repeat_n(0.0, len))
    }

    /// Value `i`, or `None` past the end.
    pub fn get(&self, i: usize) -> Option<f32> {
        match self {
            Column::F32(v) => v.get(i).copied(),
            Column::I32(v) => v.get(i).map(|&x| x as f32),
            Column::U16(v) => v.get(i).map(|&x| x.into()),
            Column::U8(v) => v.get(i).map(|&x| x.into()),
        }
    }

    /// Count of values: rows times width.
    pub fn len(&self) -> usize {
        match self {
            Column::F32(v) => v.len(),
            Column::I32(v) => v.len(),
            Column::U16(v) => v.len(),
            Column::U8(v) => v.len(),
        }
    }

    /// Whether the column has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values in order, as `f32`.
    pub fn iter(&self) -> impl Iterator<Item = f32> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// Little-endian bytes, the layout of safetensors.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Column::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Column::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Column::U16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Column::U8(v) => v.clone(),
        }
    }
}

/// Declaration of a column in a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSpec {
    /// Name of the column in a shard.
    pub name: String,
    /// Type of the column's values.
    pub dtype: Dtype,
    /// Values in a row; 0 for a one-dimensional column with one value per frame.
    pub width: usize,
}
