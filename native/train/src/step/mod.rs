//! One training step: forward, loss, backward, clip, update.

mod examples;
mod gradient;
mod learn;
mod losses;
mod pass;
mod recording;
mod replay;
mod stepper;
mod update;

pub(crate) use examples::mean_weight;
pub use examples::{Among, Examples};
pub use learn::Learned;
pub use losses::{Losses, StepMetrics};
pub use recording::MOST_PENDING;
pub use stepper::Stepper;

pub use crate::unroll::Unroll;

#[cfg(test)]
mod tests;
