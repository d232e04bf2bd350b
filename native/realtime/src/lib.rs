//! The CPU fast path: building blocks of one-frame steps, independent of any architecture.
//!
//! Weights are stored in the order in which a step reads them. A step allocates no memory, takes no lock and starts no
//! thread.
//!
//! | file | contents |
//! |---|---|
//! | `arena` | the memory of the weights |
//! | `format` | the formats of weights |
//! | `gemv` | products of a matrix and vectors |
//! | `attention` | attention of one frame over a window |
//! | `norm`, `conv` | LayerNorm, RMSNorm, norms of heads; a causal convolution |
//! | `sums` | sums of the lanes of several SIMD vectors |
//! | `scratch` | the memory of a step |
#![warn(unreachable_pub)]

mod arena;
mod attention;
mod conv;
mod format;
mod gemv;
mod huge;
mod norm;
mod scratch;
mod sums;

pub use arena::{Arena, LINE_BYTES, Packer};
pub use attention::{mix, score};
pub use conv::Conv;
pub use format::{Encoding, Factor, Format, Packed, Ratios, Record};
pub use gemv::{Input, Matrix, Tap, cpu};
pub use norm::{HeadNorm, Norm};
pub use scratch::Scratch;
pub use sums::sums;
