//! Backbones with the formulas of ExPhil, so that its policies can be imported exactly.
//!
//! Elixir names them by `compat: :exphil` beside the name of another backbone. Each formula is that of the library which
//! ExPhil trains with; the other backbones follow their papers.

pub(super) mod attention;
pub(super) mod deep_res_lstm;
pub(super) mod lstm_hybrid;
mod positions;

/// The constant that the norms around an LSTM or a GRU add to the variance.
const RECURRENT_EPS: f32 = 1e-6;
