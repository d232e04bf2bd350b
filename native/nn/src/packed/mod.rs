//! A policy packed for the CPU, which steps one or several games one frame at a time.

mod critic;
mod embedding;
mod layer;
mod plan;
mod stored;

pub use embedding::Frame;
pub use layer::{Game, Step};
pub use plan::Plan;
pub use stored::PackedPolicy;
