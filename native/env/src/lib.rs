//! Environments, an expert's demonstrations in them, and the evaluation of policies by play.

#![warn(unreachable_pub)]

mod cartpole;
mod dynamics;
mod environment;
mod host;
mod hosted;
mod nearest;
mod numbers;
mod open;
mod play;
mod vector;
mod vectorised;
mod worlds;
mod wrappers;

pub use cartpole::{CartPole, Demonstrations, Game, expert};
pub use environment::{Environment, Step};
pub use host::{Answered, Asked, Begin, Begun, Host, HostSpec, Worker};
pub use hosted::Hosted;
pub use numbers::Numbers;
pub use open::open;
pub use play::{Play, Played};
pub use vector::VectorEnv;
pub use vectorised::{
    Autoreset, CardEnvs, CardStep, EnvOptions, EnvSnapshot, EnvSpec, Envs, Episode, Stepped,
    TERMINATED, names, rules_for_a_card, spec,
};
pub use worlds::billiards::{Shot, ShotEvent, ShotEventKind, shot};
pub use worlds::{Player, player};
pub use wrappers::{Normaliser, RewardScale};
