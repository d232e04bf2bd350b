//! One training step: forward, loss, backward, clip, update.

mod gradient;
mod learn;
mod losses;
mod pass;
mod recording;
mod replay;
mod stepper;
mod task;
mod update;

pub use losses::{Learned, Losses, StepMetrics};
pub use recording::MOST_PENDING;
pub use stepper::Stepper;
pub use task::Task;

pub use crate::unroll::Unroll;

#[cfg(test)]
mod tests;
