//! LSTM layers on a residual stream, each followed by a dense layer.

use std::sync::Arc;

use super::RECURRENT_EPS;
use crate::Result;
use crate::backbone::config::{ExphilLstmConfig, Layered, RecurrentConfig};
use crate::backbone::initial::Initial;
use crate::backbone::residual_lstm::Lstm;
use crate::backbone::stack::{Residual, Stack};
use crate::backbone::{Cell, Recurrent};
use crate::layer::{Linear, Norm};
use crate::ops::Activation;
use crate::weights::Builder;

/// `x = W x + b`, then `x = x + W lstm(norm(x)) + b` for each layer, and at the end `norm(x)`.
///
/// `x [b, t, input]` -> `[b, t, hidden_size]`. State: h and c of each layer, 8 bytes x `hidden_size` x layers. It begins
/// as zero, or as stored vectors. Weights: `encoder`, `layers.I.{norm, lstm, decoder}`, `norm`, `input_norm`, and
/// `initial_state.{h, c} [layers, hidden_size]` if they are stored.
pub(in crate::backbone) fn stack(
    config: &ExphilLstmConfig,
    input: usize,
    b: &Builder,
) -> Result<Stack> {
    let (h, layers) = (config.hidden_size, config.num_layers);
    let one = RecurrentConfig { hidden_size: h, num_layers: 1, ..Default::default() };
    let norm = |b: Builder| Ok::<_, crate::Error>(Norm::layer(h, &b)?.with_eps(RECURRENT_EPS));
    let initial = Initial::new(Cell::Lstm.states(), config.initial_state, [layers, h], b)?;
    let residual = |i| {
        let b = b.under("layers").under(i);
        let lstm = Recurrent::new(Cell::Lstm, &one, h, &b.under("lstm"))?;
        let decoder = Linear::new(h, h, Activation::None, &b.under("decoder"))?;
        let lstm = Lstm::of(lstm.starting(initial.of_layer(i)), decoder);
        Ok(Arc::new(Residual::new(norm(b.under("norm"))?, lstm)?))
    };
    let residuals = (0..layers).map(residual).collect::<Result<_>>()?;
    let encoder = Linear::new(input, h, Activation::None, &b.under("encoder"))?;
    let norm = norm(b.under("norm"))?;
    Stack::reading(&config.trunk(), input, Some(encoder), residuals, Some(norm), b)
}
