//! Games on disk: a manifest and one shard a game.

mod build;
mod info;
mod manifest;
mod open;
mod split;
mod writer;

pub use build::VectorGame;
pub use info::{Count, Info};
pub use open::Corpus;
pub use split::Holdout;
pub(crate) use writer::Writer;
