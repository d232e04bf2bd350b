//! A policy packed for the CPU at hand, for one frame at a time, of one game or of many.

mod attention;
mod embedding;
mod gla;
mod griffin;
mod hgrn;
mod layer;
mod mamba;
mod mamba2;
mod plan;
mod recurrent;
mod residual_lstm;
mod retnet;
mod rwkv;
mod s4d;
mod s5;
mod stack;
mod xlstm;

pub use embedding::Frame;
pub use layer::{Game, Step};
pub use plan::Plan;
