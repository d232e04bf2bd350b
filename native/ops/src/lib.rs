//! Few, fused ops: each with a backward, a golden file and a finite-difference check.
//!
//! Candle stays the tensor type; the arithmetic and the autograd ([`tape`]) are here. Every op has a backward pass:
//! candle's own `LayerNorm` and `softmax_last_dim` stop gradients silently.
//!
//! All files of an op lie in its folder; ops that share a kernel share a folder. Callers write `ops::NAME`.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs`, or a file named after the op | the front door: formula, source, shapes; it picks the [`form`] by device, once |
//! | beside it | the CPU form: [`op::Op`] on slices |
//! | `card.rs` | the form on an NVIDIA card: the launches of its kernels |
//! | `NAME.cu` | the kernels; `tools/cuda-kernels` finds them |
//! | `composed.rs` | the op composed of candle's and other ops: short rather than fast |
//!
//! 1. A form has the name, the arguments and the result of its op. It calls no other form of that op; an op that is
//!    made of other ops calls their front doors.
//! 2. A launch depends on sizes alone. Lengths and seeds lie on the card and nothing is read back, so a captured graph
//!    can be replayed. All work on a card is in the order of its one stream.
//! 3. Only the composed form accepts f64: tests compare the values and gradients of the other forms with it. A card
//!    runs it where an op has no kernel for a size.
//!
//! | folder | op |
//! |---|---|
//! | [`dense`], [`gather`] | linear layers, tables of rows |
//! | [`activation`], [`dropout`] | elementwise functions, bounds, gates, skips |
//! | [`fake_quantise`](mod@fake_quantise) | rounding to a grid of integer codes, with given and learned steps |
//! | [`norm`] | LayerNorm, RMSNorm, group norm, norms of heads |
//! | [`frames`] | causal convolution, token shift, the last frame |
//! | [`recurrent`] | LSTM, GRU, sLSTM |
//! | [`linear_recurrence`], [`lower_bound`] | linear recurrences by channel: minGRU, HGRN, RG-LRU, S4D, S5 |
//! | [`selective_scan`], [`mamba`] | Mamba |
//! | [`wkv`] | RWKV |
//! | [`matrix_state`] | recurrences whose state is a matrix: Mamba-2, RetNet, GLA, mLSTM |
//! | [`attention`] | attention over a sliding window, softmax |
//! | [`matmul`] | all matrix products |
//! | [`mod@convolution`], [`pooling`], [`mod@batch_norm`], [`mod@upsample`] | signals and images, channels first, on CPUs only |
//!
//! Shared parts: [`tensor`] (tensors as slices), [`op`] (the interface of an op), [`tape`] (the autograd), [`simd`]
//! (loops over the widest available vectors), [`residual`] (the norm, dropout and sum around a layer), [`columns`]
//! (shards of channels), [`planes`] (positions of a kernel), [`lengths`] (frames of each row), [`rows`] (copies that a recorded step makes).
#![warn(unreachable_pub)]

pub mod activation;
pub mod arrange;
pub mod attention;
pub mod batch_norm;
pub mod ceilings;
pub mod columns;
pub mod convolution;
pub mod dense;
pub mod dropout;
pub mod fake_quantise;
pub mod form;
pub mod frames;
pub mod gather;
pub mod lengths;
pub mod linear_recurrence;
pub mod lower_bound;
pub mod mamba;
pub mod matmul;
pub mod matrix_state;
pub mod norm;
pub mod op;
pub mod planes;
pub mod pooling;
pub mod recurrent;
pub mod residual;
pub mod rotary;
pub mod rows;
pub mod selective_scan;
mod stabiliser;
mod uninit;
pub mod upsample;
pub mod weights;
pub mod wkv;

pub use activation::clip::clip;
pub use activation::glu::glu;
pub use activation::skip::skip;
pub use activation::{Activation, activate, gated};
pub use attention::{
    attention, attention_of_last, attention_residual, attention_weights, masked_softmax, softmax,
};
pub use batch_norm::{BatchNorm, batch_norm, batch_norm_of};
pub use convolution::{convolution, transposed_convolution};
pub use dense::{
    Activated, Affine, Branch, Dense, branches, feed_forward, feed_forward_residual, linear,
    linear_norm, linear_parts, perceptron, project,
};
pub use dropout::{dropout, dropout_columns};
pub use fake_quantise::{Codes, Groups, fake_quantise, learned_step};
pub use frames::{causal_conv, last, token_shift};
pub use gather::{Ids, gather, gather_of};
pub use linear_recurrence::{diagonal_ssm, hgrn, linear_recurrence, min_gru, min_lstm, rg_lru};
pub use lower_bound::lower_bound;
pub use mamba::{MambaWeights, mamba, mamba_residual};
pub use matrix_state::matrix_state;
pub use norm::{HeadNorms, Norm, group_norm, head_norm, row_norm};
pub use planes::Kernel;
pub use pooling::{Pooling, global_pooling, pooling};
pub use recurrent::{gru, lstm, slstm};
pub use residual::Residual;
use sconce_tensor::{Error, Precision, Result, device, memory, pool, rng, simd, tape, tensor};
pub use selective_scan::{Selective, selective_scan};
pub use upsample::upsample;
pub use wkv::{Wkv, wkv};
