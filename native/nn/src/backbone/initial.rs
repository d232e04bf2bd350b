//! The state of LSTM and GRU layers before the first frame of a game.

use std::ops::Range;

use sconce_realtime::Packer;
use sconce_tensor::tensor::contiguous;

use super::State;
use crate::Result;
use crate::weights::{Builder, Init, Weight};

/// Zeros, or vectors that are stored among the weights. Stored vectors are constants: training leaves them unchanged.
pub(super) struct Initial {
    /// Number of states of a layer: h, and c for an LSTM.
    states: usize,
    layers: Range<usize>,
    hidden: usize,
    /// The vectors h of all layers, and c for an LSTM, one layer in a row. Empty if the state is zero.
    stored: Vec<Weight>,
}

impl Initial {
    /// Weights if `stored`: `initial_state.h [layers, hidden]`, and `initial_state.c` for two `states`. New ones are zero.
    pub(super) fn new(
        states: usize,
        stored: bool,
        [layers, hidden]: [usize; 2],
        b: &Builder,
    ) -> Result<Self> {
        let names = if stored { &["h", "c"][..states] } else { &[] };
        let b = b.under("initial_state").constants();
        let weight = |name: &&str| b.get(name, &[layers, hidden], Init::Constant(0.0));
        let stored = names.iter().map(weight).collect::<Result<_>>()?;
        Ok(Initial { states, layers: 0..layers, hidden, stored })
    }

    /// The part of one layer.
    pub(super) fn of_layer(&self, layer: usize) -> Self {
        let Initial { states, hidden, .. } = *self;
        Initial { states, layers: layer..layer + 1, hidden, stored: self.stored.clone() }
    }

    /// The initial state of `batch` games: h of each layer, each followed by c for an LSTM.
    pub(super) fn state(&self, batch: usize) -> Result<State> {
        let Initial { layers, hidden, .. } = self;
        if self.stored.is_empty() || batch == 0 {
            return State::zeros(batch, &vec![*hidden; layers.len() * self.states]);
        }
        let mut parts = Vec::with_capacity(layers.len() * self.stored.len());
        for layer in layers.clone() {
            for weight in &self.stored {
                let row = weight.detach().narrow(0, layer, 1)?.broadcast_as((batch, *hidden))?;
                parts.push(contiguous(&row)?);
            }
        }
        Ok(State(parts))
    }

    /// Packs the stored vectors.
    pub(super) fn pack(&self, packer: &mut Packer) -> Result<PackedInitial> {
        let keep = |weight: &Weight| {
            let rows = weight.narrow(0, self.layers.start, self.layers.len())?;
            packer.keep(&rows.into())
        };
        let stored = self.stored.iter().map(keep).collect::<Result<_>>()?;
        Ok(PackedInitial { hidden: self.hidden, stored })
    }
}

/// [`Initial`] in an arena.
pub(super) struct PackedInitial {
    hidden: usize,
    stored: Vec<Range<usize>>,
}

impl PackedInitial {
    /// Writes the initial state of one game, unless it is zero.
    pub(super) fn write(&self, arena: &[f32], state: &mut [f32]) {
        let parts = self.stored.len();
        for (i, stored) in self.stored.iter().enumerate() {
            let rows = arena[stored.clone()].chunks_exact(self.hidden);
            let places = state.chunks_exact_mut(self.hidden).skip(i).step_by(parts);
            places.zip(rows).for_each(|(place, row)| place.copy_from_slice(row));
        }
    }
}
