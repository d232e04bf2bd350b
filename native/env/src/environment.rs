//! The interface of environments.

use sconce_tensor::Result;

/// A world whose observation is a vector of numbers, with a fixed number of actions.
pub trait Environment {
    /// The width of an observation.
    fn observation_size(&self) -> usize;

    /// The number of actions, which are `0..actions()`.
    fn actions(&self) -> usize;

    /// Begins an episode. Equal seeds and actions give equal episodes.
    fn reset(&mut self, seed: u64);

    /// Writes the observation to `out: [observation_size]`.
    fn observe(&self, out: &mut [f32]) -> Result<()>;

    /// Performs an action.
    ///
    /// # Errors
    /// `OutOfRange` for an unknown action, `Mismatch` after the end of the episode.
    fn step(&mut self, action: usize) -> Result<Step>;
}

/// The result of an action.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The reward of the step.
    pub reward: f64,
    /// Whether the episode ended by the rules of the world.
    pub terminated: bool,
    /// Whether the episode ended at its time limit.
    pub truncated: bool,
}

impl Step {
    /// Whether the episode has ended.
    pub fn is_last(&self) -> bool {
        self.terminated || self.truncated
    }
}
