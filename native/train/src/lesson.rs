//! What a teacher reads of a batch beside the learner, and the states that both carry.

use std::borrow::Cow;
use std::ops::Range;

use sconce_nn::Policy;
use sconce_nn::backbone::State;
use sconce_nn::policy::Frames;
use sconce_tensor::Result;

use crate::teacher::Teacher;

/// Those of the policy that learns and of its teacher.
#[derive(Debug, Clone)]
pub struct States {
    pub learner: State,
    pub teacher: Option<State>,
}

/// What the teacher reads of a batch, and its state before it.
#[derive(Clone, Copy)]
pub struct Lesson<'a> {
    pub teacher: &'a Teacher,
    pub frames: &'a Frames,
    pub state: &'a State,
}

impl<'a> Lesson<'a> {
    /// If there is a teacher. It reads frames of its own, `seen`, where there are such.
    pub fn of(
        teacher: Option<&'a Teacher>,
        frames: &'a Frames,
        seen: Option<&'a Frames>,
        states: &'a States,
    ) -> Option<Self> {
        let both = teacher.zip(states.teacher.as_ref());
        both.map(|(teacher, state)| Lesson { teacher, frames: seen.unwrap_or(frames), state })
    }

    /// Frames `range` of the windows `rows`.
    pub fn part(&self, rows: &Range<usize>, range: &Range<usize>) -> Cow<'a, Frames> {
        match (rows, range) == (&(0..self.frames.batch), &(0..self.frames.time)) {
            true => Cow::Borrowed(self.frames),
            false => Cow::Owned(self.frames.part(rows, range)),
        }
    }
}

impl States {
    /// Those of games that begin.
    pub fn zero(policy: &Policy, teacher: Option<&Teacher>, batch: usize) -> Result<States> {
        let teacher = teacher.map(|teacher| teacher.zero_state(batch)).transpose()?;
        Ok(States { learner: policy.zero_state(batch)?, teacher })
    }

    pub fn hand_on(&self) -> Result<States> {
        let teacher = self.teacher.as_ref().map(State::hand_on).transpose()?;
        Ok(States { learner: self.learner.hand_on()?, teacher })
    }

    /// Of games that begin, where `fresh [b]` says so, in the place of those that ended.
    pub fn renewed(&self, zero: &States, fresh: &[bool]) -> Result<States> {
        let both = self.teacher.as_ref().zip(zero.teacher.as_ref());
        let teacher = both.map(|(state, zero)| state.renewed(zero, fresh)).transpose()?;
        Ok(States { learner: self.learner.renewed(&zero.learner, fresh)?, teacher })
    }
}
