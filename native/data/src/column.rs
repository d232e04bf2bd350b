//! Typed columns: what they are, and their numbers before they are on disk.

use safetensors::Dtype as TensorType;
use serde::{Deserialize, Serialize};

/// The type of a column's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    F32,
    I32,
    U16,
    U8,
    /// Not a column: a value of the game's entry.
    Json,
}

impl Dtype {
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::I32 => "i32",
            Dtype::U16 => "u16",
            Dtype::U8 => "u8",
            Dtype::Json => "json",
        }
    }

    /// Bytes of one number.
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

/// The numbers of a column, before they are on disk.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    F32(Vec<f32>),
    I32(Vec<i32>),
    U16(Vec<u16>),
    U8(Vec<u8>),
}

impl Column {
    /// Numbers beyond the range of a small type become its nearest.
    pub fn collect(dtype: Dtype, values: impl Iterator<Item = f32>) -> Self {
        match dtype {
            Dtype::F32 => Column::F32(values.collect()),
            Dtype::I32 => Column::I32(values.map(|v| v as i32).collect()),
            Dtype::U16 => Column::U16(values.map(|v| v as u16).collect()),
            Dtype::U8 | Dtype::Json => Column::U8(values.map(|v| v as u8).collect()),
        }
    }

    pub fn zeros(dtype: Dtype, len: usize) -> Self {
        Column::collect(dtype, std::iter::repeat_n(0.0, len))
    }

    pub fn get(&self, i: usize) -> Option<f32> {
        match self {
            Column::F32(v) => v.get(i).copied(),
            Column::I32(v) => v.get(i).map(|&x| x as f32),
            Column::U16(v) => v.get(i).map(|&x| x.into()),
            Column::U8(v) => v.get(i).map(|&x| x.into()),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Column::F32(v) => v.len(),
            Column::I32(v) => v.len(),
            Column::U16(v) => v.len(),
            Column::U8(v) => v.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = f32> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// Little-endian, as safetensors wants it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Column::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Column::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Column::U16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Column::U8(v) => v.clone(),
        }
    }
}

/// A column as the schema wants it; `width` 0 is a plain list, otherwise rows of that many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSpec {
    pub name: String,
    pub dtype: Dtype,
    pub width: usize,
}
