//! Games on disk: a manifest, and one shard per game.

mod build;
mod info;
mod manifest;
mod open;
mod split;
mod writer;

pub(crate) use build::row_columns;
pub use build::{Builder, VectorGame};
pub use info::{Count, Info};
pub use open::Corpus;
pub use split::Holdout;
pub(crate) use writer::Writer;
