//! A critic that steps one frame at a time.

use std::ops::Range;

use sconce_realtime::{Matrix, Packer, Scratch};
use sconce_tensor::Result;

use super::layer::{Game, Step};
use crate::policy::Critic as Weights;

/// A critic packed for one frame at a time.
pub(crate) struct Critic {
    backbone: Box<dyn Step>,
    value: Matrix,
    /// Offset of its state in the state of a game.
    at: usize,
    /// Index of the value among the logits.
    column: usize,
}

impl Critic {
    /// Packs a critic whose state begins at `at`. Its value is the last of `num_logits` logits.
    pub(crate) fn pack(
        weights: &Weights,
        at: usize,
        num_logits: usize,
        packer: &mut Packer,
    ) -> Result<Self> {
        let backbone = weights.backbone.pack(packer)?;
        let value = weights.value.pack(packer)?;
        Ok(Critic { backbone, value, at, column: num_logits.saturating_sub(1) })
    }

    pub(crate) fn state_len(&self) -> usize {
        self.backbone.state_len()
    }

    /// Writes what [`Step::start`] does into `state`, the whole state of a game.
    pub(crate) fn start(&self, arena: &[f32], state: &mut [f32]) {
        self.backbone.start(arena, state, self.at);
    }

    /// Reports the ranges of `state`, the whole state of a game, that this critic may have changed.
    pub(crate) fn changed(&self, state: &[f32], steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        self.backbone.changed(state, self.at, steps, each);
    }

    /// Reports what [`Step::kept`] does.
    pub(crate) fn kept(&self, state: &[f32], steps: usize, each: &mut dyn FnMut(Range<usize>)) {
        self.backbone.kept(state, self.at, steps, each);
    }

    /// Writes the value of each game to its logits. Leaves the vectors `scratch.x [games, width]` as they are.
    pub(crate) fn step(
        &self,
        arena: &[f32],
        games: &mut [Game<'_>],
        width: usize,
        scratch: &mut Scratch,
    ) {
        let rows = games.len();
        let mut kept = std::mem::take(&mut scratch.kept);
        kept.clear();
        kept.extend_from_slice(&scratch.x[..rows * width]);
        self.backbone.step(arena, games, self.at, scratch);
        let Scratch { x, z, input, .. } = scratch;
        self.value.read(input, x, rows);
        self.value.apply(arena, input, z);
        for (game, value) in games.iter_mut().zip(&*z).filter(|(game, _)| game.outcome.is_ok()) {
            game.decision.logits[self.column] = *value;
        }
        x[..rows * width].copy_from_slice(&kept);
        scratch.kept = kept;
    }
}
