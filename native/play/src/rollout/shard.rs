//! Some environments, which one thread plays at a time.

use std::sync::Arc;

use sconce_env::{EnvOptions, Normaliser, Stepped};
use sconce_nn::Policy;
use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::{Decision, NONE};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_tensor::Result;
use sconce_tensor::rng::Rng;

use super::Rollout;
use super::actor::{Actor, Desk};
use super::arena::Arena;
use super::frames::{Outcome, embedded};
use crate::heads::Choosing;
use crate::segment::{Heard, Segment};

/// Some environments, played by one thread at a time.
pub(crate) struct Shard {
    pub(crate) envs: Arena,
    /// Index of the first row among the rows of all shards.
    pub(crate) first: usize,
    /// Present observations, `[rows, observation_size]`.
    pub(crate) observations: Vec<f32>,
    /// Previous actions, `[rows, num_labels]`.
    pub(crate) previous: Vec<f32>,
    pub(crate) memory: State,
    pub(crate) outcome: Outcome,
    /// Statistics of the observations since they were last taken, if they are wanted.
    pub(super) observed: Option<Normaliser>,
    pub(super) teachers: Vec<Listener>,
    desk: Desk,
}

/// A teacher that reads the observations of a shard.
pub(super) struct Listener {
    policy: Arc<Policy>,
    pub(super) memory: State,
}

/// A policy at play, and what all shards of a rollout share.
pub(super) struct Play<'a> {
    pub policy: &'a Policy,
    /// The policy as it chooses actions.
    pub actor: Actor<'a>,
    pub heads: Choosing,
    pub rollout: Rollout,
    /// Random numbers of the choices.
    pub rng: Rng,
    /// Steps of each row before the rollout.
    pub before: u64,
    /// Number of rows of all shards.
    pub rows: u64,
}

impl Shard {
    /// Environments for a policy, with opponents in all but the share `self_play` of them if there is one.
    pub(super) fn new(
        options: &EnvOptions,
        first: usize,
        policy: &Policy,
        self_play: Option<f64>,
    ) -> Result<Self> {
        let envs = Arena::new(options, self_play)?;
        let rows = envs.rows();
        let mut observations = vec![0.0; rows * envs.spec().observation_size];
        envs.observe(&mut observations);
        let previous = vec![NONE; rows * policy.spec().heads.num_labels()];
        let (memory, outcome) = (policy.zero_state(rows)?, Outcome::default());
        Ok(Shard {
            envs,
            first,
            observations,
            previous,
            memory,
            outcome,
            observed: None,
            teachers: vec![],
            desk: Desk::default(),
        })
    }

    /// Lets a teacher read all observations from now on.
    pub(super) fn teach(&mut self, teacher: &Arc<Policy>) -> Result<()> {
        let (policy, memory) = (teacher.clone(), teacher.zero_state(self.envs.rows())?);
        self.teachers.push(Listener { policy, memory });
        Ok(())
    }

    /// Plays a rollout.
    pub(super) fn play(&mut self, play: &Play<'_>) -> Result<Segment> {
        let Rollout { steps, stride } = play.rollout;
        let mut segment = Segment::new(play.policy.spec(), self.envs.rows(), steps, stride);
        segment.heard = vec![Heard::default(); self.teachers.len()];
        for t in 0..steps {
            self.step(play, t, &mut segment)?;
        }
        self.bootstrap(play, &mut segment)?;
        Ok(segment)
    }

    /// Decides, steps the environments, and records both.
    fn step(&mut self, play: &Play<'_>, t: usize, segment: &mut Segment) -> Result<()> {
        let (rows, policy) = (self.envs.rows(), play.policy);
        let from = (play.before + t as u64) * play.rows + self.first as u64;
        let rngs: Vec<Rng> = (0..rows as u64).map(|row| play.rng.at(from + row)).collect();
        let masks = self.envs.masks();
        let mask = (!masks.is_empty()).then_some(&*masks);
        let draw = Draw { sampling: &Sampling::default(), rngs: &rngs, given: None, mask };
        if t.is_multiple_of(segment.stride) && !self.memory.0.is_empty() {
            segment.states.push(self.memory.clone());
        }
        if let Some(observed) = &mut self.observed {
            observed.update(&self.observations)?;
        }
        let frames = embedded(policy, &self.observations, &self.previous)?;
        let (decision, memory) = play.actor.act(&frames, &self.memory, draw, &mut self.desk)?;
        self.memory = memory;
        record(segment, t, &frames, &decision, &play.heads);
        segment.mask.extend_from_slice(&masks);
        self.listen(play, t, &frames, segment)?;
        let own = t * rows..(t + 1) * rows;
        let Outcome { ended, final_observations } = &mut self.outcome;
        self.envs.step(
            &decision.choices,
            &mut Stepped {
                observations: &mut self.observations,
                rewards: &mut segment.rewards[own.clone()],
                terminated: &mut segment.terminated[own.clone()],
                truncated: &mut segment.truncated[own.clone()],
                ended,
                final_observations,
            },
        )?;
        self.previous = decision.choices;
        self.value_ends(play, own.start, segment)?;
        self.begin_episodes(policy)
    }

    /// Records what each teacher sees, unless it sees the learner's frames, and steps its memory.
    fn listen(
        &mut self,
        play: &Play<'_>,
        t: usize,
        frames: &Frames,
        segment: &mut Segment,
    ) -> Result<()> {
        for (i, Listener { policy, memory }) in self.teachers.iter_mut().enumerate() {
            let heard = &mut segment.heard[i];
            let own = match policy.spec().embedding == play.policy.spec().embedding {
                true => None,
                false => Some(embedded(policy, &self.observations, &self.previous)?),
            };
            if let Some(own) = &own {
                heard.seen.extend_from_slice(&own.continuous);
            }
            if memory.0.is_empty() {
                continue;
            }
            if t.is_multiple_of(segment.stride) {
                heard.states.push(memory.clone());
            }
            *memory = policy.trunk(own.as_ref().unwrap_or(frames), memory, &Context::default())?.1;
        }
        Ok(())
    }

    /// Records the value after each episode that a limit has cut.
    fn value_ends(&self, play: &Play<'_>, at: usize, segment: &mut Segment) -> Result<()> {
        let (width, labels) = (self.envs.spec().observation_size, play.heads.num_labels);
        let Outcome { ended, final_observations } = &self.outcome;
        let (mut rows, mut observations, mut previous) = (vec![], vec![], vec![]);
        for (row, observation) in ended.iter().zip(final_observations.chunks_exact(width)) {
            if segment.terminated[at + *row as usize] == 0 {
                rows.push(*row);
                observations.extend_from_slice(observation);
                previous.extend_from_slice(&self.previous[*row as usize * labels..][..labels]);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let memory = self.memory.picked(&rows)?;
        let values = values(play, &observations, &previous, &memory)?;
        for (row, value) in rows.iter().zip(values) {
            segment.next_values[at + *row as usize] = value;
        }
        Ok(())
    }

    /// Clears memory and previous action of the rows whose episode has ended.
    pub(crate) fn begin_episodes(&mut self, policy: &Policy) -> Result<()> {
        if self.outcome.ended.is_empty() {
            return Ok(());
        }
        let labels = policy.spec().heads.num_labels();
        let mut fresh = vec![false; self.envs.rows()];
        for &row in &self.outcome.ended {
            fresh[row as usize] = true;
            self.previous[row as usize * labels..][..labels].fill(NONE);
        }
        renew(&mut self.memory, policy, &fresh)?;
        let mut teachers = self.teachers.iter_mut();
        teachers.try_for_each(|Listener { policy, memory }| renew(memory, policy, &fresh))
    }

    /// Records the value after each step: that of the next step, or after the last step that of the present frame.
    /// Values at ends are already recorded.
    fn bootstrap(&self, play: &Play<'_>, segment: &mut Segment) -> Result<()> {
        let last = values(play, &self.observations, &self.previous, &self.memory)?;
        let rows = segment.rows;
        for at in 0..segment.frames() {
            if segment.terminated[at] == 0 && segment.truncated[at] == 0 {
                let next = segment.values.get(at + rows);
                segment.next_values[at] = *next.unwrap_or(&last[at % rows]);
            }
        }
        Ok(())
    }
}

/// Clears the memories of the rows that are fresh.
fn renew(memory: &mut State, policy: &Policy, fresh: &[bool]) -> Result<()> {
    if !memory.0.is_empty() {
        *memory = memory.renewed(&policy.zero_state(fresh.len())?, fresh)?;
    }
    Ok(())
}

/// Values of observations.
fn values(
    play: &Play<'_>,
    observations: &[f32],
    previous: &[f32],
    memory: &State,
) -> Result<Vec<f32>> {
    let frames = embedded(play.policy, observations, previous)?;
    // Autoregressive heads need a choice, which is not used.
    let sampling = Sampling { deterministic: true, ..Sampling::default() };
    let rngs = vec![Rng::new(0, "play.value", 0); frames.batch];
    let draw = Draw { sampling: &sampling, rngs: &rngs, given: None, mask: None };
    let context = Context::default().forgetting();
    let (decision, _) = play.policy.act(&frames, memory, draw, &context)?;
    let logits = decision.logits.chunks_exact(play.heads.num_logits);
    Ok(logits.map(|row| row[play.heads.value]).collect())
}

/// Records the frames and the decisions of step `t`.
fn record(segment: &mut Segment, t: usize, frames: &Frames, decision: &Decision, heads: &Choosing) {
    put(&mut segment.continuous, t, &frames.continuous);
    put(&mut segment.ids, t, &frames.ids);
    put(&mut segment.previous, t, &frames.previous);
    put(&mut segment.labels, t, &decision.choices);
    let logits = decision.logits.chunks_exact(heads.num_logits);
    let labels = decision.choices.chunks_exact(heads.num_labels);
    for (row, (logits, labels)) in logits.zip(labels).enumerate() {
        let at = t * segment.rows + row;
        segment.values[at] = logits[heads.value];
        segment.log_likelihoods[at] = -heads.nll(logits, labels) as f32;
    }
}

fn put<T: Copy>(column: &mut [T], t: usize, step: &[T]) {
    column[t * step.len()..(t + 1) * step.len()].copy_from_slice(step);
}
