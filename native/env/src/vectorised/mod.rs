//! Many environments of one world that take their steps together.

mod autoreset;
mod card;
mod inputs;
mod kernel;
mod options;
mod shard;
mod snapshot;

use sconce_tensor::rng::Rng;
use sconce_tensor::simd::LANES;
use sconce_tensor::{Error, Result, pool};

pub use autoreset::Autoreset;
pub use card::{CardEnvs, CardStep, TERMINATED, rules_for_a_card};
pub(crate) use inputs::{Label, check};
pub(crate) use kernel::Kernel;
pub use options::{EnvOptions, EnvSpec, names, spec};
pub use snapshot::EnvSnapshot;

use crate::worlds::World;
use kernel::Rules;
pub(crate) use shard::push;
use shard::{BLOCKS, Buffers, Counters, ENVS, Lanes, Log, Memory, Shard, status};

/// Bound on each number of a state that a caller sets. Angles within it are reduced precisely.
const MAX_STATE: f32 = 8192.0;

/// A finished episode of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Episode {
    /// The environment.
    pub env: u32,
    /// The seat in the environment.
    pub seat: u32,
    /// The sum of the rewards.
    pub ret: f32,
    /// The number of steps of the world.
    pub length: u32,
    /// Whether the rules of the world ended the episode. Otherwise its time limit did.
    pub terminated: bool,
}

/// The buffers that a step fills.
///
/// # Shapes
/// `observations: [rows, observation_size]`; `rewards`, `terminated` and `truncated`: `[rows]`.
#[derive(Debug)]
pub struct Stepped<'a> {
    /// The observations after the step and after resets in the same step.
    pub observations: &'a mut [f32],
    /// The rewards.
    pub rewards: &'a mut [f32],
    /// 1 where the rules of the world ended the episode.
    pub terminated: &'a mut [u8],
    /// 1 where the time limit was reached. Both flags may be 1.
    pub truncated: &'a mut [u8],
    /// The rows whose episode ended in this step, ascending. Replaces the contents.
    pub ended: &'a mut Vec<u32>,
    /// The observations `[ended, observation_size]` after the step and before any reset. Replaces the contents.
    pub final_observations: &'a mut Vec<f32>,
}

/// Environments of one world. Environment `i` depends on the seed and on `i` alone: neither on the number of
/// environments nor on the number of threads.
pub struct Envs {
    options: EnvOptions,
    spec: EnvSpec,
    world: &'static World,
    rules: Rules,
    labels: Vec<Label>,
    /// The seed of the last reset.
    seed: u64,
    /// `[blocks, state]`.
    state: Vec<Lanes<f32>>,
    /// `[blocks]`.
    counters: Vec<Counters>,
    /// `[rows, observation_size]`, or empty without stacking.
    stack: Vec<f32>,
    /// One per shard.
    logs: Vec<Log>,
}

impl Envs {
    /// Creates the environments and begins their first episodes.
    ///
    /// # Errors
    /// Those of [`spec`].
    pub fn new(options: &EnvOptions) -> Result<Self> {
        let (world, rules, spec) = options.resolve()?;
        let blocks = options.count.div_ceil(LANES);
        let rows = options.count * spec.seats;
        let live = |block| options.count - block * LANES;
        let mut envs = Envs {
            labels: Label::all(&spec.inputs),
            seed: options.seed,
            state: vec![Lanes([0.0; LANES]); blocks * world.kernel.state],
            counters: (0..blocks).map(|block| Counters::new(live(block))).collect(),
            stack: vec![
                0.0;
                if options.frame_stack > 1 { rows * spec.observation_size } else { 0 }
            ],
            logs: (0..blocks.div_ceil(BLOCKS)).map(|_| Log::default()).collect(),
            options: options.clone(),
            spec,
            world,
            rules,
        };
        let mut first = vec![0.0; rows * envs.spec.observation_size];
        envs.reset(None, &mut first)?;
        Ok(envs)
    }

    /// The description of the world.
    pub fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    /// The options.
    pub fn options(&self) -> &EnvOptions {
        &self.options
    }

    /// Number of rows of inputs and observations: `row = env * seats + seat`.
    pub fn rows(&self) -> usize {
        self.options.count * self.spec.seats
    }

    /// Begins an episode in every environment: the first one of a seed, or the next one. Writes observations
    /// `[rows, observation_size]`.
    ///
    /// # Errors
    /// `Mismatch` for a wrong length.
    pub fn reset(&mut self, seed: Option<u64>, out: &mut [f32]) -> Result<()> {
        fits("observations", self.rows() * self.spec.observation_size, out.len())?;
        if let Some(seed) = seed {
            self.seed_with(seed);
            self.counters.iter_mut().for_each(|counters| counters.episodes.0 = [0; LANES]);
        }
        self.reset_where(|_| true, out);
        Ok(())
    }

    /// Begins the next episode in the environments of `mask: [count]`. Writes the observations of all rows.
    ///
    /// # Errors
    /// `Mismatch` for a wrong length.
    pub fn reset_rows(&mut self, mask: &[bool], out: &mut [f32]) -> Result<()> {
        fits("mask", self.options.count, mask.len())?;
        fits("observations", self.rows() * self.spec.observation_size, out.len())?;
        self.observe(out);
        self.reset_where(|env| mask[env], out);
        Ok(())
    }

    /// Steps all environments with inputs `[rows, labels]`: the index of a class, or the number itself. Worlds clip
    /// numbers to their range.
    ///
    /// # Errors
    /// `OutOfRange` for an input that is no class or not finite, `Mismatch` for a wrong length and, with
    /// [`Autoreset::Disabled`], for an environment whose episode has ended. Nothing has changed after an error.
    pub fn step(&mut self, inputs: &[f32], out: &mut Stepped<'_>) -> Result<()> {
        self.check_step(inputs, out)?;
        out.ended.clear();
        out.final_observations.clear();
        let kernel = &self.world.kernel;
        let (step, parallel) = (kernel.step, self.options.count >= kernel.parallel);
        let buffers = Buffers {
            inputs,
            labels: self.labels.len(),
            observations: out.observations,
            rewards: out.rewards,
            terminated: out.terminated,
            truncated: out.truncated,
        };
        let (shards, rules) = self.shards(buffers);
        let work = |_, mut shard: Shard<'_>| step(&mut shard, rules);
        match parallel {
            true => pool::hand_out(shards, work),
            false => shards.into_iter().for_each(|shard| work(0, shard)),
        }
        for log in &self.logs {
            out.ended.extend_from_slice(&log.ended);
            out.final_observations.extend_from_slice(&log.finals);
        }
        Ok(())
    }

    /// Writes the observations of all rows, `[rows, observation_size]`. Writes nothing if the length is wrong.
    pub fn observe(&self, out: &mut [f32]) {
        if out.len() != self.rows() * self.spec.observation_size {
            return;
        }
        if !self.stack.is_empty() {
            return out.copy_from_slice(&self.stack);
        }
        let (seats, width) = (self.spec.seats, self.spec.observation_size);
        let mut state = vec![0.0; self.world.kernel.state];
        for (env, rows) in out.chunks_exact_mut(seats * width).enumerate() {
            self.read_state(env, &mut state);
            for (seat, row) in rows.chunks_exact_mut(width).enumerate() {
                (self.world.kernel.observe)(&state, seat, row);
            }
        }
    }

    /// The full state of the world in an environment; empty if there is no such environment.
    pub fn state(&self, env: usize) -> Vec<f32> {
        let mut state = vec![0.0; self.world.kernel.state];
        match env < self.options.count {
            true => self.read_state(env, &mut state),
            false => state.clear(),
        }
        state
    }

    /// Sets the full state of the world in an environment. Counters stay; stacked observations become copies of the new
    /// one.
    ///
    /// # Errors
    /// `OutOfRange` for an unknown environment and for numbers beyond +-8192, `Mismatch` for a wrong length.
    pub fn set_state(&mut self, env: usize, state: &[f32]) -> Result<()> {
        if env >= self.options.count {
            let last = self.options.count as f64 - 1.0;
            return Err(Error::out_of_range("environment", env as f64, 0.0, last));
        }
        let kernel = self.world.kernel;
        fits("state", kernel.state, state.len())?;
        check_numbers("state", state.iter(), MAX_STATE)?;
        self.write_state(env, state);
        if !self.stack.is_empty() {
            let (seats, width) = (self.spec.seats, self.spec.observation_size);
            let mut seen = vec![0.0; kernel.observation];
            for seat in 0..seats {
                (kernel.observe)(state, seat, &mut seen);
                push(&mut self.stack[(env * seats + seat) * width..][..width], &seen, true);
            }
        }
        Ok(())
    }

    /// Moves the finished episodes to `take`, in order of environment, then of time. Between two calls at most 16,384
    /// episodes of each 1,024 environments are kept; later ones are dropped.
    pub fn episodes(&mut self, take: &mut Vec<Episode>) {
        for (i, log) in self.logs.iter_mut().enumerate() {
            log.take_episodes(i * ENVS, take);
        }
    }

    /// The sum of each unweighted reward term of seat 0 in all environments since the last call.
    pub fn take_terms(&mut self) -> Vec<f64> {
        let mut sums = vec![0.0; self.spec.reward_terms.len()];
        for log in &mut self.logs {
            for (sum, term) in sums.iter_mut().zip(std::mem::take(&mut log.terms)) {
                *sum += term;
            }
        }
        sums
    }

    fn seed_with(&mut self, seed: u64) {
        self.seed = seed;
        self.rules.starts = Rng::new(seed, "env.start", 0);
        self.rules.moves = Rng::new(seed, "env.opponent", 0);
    }

    /// Begins the next episode where `chosen` says so, and writes the observations of these rows.
    fn reset_where(&mut self, chosen: impl Fn(usize) -> bool, out: &mut [f32]) {
        let reset = self.world.kernel.reset;
        let (shards, rules) = self.shards(Buffers::only(out));
        for mut shard in shards {
            let envs = 0..shard.envs();
            let envs: Vec<u32> =
                envs.filter(|env| chosen(shard.first + env)).map(|env| env as u32).collect();
            reset(&mut shard, rules, &envs);
        }
    }

    fn check_step(&self, inputs: &[f32], out: &Stepped<'_>) -> Result<()> {
        let rows = self.rows();
        fits("inputs", rows * self.labels.len(), inputs.len())?;
        fits("observations", rows * self.spec.observation_size, out.observations.len())?;
        fits("rewards", rows, out.rewards.len())?;
        fits("terminated", rows, out.terminated.len())?;
        fits("truncated", rows, out.truncated.len())?;
        if self.options.autoreset == Autoreset::Disabled {
            let ended =
                |env: &usize| self.counters[env / LANES].status.0[env % LANES] == status::ENDED;
            if let Some(env) = (0..self.options.count).find(ended) {
                let what = format!("environment {env}");
                return Err(Error::mismatch(what, "a running episode", "one that has ended"));
            }
        }
        check(&self.labels, inputs)
    }

    /// Cuts the environments and the buffers of a call into shards.
    fn shards<'a>(&'a mut self, buffers: Buffers<'a>) -> (Vec<Shard<'a>>, &'a Rules) {
        let width = self.spec.observation_size;
        let memory = Memory {
            state: &mut self.state,
            counters: &mut self.counters,
            stack: &mut self.stack,
            logs: &mut self.logs,
        };
        (shard::cut(memory, buffers, self.spec.seats, width, self.options.count), &self.rules)
    }

    fn read_state(&self, env: usize, out: &mut [f32]) {
        let lanes = &self.state[env / LANES * out.len()..][..out.len()];
        for (value, lanes) in out.iter_mut().zip(lanes) {
            *value = lanes.0[env % LANES];
        }
    }

    fn write_state(&mut self, env: usize, state: &[f32]) {
        let lanes = &mut self.state[env / LANES * state.len()..][..state.len()];
        for (lanes, value) in lanes.iter_mut().zip(state) {
            lanes.0[env % LANES] = *value;
        }
    }
}

fn fits(what: &str, expected: usize, got: usize) -> Result<()> {
    match expected == got {
        true => Ok(()),
        false => Err(Error::mismatch(what, expected, got)),
    }
}

/// Checks that numbers lie in `-max..=max`.
fn check_numbers<'a>(
    what: &str,
    mut numbers: impl Iterator<Item = &'a f32>,
    max: f32,
) -> Result<()> {
    match numbers.find(|v| !(-max..=max).contains(*v)) {
        None => Ok(()),
        Some(value) => {
            let max = f64::from(max);
            Err(Error::out_of_range(what, f64::from(*value), -max, max))
        }
    }
}
