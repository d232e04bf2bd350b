//! A policy packed for the CPU at hand, for one frame at a time, of one game or of many.

mod attention;
mod embedding;
mod layer;
mod mamba;
mod mamba2;
mod plan;
mod recurrent;
mod residual_lstm;
mod stack;

pub use embedding::Frame;
pub use layer::{Game, Step};
pub use plan::Plan;
