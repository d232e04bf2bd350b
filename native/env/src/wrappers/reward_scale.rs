//! Rewards divided by the running deviation of discounted returns.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use super::Normaliser;
use super::normaliser::EPSILON;

/// Divides rewards by the running standard deviation of the discounted return, as Gymnasium's `NormalizeReward`. The
/// mean of rewards does not change.
///
/// The discounted return of each row begins at 0 with each episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardScale {
    gamma: f32,
    returns: Vec<f32>,
    statistics: Normaliser,
}

impl RewardScale {
    /// A scale for rows of rewards with a discount factor.
    ///
    /// # Errors
    /// `OutOfRange` for a discount factor outside 0..=1.
    pub fn new(rows: usize, gamma: f32) -> Result<Self> {
        if !(0.0..=1.0).contains(&gamma) {
            return Err(Error::out_of_range("gamma", f64::from(gamma), 0.0, 1.0));
        }
        let statistics = Normaliser::with_prior(1);
        Ok(RewardScale { gamma, returns: vec![0.0; rows], statistics })
    }

    /// Adds the rewards `[rows]` of a step to the statistics, then scales them in place. `ended` lists the rows whose
    /// episode ended in this step.
    ///
    /// # Errors
    /// `Mismatch` for a wrong length, `OutOfRange` for an unknown row, `NonFinite` for a reward that is not finite.
    pub fn step(&mut self, rewards: &mut [f32], ended: &[u32]) -> Result<()> {
        self.check(rewards, ended)?;
        for (sum, reward) in self.returns.iter_mut().zip(&*rewards) {
            *sum = *sum * self.gamma + reward;
        }
        self.statistics.update(&self.returns)?;
        for row in ended {
            self.returns[*row as usize] = 0.0;
        }
        self.apply(rewards);
        Ok(())
    }

    /// Adds the rewards of consecutive steps of one episode to the statistics, then scales each in place, as
    /// [`step`](Self::step) does for one row. `sum` is the discounted return before the first step, and becomes that
    /// after the last one.
    ///
    /// # Errors
    /// `NonFinite` for a reward that is not finite, and for a return that overflows.
    pub fn follow(&mut self, sum: &mut f32, rewards: &mut [f32]) -> Result<()> {
        check_finite(rewards)?;
        for reward in rewards {
            *sum = *sum * self.gamma + *reward;
            self.statistics.update(&[*sum])?;
            self.apply(std::slice::from_mut(reward));
        }
        Ok(())
    }

    /// Scales rewards in place and leaves the statistics unchanged.
    pub fn apply(&self, rewards: &mut [f32]) {
        let scale = self.factor();
        rewards.iter_mut().for_each(|reward| *reward *= scale);
    }

    /// The factor of the next rewards.
    pub fn factor(&self) -> f32 {
        let variance = self.statistics.variance().first().copied().unwrap_or(1.0);
        (1.0 / (variance + EPSILON).sqrt()) as f32
    }

    /// The statistics of the discounted returns.
    pub fn statistics(&self) -> &Normaliser {
        &self.statistics
    }

    fn check(&self, rewards: &[f32], ended: &[u32]) -> Result<()> {
        let rows = self.returns.len();
        if rewards.len() != rows {
            return Err(Error::mismatch("rewards", rows, rewards.len()));
        }
        check_finite(rewards)?;
        match ended.iter().find(|row| **row as usize >= rows) {
            None => Ok(()),
            Some(row) => {
                Err(Error::out_of_range("ended row", f64::from(*row), 0.0, rows as f64 - 1.0))
            }
        }
    }
}

fn check_finite(rewards: &[f32]) -> Result<()> {
    match sconce_tensor::simd::non_finite(rewards) {
        None => Ok(()),
        Some(value) => Err(Error::NonFinite { what: "reward".into(), value: f64::from(value) }),
    }
}
