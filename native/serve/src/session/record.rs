//! Records the decisions of a session for a learner.

use std::sync::Arc;

use sconce_data::{Over, Sink};
use sconce_nn::sampling::Sampling;
use sconce_tensor::{Error, Result};

use super::open::Session;
use super::options::{Mode, Overrides};
use super::recorder::{Recorder, Recording, Reward};

impl Session {
    /// Records all decisions from now on, from the start of a game. The memory begins at zero, as it does for a learner,
    /// and not with copies of the first frame.
    ///
    /// # Errors
    /// `Mismatch` for a policy without a value, for a mode that forgets, and for sampling that is not the policy's own;
    /// `Unavailable` for a policy that is not packed; `OutOfRange` for the options.
    pub fn record(&mut self, sink: Arc<dyn Sink>, options: Recording) -> Result<()> {
        for (name, number) in [("steps", options.steps), ("stride", options.stride)] {
            if !(1..=65_536).contains(&number) {
                return Err(Error::out_of_range(name, number as f64, 1.0, 65_536.0));
            }
        }
        if self.model.remembers() && self.options.mode != Mode::Carry {
            return Err(Error::mismatch("mode", "carry, as the learner does", "another"));
        }
        if self.model.plan().is_none() {
            let reason = "the policy is not packed for a CPU".into();
            return Err(Error::Unavailable { what: "a recording".into(), reason });
        }
        // Decisions that may be taken back are held.
        let hold = options.hold.max(self.options.rollback);
        let options = Recording { hold, ..options };
        self.check_own(&self.options.sampling)?;
        let recorder = Recorder::new(sink, options, self.policy(), self.seed)?;
        self.recorder = Some(Box::new(recorder));
        self.reset(None)
    }

    /// Adds a reward to a decision of the present episode, by its number, or to the last one.
    ///
    /// # Errors
    /// `NotFound` for a decision that is not held, for an unknown term, or without a recording; `Mismatch` for one number
    /// where there are several terms; `NonFinite`.
    pub fn reward<'a>(&mut self, number: Option<u64>, reward: impl Into<Reward<'a>>) -> Result<()> {
        self.recorder()?.reward(number, reward.into())
    }

    /// Ends the episode and begins the next one. `last` is a frame after the last decision, whose value stands for the
    /// rest of an episode that was cut; without it that of the last decision does.
    ///
    /// # Errors
    /// Those of [`decide`](Self::decide) for the frame; `NotFound` without a recording.
    pub fn done(&mut self, over: Over, last: Option<&[f32]>) -> Result<()> {
        let value = self.recorder()?.value;
        if let (Over::Truncated, Some(raw)) = (over, last) {
            self.decide(raw, &Overrides::default())?;
        }
        let (_, next) = self.moments.next();
        let ahead = next.decision.logits.get(value).copied();
        let now = self.moments.now().decision.logits.get(value).copied();
        let next_value = match (over, last) {
            (Over::Truncated, Some(_)) => ahead,
            (Over::Truncated, None) => now,
            _ => None,
        };
        let seed = self.recorder()?.done(over, next_value.unwrap_or(0.0));
        self.reset(Some(seed))
    }

    /// Drops the decisions that are not sent, where the session leaves its game.
    pub(super) fn forget_recorded(&mut self) {
        let decided = self.moments.now().frames;
        if let Some(recorder) = &mut self.recorder {
            recorder.forget(decided);
        }
    }

    /// Whether the session's decisions are recorded.
    pub fn records(&self) -> bool {
        self.recorder.is_some()
    }

    fn recorder(&mut self) -> Result<&mut Recorder> {
        self.recorder.as_deref_mut().ok_or_else(|| Error::not_found("a recording of the session"))
    }

    /// Refuses sampling whose likelihoods are not those of the policy.
    pub(super) fn check_own(&self, sampling: &Sampling) -> Result<()> {
        let own = *sampling == Sampling::default();
        match own && self.projection.is_none() {
            true => Ok(()),
            false => Err(Error::mismatch(
                "sampling of a recorded decision",
                "the policy's own (temperature 1, nothing deterministic, no project_out)",
                "another",
            )),
        }
    }

    /// Refuses overrides that change the choice of a recorded decision.
    pub(super) fn check_recorded(&self, overrides: &Overrides) -> Result<()> {
        if self.recorder.is_none() {
            return Ok(());
        }
        self.check_own(&self.asked.sampling)?;
        match overrides.choices.is_some() || self.asked.projection.is_some() {
            true => Err(Error::mismatch(
                "choices of a recorded decision",
                "those of the policy",
                "given ones",
            )),
            false => Ok(()),
        }
    }
}
