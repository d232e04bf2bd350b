//! Transforms of observations and rewards that keep statistics of all environments. The caller owns them, so that an
//! evaluation can use the statistics of a training.

mod normaliser;
mod reward_scale;

pub use normaliser::Normaliser;
pub use reward_scale::RewardScale;
