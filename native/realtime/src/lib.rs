//! The CPU fast path: a policy packed for one frame at a time, of one game or of many.
//!
//! A [`Plan`] makes the numbers of `sconce_core`, to the rounding of f32. Its weights lie in the order in
//! which a step reads them; a step takes no memory, no lock and no thread.
//!
//! | file | what is in it |
//! |---|---|
//! | `plan` | a whole step, from an embedded frame to an action |
//! | `embedding`, `heads` | its two ends, as in core |
//! | `layer` | what all parts of a backbone are |
//! | `stack`, `mlp`, `recurrent`, `mamba` | backbones, as in core |
//! | `gemv` | a matrix times vectors |
//! | `norm` | LayerNorm, RMSNorm |
//! | `arena` | where the weights lie |
//! | `scratch` | where the numbers of a step lie |

mod arena;
mod embedding;
mod gemv;
mod heads;
mod layer;
mod mamba;
mod mlp;
mod norm;
mod plan;
mod recurrent;
mod scratch;
mod stack;

pub use embedding::Frame;
pub use gemv::{Encoding, Format, Packed};
pub use layer::Game;
pub use plan::Plan;
pub use scratch::Scratch;
