//! The CPU fast path: a policy packed for one frame of one game at a time.
//!
//! A [`Plan`] makes the numbers of `sconce_core`, to the rounding of f32. Its weights lie in the order in
//! which a step reads them; a step takes no memory, no lock and no thread.
//!
//! | file | what is in it |
//! |---|---|
//! | `plan` | a whole step, from an embedded frame to an action |
//! | `embedding`, `mlp`, `recurrent`, `mamba`, `heads` | its parts, as in core |
//! | `gemv` | a matrix times a vector |
//! | `norm` | LayerNorm, RMSNorm |
//! | `arena` | where the weights lie |
//! | `scratch` | where the numbers of a step lie |

mod arena;
mod embedding;
mod gemv;
mod heads;
mod mamba;
mod mlp;
mod norm;
mod plan;
mod recurrent;
mod scratch;

pub use embedding::Frame;
pub use gemv::Format;
pub use plan::Plan;
pub use scratch::Scratch;
