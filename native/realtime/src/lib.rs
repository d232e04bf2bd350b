//! The CPU fast path: what steps one frame at a time are made of. It knows no architecture.
//!
//! Weights lie in the order in which a step reads them; a step takes no memory, no lock and no thread.
//!
//! | file | what is in it |
//! |---|---|
//! | `arena` | where the weights lie |
//! | `format` | how weights are written |
//! | `gemv` | a matrix times vectors |
//! | `norm`, `conv` | LayerNorm, RMSNorm, norms of heads; a causal convolution |
//! | `scratch` | where the numbers of a step lie |
#![warn(unreachable_pub)]

mod arena;
mod conv;
mod format;
mod gemv;
mod norm;
mod scratch;

pub use arena::{Arena, Packer};
pub use conv::Conv;
pub use format::{Encoding, Format, Packed};
pub use gemv::{Input, Matrix};
pub use norm::{HeadNorm, Norm};
pub use scratch::Scratch;
