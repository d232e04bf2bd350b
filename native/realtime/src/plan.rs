//! A whole step, from an embedded frame to an action.

use sconce_core::backbone::Cell;
use sconce_core::heads::Decision;
use sconce_core::ops::simd::non_finite;
use sconce_core::spec::{Backbone, Spec};
use sconce_core::{Error, Policy, Result};

use crate::arena::{Arena, Packer};
use crate::embedding::Embedding;
use crate::gemv::{Encoding, Format, Packed};
use crate::heads::Heads;
use crate::layer::{Game, Layer};
use crate::mamba::mamba;
use crate::mlp::Mlp;
use crate::recurrent::Recurrent;
use crate::scratch::Scratch;

/// A policy packed for the CPU at hand: its weights once more, in one arena.
///
/// In f32 its logits and states are those of `Policy::act` to 1e-5 of the largest; in bf16 so are those of
/// the policy whose matrices are rounded, and in int8 to 1e-3, as what a matrix reads is rounded to 16 bits. Its choices are drawn from the same numbers. A game has the same
/// decision, to the bit, in whatever company it is stepped.
pub struct Plan {
    format: Format,
    matrices: Vec<Packed>,
    arena: Arena,
    embedding: Embedding,
    backbone: Box<dyn Layer>,
    heads: Heads,
    trunk: usize,
    zero: Vec<f32>,
    /// Widths of the parts of a state.
    parts: Vec<usize>,
    widest: usize,
}

impl Plan {
    /// None for a policy that only core can step: of a backbone that has no plan yet, or with weights that are
    /// not finite.
    ///
    /// # Errors
    /// `OutOfRange` for a bound that is not one.
    pub fn of(policy: &Policy, format: Format) -> Result<Option<Self>> {
        format.validate()?;
        let spec = policy.spec();
        let mut packer = Packer::new(policy.weights(), format);
        let embedding = Embedding::new(spec, &mut packer)?;
        let Some(backbone) = backbone(spec, embedding.width(), &mut packer)? else {
            return Ok(None);
        };
        let heads = Heads::new(&spec.heads, &mut packer)?;
        let state = policy.zero_state(1)?;
        let parts: Vec<usize> = state.0.iter().map(|part| part.elem_count()).collect();
        if parts.iter().sum::<usize>() != backbone.state_len() {
            return Err(Error::mismatch(
                "state of a plan",
                format!("{parts:?}"),
                backbone.state_len(),
            ));
        }
        let (trunk, zero, widest) = (policy.trunk_width(), state.to_vec()?, packer.widest());
        Ok(packer.finish().map(|(arena, matrices)| Plan {
            format,
            matrices,
            arena,
            embedding,
            backbone,
            heads,
            trunk,
            zero,
            parts,
            widest,
        }))
    }

    /// How its matrices were to be written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// How they are: in int8 if any is.
    pub fn encoding(&self) -> Encoding {
        match self.format {
            Format::F32 => Encoding::F32,
            _ if self.matrices.iter().any(|m| m.encoding == Encoding::Int8) => Encoding::Int8,
            _ => Encoding::Bf16,
        }
    }

    /// How each of them is.
    pub fn matrices(&self) -> &[Packed] {
        &self.matrices
    }

    /// A decision for [`Plan::step`] to write to.
    pub fn blank(&self) -> Decision {
        self.heads.blank()
    }

    /// The state of a game that has not begun: the parts of a `sconce_core::backbone::State`, one after the
    /// other.
    pub fn zero_state(&self) -> &[f32] {
        &self.zero
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        size_of_val(self.arena.numbers())
    }

    /// One decision for one frame of each game. What is wrong with one is its outcome, and touches no other.
    ///
    /// # Errors of a game
    /// `NonFinite` for logits or a state with a number that is not finite, `OutOfRange` and `Mismatch` for what
    /// is not of this policy.
    pub fn step(&self, games: &mut [Game<'_>], scratch: &mut Scratch) {
        if games.iter().any(|game| game.state.len() != self.zero.len()) {
            // One at a time: the layers count on it.
            return self.step_those_that_fit(games, scratch);
        }
        scratch.fit(self.widest, games.len());
        let arena = self.arena.numbers();
        let rows = scratch.x.chunks_exact_mut(self.embedding.width());
        for (game, x) in games.iter_mut().zip(rows) {
            game.outcome = self.embedding.write(arena, &game.frame, x);
            if game.outcome.is_err() {
                x.fill(0.0);
            }
        }
        self.backbone.step(arena, games, 0, scratch);
        let rows = scratch.x.chunks_exact_mut(self.trunk);
        for (game, x) in games.iter_mut().zip(rows) {
            game.then(|game| game.projection.map_or(Ok(()), |projection| projection.apply_to(x)));
        }
        self.heads.act(arena, games, scratch);
        for game in games {
            game.then(|game| self.check_finite(game));
        }
    }

    fn step_those_that_fit(&self, games: &mut [Game<'_>], scratch: &mut Scratch) {
        for game in games {
            game.outcome = game.check_state(self.zero.len());
            if game.outcome.is_ok() {
                self.step(std::slice::from_mut(game), scratch);
            }
        }
    }

    fn check_finite(&self, game: &Game<'_>) -> Result<()> {
        if let Some(value) = non_finite(&game.decision.logits) {
            return Err(Error::NonFinite { what: "logits".into(), value: value.into() });
        }
        let mut rest = &*game.state;
        for (i, width) in self.parts.iter().enumerate() {
            let (part, after) = rest.split_at(*width);
            if let Some(value) = non_finite(part) {
                return Err(Error::NonFinite { what: format!("state[{i}]"), value: value.into() });
            }
            rest = after;
        }
        Ok(())
    }
}

/// The backbone of a spec, which reads vectors of `width` numbers.
fn backbone(spec: &Spec, width: usize, packer: &mut Packer) -> Result<Option<Box<dyn Layer>>> {
    let recurrent = |cell, config, packer| Recurrent::new(cell, config, packer, "backbone");
    Ok(Some(match &spec.backbone {
        Backbone::Mlp(c) => Box::new(Mlp::new(c, width, packer)?),
        Backbone::Gru(c) => Box::new(recurrent(Cell::Gru, c, packer)?),
        Backbone::Lstm(c) => Box::new(recurrent(Cell::Lstm, c, packer)?),
        Backbone::Mamba(c) => Box::new(mamba(c, width, packer)?),
        _ => return Ok(None),
    }))
}
