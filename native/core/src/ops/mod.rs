//! Few, fused ops: each with a backward, a golden file and a finite-difference check.
//!
//! Candle stays the tensor type; the arithmetic and the autograd ([`tape`]) are here. An op without a backward
//! does not enter: candle's own `LayerNorm` and `softmax_last_dim` stop gradients without a word.
//!
//! An op lies in the file of its name, the file in one of these rooms, and callers say `ops::NAME`:
//!
//! | room | what is in it |
//! |---|---|
//! | [`dense`] | linear layers, tables of rows |
//! | [`elementwise`] | activations, gates, dropout, skips |
//! | [`norm`] | LayerNorm, RMSNorm, norms of heads |
//! | [`frames`] | causal convolution, token shift, the last frame |
//! | [`recurrent`] | LSTM, GRU, sLSTM |
//! | [`scan`] | linear recurrences by channel: minGRU, HGRN, RG-LRU, S4D, S5, Mamba, RWKV |
//! | [`matrix_state`] | recurrences whose state is a matrix: Mamba-2, RetNet, GLA, mLSTM |
//! | [`attention`] | attention over a window that slides, softmax |
//! | [`matmul`] | the one door to products |
//!
//! What they are made with: [`tensor`] (tensors as slices), [`op`] (the CPU form of an op), [`tape`] (the autograd), [`simd`] (loops
//! for the widest vectors at hand), [`residual`] (what stands around a layer), [`columns`] (shards of channels),
//! [`lengths`] (frames of each row). The front door of an op picks its [`form`](form::Form): slices on a CPU, a kernel on
//! an NVIDIA card ([`card`]), or [`composed`] of other ops where a card has no kernel for it.

pub mod attention;
pub mod card;
pub mod columns;
pub mod composed;
pub mod dense;
pub mod elementwise;
pub mod form;
pub mod frames;
pub mod lengths;
pub mod matmul;
pub mod matrix_state;
pub mod norm;
pub mod op;
pub mod recurrent;
pub mod residual;
pub mod rotary;
pub mod scan;
pub mod simd;
pub mod tape;
pub mod tensor;

pub use attention::{
    attention, attention_of_last, attention_residual, attention_weights, masked_softmax, softmax,
};
pub use dense::{
    Affine, Branch, Dense, Ids, branches, feed_forward, feed_forward_residual, gather, gather_of,
    linear, linear_norm, linear_parts, project,
};
pub use elementwise::{Activation, activate, dropout, dropout_columns, gated, glu, skip};
pub use frames::{causal_conv, last, token_shift};
pub use matrix_state::matrix_state;
pub use norm::{HeadNorms, Norm, group_norm, head_norm, row_norm};
pub use recurrent::{gru, lstm, slstm};
pub use residual::Residual;
pub use scan::{
    MambaWeights, Selective, Wkv, lower_bound, mamba, mamba_residual, selective_scan, wkv,
};
pub use scan::{diagonal_ssm, hgrn, linear_recurrence, min_gru, min_lstm, rg_lru};
