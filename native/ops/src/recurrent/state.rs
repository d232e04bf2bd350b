//! What cells remember.

use candle_core::Tensor;

/// What an sLSTM remembers, each `[b, h]`: hidden state, cell, normaliser and stabiliser. Before the
/// first frame all are 0.
#[derive(Debug, Clone)]
pub struct SlstmState {
    pub h: Tensor,
    pub c: Tensor,
    pub n: Tensor,
    pub m: Tensor,
}
