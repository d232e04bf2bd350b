//! The CPU fast path: a policy packed for one frame at a time, of one game or of many.
//!
//! A [`Plan`] makes the numbers of `sconce_nn`, to the rounding of f32. Its weights lie in the order in
//! which a step reads them; a step takes no memory, no lock and no thread.
//!
//! | file | what is in it |
//! |---|---|
//! | `plan` | a whole step, from an embedded frame to an action |
//! | `embedding`, `heads` | its two ends, as in core |
//! | `layer` | what all parts of a backbone are |
//! | `stack`, and those of its name | backbones, as in core |
//! | `gemv` | a matrix times vectors |
//! | `norm` | LayerNorm, RMSNorm |
//! | `arena` | where the weights lie |
//! | `scratch` | where the numbers of a step lie |
#![warn(unreachable_pub)]

mod arena;
mod attention;
mod conv;
mod embedding;
mod gemv;
mod gla;
mod griffin;
mod heads;
mod hgrn;
mod layer;
mod mamba;
mod mamba2;
mod min_rnn;
mod mlp;
mod norm;
mod plan;
mod recurrent;
mod residual_lstm;
mod retnet;
mod rwkv;
mod s4d;
mod s5;
mod scratch;
mod stack;
mod xlstm;

pub use embedding::Frame;
pub use gemv::{Encoding, Format, Packed};
pub use layer::Game;
pub use plan::Plan;
pub use scratch::Scratch;
