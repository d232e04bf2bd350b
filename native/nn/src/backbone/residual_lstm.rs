//! LSTM layers on a residual stream, as in slippi-ai.

use std::sync::Arc;

use sconce_realtime::{Matrix, Packer, Scratch};
use sconce_tensor::Tensor;

use super::config::{ExpandConfig, Layered, RecurrentConfig, StackConfig};
use super::stack::{FeedForward, Residual, Stack};
use super::{Backbone, Cell, Context, Recurrent, State, recurrent};
use crate::Result;
use crate::layer::{Linear, Norm};
use crate::ops::Activation;
use crate::packed::{Game, Step};
use crate::weights::Builder;

/// `W_out lstm(x)`.
pub(super) struct Lstm {
    lstm: Recurrent,
    out: Linear,
}

impl Lstm {
    /// An LSTM and the dense layer after it.
    pub(super) fn of(lstm: Recurrent, out: Linear) -> Self {
        Lstm { lstm, out }
    }

    /// One layer whose `W_out` starts as zero, so that the initial output is zero. With another initial value, training a
    /// stack of such layers diverges.
    fn new(hidden_size: usize, b: &Builder) -> Result<Self> {
        let config = RecurrentConfig {
            hidden_size,
            num_layers: 1,
            layer_norm: false,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
            ..Default::default()
        };
        let lstm = Recurrent::new(Cell::Lstm, &config, hidden_size, &b.under("lstm"))?;
        Ok(Lstm::of(lstm, Linear::zero(hidden_size, hidden_size, &b.under("out"))?))
    }
}

impl Backbone for Lstm {
    fn zero_state(&self, batch: usize) -> Result<State> {
        self.lstm.zero_state(batch)
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let (h, state) = self.lstm.forward(x, state, context)?;
        Ok((self.out.forward(&context.read_of(&h)?)?, state))
    }

    fn pack(&self, packer: &mut Packer) -> Result<Box<dyn Step>> {
        let (lstm, out) = (self.lstm.packed(packer)?, self.out.pack(packer)?);
        Ok(Box::new(Packed { lstm, out }))
    }
}

/// [`Lstm`] packed for one frame at a time.
struct Packed {
    lstm: recurrent::Packed,
    out: Matrix,
}

impl Step for Packed {
    fn state_len(&self) -> usize {
        self.lstm.state_len()
    }

    fn start(&self, arena: &[f32], state: &mut [f32], at: usize) {
        self.lstm.start(arena, state, at);
    }

    fn step(&self, arena: &[f32], games: &mut [Game<'_>], at: usize, scratch: &mut Scratch) {
        self.lstm.step(arena, games, at, scratch);
        let Scratch { x, y, input, .. } = scratch;
        self.out.read(input, x, games.len());
        self.out.apply(arena, input, y);
        std::mem::swap(x, y);
    }
}

fn lstm(h: usize, b: &Builder) -> Result<Arc<Residual>> {
    let norm = Norm::layer(h, &b.under("norm1"))?;
    Ok(Arc::new(Residual::new(norm, Lstm::new(h, b)?)?))
}

/// `x = x + W_out lstm(norm1(x))` for each layer. `W_out` starts as zero (slippi-ai's `res_lstm`).
///
/// `x [b, t, input]` -> `[b, t, hidden_size]`. State: h and c of each layer, 8 bytes x `hidden_size` x layers.
/// Weights: `input`, `layers.I.{norm1, lstm, out}`.
pub(super) fn res_lstm(config: &StackConfig, input: usize, b: &Builder) -> Result<Stack> {
    let layers = b.under("layers");
    let layer = |i| lstm(config.hidden_size, &layers.under(i));
    let residuals = (0..config.num_layers).map(layer).collect::<Result<_>>()?;
    Stack::new(&config.trunk(), input, residuals, None, b)
}

/// [`res_lstm`] with `x = x + W_2 gelu(W_1 norm2(x))` after each layer. The inner width is
/// `expand_factor * hidden_size`, and `W_2` starts as zero (slippi-ai's `tx_like`).
///
/// Weights: `input`, `layers.I.{norm1, lstm, out, norm2, ffn1, ffn2}`.
pub(super) fn tx_like(config: &ExpandConfig, input: usize, b: &Builder) -> Result<Stack> {
    let (h, inner) = (config.hidden_size, config.expand_factor * config.hidden_size);
    let mut residuals = vec![];
    for i in 0..config.num_layers {
        let b = b.under("layers").under(i);
        residuals.push(lstm(h, &b)?);
        let up = Linear::new(h, inner, Activation::Gelu, &b.under("ffn1"))?;
        let down = Linear::zero(inner, h, &b.under("ffn2"))?;
        let norm = Norm::layer(h, &b.under("norm2"))?;
        residuals.push(Arc::new(Residual::new(norm, FeedForward::new(up, down))?));
    }
    Stack::new(&config.trunk(), input, residuals, None, b)
}
