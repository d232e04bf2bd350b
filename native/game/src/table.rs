//! The rows that ids have in a trained table.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A trained table, with a row for each of its ids and one more for every other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub name: Cow<'static, str>,
    pub ids: Ids,
    /// Numbers in a row where nothing else is said.
    pub width: usize,
}

/// Which ids have a row of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ids {
    /// Those below a number.
    Below(usize),
    /// These, in this order.
    Listed(Cow<'static, [u16]>),
}

impl Ids {
    /// How many have a row of their own.
    pub fn len(&self) -> usize {
        match self {
            Ids::Below(n) => *n,
            Ids::Listed(ids) => ids.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row of an id; what has none of its own takes the row after the last.
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
