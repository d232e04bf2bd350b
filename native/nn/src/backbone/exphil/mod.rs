//! Backbones with the formulas of ExPhil, so that its policies can be imported exactly.
//!
//! Elixir names them by `compat: :exphil` beside the name of another backbone. Each formula is that of the library which
//! ExPhil trains with; the other backbones follow their papers.

pub(super) mod attention;
mod constant;
pub(super) mod deep_res_lstm;
pub(super) mod gated_ssm;
pub(super) mod jamba;
pub(super) mod lstm_hybrid;
pub(super) mod mamba;
mod positions;
mod ssm;

/// The constant that the norms around an LSTM or a GRU add to the variance.
const RECURRENT_EPS: f32 = 1e-6;
