//! Steps of many games at once.

use candle_core::Tensor;

use super::{Frames, Input, Policy, check_logits};
use crate::backbone::{Context, State};
use crate::ops::{Ids, tensor};
use crate::{Error, Result};

/// Logits, and the state after the step.
pub type Stepped = (Vec<f32>, State);

impl Policy {
    /// Whether games are stepped together: on another device than a CPU that is worth it.
    pub fn steps_games(&self) -> bool {
        !self.device().is_cpu() && self.heads.are_independent()
    }

    /// Steps games of `frames [b, 1]`, whose states `[1, ..]` are apart. Each comes out as alone, up to the last bits
    /// of products. Logits or a state that are not finite are the error of their game alone.
    ///
    /// On a card each number of games is recorded when it is first asked for, and played from then on.
    pub fn step_games(&self, frames: &Frames, states: &[&State]) -> Result<Vec<Result<Stepped>>> {
        if frames.time != 1 || frames.batch != states.len() {
            let got = format!("{} of {} frames", frames.batch, frames.time);
            return Err(Error::mismatch("games", format!("{} of 1", states.len()), got));
        }
        let _turn = self.turn();
        #[cfg(feature = "cuda")]
        if self.device().is_cuda() {
            return super::recorded::step(self, frames, states);
        }
        let input = self.input(frames)?;
        let prior = self.heads.prior_rows(frames.batch, &frames.previous)?;
        let states: Vec<State> = states.iter().map(|state| (*state).clone()).collect();
        let (logits, after) = self.pass(&input, &prior, &State::joined(&states)?)?;
        let logits = tensor::to_vec(&logits)?;
        let games = logits.chunks_exact(self.spec.heads.num_logits()).enumerate();
        let game = |(row, logits): (usize, &[f32])| {
            check_logits(logits)?;
            let state = after.rows(&(row..row + 1))?.hand_on()?;
            state.check_finite()?;
            Ok((logits.to_vec(), state))
        };
        Ok(games.map(game).collect())
    }

    /// A pass over one frame of each game: logits `[b, num_logits]`, and the state after it.
    pub(super) fn pass(
        &self,
        input: &Input,
        prior: &[Ids],
        state: &State,
    ) -> Result<(Tensor, State)> {
        let x = self.embedded(input)?;
        let (trunk, next) = self.backbone.forward(&x, state, &Context::default().of_last())?;
        Ok((self.heads.independent(&trunk, prior)?, next))
    }
}
