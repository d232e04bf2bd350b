//! minGRU and minLSTM (Feng et al. 2024): the gates depend only on the input.

use std::sync::Arc;

use sconce_ops::linear_recurrence::cells::{self, Cell};
use sconce_ops::linear_recurrence::step;
use sconce_realtime::{Matrix, Packer, Scratch};
use sconce_tensor::Tensor;

use super::config::{Layered, StackConfig};
use super::stack::{Residual, Stack};
use super::{Backbone, Context, State};
use crate::layer::{Norm, Projection};
use crate::packed::{Game, Step};
use crate::weights::Builder;
use crate::{Result, ops};

/// The recurrence of a [`MinRnn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinCell {
    /// `z = sigmoid(W_z x)`, `h = (1 - z) h + z W_h x`.
    Gru,
    /// `f, i = sigmoid(W_f x), sigmoid(W_i x)`, each divided by `f + i + 1e-6`; `h = f h + i W_h x`.
    Lstm,
}

/// One cell, `x [b, t, d]` -> `[b, t, h]`.
///
/// State: h `[b, h]`. Tap: `hidden [b, t, h]`. Weights: `linear_z` for minGRU or `linear_f` and `linear_i` for
/// minLSTM, then `linear_h`.
pub struct MinRnn {
    cell: MinCell,
    projection: Projection,
    hidden_size: usize,
    eps: f32,
}

impl MinRnn {
    /// Constant added to the sum of the gates of minLSTM, which divides both gates.
    pub const EPS: f32 = 1e-6;

    /// A cell for vectors of width `input`.
    pub fn new(cell: MinCell, input: usize, hidden_size: usize, b: &Builder) -> Result<Self> {
        let names: &[&str] = match cell {
            MinCell::Gru => &["linear_z", "linear_h"],
            MinCell::Lstm => &["linear_f", "linear_i", "linear_h"],
        };
        let outputs: Vec<_> = names.iter().map(|name| (*name, hidden_size)).collect();
        let projection = Projection::new(input, &outputs, b)?;
        Ok(MinRnn { cell, projection, hidden_size, eps: Self::EPS })
    }
}

impl Backbone for MinRnn {
    fn zero_state(&self, batch: usize) -> Result<State> {
        State::zeros(batch, &[self.hidden_size])
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let [h0] = state.parts()?;
        let (projected, lengths) = (self.projection.forward(x)?, context.lengths());
        let h = match self.cell {
            MinCell::Gru => ops::min_gru(&projected, h0, lengths.clone())?,
            MinCell::Lstm => ops::min_lstm(&projected, h0, self.eps, lengths.clone())?,
        };
        context.tap("hidden", &h);
        let last = ops::last(&h, h0, &lengths)?;
        Ok((h, State(vec![last])))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let (projection, hidden) = (self.projection.pack(packer)?, self.hidden_size);
        let step: Box<dyn Step> = match self.cell {
            MinCell::Gru => Box::new(Packed::<_, 2> { projection, cell: cells::MinGru, hidden }),
            MinCell::Lstm => Box::new(Packed::<_, 3> {
                projection,
                cell: cells::MinLstm { eps: self.eps },
                hidden,
            }),
        };
        Ok(step)
    }
}

/// A [`MinRnn`] packed for one frame at a time.
struct Packed<C, const N: usize> {
    projection: Matrix,
    cell: C,
    hidden: usize,
}

impl<C: Cell<N, 0>, const N: usize> Step for Packed<C, N> {
    fn state_len(&self) -> usize {
        self.hidden
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        let Scratch { x, y, input, .. } = scratch;
        self.projection.read(input, x, games.len());
        self.projection.apply(arena, input, y);
        let rows = y.chunks_exact(N * self.hidden).zip(x.chunks_exact_mut(self.hidden));
        for (game, (y, x)) in games.iter_mut().zip(rows) {
            let h = game.state(at, self.hidden);
            let inputs = std::array::from_fn(|n| &y[n * self.hidden..][..self.hidden]);
            step(self.cell, h, inputs, []);
            x.copy_from_slice(h);
        }
    }
}

/// A stack of minGRU layers.
pub(super) fn min_gru(config: &StackConfig, input: usize, b: &Builder) -> Result<Stack> {
    stack(MinCell::Gru, config, input, b)
}

/// A stack of minLSTM layers.
pub(super) fn min_lstm(config: &StackConfig, input: usize, b: &Builder) -> Result<Stack> {
    stack(MinCell::Lstm, config, input, b)
}

/// Builds for each layer `x + cell(norm(x))`; finally a LayerNorm. Weights: `layers.I.norm`, `layers.I.cell`, `norm`.
///
/// State: h `[b, h]` of each layer, 4 bytes x `hidden_size` x layers.
fn stack(cell: MinCell, config: &StackConfig, input: usize, b: &Builder) -> Result<Stack> {
    let trunk = config.trunk();
    let h = trunk.hidden_size;
    let layer = |i: usize| {
        let b = b.under("layers").under(i);
        let norm = Norm::layer(h, &b.under("norm"))?;
        Ok(Arc::new(Residual::new(norm, MinRnn::new(cell, h, h, &b.under("cell"))?)?))
    };
    let layers = (0..trunk.num_layers).map(layer).collect::<Result<_>>()?;
    Stack::new(&trunk, input, layers, Some(Norm::layer(h, &b.under("norm"))?), b)
}
