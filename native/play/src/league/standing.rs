//! The record of a learner against a member of its league.

use serde::{Deserialize, Serialize};

use super::elo::expected;

/// Elo of a new player.
pub(super) const START: f64 = 1200.0;
/// Largest change of an Elo by one game.
const K: f64 = 8.0;
/// Factor of an earlier game's weight in the win rate per later game, as in AlphaStar: the learner changes.
const DECAY: f64 = 0.99;

/// A member of a league, and the learner's results against it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Name of a scripted player, path of a file, or `self UPDATE`.
    pub name: String,
    /// Updates of a past self.
    pub update: Option<u64>,
    /// Digest of the file of a given policy or a past self.
    pub digest: Option<String>,
    /// Whether it begins no further episode.
    pub retired: bool,
    /// Games that the learner has won.
    pub wins: u64,
    /// Games without a winner.
    pub draws: u64,
    /// Games that the learner has lost.
    pub losses: u64,
    /// Sum of the weights of all games; a recent game weighs more.
    pub recent_games: f64,
    /// Sum of the weighted scores.
    pub recent_score: f64,
    /// Elo of the member.
    pub elo: f64,
}

/// A member as figures for a reader.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Faced {
    /// Its name.
    pub name: String,
    /// Games so far.
    pub games: u64,
    /// Games that the learner has won.
    pub wins: u64,
    /// Games without a winner.
    pub draws: u64,
    /// Games that the learner has lost.
    pub losses: u64,
    /// Share of the recent games that the learner has won; a draw is half a win.
    pub win_rate: f64,
    /// Elo of the member.
    pub elo: f64,
    /// Probability that an episode that begins has this opponent.
    pub probability: f64,
}

impl Standing {
    pub(super) fn new(name: &str) -> Self {
        Standing { name: name.into(), elo: START, ..Standing::default() }
    }

    /// The learner's recent win rate, 0.5 before the first game.
    pub fn win_rate(&self) -> f64 {
        if self.recent_games > 0.0 { self.recent_score / self.recent_games } else { 0.5 }
    }

    /// Counts a game, and moves both Elo ratings by its surprise.
    pub(super) fn count(&mut self, score: f64, learner: &mut f64) {
        match score {
            score if score > 0.5 => self.wins += 1,
            score if score < 0.5 => self.losses += 1,
            _ => self.draws += 1,
        }
        self.recent_games = DECAY * self.recent_games + 1.0;
        self.recent_score = DECAY * self.recent_score + score;
        let change = K * (score - expected(*learner - self.elo));
        *learner += change;
        self.elo -= change;
    }

    pub(super) fn faced(&self, probability: f64) -> Faced {
        Faced {
            name: self.name.clone(),
            games: self.wins + self.draws + self.losses,
            wins: self.wins,
            draws: self.draws,
            losses: self.losses,
            win_rate: self.win_rate(),
            elo: self.elo,
            probability,
        }
    }
}
