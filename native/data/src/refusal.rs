//! Reasons to skip a replay.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason why a replay was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The file is malformed.
    Corrupt,
    /// The file ends too early.
    Truncated,
    /// The game does not have exactly two players.
    NotTwoPlayers,
    /// The game has fewer frames than the import asks for.
    TooShort,
    /// The file has the same bytes as another file of this import.
    Duplicate,
    /// The file could not be read from disk.
    Unreadable,
    /// Several imports died while they read the file.
    Fatal,
}

/// A skipped replay: the reason, and its details in words.
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
