//! Why a replay is left out of a corpus.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a replay is left out of a corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Corrupt,
    Truncated,
    NotTwoPlayers,
    TooShort,
    /// The same bytes as another file of this run.
    Duplicate,
    /// The system would not let us read it.
    Unreadable,
    /// Imports died while they read it.
    Fatal,
}

/// A replay left out, with the particulars in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub reason: Reason,
    pub detail: String,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, detail: impl fmt::Display) -> Self {
        Refusal { reason, detail: detail.to_string() }
    }
}
