//! One training step: forward, loss, backward, clip, update.

mod learn;
mod metrics;
mod pass;
mod placed;
mod recording;
mod replay;
mod stepper;
mod task;
mod update;

pub(crate) use learn::add;
pub use metrics::{Learned, StepMetrics};
pub use recording::MOST_PENDING;
pub use stepper::Stepper;
pub use task::Task;

pub use crate::unroll::Unroll;

#[cfg(test)]
mod tests;
