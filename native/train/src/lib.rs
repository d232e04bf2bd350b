//! What changes weights: losses, optimisers, schedules, and what they are measured with.

pub mod baselines;
pub mod bench;
pub mod eval;
pub mod gradients;
pub mod loss;
pub mod metrics;
pub mod optimiser;
pub mod options;
pub mod report;
pub mod run;
pub mod schedule;
mod source;
pub mod step;
pub mod teacher;
