//! An LSTM followed by attention without positions.

use super::RECURRENT_EPS;
use crate::Result;
use crate::backbone::attention::{Attention, Head, LstmHybrid};
use crate::backbone::config::{ExphilHybridConfig, NormEps, RecurrentConfig};
use crate::backbone::initial::Initial;
use crate::backbone::{Cell, Recurrent};
use crate::layer::{Linear, Norm};
use crate::ops::Activation;
use crate::ops::attention::Window;

use crate::weights::Builder;

/// `u = W lstm(input_norm(x)) + b` with a norm after each LSTM layer, then `y = norm(u + attention(u))`. Queries and keys
/// have neither norms nor positions, so a frame may be carried as well as computed in a window of up to `window_size`
/// frames.
///
/// `x [b, t, input]` -> `[b, t, num_heads * head_dim]`. State: h and c of each LSTM layer, then that of the [`Attention`].
/// The LSTM's begins as zero, or as stored vectors. Weights: `input_norm`, `lstm` (with `norms.I`), `dense`, `qkv`, `out`,
/// `norm`, and `initial_state.{h, c} [layers, hidden_size]` if they are stored.
pub(in crate::backbone) fn hybrid(
    config: &ExphilHybridConfig,
    input: usize,
    b: &Builder,
) -> Result<LstmHybrid> {
    let &ExphilHybridConfig { num_layers, hidden_size: h, dropout, .. } = config;
    let layers = RecurrentConfig {
        hidden_size: h,
        num_layers,
        layer_norm: true,
        norm_eps: NormEps(RECURRENT_EPS),
        dropout,
        input_dropout: config.input_dropout,
        ..Default::default()
    };
    let norm = || Norm::layer(input, &b.under("input_norm"));
    let norm = config.input_norm.then(norm).transpose()?;
    let lstm = Recurrent::new(Cell::Lstm, &layers, input, &b.under("lstm"))?
        .reading(norm.map(|norm| norm.with_eps(RECURRENT_EPS)))
        .starting(Initial::new(Cell::Lstm.states(), config.initial_state, [num_layers, h], b)?);
    b.reserve("positions", &Window::table(config.head_dim, config.window_size))?;
    let window = Window::without_positions(config.num_heads, config.head_dim, config.window_size)?;
    let d = window.width();
    let head = Head {
        dense: Linear::new(h, d, Activation::None, &b.under("dense"))?,
        attention: Attention::of(window, d, None, b)?,
        norm: Norm::layer(d, &b.under("norm"))?,
        dropout,
    };
    Ok(LstmHybrid::of(lstm, 2 * num_layers, head, b))
}
