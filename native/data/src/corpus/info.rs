//! A corpus in a few numbers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::open::Corpus;
use crate::game::OtherIds;
use crate::schema::Schema;

/// A corpus in a few numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    pub schema: Schema,
    pub games: usize,
    pub frames: u64,
    /// A player's view of a game each.
    pub views: usize,
    /// Frames times views a game.
    pub view_frames: u64,
    pub bytes: u64,
    /// Players by internal character id, stages and versions over games; the most frequent first.
    pub characters: Vec<Count>,
    pub stages: Vec<Count>,
    pub versions: Vec<Count>,
    pub other_ids: OtherIds,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    pub value: String,
    pub count: usize,
}

impl Corpus {
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
