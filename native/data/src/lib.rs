//! Replays -> corpus -> views -> batches.
//!
//! [`import()`] reads replays into a [`Corpus`] on disk. A [`View`] is one player's view of a game. A
//! [`Sampler`] draws batches of windows from views, and [`Tracks`] walk through views in order. A
//! [`Loader`] prefetches the batches of a sampler or of tracks. A [`Reader`] turns views into windows for evaluation.

#![warn(unreachable_pub)]

mod augment;
mod batch;
mod column;
mod corpus;
mod exphil;
mod filter;
mod game;
mod import;
mod journal;
mod loader;
pub mod melee;
mod mixture;
mod permutation;
mod preferred;
mod quality;
mod reader;
mod recorded;
mod refusal;
mod replay;
mod rows;
mod sampler;
mod sampling;
mod schema;
mod shard;
mod tables;
mod tracks;
mod verify;
mod view;

pub use batch::{Batch, Columns, Extra, Played, Reader, Seen};
pub use column::{Column, ColumnSpec, Dtype};
pub use corpus::{Builder, Corpus, Count, Holdout, Info, VectorGame};
pub use filter::{Filter, LeftOut};
pub use game::{GameInfo, OtherIds};
pub use import::{ImportOptions, ImportReport, Progress, Skipped, import, import_tables};
pub use journal::Interrupted;
pub use loader::{Ahead, Draw, Drawn, Draws, Flow, Loader, LoaderOptions, live_threads};
pub use melee::fields;
pub use mixture::{Mixture, Share};
pub use permutation::Permutation;
pub use recorded::{MOST_TERMS, Over, Recorded, Sink};
pub use refusal::Reason;
pub use sampler::Sampler;
pub use sampling::{LossOn, SamplerOptions, Sampling};
pub use schema::{Beside, Schema};
pub use shard::Shard;
pub use tracks::{Track, Tracks};
pub use verify::{Checked, Damage, Verification, verify};
pub use view::View;
