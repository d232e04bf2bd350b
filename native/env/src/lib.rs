//! Environments to play in, the data that an expert makes there, and policies at play.

#![warn(unreachable_pub)]

mod cartpole;
mod environment;
mod play;

pub use cartpole::{CartPole, Demonstrations, Game, expert};
pub use environment::{Environment, Step};
pub use play::{Play, Played};
