//! Splits a corpus into training and validation games.

use std::collections::{BTreeSet, HashMap, HashSet};

use sconce_tensor::rng::philox;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::open::Corpus;
use crate::game::GameInfo;

/// The games held out for validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holdout {
    /// Holds out about this share of the games. With two or more games, each side gets at least one. A single game is
    /// used for training, unless the share is 1. Games with the same digest or the same values count as one game: both
    /// players of an ExPhil replay share a digest, and both players' recordings of a game have the same values.
    Fraction(f64),
    /// Holds out the games at these indices of [`Corpus::games`].
    Games(Vec<usize>),
}

impl Corpus {
    /// Returns the indices of training games and of validation games. A game's side depends only on its digest
    /// and the seed, so adding games does not move the others, with two exceptions. If the draw leaves a
    /// side empty, the game closest to the threshold is moved there, and may move back when games are added. A game
    /// may move when a game with the same values is added.
    pub fn split(&self, holdout: &Holdout, seed: u64) -> Result<(Vec<usize>, Vec<usize>)> {
        let held: HashSet<usize> = match holdout {
            Holdout::Games(games) => {
                let last = self.games.len().saturating_sub(1) as f64;
                match games.iter().find(|&&g| g >= self.games.len()) {
                    Some(&g) => return Err(Error::out_of_range("game", g as f64, 0.0, last)),
                    None => games.iter().copied().collect(),
                }
            }
            Holdout::Fraction(f) if !(0.0..=1.0).contains(f) => {
                return Err(Error::out_of_range("validation fraction", *f, 0.0, 1.0));
            }
            Holdout::Fraction(fraction) => self.hold_out(*fraction, seed),
        };
        Ok((0..self.games.len()).partition(|game| !held.contains(game)))
    }

    fn hold_out(&self, fraction: f64, seed: u64) -> HashSet<usize> {
        let mut lots: Vec<u64> = self.games.iter().map(|game| lot(&game.digest, seed)).collect();
        Self::draws_together(&self.games, &mut lots);
        // Games that belong together have the same draw, so draws are counted, not games.
        let order = BTreeSet::from_iter(lots.iter().copied());
        let below = |&&lot: &&u64| (lot as f64) < fraction * u64::MAX as f64;
        let mut count = order.iter().filter(below).count();
        if fraction > 0.0 && fraction < 1.0 {
            let most = order.len().saturating_sub(1);
            count = count.clamp(most.min(1), most);
        }
        let held: HashSet<u64> = order.into_iter().take(count).collect();
        (0..lots.len()).filter(|&game| lots.get(game).is_some_and(|l| held.contains(l))).collect()
    }

    /// Gives games that belong together the least of their draws: those with the same digest or the same values, and
    /// those that belong together with the same game.
    fn draws_together(games: &[GameInfo], lots: &mut [u64]) {
        let digest = |game: usize| games.get(game).map_or("", |game| &game.digest);
        // The values of games of older corpora are unknown.
        let contents = |game: usize| match games.get(game) {
            Some(game) if !game.contents.is_empty() => game.contents.as_str(),
            _ => digest(game),
        };
        let before = lots.to_vec();
        take_least(lots, digest);
        take_least(lots, contents);
        // Each round joins longer chains of games.
        if lots != before {
            Self::draws_together(games, lots);
        }
    }
}

/// Gives all games with the same name the least of their draws.
fn take_least<'a>(lots: &mut [u64], name: impl Fn(usize) -> &'a str) {
    let mut least: HashMap<&str, u64> = HashMap::new();
    for (game, lot) in lots.iter().enumerate() {
        let least = least.entry(name(game)).or_insert(*lot);
        *least = (*least).min(*lot);
    }
    for (game, lot) in lots.iter_mut().enumerate() {
        *lot = least.get(name(game)).copied().unwrap_or(*lot);
    }
}

/// The draw of a game in the split: uniform over 64 bits.
fn lot(digest: &str, seed: u64) -> u64 {
    let hash = Sha256::digest(digest.as_bytes());
    let word = |i: usize| {
        let at = |k: usize| u32::from(hash.get(4 * i + k).copied().unwrap_or(0));
        at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24
    };
    let words = philox([word(0), word(1), word(2), word(3)], [seed as u32, (seed >> 32) as u32]);
    u64::from(words[0]) << 32 | u64::from(words[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn games_that_belong_together_through_others_have_one_draw() {
        // Two players' views of a replay share a digest; another recording of one of them shares its values.
        let games = [("d1", "c1"), ("d1", "c2"), ("d2", "c1"), ("d3", "c2"), ("d4", "")];
        let game = |(digest, contents): (&str, &str)| GameInfo {
            digest: digest.into(),
            contents: contents.into(),
            ..GameInfo::default()
        };
        let games = games.map(game).to_vec();
        for seed in 0..50 {
            let mut lots: Vec<u64> = games.iter().map(|game| lot(&game.digest, seed)).collect();
            let least = lots[..4].iter().min().copied().unwrap();
            let alone = lots[4];
            Corpus::draws_together(&games, &mut lots);
            assert_eq!(lots, [least, least, least, least, alone]);
        }
    }
}
