//! What an environment is.

use sconce_tensor::Result;

/// A world that is observed as a vector and takes one of a few actions.
pub trait Environment {
    /// Numbers in an observation.
    fn observation_size(&self) -> usize;

    /// Number of actions; they are `0..actions()`.
    fn actions(&self) -> usize;

    /// Begins an episode. The same seed begins the same one.
    fn reset(&mut self, seed: u64);

    /// Writes the observation into `out [observation_size]`.
    fn observe(&self, out: &mut [f32]) -> Result<()>;

    /// # Errors
    /// `OutOfRange` for an action, `Mismatch` after the end of the episode.
    fn step(&mut self, action: usize) -> Result<Step>;
}

/// What an action brought.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub reward: f64,
    /// The episode ended by the rules of the world.
    pub terminated: bool,
    /// The episode was cut by its time limit.
    pub truncated: bool,
}

impl Step {
    pub fn is_last(&self) -> bool {
        self.terminated || self.truncated
    }
}
