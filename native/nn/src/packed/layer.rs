//! The interface of all layers of a packed backbone.

use std::ops::Range;

use sconce_realtime::Scratch;
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use super::embedding::Frame;
use crate::heads::Decision;
use crate::projection::Projection;
use crate::sampling::Sampling;

/// One frame of one game, and the destination of its decision.
pub struct Game<'a> {
    /// The frame.
    pub frame: Frame<'a>,
    /// State `[state_len]`; replaced by the state after the frame. Undefined after an error.
    pub state: &'a mut [f32],
    /// The state before the frame, `[state_len]`, apart from `state`, which `Plan::prepare` has prepared. If there is
    /// none, `state` is the state before the frame.
    pub before: Option<&'a [f32]>,
    /// Whether a part that [checks its own state](Step::kept) may have written a number that is not finite.
    pub suspect: bool,
    /// Options of drawing.
    pub sampling: &'a Sampling,
    /// Random generator of the game.
    pub rng: Rng,
    /// Labels of a given action. If present, nothing is drawn.
    pub given: Option<&'a [f32]>,
    /// Action mask `[mask_size]`, as in [`Draw`](crate::sampling::Draw).
    pub mask: Option<&'a [u8]>,
    /// Directions that are removed before the heads read the trunk vector.
    pub projection: Option<&'a Projection>,
    /// Decision to write to, created by `Plan::blank`.
    pub decision: &'a mut Decision,
    /// Result of the step. An error of one game does not affect the others.
    pub outcome: Result<()>,
}

impl<'a> Game<'a> {
    /// A game whose decision is drawn with the options `sampling` and the generator `rng`.
    pub fn new(
        frame: Frame<'a>,
        state: &'a mut [f32],
        sampling: &'a Sampling,
        rng: Rng,
        decision: &'a mut Decision,
    ) -> Self {
        let (given, mask, projection, outcome) = (None, None, None, Ok(()));
        let (before, suspect) = (None, false);
        Game {
            frame,
            state,
            before,
            suspect,
            sampling,
            rng,
            given,
            mask,
            projection,
            decision,
            outcome,
        }
    }

    /// Runs `f` unless the game already has an error.
    pub(crate) fn then(&mut self, f: impl FnOnce(&mut Self) -> Result<()>) {
        if self.outcome.is_ok() {
            self.outcome = f(self);
        }
    }

    /// The `len` values of the state that begin at `at`.
    pub(crate) fn state(&mut self, at: usize, len: usize) -> &mut [f32] {
        &mut self.state[at..at + len]
    }

    pub(crate) fn check_state(&self, len: usize) -> Result<()> {
        let before = self.before.map_or(len, <[f32]>::len);
        match (self.state.len(), before) {
            (state, before) if state == len && before == len => Ok(()),
            (state, before) => {
                let got = if state == len { before } else { state };
                Err(Error::mismatch("numbers of a state", len, got))
            }
        }
    }
}

/// A part of a backbone that steps several games at once.
pub trait Step: Send + Sync {
    /// Number of f32 in the part's state of one game.
    fn state_len(&self) -> usize;

    /// Writes the vectors of this part's state before the first frame that are stored among the weights; by default there
    /// are none. The part's state begins at `at` in `state`.
    fn start(&self, arena: &[f32], state: &mut [f32], at: usize) {
        let _ = (arena, state, at);
    }

    /// Reports the ranges of `state` that the last `steps` steps may have changed; by default this part's whole state,
    /// which begins at `at`. `steps` is at least 1.
    fn changed(&self, state: &[f32], at: usize, steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        let _ = (state, steps);
        each(at..at + self.state_len());
    }

    /// As [`changed`](Self::changed), without the ranges of parts that replace their state whole in each step: such a part
    /// reads [`Game::before`], if there is one, and marks a game as suspect if it writes a number that is not finite.
    /// These ranges are neither copied before a step nor checked after it.
    fn kept(&self, state: &[f32], at: usize, steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        self.changed(state, at, steps, each);
    }

    /// Replaces `scratch.x [games, inputs]` by `scratch.x [games, outputs]`. The part's state begins at `at` in the
    /// state of each game. The step may use all scratch buffers except the stream.
    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch);
}
