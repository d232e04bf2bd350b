//! Rollouts: a policy plays in environments, and what happens becomes segments.
//!
//! The environments are cut into shards of a fixed number of rows. Each shard plays all steps of a rollout on its own,
//! on any thread, so results do not depend on the number of threads. Every choice has random numbers of its own, by
//! seed, step and row.

mod actor;
mod arena;
mod card;
mod frames;
mod saved;
mod seated;
mod shard;

use std::collections::BTreeSet;

use sconce_env::{EnvOptions, EnvSpec, Episode, Normaliser};
use sconce_nn::Policy;
use sconce_tensor::rng::Rng;
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result};

pub(crate) use arena::score;
pub use arena::{Match, MemberId};
pub(crate) use frames::{Outcome, embedded};
pub use seated::Frozen;
pub(crate) use seated::{Seated, Seen};
pub(crate) use shard::Shard;

use crate::heads::Choosing;
use crate::learner::Tutor;
use crate::returns::Discounts;
use crate::segment::{CardSegment, Segment};
use crate::side_by_side::side_by_side;
use actor::Actor;
use card::CardPlayer;
use shard::Play;

/// The most shards of a rollout.
const MOST_SHARDS: usize = 16;
/// The fewest rows of a shard: with fewer, its products would be too small.
const FEWEST_ROWS: usize = 16;

/// Number of shards of some environments. It does not depend on the machine.
fn shards(environments: usize) -> usize {
    (environments / FEWEST_ROWS).clamp(1, MOST_SHARDS)
}

/// Environments in which a policy plays, and its memories in them.
pub struct Player {
    pub(crate) shards: Vec<Shard>,
    /// The environments, if they are on a card; then there are no shards.
    card: Option<CardPlayer>,
    spec: EnvSpec,
    seed: u64,
    /// Number of rows of all shards.
    rows: usize,
    /// Steps of each row so far.
    steps: u64,
}

/// How a rollout is played.
#[derive(Debug, Clone, Copy)]
pub struct Rollout {
    /// Steps of each row.
    pub steps: usize,
    /// Steps between two stored memories.
    pub stride: usize,
}

impl Player {
    /// Environments with these options, for policies of `spec`.
    ///
    /// # Errors
    /// `Mismatch` for a Spec that does not fit the environments.
    pub fn new(options: &EnvOptions, policy: &Policy) -> Result<Self> {
        Self::seated(options, policy, None)
    }

    /// Environments of two seats in which frozen opponents play, except for the share `self_play` of them: there the
    /// policy plays both seats. [`meet`](Self::meet) must come before the first rollout.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); `Mismatch` for environments with another number of seats.
    pub fn against(options: &EnvOptions, policy: &Policy, self_play: f64) -> Result<Self> {
        Self::seated(options, policy, Some(self_play))
    }

    fn seated(options: &EnvOptions, policy: &Policy, self_play: Option<f64>) -> Result<Self> {
        let spec = sconce_env::spec(options)?;
        spec.check_policy(policy.spec())?;
        let (count, number) = (options.count, shards(options.count));
        let (mut all, mut rows) = (Vec::with_capacity(number), 0);
        for i in 0..number {
            let (from, to) = (i * count / number, (i + 1) * count / number);
            let first = options.first + from as u64;
            let own = EnvOptions { count: to - from, first, ..options.clone() };
            let shard = Shard::new(&own, rows, policy, self_play)?;
            rows += shard.envs.rows();
            all.push(shard);
        }
        Ok(Player { shards: all, card: None, spec, seed: options.seed, rows, steps: 0 })
    }

    /// A player without environments, for a run whose games are live.
    pub(crate) fn idle(spec: EnvSpec, rows: usize) -> Self {
        Player { shards: vec![], card: None, spec, seed: 0, rows, steps: 0 }
    }

    /// Environments on the card of a policy, for rollouts of `steps` steps. Their games are those of [`new`](Self::new),
    /// up to rounding errors.
    ///
    /// # Errors
    /// `Mismatch` for a Spec that does not fit the environments; `Unavailable` for environments, heads or a policy without
    /// a form on a card.
    pub fn on_card(options: &EnvOptions, policy: &Policy, steps: usize) -> Result<Self> {
        sconce_env::spec(options)?.check_policy(policy.spec())?;
        let card = CardPlayer::new(options, policy, steps)?;
        let (spec, rows, seed) = (card.spec().clone(), card.rows(), options.seed);
        Ok(Player { shards: vec![], card: Some(card), spec, seed, rows, steps: 0 })
    }

    /// Whether the environments are on a card.
    pub fn is_on_card(&self) -> bool {
        self.card.is_some()
    }

    /// Plays a rollout on the card of the environments, and computes its advantages there.
    ///
    /// # Errors
    /// `NotFound` for environments on a CPU; `NonFinite` for a logit, a reward or a value that is not finite.
    pub fn play_on_card(&mut self, policy: &Policy, discounts: Discounts) -> Result<CardSegment> {
        let rng = Rng::new(self.seed, "play.sample", 0);
        let card = self.card.as_mut().ok_or_else(|| Error::not_found("environments on a card"))?;
        let segment = card.play(policy, rng, self.steps, discounts)?;
        self.steps += segment.steps as u64;
        Ok(segment)
    }

    /// The description of the environments.
    pub fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    /// Number of rows that the policy plays side by side.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Steps of all rows so far.
    pub fn steps(&self) -> u64 {
        self.steps * self.rows as u64
    }

    /// Plays a rollout; one segment for each shard.
    ///
    /// # Errors
    /// `Mismatch` for a policy without a value, `NonFinite` for a logit, a value or a memory that is not finite.
    pub fn play(&mut self, policy: &Policy, rollout: Rollout) -> Result<Vec<Segment>> {
        let _span = trace::span(Kind::Step, "rollout");
        let play = Play {
            policy,
            actor: Actor::of(policy)?,
            heads: Choosing::of(&policy.spec().heads)?,
            rollout,
            rng: Rng::new(self.seed, "play.sample", 0),
            before: self.steps,
            rows: self.rows as u64,
        };
        let segments = side_by_side("a segment", &mut self.shards, |shard| shard.play(&play))?;
        self.steps += rollout.steps as u64;
        Ok(segments)
    }

    /// Number of shards, which have an opponent each.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Lets the episodes that begin from now on have these opponents, one for each shard.
    pub fn meet<'a>(
        &mut self,
        opponents: impl Iterator<Item = (MemberId, &'a Frozen)>,
    ) -> Result<()> {
        let mut pairs = self.shards.iter_mut().zip(opponents);
        pairs.try_for_each(|(shard, (member, player))| shard.envs.meet(member, player))
    }

    /// The matches against opponents since the last call.
    pub fn take_matches(&mut self) -> Vec<Match> {
        self.shards.iter_mut().flat_map(|shard| shard.envs.take_matches()).collect()
    }

    /// The members that play in an environment.
    pub fn members(&self) -> BTreeSet<MemberId> {
        self.shards.iter().flat_map(|shard| shard.envs.members()).collect()
    }

    /// The episodes that ended since the last call, by environment; with opponents, only those against them. Of
    /// environments on a card these are the last ones, and the second number is that of the others.
    pub fn episodes(&mut self) -> (Vec<Episode>, u64) {
        let mut all = vec![];
        self.shards.iter_mut().for_each(|shard| shard.envs.episodes(&mut all));
        let others = self.card.as_mut().map_or(0, |card| card.episodes(&mut all));
        (all, others)
    }

    /// Lets a further teacher read all observations from now on.
    ///
    /// # Errors
    /// `Unavailable` for one whose frames are not plain vectors, `Mismatch` for one of other observations.
    pub fn teach(&mut self, Tutor { policy, name, .. }: &Tutor) -> Result<()> {
        let embedding = &policy.spec().embedding;
        if embedding.num_ids() > 0 {
            let reason = "its frames are not plain vectors".into();
            return Err(Error::Unavailable { what: name.clone(), reason });
        }
        let (reads, shows) = (embedding.raw_width(), self.spec.observation_size);
        if reads != shows {
            return Err(Error::mismatch(format!("observation of {name}"), shows, reads));
        }
        self.shards.iter_mut().try_for_each(|shard| shard.teach(policy))
    }

    /// Keeps statistics of all observations from now on.
    pub fn observe(&mut self) {
        let width = self.spec.observation_size;
        self.shards.iter_mut().for_each(|shard| shard.observed = Some(Normaliser::new(width)));
    }

    /// Whether statistics of all observations are kept.
    pub(crate) fn observes(&self) -> bool {
        self.shards.iter().any(|shard| shard.observed.is_some())
    }

    /// Statistics of the observations since the last call, if they are [kept](Self::observe).
    ///
    /// # Errors
    /// Those of [`Normaliser::add`].
    pub fn take_observed(&mut self) -> Result<Normaliser> {
        let mut all = Normaliser::new(self.spec.observation_size);
        for shard in &mut self.shards {
            if let Some(own) = &mut shard.observed {
                all.add(&std::mem::replace(own, Normaliser::new(all.width())))?;
            }
        }
        Ok(all)
    }

    /// Sums of each reward term since the last call.
    ///
    /// # Errors
    /// Those of a copy from a card.
    pub fn take_terms(&mut self) -> Result<Vec<f64>> {
        if let Some(card) = &mut self.card {
            return card.take_terms();
        }
        let mut all = vec![0.0; self.spec.reward_terms.len()];
        for shard in &mut self.shards {
            all.iter_mut().zip(shard.envs.take_terms()).for_each(|(sum, own)| *sum += own);
        }
        Ok(all)
    }
}
