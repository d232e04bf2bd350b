//! A whole step, from an embedded frame to an action.

use sconce_core::backbone::Cell;
use sconce_core::heads::Decision;
use sconce_core::ops::simd::non_finite;
use sconce_core::projection::Projection;
use sconce_core::sampling::Draw;
use sconce_core::spec::{self, Spec};
use sconce_core::{Error, Policy, Result};

use crate::arena::{Arena, Packer};
use crate::embedding::{Embedding, Frame};
use crate::gemv::Format;
use crate::heads::Heads;
use crate::mamba::Mamba;
use crate::mlp::Mlp;
use crate::recurrent::Recurrent;
use crate::scratch::Scratch;

/// A policy packed for the CPU at hand: its weights once more, in one arena.
///
/// In f32 its logits and states are those of `Policy::act` to 1e-5 of the largest; in bf16 so are those of
/// the policy whose matrices are rounded. Its choices are drawn from the same numbers.
pub struct Plan {
    format: Format,
    arena: Arena,
    embedding: Embedding,
    backbone: Backbone,
    heads: Heads,
    trunk: usize,
    /// Widths of the parts of a state.
    state: Vec<usize>,
    widest: usize,
}

enum Backbone {
    Mlp(Mlp),
    Recurrent(Recurrent),
    Mamba(Mamba),
}

impl Plan {
    /// None for a policy that only core can step: of another backbone than an MLP, a GRU, an LSTM or a
    /// Mamba, or with weights that are not finite.
    pub fn of(policy: &Policy, format: Format) -> Result<Option<Self>> {
        let spec = policy.spec();
        let mut packer = Packer::new(policy.weights(), format);
        let embedding = Embedding::new(spec, &mut packer)?;
        let Some(backbone) = Backbone::new(spec, embedding.width(), &mut packer)? else {
            return Ok(None);
        };
        let heads = Heads::new(&spec.heads, &mut packer)?;
        let (trunk, state, widest) = (policy.trunk_width(), widths(spec), packer.widest());
        let plan = |arena| Plan { format, arena, embedding, backbone, heads, trunk, state, widest };
        Ok(packer.finish().map(plan))
    }

    /// How its matrices are written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// A decision for [`Plan::step`] to write to.
    pub fn blank(&self) -> Decision {
        self.heads.blank()
    }

    /// Numbers of a state: its parts as in `sconce_core::backbone::State`, one after the other.
    pub fn state_len(&self) -> usize {
        self.state.iter().sum()
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        size_of_val(self.arena.numbers())
    }

    /// One decision for one frame. `state [state_len]` becomes the one after the frame, `decision` is of
    /// [`Plan::blank`], and of the generators of `draw` there is one.
    ///
    /// # Errors
    /// `NonFinite` for logits or a state with a number that is not finite. After any error the state is
    /// worth nothing.
    pub fn step(
        &self,
        frame: &Frame<'_>,
        state: &mut [f32],
        draw: Draw<'_>,
        projection: Option<&Projection>,
        scratch: &mut Scratch,
        decision: &mut Decision,
    ) -> Result<()> {
        if draw.rngs.len() != 1 {
            return Err(Error::mismatch("generators", 1, draw.rngs.len()));
        }
        if state.len() != self.state_len() {
            return Err(Error::mismatch("numbers of a state", self.state_len(), state.len()));
        }
        scratch.fit(self.widest);
        let (arena, width) = (self.arena.numbers(), self.embedding.width());
        self.embedding.write(arena, frame, &mut scratch.x)?;
        match &self.backbone {
            Backbone::Mlp(mlp) => mlp.step(arena, scratch, width),
            Backbone::Recurrent(layers) => layers.step(arena, scratch, width, state),
            Backbone::Mamba(layers) => layers.step(arena, scratch, width, state),
        }
        if let Some(projection) = projection {
            projection.apply_to(&mut scratch.x[..self.trunk])?;
        }
        self.heads.act(arena, scratch, self.trunk, frame.previous, draw, decision)?;
        self.check_finite(&decision.logits, state)
    }

    fn check_finite(&self, logits: &[f32], state: &[f32]) -> Result<()> {
        if let Some(value) = non_finite(logits) {
            return Err(Error::NonFinite { what: "logits".into(), value: value.into() });
        }
        let mut rest = state;
        for (i, width) in self.state.iter().enumerate() {
            let (part, after) = rest.split_at(*width);
            if let Some(value) = non_finite(part) {
                return Err(Error::NonFinite { what: format!("state[{i}]"), value: value.into() });
            }
            rest = after;
        }
        Ok(())
    }
}

impl Backbone {
    fn new(spec: &Spec, input: usize, packer: &mut Packer) -> Result<Option<Self>> {
        Ok(Some(match &spec.backbone {
            spec::Backbone::Mlp(c) => Backbone::Mlp(Mlp::new(c, input, packer)?),
            spec::Backbone::Gru(c) => Backbone::Recurrent(Recurrent::new(Cell::Gru, c, packer)?),
            spec::Backbone::Lstm(c) => Backbone::Recurrent(Recurrent::new(Cell::Lstm, c, packer)?),
            spec::Backbone::Mamba(c) => Backbone::Mamba(Mamba::new(c, input, packer)?),
            _ => return Ok(None),
        }))
    }
}

/// Widths of the parts of a state.
fn widths(spec: &Spec) -> Vec<usize> {
    match &spec.backbone {
        spec::Backbone::Gru(c) => vec![c.hidden_size; Cell::Gru.states() * c.num_layers],
        spec::Backbone::Lstm(c) => vec![c.hidden_size; Cell::Lstm.states() * c.num_layers],
        spec::Backbone::Mamba(c) => Mamba::widths(c),
        _ => vec![],
    }
}
