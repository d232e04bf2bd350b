//! The environments of a shard as the learner sees them: frozen opponents play the rows that are not its own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use sconce_env::{EnvOptions, EnvSpec, Episode, Numbers, Stepped, VectorEnv};
use sconce_nn::sampling::Sampling;
use sconce_tensor::rng::Rng;
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result};

use super::frames::Outcome;
use super::seated::{Frozen, Seated, Seen};

/// Returns up to this magnitude are draws: sums of weighted rewards may have rounding errors.
const DRAW: f32 = 1e-4;

/// Number of a member of a league.
pub type MemberId = u32;

/// A finished episode against a member: 1 for a win of the learner, 0.5 for a draw, 0 for a loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Match {
    /// The opponent.
    pub member: MemberId,
    /// The learner's score.
    pub score: f64,
}

/// The learner's score in an episode with this return.
pub(crate) fn score(ret: f32) -> f64 {
    match ret {
        ret if ret > DRAW => 1.0,
        ret if ret < -DRAW => 0.0,
        _ => 0.5,
    }
}

/// Environments of which the learner plays some rows, or all without opponents.
pub(crate) struct Arena {
    envs: Box<dyn VectorEnv>,
    opposition: Option<Opposition>,
}

/// The opponents in environments of two seats.
struct Opposition {
    /// The learner's rows, ascending.
    own: Vec<u32>,
    /// The opponent's row of each environment; `None` where the learner plays both.
    other: Vec<Option<u32>>,
    /// The present opponent of each environment with one.
    met: Vec<Option<MemberId>>,
    seated: BTreeMap<MemberId, Seated>,
    /// The opponent of the episodes that begin.
    next: Option<(MemberId, Frozen)>,
    /// Finished episodes against opponents, in the learner's view.
    episodes: Vec<Episode>,
    matches: Vec<Match>,
    /// Random numbers of the opponents.
    rng: Rng,
    /// Index of the first environment among those of all shards.
    first: u64,
    /// Steps so far.
    steps: u64,
    /// Observations in a row.
    frame_stack: usize,
    rows: Rows,
}

/// Inputs and results of all rows.
struct Rows {
    inputs: Vec<f32>,
    observations: Vec<f32>,
    rewards: Vec<f32>,
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    outcome: Outcome,
}

impl Arena {
    /// Environments with opponents in all but the share `self_play` of them, if there is one.
    pub(crate) fn new(options: &EnvOptions, self_play: Option<f64>) -> Result<Self> {
        let envs = sconce_env::open(options)?;
        let opposition =
            self_play.map(|share| Opposition::new(&*envs, options, share)).transpose()?;
        Ok(Arena { envs, opposition })
    }

    /// Number of rows that the learner plays.
    pub(crate) fn rows(&self) -> usize {
        self.opposition.as_ref().map_or(self.envs.rows(), |own| own.own.len())
    }

    pub(crate) fn spec(&self) -> &EnvSpec {
        self.envs.spec()
    }

    /// Number of environments.
    pub(crate) fn count(&self) -> usize {
        self.envs.count()
    }

    pub(crate) fn state(&self, env: usize) -> Vec<f32> {
        self.envs.state(env)
    }

    pub(crate) fn take_terms(&mut self) -> Vec<f64> {
        self.envs.take_terms()
    }

    pub(crate) fn numbers(&self) -> Result<Numbers> {
        self.envs.numbers()
    }

    /// Goes on from a state. Returns the learner's rows that could not, and have begun their next episode instead.
    pub(crate) fn restore(&mut self, numbers: &Numbers) -> Result<Vec<u32>> {
        let begun = self.envs.restore(numbers)?;
        let Some(own) = &mut self.opposition else { return Ok(begun) };
        self.envs.observe(&mut own.rows.observations);
        let at = |row: &u32| own.own.binary_search(row).ok().map(|at| at as u32);
        Ok(begun.iter().filter_map(at).collect())
    }

    /// Writes the present observations of the learner's rows.
    pub(crate) fn observe(&self, out: &mut [f32]) {
        let width = self.envs.spec().observation_size;
        match &self.opposition {
            None => self.envs.observe(out),
            Some(own) => gather(&own.own, &own.rows.observations, width, out),
        }
    }

    /// Action masks of the learner's rows, `[rows, mask_size]`; empty where the environments have none.
    pub(crate) fn masks(&self) -> Cow<'_, [u8]> {
        let (all, size) = (self.envs.masks(), self.envs.spec().mask_size);
        match &self.opposition {
            Some(own) if !all.is_empty() => {
                let mut masks = vec![0; own.own.len() * size];
                gather(&own.own, all, size, &mut masks);
                masks.into()
            }
            _ => all.into(),
        }
    }

    /// Steps with the learner's inputs; the results are those of its rows.
    pub(crate) fn step(&mut self, inputs: &[f32], out: &mut Stepped<'_>) -> Result<()> {
        let _span = trace::span(Kind::Step, "environments");
        match &mut self.opposition {
            None => self.envs.step(inputs, out),
            Some(own) => own.step(&mut *self.envs, inputs, out),
        }
    }

    /// Moves the finished episodes to `take`; with opponents, only those against them.
    pub(crate) fn episodes(&mut self, take: &mut Vec<Episode>) {
        match &mut self.opposition {
            None => self.envs.episodes(take),
            Some(own) => take.append(&mut own.episodes),
        }
    }

    /// Lets the episodes that begin from now on have this opponent.
    pub(crate) fn meet(&mut self, member: MemberId, player: &Frozen) -> Result<()> {
        let Some(own) = &mut self.opposition else { return Ok(()) };
        own.next = Some((member, player.clone()));
        // Before the first step there is no opponent.
        let vacant = own.met.iter().zip(&own.other).filter(|(met, _)| met.is_none());
        let rows: Vec<u32> = vacant.filter_map(|(_, row)| *row).collect();
        own.seat(&rows)
    }

    /// The matches since the last call.
    pub(crate) fn take_matches(&mut self) -> Vec<Match> {
        self.opposition.as_mut().map_or(vec![], |own| std::mem::take(&mut own.matches))
    }

    /// The members that play.
    pub(crate) fn members(&self) -> impl Iterator<Item = MemberId> {
        self.opposition.iter().flat_map(|own| own.seated.keys().copied())
    }

    /// The state of the opponents: their steps, then the member of each environment and their previous actions as
    /// bits, and their memories. `None` without opponents.
    pub(crate) fn opponents(&self) -> Result<Option<Opponents>> {
        let Some(own) = &self.opposition else { return Ok(None) };
        let mut all = Opponents { steps: own.steps, met: own.met(), ..Opponents::default() };
        for seated in own.seated.values() {
            all.previous.extend(seated.previous());
            all.memory.extend(seated.memory()?);
        }
        Ok(Some(all))
    }

    /// The inverse of [`opponents`](Self::opponents).
    ///
    /// # Errors
    /// `NotFound` for a member that is not among `members`, `Mismatch` for the state of other environments, `Corrupt`
    /// for too many numbers.
    pub(crate) fn restore_opponents(
        &mut self,
        saved: &Opponents,
        members: &BTreeMap<MemberId, Frozen>,
    ) -> Result<()> {
        let Some(own) = &mut self.opposition else { return Ok(()) };
        let wanted = own.other.iter().flatten().count();
        if saved.met.len() != wanted {
            return Err(Error::mismatch("environments with an opponent", wanted, saved.met.len()));
        }
        let rows: Vec<u32> = own.other.iter().flatten().copied().collect();
        for member in saved.met.iter().collect::<BTreeSet<_>>() {
            let player = members.get(member);
            let player = player.ok_or_else(|| Error::not_found(format!("opponent {member}")))?;
            own.next = Some((*member, player.clone()));
            let its = rows.iter().zip(&saved.met).filter(|(_, met)| *met == member);
            own.seat(&its.map(|(row, _)| *row).collect::<Vec<_>>())?;
        }
        let (mut previous, mut memory) = (&saved.previous[..], &saved.memory[..]);
        for seated in own.seated.values_mut() {
            seated.restore(&mut previous, &mut memory)?;
        }
        for (what, left) in [("previous actions", previous.len()), ("memories", memory.len())] {
            if left > 0 {
                let reason = format!("{left} numbers are left over");
                return Err(Error::corrupt(format!("{what} of the opponents"), reason));
            }
        }
        own.steps = saved.steps;
        Ok(())
    }
}

/// The state of the opponents of a shard.
#[derive(Debug, Default)]
pub(crate) struct Opponents {
    pub(crate) steps: u64,
    /// The member in each environment with an opponent.
    pub(crate) met: Vec<MemberId>,
    pub(crate) previous: Vec<u32>,
    pub(crate) memory: Vec<f32>,
}

/// Whether the learner plays both seats of an environment. Such environments are spread evenly.
fn is_self_play(env: u64, share: f64) -> bool {
    before(env + 1, share) > before(env, share)
}

/// Environments before `env` in which the learner plays both seats.
fn before(env: u64, share: f64) -> u64 {
    (env as f64 * share) as u64
}

impl Opposition {
    fn new(envs: &dyn VectorEnv, options: &EnvOptions, share: f64) -> Result<Self> {
        let spec = envs.spec();
        if spec.seats != 2 {
            return Err(Error::mismatch("seats of the environment", 2, spec.seats));
        }
        let (mut own, mut other) = (vec![], vec![]);
        for (env, i) in (options.first..).zip(0..options.count as u32) {
            if is_self_play(env, share) {
                own.extend([2 * i, 2 * i + 1]);
                other.push(None);
                continue;
            }
            // The learner's seat alternates among the environments with an opponent.
            let seat = ((env - before(env, share)) % 2) as u32;
            own.push(2 * i + seat);
            other.push(Some(2 * i + 1 - seat));
        }
        let (rows, width) = (envs.rows(), spec.observation_size);
        let mut observations = vec![0.0; rows * width];
        envs.observe(&mut observations);
        Ok(Opposition {
            own,
            met: vec![None; other.len()],
            other,
            seated: BTreeMap::new(),
            next: None,
            episodes: vec![],
            matches: vec![],
            rng: Rng::new(options.seed, "play.opponent", 0),
            first: options.first,
            steps: 0,
            frame_stack: options.frame_stack,
            rows: Rows {
                inputs: vec![0.0; rows * spec.labels()],
                observations,
                rewards: vec![0.0; rows],
                terminated: vec![0; rows],
                truncated: vec![0; rows],
                outcome: Outcome::default(),
            },
        })
    }

    fn met(&self) -> Vec<MemberId> {
        self.met.iter().flatten().copied().collect()
    }

    fn step(
        &mut self,
        envs: &mut dyn VectorEnv,
        inputs: &[f32],
        out: &mut Stepped<'_>,
    ) -> Result<()> {
        self.choose(envs, inputs)?;
        let rows = &mut self.rows;
        envs.step(
            &rows.inputs,
            &mut Stepped {
                observations: &mut rows.observations,
                rewards: &mut rows.rewards,
                terminated: &mut rows.terminated,
                truncated: &mut rows.truncated,
                ended: &mut rows.outcome.ended,
                final_observations: &mut rows.outcome.final_observations,
            },
        )?;
        self.steps += 1;
        self.show(envs.spec().observation_size, out);
        match self.rows.outcome.ended.is_empty() {
            true => Ok(()),
            false => self.finish(envs),
        }
    }

    /// Fills the inputs of all rows.
    fn choose(&mut self, envs: &dyn VectorEnv, inputs: &[f32]) -> Result<()> {
        let spec = envs.spec();
        let (labels, sampling) = (spec.labels(), Sampling::default());
        for (row, input) in self.own.iter().zip(inputs.chunks_exact(labels.max(1))) {
            self.rows.inputs[*row as usize * labels..][..labels].copy_from_slice(input);
        }
        let at = (self.rng, self.steps << 32 | (2 * self.first));
        let rows = (&self.rows.observations[..], envs.masks());
        let seen = Seen::of(spec, self.frame_stack, rows, &sampling, at);
        self.seated.values_mut().try_for_each(|own| own.act(&seen, &mut self.rows.inputs))
    }

    /// Writes the results of the learner's rows.
    fn show(&self, width: usize, out: &mut Stepped<'_>) {
        let rows = &self.rows;
        gather(&self.own, &rows.observations, width, out.observations);
        gather(&self.own, &rows.rewards, 1, out.rewards);
        gather(&self.own, &rows.terminated, 1, out.terminated);
        gather(&self.own, &rows.truncated, 1, out.truncated);
        out.ended.clear();
        out.final_observations.clear();
        let finals = rows.outcome.final_observations.chunks_exact(width);
        for (row, last) in rows.outcome.ended.iter().zip(finals) {
            if let Ok(own) = self.own.binary_search(row) {
                out.ended.push(own as u32);
                out.final_observations.extend_from_slice(last);
            }
        }
    }

    /// Notes the results of the episodes that ended, and seats the next opponent there.
    fn finish(&mut self, envs: &mut dyn VectorEnv) -> Result<()> {
        let mut ended = vec![];
        envs.episodes(&mut ended);
        let mut vacant = vec![];
        for episode in ended {
            let env = episode.env as usize;
            let Some(row) = self.other[env].filter(|row| row % 2 != episode.seat) else { continue };
            if let Some(member) = self.met[env] {
                self.matches.push(Match { member, score: score(episode.ret) });
            }
            self.episodes.push(episode);
            vacant.push(row);
        }
        vacant.sort_unstable();
        self.seat(&vacant)
    }

    /// Seats the next opponent at these rows, ascending, which others leave.
    fn seat(&mut self, rows: &[u32]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let Some((member, player)) = &self.next else {
            return Err(Error::not_found("an opponent"));
        };
        self.seated.entry(*member).or_insert_with(|| Seated::new(player));
        for (own, seated) in &mut self.seated {
            let joins = if own == member { rows } else { &[] };
            seated.reseat(|row| rows.binary_search(&row).is_ok(), joins)?;
        }
        self.seated.retain(|_, seated| !seated.rows().is_empty());
        for row in rows {
            self.met[*row as usize / 2] = Some(*member);
        }
        Ok(())
    }
}

/// Copies the values of `rows`, `width` each, to `out`.
fn gather<T: Copy>(rows: &[u32], all: &[T], width: usize, out: &mut [T]) {
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(width)) {
        out.copy_from_slice(&all[*row as usize * width..][..width]);
    }
}

#[cfg(test)]
mod tests;
