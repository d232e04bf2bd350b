//! States of the learning policy and of the companions of its objectives.

use sconce_nn::Policy;
use sconce_nn::backbone::State;
use sconce_tensor::Result;

use crate::objective::{Companion, Objectives};

/// States of the learning policy and of the companions of its objectives.
#[derive(Debug, Clone)]
pub struct States {
    pub learner: State,
    pub companions: Vec<State>,
}

impl States {
    /// Makes states before the first frame of `batch` games.
    pub fn zero(policy: &Policy, objectives: &Objectives, batch: usize) -> Result<States> {
        let zero = |companion: &Companion| companion.zero_state(batch);
        let companions = objectives.companions().map(zero).collect::<Result<_>>()?;
        Ok(States { learner: policy.zero_state(batch)?, companions })
    }

    pub fn hand_on(&self) -> Result<States> {
        let companions = self.companions.iter().map(State::hand_on).collect::<Result<_>>()?;
        Ok(States { learner: self.learner.hand_on()?, companions })
    }

    /// Returns the states, with rows of `zero` where `fresh [b]` marks a new game.
    pub fn renewed(&self, zero: &States, fresh: &[bool]) -> Result<States> {
        let companions = self.companions.iter().zip(&zero.companions);
        let companions = companions.map(|(state, zero)| state.renewed(zero, fresh));
        Ok(States {
            learner: self.learner.renewed(&zero.learner, fresh)?,
            companions: companions.collect::<Result<_>>()?,
        })
    }
}
