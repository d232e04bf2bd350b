//! Trained tables and the row of each id.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A trained table with one row per listed id and one more row that all other ids share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Name of the table.
    pub name: Cow<'static, str>,
    /// Ids that have a row of their own.
    pub ids: Ids,
    /// Default number of columns.
    pub width: usize,
}

/// The ids that have a row of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ids {
    /// All ids below this number.
    Below(usize),
    /// These ids, in row order.
    Listed(Cow<'static, [u16]>),
}

impl Ids {
    /// Number of ids that have a row of their own.
    pub fn len(&self) -> usize {
        match self {
            Ids::Below(n) => *n,
            Ids::Listed(ids) => ids.len(),
        }
    }

    /// True if no id has a row of its own.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Index of an id's row. An id without its own row gets the shared last row.
    pub fn row(&self, value: f32) -> usize {
        match self {
            Ids::Below(n) if value >= 0.0 && value < *n as f32 => value as usize,
            Ids::Below(n) => *n,
            Ids::Listed(ids) => {
                ids.iter().position(|&id| f32::from(id) == value).unwrap_or(ids.len())
            }
        }
    }
}
