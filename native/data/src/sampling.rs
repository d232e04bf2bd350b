//! How windows are drawn, and what is done to them, as options.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// What windows are drawn by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// Each window once an epoch, in random order.
    #[default]
    Shuffled,
    /// Games by `weights`, again and again.
    Weighted,
    /// The own characters, or the values of a column, equally often, again and again.
    Balanced,
    /// Shuffled, but a changed action `action_oversample` times as often as any other.
    Transitions,
}

/// How windows are drawn, and what is done to them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerOptions {
    pub window: usize,
    /// Frames between the starts of two windows of a view; their common offset is drawn anew each
    /// epoch. An epoch therefore shows each frame about `window / stride` times.
    pub stride: usize,
    pub sampling: Sampling,
    /// One for each game of the corpus.
    pub weights: Vec<f64>,
    /// The column whose values come equally often, as they are when a game begins; the own character where none is named.
    pub balance: Option<String>,
    /// At least 1, which changes nothing.
    pub action_oversample: f64,
    /// Share of windows shown with left and right swapped.
    pub mirror: f32,
    /// Share of windows whose numbers get noise of the standard deviation `noise_scale`.
    pub noise: f32,
    pub noise_scale: f32,
    /// Share of frames whose previous action is forgotten.
    pub previous_dropout: f32,
    /// Each window has a delay from the reader's to this one.
    pub frame_delay_max: Option<usize>,
    pub seed: u64,
}

impl SamplerOptions {
    /// Refuses weights whose number is not the number of games in the corpus.
    pub fn check_weights(&self, games: usize) -> Result<()> {
        match self.sampling == Sampling::Weighted && self.weights.len() != games {
            true => {
                let expected = format!("one for each of {games} games");
                Err(Error::mismatch("weights", expected, self.weights.len()))
            }
            false => Ok(()),
        }
    }
}

impl Default for SamplerOptions {
    fn default() -> Self {
        SamplerOptions {
            window: 60,
            stride: 60,
            sampling: Sampling::Shuffled,
            weights: vec![],
            balance: None,
            action_oversample: 3.0,
            mirror: 0.0,
            noise: 0.0,
            noise_scale: 0.01,
            previous_dropout: 0.0,
            frame_delay_max: None,
            seed: 0,
        }
    }
}
