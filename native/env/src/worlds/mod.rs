//! The worlds that [`Envs`](crate::Envs) steps. A world is one file and one row of [`TABLE`].

mod acrobot;
pub(crate) mod billiards;
mod cart_pole;
mod duel;
mod mountain_car;
mod mountain_car_continuous;
mod pendulum;
mod pixel_cart_pole;

use sconce_game::{InputKind, InputMirror, InputPart, Scale};
use sconce_tensor::rng::unit;
use sconce_tensor::{Error, Result};

pub(crate) use crate::dynamics::Dynamics;
pub use crate::dynamics::Player;
use crate::nearest::nearest;
use crate::vectorised::Kernel;

/// All worlds.
pub(crate) static TABLE: [World; 10] = [
    cart_pole::WORLD,
    cart_pole::VELOCITY_LESS,
    pixel_cart_pole::WORLD,
    mountain_car::WORLD,
    mountain_car_continuous::WORLD,
    acrobot::WORLD,
    pendulum::WORLD,
    duel::WORLD,
    billiards::WORLD,
    billiards::PUBLISHED,
];

/// A row of [`TABLE`].
pub(crate) struct World {
    /// The name in options.
    pub(crate) name: &'static str,
    /// The parts of a seat's input.
    pub(crate) inputs: fn() -> Vec<InputPart>,
    /// The time limit in steps.
    pub(crate) time_limit: u32,
    /// The names of the reward terms.
    pub(crate) terms: &'static [&'static str],
    /// Scripted players for seat 1.
    pub(crate) players: &'static [(&'static str, Player)],
    /// The mean return at which the world counts as solved.
    pub(crate) solved: Option<f32>,
    /// Channels, height and width, if an observation is an image.
    pub(crate) image: Option<[usize; 3]>,
    /// The rules, compiled for vectors.
    pub(crate) kernel: Kernel,
}

impl World {
    /// Finds a row by its name.
    pub(crate) fn find(name: &str) -> Result<&'static World> {
        let unknown = || unknown("environment", name, TABLE.iter().map(|world| world.name));
        TABLE.iter().find(|world| world.name == name).ok_or_else(unknown)
    }

    /// Finds a scripted player by its name.
    pub(crate) fn player(&self, name: &str) -> Result<Player> {
        let found = self.players.iter().find(|(player, _)| *player == name);
        let unknown = || unknown("opponent", name, self.players.iter().map(|(player, _)| *player));
        found.map(|(_, player)| *player).ok_or_else(unknown)
    }
}

/// A scripted player of a world.
///
/// # Errors
/// `NotFound` for an unknown world or player.
pub fn player(env: &str, name: &str) -> Result<Player> {
    World::find(env)?.player(name)
}

/// The error of a name that is not in a list.
pub(crate) fn unknown<'a>(what: &str, name: &str, names: impl Iterator<Item = &'a str>) -> Error {
    Error::not_found(match nearest(name, names) {
        Some(near) => format!("{what} {name:?} (the nearest name is {near:?})"),
        None => format!("{what} {name:?}"),
    })
}

/// One of `n` actions.
fn choice(name: &'static str, meaning: &'static str, n: usize) -> InputPart {
    part(name, meaning, InputKind::Choice(n))
}

/// A number, clipped to `-bound..=bound` by the world.
fn continuous(name: &'static str, meaning: &'static str, bound: f32) -> InputPart {
    part(name, meaning, InputKind::Continuous { size: 1, min: -bound, max: bound })
}

fn part(name: &'static str, meaning: &'static str, kind: InputKind) -> InputPart {
    let (mirror, scale) = (InputMirror::Keep, Scale::default());
    InputPart { name: name.into(), meaning: meaning.into(), kind, mirror, scale, rest: None }
}

/// A random number in `low..high`.
fn uniform(word: u32, low: f32, high: f32) -> f32 {
    low + (high - low) * unit(word)
}
