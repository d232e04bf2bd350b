//! A policy packed for the CPU at hand, for one frame at a time, of one game or of many.

mod embedding;
mod layer;
mod plan;

pub use embedding::Frame;
pub use layer::{Game, Step};
pub use plan::Plan;
