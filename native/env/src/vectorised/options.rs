//! Options of vectorised environments, and the description of a world.

use std::borrow::Cow;
use std::sync::Arc;

use sconce_game::InputPart;
use sconce_nn::Spec;
use sconce_nn::spec::Heads;
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use super::autoreset::Autoreset;
use super::kernel::Rules;
use super::shard::MAX_TERMS;
use crate::host::{Host, HostSpec};
use crate::worlds::{TABLE, World, unknown};

/// Maximum number of environments.
const MAX_COUNT: usize = 1_048_576;
/// Maximum time limit in steps. Every integer up to this one is an f32.
const MAX_TIME_LIMIT: u32 = 1 << 24;
/// Maximum number of repeats of an action.
const MAX_REPEAT: u32 = 1000;
/// Maximum number of stacked observations.
const MAX_STACK: usize = 256;
/// Maximum number of numbers in the observations of all rows, which take 1 GiB.
const MAX_NUMBERS: usize = 1 << 28;
/// Maximum magnitude of a weight. A larger one is probably a typo.
const MAX_WEIGHT: f32 = 1e6;

/// Options of [`Envs`](super::Envs).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnvOptions {
    /// Name of the world, one of [`names`].
    pub env: String,
    /// Number of environments, 1..=1,048,576.
    pub count: usize,
    /// Seed. Environment `i` depends on the seed and on `first + i` alone.
    pub seed: u64,
    /// Index of the first environment. Environments 4 to 7 of a call are those of another call whose first one is 4.
    pub first: u64,
    /// Whether all environments have the random numbers of the first one.
    #[serde(skip)]
    pub alike: bool,
    /// Treatment of an environment after the end of an episode.
    pub autoreset: Autoreset,
    /// Steps of the world after which an episode is truncated. `None` is the world's own limit. With repeated actions,
    /// each repeat counts.
    pub time_limit: Option<u32>,
    /// Steps of the world with one input. Rewards are summed; the end of an episode stops the repeats.
    pub action_repeat: u32,
    /// Number of last observations in a row, oldest first. At the start of an episode all are the first observation.
    pub frame_stack: usize,
    /// Weights of reward terms by name. Terms without a weight have weight 1.
    pub reward_weights: Vec<(String, f32)>,
    /// Scripted player for seat 1 of a world with two seats. Without it both seats are rows.
    pub opponent: Option<String>,
    /// The world and the processes that step it, for a world whose rules are not native.
    #[serde(skip)]
    pub host: Option<Arc<Host>>,
}

impl Default for EnvOptions {
    fn default() -> Self {
        EnvOptions {
            env: "cart_pole".into(),
            count: 1,
            seed: 0,
            first: 0,
            alike: false,
            autoreset: Autoreset::default(),
            time_limit: None,
            action_repeat: 1,
            frame_stack: 1,
            reward_weights: Vec::new(),
            opponent: None,
            host: None,
        }
    }
}

/// Description of a world under some options.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EnvSpec {
    /// Name of the world.
    pub name: Cow<'static, str>,
    /// Numbers in an observation, all stacked ones together.
    pub observation_size: usize,
    /// The shape of an observation: channels, height and width of an image, or the numbers of a vector.
    pub observation_shape: Vec<usize>,
    /// Parts of an input.
    pub inputs: Vec<InputPart>,
    /// Rows per environment: the players that are not scripted.
    pub seats: usize,
    /// Steps of the world after which an episode is truncated.
    pub time_limit: u32,
    /// Names of the terms whose weighted sum is the reward.
    pub reward_terms: Vec<Cow<'static, str>>,
    /// Names of the scripted players.
    pub players: Vec<Cow<'static, str>>,
    /// Mean return at which the world counts as solved.
    pub solved: Option<f32>,
    /// Entries in the action mask of a row, one for each class and button of an input; 0 for a world without masks.
    pub mask_size: usize,
}

/// The names of all worlds.
pub fn names() -> Vec<&'static str> {
    TABLE.iter().map(|world| world.name).collect()
}

/// The description of a world under these options.
///
/// # Errors
/// `NotFound` for an unknown world, reward term or opponent, `OutOfRange` for a number, `NonFinite` for a weight,
/// `Mismatch` for an opponent in a world with one seat.
pub fn spec(options: &EnvOptions) -> Result<EnvSpec> {
    match &options.host {
        None => options.resolve().map(|(_, _, spec)| spec),
        Some(host) => options.hosted(host.spec()),
    }
}

impl EnvSpec {
    /// Numbers of an input.
    pub fn labels(&self) -> usize {
        self.inputs.iter().map(|part| part.kind.numbers()).sum()
    }

    /// Returns an error unless policies of `spec` can play here.
    ///
    /// # Errors
    /// `Mismatch` for other observations or other heads.
    pub fn check_policy(&self, spec: &Spec) -> Result<()> {
        let (reads, shows) = (spec.embedding.raw_width(), self.observation_size);
        if reads != shows {
            return Err(Error::mismatch("observation of the policy", shows, reads));
        }
        let wanted = Heads::of_parts(&self.inputs, spec.heads.kind);
        let kinds = |heads: &Heads| heads.choosing().map(|head| head.kind).collect::<Vec<_>>();
        let (wanted, got) = (kinds(&wanted), kinds(&spec.heads));
        if wanted != got {
            let (wanted, got) = (format!("{wanted:?}"), format!("{got:?}"));
            return Err(Error::mismatch("heads of the policy", wanted, got));
        }
        Ok(())
    }
}

impl EnvOptions {
    /// Checks the options and looks up their names.
    pub(super) fn resolve(&self) -> Result<(&'static World, Rules, EnvSpec)> {
        let world = World::find(&self.env)?;
        let limit = self.limit(world.time_limit)?;
        if self.opponent.is_some() && world.kernel.seats == 1 {
            return Err(Error::mismatch("opponent", "a world with two seats", world.name));
        }
        let rules = Rules {
            weights: self.weights(world)?,
            limit,
            repeat: self.action_repeat,
            autoreset: self.autoreset,
            opponent: self.opponent.as_deref().map(|name| world.player(name)).transpose()?,
            first: self.first,
            alike: self.alike,
            starts: Rng::new(self.seed, "env.start", 0),
            moves: Rng::new(self.seed, "env.opponent", 0),
        };
        let spec = EnvSpec {
            name: world.name.into(),
            observation_size: world.kernel.observation * self.frame_stack,
            observation_shape: match world.image {
                // Stacked images are channels.
                Some([channels, height, width]) => {
                    vec![channels * self.frame_stack, height, width]
                }
                None => vec![world.kernel.observation * self.frame_stack],
            },
            inputs: (world.inputs)(),
            seats: if rules.opponent.is_some() { 1 } else { world.kernel.seats },
            time_limit: limit,
            reward_terms: world.terms.iter().map(|name| (*name).into()).collect(),
            players: world.players.iter().map(|(name, _)| (*name).into()).collect(),
            solved: world.solved,
            mask_size: 0,
        };
        self.check_numbers(&spec)?;
        Ok((world, rules, spec))
    }

    /// The description of a hosted world under these options.
    fn hosted(&self, world: &HostSpec) -> Result<EnvSpec> {
        if self.opponent.is_some() {
            return Err(Error::mismatch("opponent", "a world with scripted players", &world.name));
        }
        // An action may not be allowed in its repeats.
        if world.masks && self.action_repeat > 1 {
            let expected = format!("1, because {} has action masks", world.name);
            return Err(Error::mismatch("action_repeat", expected, self.action_repeat));
        }
        let size = world.observation_size.saturating_mul(self.frame_stack);
        let spec = EnvSpec {
            name: world.name.clone().into(),
            observation_size: size,
            observation_shape: vec![size],
            inputs: world.inputs.clone(),
            seats: world.seats,
            time_limit: self.limit(world.time_limit)?,
            reward_terms: world.reward_terms.iter().map(|name| name.clone().into()).collect(),
            players: vec![],
            solved: world.solved,
            mask_size: world.mask_size(),
        };
        self.term_weights(world.reward_terms.iter().map(String::as_str))?;
        self.check_numbers(&spec)?;
        Ok(spec)
    }

    /// Checks the numbers that all worlds have, and returns the time limit.
    fn limit(&self, own: u32) -> Result<u32> {
        within("count", self.count, MAX_COUNT)?;
        within("action_repeat", self.action_repeat as usize, MAX_REPEAT as usize)?;
        within("frame_stack", self.frame_stack, MAX_STACK)?;
        let limit = self.time_limit.unwrap_or(own);
        within("time_limit", limit as usize, MAX_TIME_LIMIT as usize)?;
        Ok(limit)
    }

    fn check_numbers(&self, spec: &EnvSpec) -> Result<()> {
        let numbers = self.count.saturating_mul(spec.seats).saturating_mul(spec.observation_size);
        within("numbers in all observations", numbers, MAX_NUMBERS)
    }

    /// The weight of each term.
    fn weights(&self, world: &World) -> Result<[f32; MAX_TERMS]> {
        let mut weights = [1.0; MAX_TERMS];
        let own = self.term_weights(world.terms.iter().copied())?;
        weights.iter_mut().zip(own).for_each(|(slot, weight)| *slot = weight);
        Ok(weights)
    }

    /// The weight of each of these terms.
    ///
    /// # Errors
    /// `NotFound` for a weight of another term, `NonFinite` and `OutOfRange` for one that is no weight.
    pub fn term_weights<'a>(
        &self,
        terms: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<Vec<f32>> {
        let mut weights: Vec<f32> = terms.clone().map(|_| 1.0).collect();
        for (name, weight) in &self.reward_weights {
            let found = terms.clone().position(|term| term == name);
            let slot = found.and_then(|at| weights.get_mut(at));
            let slot = slot.ok_or_else(|| unknown("reward term", name, terms.clone()))?;
            if !weight.is_finite() {
                let what = format!("weight of {name}");
                return Err(Error::NonFinite { what, value: f64::from(*weight) });
            }
            if weight.abs() > MAX_WEIGHT {
                let (field, max) = (format!("weight of {name}"), f64::from(MAX_WEIGHT));
                return Err(Error::out_of_range(field, f64::from(*weight), -max, max));
            }
            *slot = *weight;
        }
        Ok(weights)
    }
}

fn within(name: &str, value: usize, max: usize) -> Result<()> {
    match (1..=max).contains(&value) {
        true => Ok(()),
        false => Err(Error::out_of_range(name, value as f64, 1.0, max as f64)),
    }
}
