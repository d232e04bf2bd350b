//! Reasons to skip a replay.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason why a replay was skipped, or why a view of a game was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// The file has the same bytes as another file of this import, or its game the same values as another game.
    Duplicate,
    /// The file could not be read from disk.
    Unreadable,
    /// Several imports died while they read the file.
    Fatal,
    /// The game is on another stage.
    Stage,
    /// Not all players are human.
    NotHuman,
    /// The game has too many frames.
    TooLong,
    /// The player has another character.
    Character,
    /// The player has another tag.
    Player,
    /// The player dealt or took too little damage.
    Damage,
    /// The quality of the game is too low.
    Quality,
    /// Another view of the game is used.
    Port,
}

impl Reason {
    /// Name of the reason.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Corrupt => "corrupt",
            Reason::Truncated => "truncated",
            Reason::NotTwoPlayers => "not_two_players",
            Reason::TooShort => "too_short",
            Reason::Duplicate => "duplicate",
            Reason::Unreadable => "unreadable",
            Reason::Fatal => "fatal",
            Reason::Stage => "stage",
            Reason::NotHuman => "not_human",
            Reason::TooLong => "too_long",
            Reason::Character => "character",
            Reason::Player => "player",
            Reason::Damage => "damage",
            Reason::Quality => "quality",
            Reason::Port => "port",
        }
    }
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
