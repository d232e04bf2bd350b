//! The seam of environments that take their steps together, wherever their rules are.

use sconce_tensor::Result;

use crate::numbers::Numbers;
use crate::vectorised::{EnvSnapshot, EnvSpec, Envs, Episode, Stepped};

/// Environments that take their steps together: [`Envs`], whose rules are native, or [`Hosted`](crate::Hosted) ones.
pub trait VectorEnv: Send {
    /// The description of the environments.
    fn spec(&self) -> &EnvSpec;

    /// Number of environments.
    fn count(&self) -> usize;

    /// Number of rows of inputs and observations: `row = env * seats + seat`.
    fn rows(&self) -> usize {
        self.count() * self.spec().seats
    }

    /// Writes the present observations `[rows, observation_size]`.
    fn observe(&self, out: &mut [f32]);

    /// Which inputs are allowed now, `[rows, mask_size]`: 0 for each class that must not be chosen and each button that
    /// must not be pressed. Empty where the environments have no masks.
    fn masks(&self) -> &[u8] {
        &[]
    }

    /// Steps all environments with inputs `[rows, labels]`.
    ///
    /// # Errors
    /// Those of the environments.
    fn step(&mut self, inputs: &[f32], out: &mut Stepped<'_>) -> Result<()>;

    /// Moves the finished episodes to `take`, in order of environment, then of time.
    fn episodes(&mut self, take: &mut Vec<Episode>);

    /// The sum of each unweighted reward term of seat 0 in all environments since the last call.
    fn take_terms(&mut self) -> Vec<f64>;

    /// The known part of the state of an environment: all of it where the rules are native, otherwise its observation.
    fn state(&self, env: usize) -> Vec<f32>;

    /// The state of all environments, from which [`restore`](Self::restore) goes on.
    ///
    /// # Errors
    /// Those of the environments.
    fn numbers(&self) -> Result<Numbers>;

    /// Goes on from the state of environments with the same options. Returns the rows that could not, and have begun
    /// their next episode instead.
    ///
    /// # Errors
    /// `NotFound`, `Mismatch` or `Corrupt` for the state of others.
    fn restore(&mut self, numbers: &Numbers) -> Result<Vec<u32>>;
}

impl VectorEnv for Envs {
    fn spec(&self) -> &EnvSpec {
        self.spec()
    }

    fn count(&self) -> usize {
        self.options().count
    }

    fn observe(&self, out: &mut [f32]) {
        self.observe(out);
    }

    fn step(&mut self, inputs: &[f32], out: &mut Stepped<'_>) -> Result<()> {
        self.step(inputs, out)
    }

    fn episodes(&mut self, take: &mut Vec<Episode>) {
        self.episodes(take);
    }

    fn take_terms(&mut self) -> Vec<f64> {
        self.take_terms()
    }

    fn state(&self, env: usize) -> Vec<f32> {
        self.state(env)
    }

    fn numbers(&self) -> Result<Numbers> {
        Ok(self.snapshot().into())
    }

    fn restore(&mut self, numbers: &Numbers) -> Result<Vec<u32>> {
        self.restore(&EnvSnapshot::of(&self.spec().name, numbers)?)?;
        Ok(vec![])
    }
}
