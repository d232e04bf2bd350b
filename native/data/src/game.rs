//! What is known of a game beside its columns, and how many and how long games may be.

use serde::{Deserialize, Serialize};

use sconce_tensor::bounded::at_most;

/// Games in a corpus.
pub(crate) const MAX_GAMES: usize = 1 << 19;
/// Players of a game, in its entry.
const MAX_PLAYERS: usize = 8;
/// Frames of a game: more than a year.
pub(crate) const MAX_FRAMES: usize = 1 << 31;

/// What is known of a game. It stands in the manifest and in the header of the game's shard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GameInfo {
    /// The shard, relative to the corpus.
    pub file: String,
    /// SHA-256 of the source's bytes.
    pub digest: String,
    /// Name of the source file.
    pub source: String,
    /// Version of the replay format.
    pub version: String,
    pub stage: u16,
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub ports: Vec<u8>,
    /// Internal ids after the first frame.
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub characters: Vec<u8>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub start_characters: Vec<u8>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub tags: Vec<String>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub kinds: Vec<String>,
    pub frames: usize,
    /// Size of the shard.
    pub bytes: u64,
    /// SHA-256 of the columns, one after the other; empty where nobody recorded it. Of a game of ExPhil's,
    /// which has no digest of its own, of its labels and of three of its rows.
    pub contents: String,
    pub other_ids: OtherIds,
}

/// Ids that no table has a row for, counted over frames of players (stages over games).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherIds {
    pub actions: u64,
    pub characters: u64,
    pub stages: u64,
}

impl OtherIds {
    pub fn add(&mut self, other: &OtherIds) {
        self.actions = self.actions.saturating_add(other.actions);
        self.characters = self.characters.saturating_add(other.characters);
        self.stages = self.stages.saturating_add(other.stages);
    }
}
