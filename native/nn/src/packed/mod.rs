//! A policy packed for the CPU, for one frame at a time of one or several games.

mod embedding;
mod layer;
mod plan;

pub use embedding::Frame;
pub use layer::{Game, Step};
pub use plan::Plan;
