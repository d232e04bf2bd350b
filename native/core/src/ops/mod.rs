//! Few, fused ops: each with a backward, a golden file and a finite-difference check.
//!
//! Candle stays the tensor type and the autograd; the arithmetic is here. An op without a backward
//! does not enter: candle's own `LayerNorm` and `softmax_last_dim` stop gradients without a word.

pub mod attention;
pub mod branches;
pub mod causal_conv;
pub mod columns;
pub mod decay;
pub mod dropout;
pub mod elementwise;
pub mod feed_forward;
pub mod gather;
pub mod glu;
pub mod group_norm;
pub mod gru;
pub mod head_norm;
pub mod last;
pub mod layer_norm;
pub mod linear;
pub mod linear_recurrence;
pub mod lower_bound;
pub mod lstm;
pub mod mamba;
pub mod many;
pub mod matmul;
pub mod matrix_state;
pub mod parts;
pub mod project;
pub mod recurrence;
pub mod rms_norm;
pub mod selective_scan;
pub mod simd;
pub mod skip;
pub mod slstm;
pub mod softmax;
pub mod tensor;
pub mod token_shift;
pub mod wkv;

pub use attention::{attention, attention_weights};
pub use branches::{Branch, Dense, branches};
pub use causal_conv::causal_conv;
pub use dropout::{dropout, dropout_columns};
pub use elementwise::{Activation, activate, gated};
pub use feed_forward::{Affine, feed_forward};
pub use gather::gather;
pub use glu::glu;
pub use group_norm::group_norm;
pub use gru::gru;
pub use head_norm::head_norm;
pub use last::last;
pub use layer_norm::{Norm, layer_norm};
pub use linear::{linear, linear_norm};
pub use linear_recurrence::{diagonal_ssm, hgrn, linear_recurrence, min_gru, min_lstm, rg_lru};
pub use lower_bound::lower_bound;
pub use lstm::lstm;
pub use mamba::{MambaWeights, mamba};
pub use matrix_state::matrix_state;
pub use parts::linear_parts;
pub use project::project;
pub use rms_norm::rms_norm;
pub use selective_scan::{Selective, selective_scan};
pub use skip::skip;
pub use slstm::slstm;
pub use softmax::{masked_softmax, softmax};
pub use token_shift::token_shift;
pub use wkv::{Wkv, wkv};
