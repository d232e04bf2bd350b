//! What a run and an evaluation may be told, and its bounds.

mod bounds;
mod check;
mod device;
mod evaluate;
mod parts;
mod train;

pub(crate) use bounds::{MAX_FRAMES, at_least};
pub use evaluate::{EvalOptions, EvaluateOptions, Mode};
pub use train::{LrSchedule, TrainOptions};

#[cfg(test)]
mod tests;
