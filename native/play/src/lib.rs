//! Learning from play: rollouts, proximal policy optimisation, and what they need.

#![warn(unreachable_pub)]

pub mod evaluate;
mod heads;
pub mod league;
pub mod learner;
pub mod live;
pub mod objective;
pub mod options;
pub mod returns;
pub mod rollout;
pub mod run;
pub mod segment;
mod side_by_side;
pub mod statistics;
