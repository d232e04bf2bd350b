//! Steps several games at once.

use super::stepped::{Stepped, last};
use super::{Frames, Policy, check_logits};
use crate::backbone::State;
use crate::sampling::Draw;
use crate::{Error, Result, memory};

impl Policy {
    /// True if games should be stepped together, which is faster on every device except a CPU.
    pub fn steps_games(&self) -> bool {
        !self.device().is_cpu() && self.heads.decide_together(self.device())
    }

    /// Steps games of `frames [b, 1]`. Each game has its own state `[1, ..]` and a draw of one row. Each result equals
    /// the result of stepping the game alone, up to rounding errors of matrix products. Non-finite logits or a
    /// non-finite state are an error of that game only.
    ///
    /// On a card, the first step with a given number of games is recorded as a graph; later steps replay it.
    pub fn step_games(
        &self,
        frames: &Frames,
        states: &[&State],
        draws: &[Draw<'_>],
    ) -> Result<Vec<Result<Stepped>>> {
        if frames.time != 1 || [frames.batch, draws.len()] != [states.len(); 2] {
            let got = format!("{} of {} frames", frames.batch, frames.time);
            return Err(Error::mismatch("games", format!("{} of 1", states.len()), got));
        }
        let _turn = self.turn();
        // The kernel of autoregressive heads takes no masks.
        let by_kernel =
            self.heads.are_independent() || draws.iter().all(|draw| draw.mask.is_none());
        if self.device().is_cuda() && self.steps_games() && by_kernel {
            return super::recorded::step(self, frames, states, draws);
        }
        let states: Vec<State> = states.iter().map(|state| (*state).clone()).collect();
        let (trunk, after) =
            memory::caught(|| self.last(frames, &State::joined(&states)?, &last()))?;
        let width = self.spec.heads.num_labels();
        let game = |(row, draw): (usize, &Draw<'_>)| {
            let previous = frames.previous.get(row * width..(row + 1) * width).unwrap_or_default();
            let own = trunk.select(|of| Ok(of.narrow(0, row, 1)?))?;
            let decision = self.heads.act(&own, previous, *draw)?;
            check_logits(&decision.logits)?;
            let state = after.rows(&(row..row + 1))?.hand_on()?;
            state.check_finite()?;
            Ok((decision, state))
        };
        Ok(draws.iter().enumerate().map(game).collect())
    }
}
