//! Learning from play: rollouts, proximal policy optimisation, and what they need.

#![warn(unreachable_pub)]

pub mod evaluate;
pub mod learner;
pub mod objective;
pub mod options;
pub mod returns;
pub mod rollout;
pub mod run;
pub mod segment;
pub mod statistics;
