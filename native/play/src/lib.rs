//! Learning from play: rollouts, proximal policy optimisation, and what they need.

#![warn(unreachable_pub)]

pub mod objective;
pub mod returns;
