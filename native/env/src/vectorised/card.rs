//! Environments whose states stay on a card, by `environments.cu`.

use sconce_cuda::kernels::ENVIRONMENTS;
use sconce_tensor::device::launch::{Launch, overwrite};
use sconce_tensor::{Device, Error, Result, Tensor};

use super::autoreset::Autoreset;
use super::{EnvOptions, EnvSnapshot, EnvSpec, Envs, fits};
use crate::worlds::World;

/// Threads of a block.
const THREADS: usize = 128;

/// Marks the length of an episode that the rules of the world ended.
pub const TERMINATED: u32 = 1 << 31;

/// Environments whose states stay on a card. They have the rules and the random numbers of [`Envs`]: from the same
/// states and inputs they go on as those do, up to rounding errors. An environment whose episode ends begins the next
/// one in the same step.
pub struct CardEnvs {
    /// Checks options and states, and makes the first states.
    host: Envs,
    /// The options as the kernel reads them.
    rules: Tensor,
    /// `[state, count]`.
    states: Tensor,
    /// Steps of the running episodes, then numbers of begun episodes, u32 `[2, count]`.
    counters: Tensor,
    /// Sums of rewards of the running episodes, `[count]`.
    returns: Tensor,
    /// Sums of the unweighted reward terms since they were last taken, f64 `[count, terms]`.
    terms: Tensor,
}

/// The columns that a step on a card reads and fills, for all rows.
#[derive(Debug)]
pub struct CardStep<'a> {
    /// Inputs, `[rows, labels]`: classes and numbers.
    pub inputs: &'a Tensor,
    /// The observations that the inputs answer, `[rows, observation_size]`.
    pub before: &'a Tensor,
    /// The observations after the step and after resets in the same step, `[rows, observation_size]`.
    pub after: &'a Tensor,
    /// The last observation of each row whose episode ended, `[rows, observation_size]`. Other rows are not written.
    pub finals: &'a Tensor,
    /// Rewards, `[rows]`.
    pub rewards: &'a Tensor,
    /// u32 `[rows]`: 1 where the rules of the world ended the episode, plus 2 where the time limit was reached.
    pub ends: &'a Tensor,
    /// Column [`at`](Self::at) gets the lengths of the episodes that ended, plus [`TERMINATED`] for those that the rules
    /// of the world ended; 0 for others. u32 `[count, steps]`.
    pub lengths: &'a Tensor,
    /// Column [`at`](Self::at) gets the returns of seat 0 so far, `[count, steps]`.
    pub returns: &'a Tensor,
    /// Column of `lengths` and `returns`.
    pub at: usize,
}

impl CardEnvs {
    /// Creates the environments on a card and begins their first episodes.
    ///
    /// # Errors
    /// Those of [`spec`](super::spec); `Unavailable` for rules that are not native, and for another
    /// [`Autoreset`] than `SameStep`.
    pub fn new(options: &EnvOptions, device: &Device) -> Result<Self> {
        if options.autoreset != Autoreset::SameStep {
            return Err(not_native(format!("autoreset {:?}", options.autoreset)));
        }
        let host = with_rules_of_a_card(options)?;
        let (count, terms) = (options.count, host.spec.reward_terms.len());
        let (states, counters, returns) = placed(&host, device)?;
        let terms = Tensor::from_vec(vec![0f64; count * terms], (count, terms), device)?;
        let words = host.words_for_a_card()?;
        let rules = Tensor::from_slice(&words, words.len(), device)?;
        Ok(CardEnvs { host, rules, states, counters, returns, terms })
    }

    /// The description of the world.
    pub fn spec(&self) -> &EnvSpec {
        &self.host.spec
    }

    /// Number of environments.
    pub fn count(&self) -> usize {
        self.host.options.count
    }

    /// Number of rows of inputs and observations: `row = env * seats + seat`.
    pub fn rows(&self) -> usize {
        self.host.rows()
    }

    /// The observations `[rows, observation_size]` of the states that were created or restored last.
    pub fn first_observations(&self) -> Vec<f32> {
        let mut all = vec![0.0; self.rows() * self.spec().observation_size];
        self.host.observe(&mut all);
        all
    }

    /// Launches a step of all environments. The inputs are classes and finite numbers.
    ///
    /// # Errors
    /// `Mismatch` for a tensor of another size; those of a launch.
    pub fn step(&mut self, of: &CardStep<'_>) -> Result<()> {
        let (rows, count, spec) = (self.rows(), self.count(), self.spec());
        let (seen, steps) = (rows * spec.observation_size, of.lengths.elem_count() / count.max(1));
        for (what, expected, got) in [
            ("inputs", rows * spec.labels(), of.inputs),
            ("observations", seen, of.before),
            ("observations", seen, of.after),
            ("final observations", seen, of.finals),
            ("rewards", rows, of.rewards),
            ("ends", rows, of.ends),
            ("lengths", count * steps, of.lengths),
            ("returns", count * steps, of.returns),
        ] {
            fits(what, expected, got.elem_count())?;
        }
        if of.at >= steps {
            return Err(Error::out_of_range("step", of.at as f64, 0.0, steps as f64 - 1.0));
        }
        let kernel = format!("env_step_{}", self.host.world.name);
        let launch = Launch::of(ENVIRONMENTS, &kernel, &self.states)?.tensor(&self.states)?;
        let launch = launch.tensor(&self.counters)?.tensor(&self.returns)?.tensor(&self.terms)?;
        let launch = launch.tensor(of.inputs)?.tensor(of.before)?.tensor(of.after)?;
        let launch = launch.tensor(of.finals)?.tensor(of.rewards)?.tensor(of.ends)?;
        let launch = launch.tensor(of.lengths)?.tensor(of.returns)?.tensor(&self.rules)?;
        let launch = launch.long(count).int(of.at).int(steps);
        // SAFETY: a thread for each environment, and columns of the sizes that environments.cu requires.
        Ok(unsafe { launch.run([count.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?)
    }

    /// The sum of each unweighted reward term of seat 0 in all environments since the last call.
    ///
    /// # Errors
    /// Those of a copy from the card.
    pub fn take_terms(&mut self) -> Result<Vec<f64>> {
        let sums = self.terms.sum(0)?.to_vec1()?;
        overwrite(&self.terms, &vec![0f64; self.terms.elem_count()])?;
        Ok(sums)
    }

    /// Copies the state of all environments from the card. `observations` are those of all rows, which a stack is part
    /// of.
    ///
    /// # Errors
    /// Those of a copy from the card.
    pub fn snapshot(&self, observations: &[f32]) -> Result<EnvSnapshot> {
        let count = self.count();
        let states: Vec<Vec<f32>> = self.states.to_vec2()?;
        let counters: Vec<u32> = self.counters.flatten_all()?.to_vec1()?;
        let (steps, episodes) = counters.split_at(count);
        let stacked = self.host.options.frame_stack > 1;
        Ok(EnvSnapshot {
            env: self.spec().name.to_string(),
            seed: self.host.seed,
            states: (0..count).flat_map(|env| states.iter().map(move |of| of[env])).collect(),
            steps: steps.to_vec(),
            episodes: episodes.to_vec(),
            ended: vec![0; count],
            returns: self.returns.to_vec1()?,
            stack: if stacked { observations.to_vec() } else { vec![] },
        })
    }

    /// Restores a snapshot of environments with the same options, on a card or not.
    ///
    /// # Errors
    /// Those of [`Envs::restore`]; `Unavailable` for an environment that waits for a reset.
    pub fn restore(&mut self, snapshot: &EnvSnapshot) -> Result<()> {
        if snapshot.ended.iter().any(|ended| *ended != 0) {
            let what = "an environment that waits for a reset".into();
            let reason = "a card resets it in the step that ends its episode".into();
            return Err(Error::Unavailable { what, reason });
        }
        self.host.restore(snapshot)?;
        let device = self.states.device().clone();
        (self.states, self.counters, self.returns) = placed(&self.host, &device)?;
        Ok(overwrite(&self.rules, &self.host.words_for_a_card()?)?)
    }
}

fn not_native(what: String) -> Error {
    let reason = "a card has the native worlds, reset in the same step".into();
    Error::Unavailable { what: format!("{what} on a card"), reason }
}

/// Environments of a world that `environments.cu` has.
fn with_rules_of_a_card(options: &EnvOptions) -> Result<Envs> {
    if let Some(host) = &options.host {
        return Err(not_native(format!("environment {}", host.spec().name)));
    }
    let host = Envs::new(options)?;
    if !host.world.kernel.on_card {
        let what = format!("environment {} on a card", host.world.name);
        return Err(Error::Unavailable { what, reason: "its rules run on CPUs only".into() });
    }
    Ok(host)
}

/// The options of environments as `rules.cuh` has them, in words of 64 bits.
///
/// # Errors
/// Those of [`spec`](super::spec); `Unavailable` for rules that are not native or run on CPUs only.
pub fn rules_for_a_card(options: &EnvOptions) -> Result<Vec<i64>> {
    with_rules_of_a_card(&EnvOptions { count: 1, ..options.clone() })?.words_for_a_card()
}

/// States, counters and returns of environments, on a card.
fn placed(host: &Envs, device: &Device) -> Result<(Tensor, Tensor, Tensor)> {
    let EnvSnapshot { states, steps, episodes, returns, .. } = host.snapshot();
    let (count, size) = (steps.len(), host.world.kernel.state);
    let states: Vec<f32> =
        (0..size).flat_map(|i| states.chunks_exact(size).map(move |state| state[i])).collect();
    Ok((
        Tensor::from_vec(states, (size, count), device)?,
        Tensor::from_vec([steps, episodes].concat(), (2, count), device)?,
        Tensor::from_vec(returns, count, device)?,
    ))
}

impl Envs {
    /// The options as the kernel of a card reads them, in words of 64 bits.
    ///
    /// # Errors
    /// `NotFound` for an unknown opponent.
    pub fn words_for_a_card(&self) -> Result<Vec<i64>> {
        let (rules, options) = (&self.rules, &self.options);
        let opponent = options.opponent.as_deref().map(|name| self.world.place_of(name));
        let opponent = opponent.transpose()?.map_or(u32::MAX, |place| place as u32);
        let [start0, start1, ..] = rules.starts.words();
        let [move0, move1, ..] = rules.moves.words();
        let weights = rules.weights.map(f32::to_bits);
        let pairs = [
            [weights[0], weights[1]],
            [weights[2], weights[3]],
            [rules.limit, rules.repeat],
            [start0, start1],
            [move0, move1],
            [rules.first as u32, (rules.first >> 32) as u32],
            [opponent, options.frame_stack as u32],
        ];
        Ok(pairs.map(|[low, high]| (u64::from(high) << 32 | u64::from(low)) as i64).to_vec())
    }
}

impl World {
    /// The place of a scripted player in the world's list, by which a card knows it.
    fn place_of(&self, name: &str) -> Result<usize> {
        self.player(name)?;
        let place = self.players.iter().position(|(player, _)| *player == name);
        place.ok_or_else(|| Error::not_found(format!("opponent {name:?}")))
    }
}
