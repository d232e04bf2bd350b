//! A world whose rules are in other processes, and how they are asked.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sconce_game::InputPart;
use sconce_tensor::{Error, Result};
use serde::Deserialize;

/// Description of a world that its host gives.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Name of the world.
    pub name: String,
    /// Numbers in an observation.
    pub observation_size: usize,
    /// Parts of an input.
    pub inputs: Vec<InputPart>,
    /// Steps after which an episode is truncated.
    pub time_limit: u32,
    /// Names of the terms whose weighted sum is the reward.
    pub reward_terms: Vec<String>,
    /// Mean return at which the world counts as solved.
    pub solved: Option<f32>,
    /// Whether the world says which inputs are allowed.
    #[serde(default)]
    pub masks: bool,
    /// Players, each with an input, an observation and a reward of its own.
    #[serde(default = "one")]
    pub seats: usize,
}

fn one() -> usize {
    1
}

/// The episode that an environment begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Index among the environments of the group.
    pub at: usize,
    /// Index among all environments of the run.
    pub env: u64,
    /// Number of the episode.
    pub episode: u32,
    /// Seed of the episode.
    pub seed: u64,
}

/// A step of a group of environments.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Inputs `[count, seats, numbers]`, as raw values of the parts.
    pub inputs: &'a [f32],
    /// 1 for each environment that takes the step.
    pub active: &'a [u8],
}

/// The answer of a group of environments to a step. Entries of environments that took none are ignored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answered {
    /// Observations `[count, seats, observation_size]`.
    pub observations: Vec<f32>,
    /// Reward terms `[count, seats, terms]`.
    pub rewards: Vec<f32>,
    /// `[count]`: 1 for an end by the rules, 2 for an end by a limit of the world, 3 for both.
    pub flags: Vec<u8>,
    /// Action masks `[count, seats, mask_size]`; empty for a world without them. Those of episodes that end are ignored.
    pub masks: Vec<u8>,
}

/// The answer of a group of environments to a reset.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Begun {
    /// First observations of the episodes, `[begins, seats, observation_size]`.
    pub observations: Vec<f32>,
    /// Action masks `[begins, seats, mask_size]`; empty for a world without them.
    pub masks: Vec<u8>,
}

/// Processes that step worlds. A group is opened with a number, which later calls name.
pub trait Worker: Send + Sync {
    /// Divides this many environments among the processes, for groups that are opened later.
    fn divide(&self, _count: usize) {}

    /// Opens environments `first..first + count`.
    fn open(&self, group: u64, first: u64, count: usize) -> Result<()>;

    /// Begins episodes.
    fn reset(&self, group: u64, begins: &[Begin]) -> Result<Begun>;

    /// Steps the active environments of a group.
    fn step(&self, group: u64, asked: Asked<'_>) -> Result<Answered>;

    /// The state of each environment of a group as bytes; empty for one that cannot be stored.
    fn save(&self, group: u64) -> Result<Vec<Vec<u8>>>;

    /// Restores states; returns whether each environment has taken its own.
    fn restore(&self, group: u64, states: Vec<Vec<u8>>) -> Result<Vec<bool>>;

    /// Forgets a group. Waits for nothing.
    fn close(&self, group: u64);
}

/// A world and the processes that step it.
pub struct Host {
    spec: HostSpec,
    pub(crate) worker: Box<dyn Worker>,
    groups: AtomicU64,
}

impl Host {
    /// A host.
    ///
    /// # Errors
    /// `OutOfRange` or `Mismatch` for an impossible description.
    pub fn new(spec: HostSpec, worker: Box<dyn Worker>) -> Result<Arc<Self>> {
        spec.check()?;
        Ok(Arc::new(Host { spec, worker, groups: AtomicU64::default() }))
    }

    /// The description of the world.
    pub fn spec(&self) -> &HostSpec {
        &self.spec
    }

    /// Divides this many environments, those of all groups together, among the processes.
    pub fn divide(&self, count: usize) {
        self.worker.divide(count);
    }

    /// A number for a new group.
    pub(crate) fn group(&self) -> u64 {
        self.groups.fetch_add(1, Ordering::Relaxed)
    }
}

impl HostSpec {
    /// Entries in the action mask of a seat; 0 for a world without masks.
    pub fn mask_size(&self) -> usize {
        let sizes = self.inputs.iter().map(|part| part.kind.mask_size());
        if self.masks { sizes.sum() } else { 0 }
    }

    fn check(&self) -> Result<()> {
        let within = |name: &str, value: usize, max: usize| match (1..=max).contains(&value) {
            true => Ok(()),
            false => Err(Error::out_of_range(name, value as f64, 1.0, max as f64)),
        };
        within("observation_size", self.observation_size, 1 << 20)?;
        within("time_limit", self.time_limit as usize, 1 << 24)?;
        within("reward_terms", self.reward_terms.len(), 64)?;
        within("parts of an input", self.inputs.len(), 64)?;
        within("seats", self.seats, 2)?;
        match self.masks && self.mask_size() == 0 {
            true => Err(Error::mismatch("input with masks", "a choice, an axis or flags", "none")),
            false => Ok(()),
        }
    }
}

impl PartialEq for Host {
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("spec", &self.spec).finish_non_exhaustive()
    }
}
