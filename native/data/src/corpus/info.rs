//! Summary of a corpus.

use std::collections::BTreeMap;

use serde::Serialize;

use super::open::Corpus;
use crate::game::OtherIds;
use crate::schema::Schema;

/// Summary of a corpus.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    /// Schema of its games.
    pub schema: Schema,
    /// Count of games.
    pub games: usize,
    /// Count of frames, over all games.
    pub frames: u64,
    /// Count of views, one for each player of each game.
    pub views: usize,
    /// Count of frames, over all views.
    pub view_frames: u64,
    /// Bytes of all shards.
    pub bytes: u64,
    /// Counts of players by internal character id, most frequent first.
    pub characters: Vec<Count>,
    /// Counts of games by stage id, most frequent first.
    pub stages: Vec<Count>,
    /// Counts of games by version of the replay format, most frequent first.
    pub versions: Vec<Count>,
    /// Ids that are missing from the id tables.
    pub other_ids: OtherIds,
}

/// A value and its frequency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The value as text.
    pub value: String,
    /// Number of occurrences.
    pub count: usize,
}

impl Corpus {
    /// Summarises the corpus from its manifest.
    pub fn info(&self) -> Info {
        let frames = self.games.iter().map(|g| g.frames as u64).sum();
        Info {
            schema: self.schema.clone(),
            games: self.games.len(),
            frames,
            views: self.games.len() * self.schema.views(),
            view_frames: frames * self.schema.views() as u64,
            bytes: self.games.iter().fold(0, |sum, g| g.bytes.saturating_add(sum)),
            characters: histogram(self.games.iter().flat_map(|g| g.characters.iter().copied())),
            stages: histogram(self.games.iter().filter(|g| g.stage > 0).map(|g| g.stage)),
            versions: histogram(self.games.iter().map(|g| &g.version).filter(|v| !v.is_empty())),
            other_ids: self.other_ids,
        }
    }
}

fn histogram<T: ToString>(values: impl Iterator<Item = T>) -> Vec<Count> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    values.for_each(|v| *counts.entry(v.to_string()).or_default() += 1);
    let mut counts: Vec<_> =
        counts.into_iter().map(|(value, count)| Count { value, count }).collect();
    counts.sort_by_key(|c| std::cmp::Reverse(c.count));
    counts
}
