//! Metadata of a game, and the limits on the number and length of games.

use serde::{Deserialize, Serialize};

use sconce_tensor::bounded::at_most;

/// Maximum games in a corpus.
pub(crate) const MAX_GAMES: usize = 1 << 19;
/// Maximum players in a game's metadata.
const MAX_PLAYERS: usize = 8;
/// Maximum frames of a game: more than a year.
pub(crate) const MAX_FRAMES: usize = 1 << 31;

/// Metadata of a game, stored in the manifest and in the header of the game's shard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GameInfo {
    /// Path of the shard, relative to the corpus.
    pub file: String,
    /// SHA-256 of the source file.
    pub digest: String,
    /// Name of the source file.
    pub source: String,
    /// Version of the replay format.
    pub version: String,
    /// Stage id; 0 if unknown.
    pub stage: u16,
    /// Controller ports of the players, in player order.
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub ports: Vec<u8>,
    /// Internal character ids after the first frame, in player order.
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub characters: Vec<u8>,
    /// Internal character ids at the start of the game, in player order.
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub start_characters: Vec<u8>,
    /// Name tags of the players, in player order.
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub tags: Vec<String>,
    /// Player kinds in player order: `human`, `cpu` or `demo`.
    #[serde(deserialize_with = "at_most::<_, _, MAX_PLAYERS>")]
    pub kinds: Vec<String>,
    /// Count of frames.
    pub frames: usize,
    /// Bytes of the shard.
    pub bytes: u64,
    /// SHA-256 of the concatenated columns; empty if not recorded. ExPhil records no digest; for a
    /// game of ExPhil this is the SHA-256 of its labels and of three rows.
    pub contents: String,
    /// Ids in the game that are missing from the id tables.
    pub other_ids: OtherIds,
    /// Frame delay of the play in which relabelled frames were met; `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_delay: Option<u16>,
}

/// Counts of ids that are missing from the id tables. Actions and characters count once per player frame, stages
/// once per game.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherIds {
    /// Unknown action ids.
    pub actions: u64,
    /// Unknown character ids.
    pub characters: u64,
    /// Unknown stage ids.
    pub stages: u64,
}

impl OtherIds {
    /// Adds the counts of `other`, saturating.
    pub fn add(&mut self, other: &OtherIds) {
        self.actions = self.actions.saturating_add(other.actions);
        self.characters = self.characters.saturating_add(other.characters);
        self.stages = self.stages.saturating_add(other.stages);
    }
}
