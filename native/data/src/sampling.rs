//! Options of sampling and augmentation.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// Order in which windows are drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// Each window once per epoch, in random order.
    #[default]
    Shuffled,
    /// Games are drawn with replacement, with probabilities proportional to `weights`.
    Weighted,
    /// Games are drawn with replacement, so that own characters, or the values of a column, are equally frequent.
    Balanced,
    /// Windows are shuffled, but changes of action are drawn `action_oversample` times as often as other frames.
    Transitions,
    /// Windows are shuffled, but frames whose action presses a button are drawn `action_oversample` times as often.
    Buttons,
    /// Windows are shuffled, but frames with another value than 0 in a column are drawn `action_oversample` times as
    /// often.
    Column,
}

/// Frames of a window that have a loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossOn {
    /// All frames.
    #[default]
    All,
    /// The last frame.
    Last,
}

/// Options of sampling and augmentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerOptions {
    /// Frames in a window.
    pub window: usize,
    /// Frames between the starts of two windows of a view. Each epoch draws a new offset for all starts, and
    /// shows each frame about `window / stride` times.
    pub stride: usize,
    /// Order in which windows are drawn.
    pub sampling: Sampling,
    /// Weights of the games in the corpus, for [`Sampling::Weighted`].
    pub weights: Vec<f64>,
    /// Column whose values in the first frames of games are balanced. `None` balances the own character.
    pub balance: Option<String>,
    /// Factor on the frequency of the frames that [`Sampling::Transitions`], [`Sampling::Buttons`] or
    /// [`Sampling::Column`] prefers, at least 1.
    pub action_oversample: f64,
    /// The column of [`Sampling::Column`]: an extra column of the corpus, or a column of a frame.
    pub oversample_column: Option<String>,
    /// Frames of a window that have a loss. Preferred frames are then drawn to these places.
    pub loss_on: LossOn,
    /// Share of windows that are mirrored left to right, in `[0, 1]`.
    pub mirror: f32,
    /// Share of windows with noise on their continuous features, in `[0, 1]`.
    pub noise: f32,
    /// Standard deviation of the noise.
    pub noise_scale: f32,
    /// Share of frames whose previous action is dropped, in `[0, 1]`.
    pub previous_dropout: f32,
    /// Maximum delay in frames. Each window draws a delay between the reader's delay and this maximum.
    pub frame_delay_max: Option<usize>,
    /// Seed of all random draws.
    pub seed: u64,
}

impl SamplerOptions {
    /// Frames at the start of a window that have no loss, of which `burn_in` are asked for.
    pub fn silent(&self, burn_in: usize) -> usize {
        match self.loss_on {
            LossOn::All => burn_in,
            LossOn::Last => self.window.saturating_sub(1),
        }
    }

    /// Checks that there is one weight per game of the corpus.
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
            oversample_column: None,
            loss_on: LossOn::All,
            mirror: 0.0,
            noise: 0.0,
            noise_scale: 0.01,
            previous_dropout: 0.0,
            frame_delay_max: None,
            seed: 0,
        }
    }
}
