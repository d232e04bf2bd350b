//! Replays -> corpus -> views -> batches.
//!
//! [`import()`] reads replays into a [`Corpus`] on disk; a [`View`] is one player's game in it; a
//! [`Sampler`] draws batches of windows from views, [`Lanes`] walk through them, and a [`Reader`] cuts
//! them for evaluation.

mod batch;
mod corpus;
#[doc(hidden)]
pub mod fixtures;
mod import;
mod lanes;
pub mod melee;
mod permutation;
pub mod schema;
mod shard;
mod view;

pub use batch::{Batch, Reader, Sampler, SamplerOptions};
pub use corpus::{Corpus, Count, Holdout, Info, VectorGame};
pub use import::{ImportOptions, ImportReport, Progress, Skipped, import};
pub use lanes::{Lane, Lanes};
pub use melee::{Reason, fields};
pub use schema::{GameInfo, OtherIds, Schema};
pub use shard::Shard;
pub use view::{Controller, View};
