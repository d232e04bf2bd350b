//! States of cells.

use candle_core::Tensor;

/// The state of an sLSTM. Before the first frame all values are 0.
#[derive(Debug, Clone)]
pub struct SlstmState {
    /// The hidden state, `[b, h]`.
    pub h: Tensor,
    /// The cell state, `[b, h]`.
    pub c: Tensor,
    /// The normaliser, `[b, h]`.
    pub n: Tensor,
    /// The stabiliser, `[b, h]`.
    pub m: Tensor,
}
