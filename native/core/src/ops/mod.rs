//! Few, fused ops: each with a backward, a golden file and a finite-difference check.
//!
//! Candle stays the tensor type and the autograd; the arithmetic is here. An op without a backward
//! does not enter: candle's own `LayerNorm` and `softmax_last_dim` stop gradients without a word.

pub mod branches;
pub mod causal_conv;
pub mod dropout;
pub mod elementwise;
pub mod gather;
pub mod gru;
pub mod layer_norm;
pub mod linear;
pub mod lstm;
pub mod many;
pub mod matmul;
pub mod recurrence;
pub mod rms_norm;
pub mod selective_scan;
pub mod simd;
pub mod tensor;

pub use branches::{Branch, Dense, branches};
pub use causal_conv::causal_conv;
pub use dropout::{dropout, dropout_columns};
pub use elementwise::{Activation, activate, gated};
pub use gather::gather;
pub use gru::gru;
pub use layer_norm::{Norm, layer_norm};
pub use linear::{linear, linear_norm};
pub use lstm::lstm;
pub use rms_norm::rms_norm;
pub use selective_scan::{Selective, selective_scan};
