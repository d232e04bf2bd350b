//! Running statistics of observations and rewards, by which a run normalises both.

use sconce_env::{Normaliser, RewardScale};
use sconce_nn::Spec;
use sconce_nn::spec::{Embedding, Normalised};
use sconce_tensor::Result;
use serde::{Deserialize, Serialize};

use crate::options::PpoOptions;
use crate::segment::Segment;

/// Added to a variance.
const EPSILON: f64 = 1e-8;

/// Running statistics of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Statistics of observations, if they are normalised.
    observations: Option<Normaliser>,
    /// Statistics of discounted returns, if rewards are scaled.
    rewards: Option<RewardScale>,
}

impl Statistics {
    /// No statistics yet, for `rows` rows of observations of this width.
    ///
    /// # Errors
    /// `OutOfRange` for a discount that is none.
    pub fn new(options: &PpoOptions, rows: usize, width: usize) -> Result<Self> {
        let rollout = &options.rollout;
        let rewards =
            rollout.normalise_rewards.then(|| RewardScale::new(rows, rollout.discount as f32));
        Ok(Statistics {
            observations: rollout.normalise_observations.then(|| Normaliser::new(width)),
            rewards: rewards.transpose()?,
        })
    }

    /// Whether observations are normalised.
    pub fn observes(&self) -> bool {
        self.observations.is_some()
    }

    /// Adds observations.
    ///
    /// # Errors
    /// `Mismatch` for another width.
    pub fn observe(&mut self, seen: &Normaliser) -> Result<()> {
        self.observations.as_mut().map_or(Ok(()), |own| own.add(seen))
    }

    /// Adds observations, `rows [n, width]`, if they are normalised.
    ///
    /// # Errors
    /// Those of [`Normaliser::update`].
    pub fn observe_rows(&mut self, rows: &[f32]) -> Result<()> {
        self.observations.as_mut().map_or(Ok(()), |own| own.update(rows))
    }

    /// Whether observations are normalised, and none has come yet.
    pub fn are_missing(&self) -> bool {
        self.observations.as_ref().is_some_and(|own| own.count() == 0.0)
    }

    /// The Spec of a policy that normalises its observations by the present statistics.
    pub fn spec(&self, spec: &Spec) -> Spec {
        let Some(own) = &self.observations else { return spec.clone() };
        let deviation = own.variance().iter().map(|v| (v + EPSILON).sqrt() as f32).collect();
        let mean = own.mean().iter().map(|v| *v as f32).collect();
        let embedding = Embedding::normalised(Normalised { mean, deviation });
        Spec { embedding, ..spec.clone() }
    }

    /// Scales the rewards of segments that were played side by side.
    ///
    /// # Errors
    /// `NonFinite` for a reward that is not finite.
    pub fn scale(&mut self, segments: &mut [Segment]) -> Result<()> {
        let Some(scale) = &mut self.rewards else { return Ok(()) };
        let steps = segments.first().map_or(0, |segment| segment.steps);
        for t in 0..steps {
            let (mut rewards, mut ended) = (vec![], vec![]);
            for segment in &*segments {
                let own = t * segment.rows..(t + 1) * segment.rows;
                let first = rewards.len() as u32;
                let ends = own.clone().filter(|at| segment.ends_at(*at));
                ended.extend(ends.map(|at| first + (at - own.start) as u32));
                rewards.extend_from_slice(&segment.rewards[own]);
            }
            scale.step(&mut rewards, &ended)?;
            let mut rest = &rewards[..];
            for segment in &mut *segments {
                let (own, others) = rest.split_at(segment.rows);
                segment.rewards[t * own.len()..(t + 1) * own.len()].copy_from_slice(own);
                rest = others;
            }
        }
        Ok(())
    }

    /// Scales the rewards of consecutive steps of one episode. `sum` is its discounted return before the first one, and
    /// becomes that after the last one.
    ///
    /// # Errors
    /// Those of [`RewardScale::follow`].
    pub fn scale_episode(&mut self, sum: &mut f32, rewards: &mut [f32]) -> Result<()> {
        self.rewards.as_mut().map_or(Ok(()), |scale| scale.follow(sum, rewards))
    }
}
