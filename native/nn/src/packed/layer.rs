//! What all parts of a backbone are.

use std::ops::Range;

use sconce_realtime::Scratch;
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use super::embedding::Frame;
use crate::heads::Decision;
use crate::projection::Projection;
use crate::sampling::Sampling;

/// One frame of one game, and where its decision goes.
pub struct Game<'a> {
    pub frame: Frame<'a>,
    /// `[state_len]`; becomes the one after the frame. After an error it is worth nothing.
    pub state: &'a mut [f32],
    pub sampling: &'a Sampling,
    pub rng: Rng,
    /// Labels of an action: nothing is drawn.
    pub given: Option<&'a [f32]>,
    pub projection: Option<&'a Projection>,
    /// Of `Plan::blank`.
    pub decision: &'a mut Decision,
    /// What became of it; an error of one game is none of another's.
    pub outcome: Result<()>,
}

impl<'a> Game<'a> {
    /// A decision drawn as `sampling` says from the numbers of `rng`.
    pub fn new(
        frame: Frame<'a>,
        state: &'a mut [f32],
        sampling: &'a Sampling,
        rng: Rng,
        decision: &'a mut Decision,
    ) -> Self {
        let (given, projection, outcome) = (None, None, Ok(()));
        Game { frame, state, sampling, rng, given, projection, decision, outcome }
    }

    /// Does what may fail, unless something did.
    pub(crate) fn then(&mut self, f: impl FnOnce(&mut Self) -> Result<()>) {
        if self.outcome.is_ok() {
            self.outcome = f(self);
        }
    }

    /// The part of its state from `at` on.
    pub(crate) fn state(&mut self, at: usize, len: usize) -> &mut [f32] {
        &mut self.state[at..at + len]
    }

    pub(crate) fn check_state(&self, len: usize) -> Result<()> {
        match self.state.len() == len {
            true => Ok(()),
            false => Err(Error::mismatch("numbers of a state", len, self.state.len())),
        }
    }
}

/// A part of a backbone, which steps many games at once.
pub trait Step: Send + Sync {
    /// Numbers of its state in the state of a game.
    fn state_len(&self) -> usize;

    /// Where the last `steps` steps may have changed numbers of its state, which begins at `at` in `state`: everywhere,
    /// unless it knows better. `steps` is at least 1.
    fn changed(&self, state: &[f32], at: usize, steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        let _ = (state, steps);
        each(at..at + self.state_len());
    }

    /// From `scratch.x [games, inputs]` to `scratch.x [games, outputs]`. Its part of the state of each game begins
    /// at `at`. It may use all of the scratch but the stream.
    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch);
}
