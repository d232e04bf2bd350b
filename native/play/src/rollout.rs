//! Rollouts: a policy plays in environments, and what happens becomes segments.
//!
//! The environments are cut into shards of a fixed number of rows. Each shard plays all steps of a rollout on its own,
//! on any thread, so results do not depend on the number of threads. Every choice has random numbers of its own, by
//! seed, step and row.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use sconce_env::{EnvOptions, EnvSnapshot, EnvSpec, Envs, Episode, Normaliser, Stepped};
use sconce_nn::Policy;
use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::{Decision, NONE};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{HeadKind, Heads, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, pool};

use crate::segment::Segment;

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
    spec: EnvSpec,
    seed: u64,
    /// Number of rows of all shards.
    rows: usize,
    /// Steps of each row so far.
    steps: u64,
}

/// Some environments, played by one thread at a time.
pub(crate) struct Shard {
    pub(crate) envs: Envs,
    /// Index of the first row among the rows of all shards.
    pub(crate) first: usize,
    /// Present observations, `[rows, observation_size]`.
    pub(crate) observations: Vec<f32>,
    /// Previous actions, `[rows, num_labels]`.
    pub(crate) previous: Vec<f32>,
    pub(crate) memory: State,
    pub(crate) outcome: Outcome,
    /// Statistics of the observations since they were last taken, if they are wanted.
    observed: Option<Normaliser>,
    teacher: Option<Listener>,
}

/// A teacher that reads the observations of a shard.
struct Listener {
    policy: Arc<Policy>,
    memory: State,
}

/// Outputs of a step of the environments.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) ended: Vec<u32>,
    pub(crate) final_observations: Vec<f32>,
}

/// The state of a player as arrays by name, from which it goes on with the same bits. A whole number is stored as its
/// two halves of 16 bits, which f32 represents exactly.
pub type PlayerNumbers = BTreeMap<String, Vec<f32>>;

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
        let spec = sconce_env::spec(options)?;
        fits(policy.spec(), &spec)?;
        let (count, number) = (options.count, shards(options.count));
        let (mut all, mut rows) = (Vec::with_capacity(number), 0);
        for i in 0..number {
            let (from, to) = (i * count / number, (i + 1) * count / number);
            let first = options.first + from as u64;
            let own = EnvOptions { count: to - from, first, ..options.clone() };
            let shard = Shard::new(&own, rows, policy)?;
            rows += shard.envs.rows();
            all.push(shard);
        }
        Ok(Player { shards: all, spec, seed: options.seed, rows, steps: 0 })
    }

    /// The description of the environments.
    pub fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    /// Number of rows, which play side by side.
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
    /// `NonFinite` for a logit, a value or a memory that is not finite.
    pub fn play(&mut self, policy: &Policy, rollout: Rollout) -> Result<Vec<Segment>> {
        let (seed, rows, before) = (self.seed, self.rows as u64, self.steps);
        let rng = Rng::new(seed, "play.sample", 0);
        let results: Vec<OnceLock<Result<Segment>>> =
            self.shards.iter().map(|_| OnceLock::new()).collect();
        pool::for_each_rows(&mut self.shards, 1, 1, |i, shard| {
            let played = pool::serial(|| shard[0].play(policy, rollout, [before, rows], rng));
            let _ = results[i].set(played);
        });
        let missing = || Err(Error::not_found("a segment"));
        let segments = results.into_iter().map(|cell| cell.into_inner().unwrap_or_else(missing));
        let segments = segments.collect::<Result<Vec<_>>>()?;
        self.steps += rollout.steps as u64;
        Ok(segments)
    }

    /// The episodes that ended since the last call, by environment.
    pub fn episodes(&mut self) -> Vec<Episode> {
        let mut all = vec![];
        self.shards.iter_mut().for_each(|shard| shard.envs.episodes(&mut all));
        all
    }

    /// Lets a teacher read all observations from now on.
    ///
    /// # Errors
    /// `Mismatch` for a teacher of other observations.
    pub fn teach(&mut self, teacher: &Arc<Policy>) -> Result<()> {
        let (reads, shows) = (teacher.spec().embedding.raw_width(), self.spec.observation_size);
        if reads != shows {
            return Err(Error::mismatch("observation of the teacher", shows, reads));
        }
        for shard in &mut self.shards {
            let (policy, memory) = (teacher.clone(), teacher.zero_state(shard.envs.rows())?);
            shard.teacher = Some(Listener { policy, memory });
        }
        Ok(())
    }

    /// Keeps statistics of all observations from now on.
    pub fn observe(&mut self) {
        let width = self.spec.observation_size;
        self.shards.iter_mut().for_each(|shard| shard.observed = Some(Normaliser::new(width)));
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
    pub fn take_terms(&mut self) -> Vec<f64> {
        let mut all = vec![0.0; self.spec.reward_terms.len()];
        for shard in &mut self.shards {
            all.iter_mut().zip(shard.envs.take_terms()).for_each(|(sum, own)| *sum += own);
        }
        all
    }

    /// Copies the state of the player.
    pub fn numbers(&self) -> Result<PlayerNumbers> {
        let mut all = PlayerNumbers::from([("steps".into(), halves(&words(self.steps)))]);
        for (i, shard) in self.shards.iter().enumerate() {
            let own = shard.numbers()?.into_iter();
            all.extend(own.map(|(name, numbers)| (format!("{i}.{name}"), numbers)));
        }
        Ok(all)
    }

    /// Goes on from the state of a player with the same options.
    ///
    /// # Errors
    /// `NotFound` or `Mismatch` for the state of other environments.
    pub fn restore(&mut self, numbers: &PlayerNumbers) -> Result<()> {
        for (i, shard) in self.shards.iter_mut().enumerate() {
            shard.restore(|name| taken(numbers, &format!("{i}.{name}")))?;
        }
        match wholes(taken(numbers, "steps")?)?[..] {
            [low, high] => self.steps = u64::from(high) << 32 | u64::from(low),
            _ => return Err(Error::corrupt("steps of a player", "not two words")),
        }
        Ok(())
    }
}

fn taken<'a>(numbers: &'a PlayerNumbers, name: &str) -> Result<&'a [f32]> {
    let own = numbers.get(name).map(Vec::as_slice);
    own.ok_or_else(|| Error::not_found(format!("{name} of a player")))
}

fn words(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// Both halves of each number.
fn halves(numbers: &[u32]) -> Vec<f32> {
    numbers.iter().flat_map(|n| [(n & 0xFFFF) as f32, (n >> 16) as f32]).collect()
}

/// The inverse of [`halves`].
fn wholes(halves: &[f32]) -> Result<Vec<u32>> {
    let (pairs, rest) = halves.as_chunks::<2>();
    let whole = |half: &f32| (0.0..65_536.0).contains(half) && half.fract() == 0.0;
    if !rest.is_empty() || !halves.iter().all(whole) {
        return Err(Error::corrupt("numbers of a player", "not halves of whole numbers"));
    }
    Ok(pairs.iter().map(|[low, high]| *low as u32 | (*high as u32) << 16).collect())
}

/// Returns an error unless policies of `spec` can play in these environments.
fn fits(spec: &Spec, env: &EnvSpec) -> Result<()> {
    let (reads, shows) = (spec.embedding.raw_width(), env.observation_size);
    if reads != shows {
        return Err(Error::mismatch("observation of the policy", shows, reads));
    }
    let wanted = Heads::of_parts(&env.inputs, spec.heads.kind);
    let kinds = |heads: &Heads| heads.choosing().map(|head| head.kind).collect::<Vec<_>>();
    let (wanted, got) = (kinds(&wanted), kinds(&spec.heads));
    if wanted != got {
        let (wanted, got) = (format!("{wanted:?}"), format!("{got:?}"));
        return Err(Error::mismatch("heads of the policy", wanted, got));
    }
    Ok(())
}

/// Index of the value among the logits of a row.
pub(crate) fn value_of(heads: &Heads) -> Result<usize> {
    let value = heads.iter().find(|part| matches!(part.head.kind, HeadKind::Value(_)));
    let without = || Error::mismatch("heads", "a value (value_head: true)", "none");
    Ok(value.ok_or_else(without)?.logits)
}

/// Log-likelihood of a row's action, in nats.
pub(crate) fn log_likelihood(heads: &Heads, logits: &[f32], labels: &[f32]) -> f64 {
    let of_part = |part: sconce_nn::spec::Part<'_>| {
        let kind = part.head.kind;
        let own = &labels[part.labels..part.labels + kind.labels()];
        -kind.nll(&logits[part.logits..part.logits + kind.logits()], own)
    };
    heads.iter().filter(|part| part.head.kind.labels() > 0).map(of_part).sum()
}

impl Shard {
    fn new(options: &EnvOptions, first: usize, policy: &Policy) -> Result<Self> {
        let mut envs = Envs::new(options)?;
        let rows = envs.rows();
        let mut observations = vec![0.0; rows * envs.spec().observation_size];
        envs.reset(None, &mut observations)?;
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
            teacher: None,
        })
    }

    fn numbers(&self) -> Result<PlayerNumbers> {
        let EnvSnapshot { env: _, seed, states, steps, episodes, ended, returns, stack } =
            self.envs.snapshot();
        let all = [
            ("seed", halves(&words(seed))),
            ("states", states),
            ("steps", halves(&steps)),
            ("episodes", halves(&episodes)),
            ("ended", halves(&ended)),
            ("returns", returns),
            ("stack", stack),
            ("observations", self.observations.clone()),
            // A missing action is no finite number.
            ("previous", halves(&self.previous.iter().map(|v| v.to_bits()).collect::<Vec<_>>())),
            ("memory", self.memory.to_vec()?),
            ("teacher", self.teacher.as_ref().map_or(Ok(vec![]), |own| own.memory.to_vec())?),
        ];
        Ok(all.into_iter().map(|(name, numbers)| (name.to_string(), numbers)).collect())
    }

    fn restore<'n>(&mut self, saved: impl Fn(&str) -> Result<&'n [f32]>) -> Result<()> {
        let [low, high] = wholes(saved("seed")?)?[..] else {
            return Err(Error::corrupt("seed of a player", "not two words"));
        };
        let observations = saved("observations")?;
        let previous: Vec<f32> =
            wholes(saved("previous")?)?.into_iter().map(f32::from_bits).collect();
        for (what, own, other) in [
            ("observations", self.observations.len(), observations.len()),
            ("previous actions", self.previous.len(), previous.len()),
        ] {
            if own != other {
                return Err(Error::mismatch(what, own, other));
            }
        }
        self.envs.restore(&EnvSnapshot {
            env: self.envs.spec().name.into(),
            seed: u64::from(high) << 32 | u64::from(low),
            states: saved("states")?.to_vec(),
            steps: wholes(saved("steps")?)?,
            episodes: wholes(saved("episodes")?)?,
            ended: wholes(saved("ended")?)?,
            returns: saved("returns")?.to_vec(),
            stack: saved("stack")?.to_vec(),
        })?;
        self.memory = self.memory.with_values(saved("memory")?)?;
        if let Some(teacher) = &mut self.teacher {
            teacher.memory = teacher.memory.with_values(saved("teacher")?)?;
        }
        self.observations.copy_from_slice(observations);
        self.previous = previous;
        Ok(())
    }

    fn play(
        &mut self,
        policy: &Policy,
        rollout: Rollout,
        [before, all_rows]: [u64; 2],
        rng: Rng,
    ) -> Result<Segment> {
        let rows = self.envs.rows();
        let mut segment = Segment::new(policy.spec(), rows, rollout.steps, rollout.stride);
        let sampling = Sampling::default();
        for t in 0..rollout.steps {
            let from = (before + t as u64) * all_rows + self.first as u64;
            let rngs: Vec<Rng> = (0..rows as u64).map(|row| rng.at(from + row)).collect();
            let draw = Draw { sampling: &sampling, rngs: &rngs, given: None };
            self.step(policy, draw, t, &mut segment)?;
        }
        self.bootstrap(policy, &mut segment)?;
        Ok(segment)
    }

    /// Decides, steps the environments, and records both.
    fn step(
        &mut self,
        policy: &Policy,
        draw: Draw<'_>,
        t: usize,
        segment: &mut Segment,
    ) -> Result<()> {
        let (rows, heads) = (self.envs.rows(), &policy.spec().heads);
        if t.is_multiple_of(segment.stride) && !self.memory.0.is_empty() {
            segment.states.push(self.memory.clone());
        }
        if let Some(observed) = &mut self.observed {
            observed.update(&self.observations)?;
        }
        let frames = embedded(policy, &self.observations, &self.previous)?;
        let (decision, memory) = policy.act(&frames, &self.memory, draw, &Context::default())?;
        self.memory = memory;
        record(segment, t, &frames, &decision, heads)?;
        self.listen(t, segment)?;
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
        self.value_ends(policy, own.start, segment)?;
        self.begin_episodes(policy)
    }

    /// Records what the teacher sees, and steps its memory.
    fn listen(&mut self, t: usize, segment: &mut Segment) -> Result<()> {
        let Some(Listener { policy, memory }) = &mut self.teacher else { return Ok(()) };
        let frames = embedded(policy, &self.observations, &self.previous)?;
        segment.seen.extend_from_slice(&frames.continuous);
        if memory.0.is_empty() {
            return Ok(());
        }
        if t.is_multiple_of(segment.stride) {
            segment.teacher_states.push(memory.clone());
        }
        *memory = policy.trunk(&frames, memory, &Context::default())?.1;
        Ok(())
    }

    /// Records the value after each episode that a limit has cut.
    fn value_ends(&self, policy: &Policy, at: usize, segment: &mut Segment) -> Result<()> {
        let (width, labels) = (self.envs.spec().observation_size, policy.spec().heads.num_labels());
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
        let values = values(policy, &observations, &previous, &memory)?;
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
        let (rows, labels) = (self.envs.rows(), policy.spec().heads.num_labels());
        for &row in &self.outcome.ended {
            self.previous[row as usize * labels..][..labels].fill(NONE);
        }
        if !self.memory.0.is_empty() {
            let mut fresh = vec![false; rows];
            self.outcome.ended.iter().for_each(|row| fresh[*row as usize] = true);
            self.memory = self.memory.renewed(&policy.zero_state(rows)?, &fresh)?;
        }
        if let Some(Listener { policy, memory }) = &mut self.teacher
            && !memory.0.is_empty()
        {
            let mut fresh = vec![false; rows];
            self.outcome.ended.iter().for_each(|row| fresh[*row as usize] = true);
            *memory = memory.renewed(&policy.zero_state(rows)?, &fresh)?;
        }
        Ok(())
    }

    /// Records the value after each step: that of the next step, or after the last step that of the present frame.
    /// Values at ends are already recorded.
    fn bootstrap(&self, policy: &Policy, segment: &mut Segment) -> Result<()> {
        let last = values(policy, &self.observations, &self.previous, &self.memory)?;
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

/// Observations as a batch of windows of one frame.
pub(crate) fn embedded(policy: &Policy, observations: &[f32], previous: &[f32]) -> Result<Frames> {
    let embedding = &policy.spec().embedding;
    let raw = embedding.raw_width().max(1);
    let (width, ids, n) =
        (embedding.continuous_width(), embedding.num_ids(), observations.len() / raw);
    let mut frames = Frames {
        batch: n,
        time: 1,
        continuous: vec![0.0; n * width],
        ids: vec![0; n * ids],
        previous: previous.to_vec(),
    };
    for (i, observation) in observations.chunks_exact(raw).enumerate() {
        let continuous = &mut frames.continuous[i * width..(i + 1) * width];
        embedding.embed(observation, true, continuous, &mut frames.ids[i * ids..(i + 1) * ids])?;
    }
    Ok(frames)
}

/// Values of observations.
fn values(
    policy: &Policy,
    observations: &[f32],
    previous: &[f32],
    memory: &State,
) -> Result<Vec<f32>> {
    let frames = embedded(policy, observations, previous)?;
    // Autoregressive heads need a choice, which is not used.
    let sampling = Sampling { deterministic: true, ..Sampling::default() };
    let rngs = vec![Rng::new(0, "play.value", 0); frames.batch];
    let draw = Draw { sampling: &sampling, rngs: &rngs, given: None };
    let context = Context::default().forgetting();
    let (decision, _) = policy.act(&frames, memory, draw, &context)?;
    let heads = &policy.spec().heads;
    let (value, width) = (value_of(heads)?, heads.num_logits());
    Ok(decision.logits.chunks_exact(width).map(|row| row[value]).collect())
}

/// Records the frames and the decisions of step `t`.
fn record(
    segment: &mut Segment,
    t: usize,
    frames: &Frames,
    decision: &Decision,
    heads: &Heads,
) -> Result<()> {
    let (rows, value) = (segment.rows, value_of(heads)?);
    put(&mut segment.continuous, t, &frames.continuous);
    put(&mut segment.ids, t, &frames.ids);
    put(&mut segment.previous, t, &frames.previous);
    put(&mut segment.labels, t, &decision.choices);
    let logits = decision.logits.chunks_exact(heads.num_logits());
    let labels = decision.choices.chunks_exact(heads.num_labels());
    for (row, (logits, labels)) in logits.zip(labels).enumerate() {
        let at = t * rows + row;
        segment.values[at] = logits[value];
        segment.log_likelihoods[at] = log_likelihood(heads, logits, labels) as f32;
    }
    Ok(())
}

fn put<T: Copy>(column: &mut [T], t: usize, step: &[T]) {
    column[t * step.len()..(t + 1) * step.len()].copy_from_slice(step);
}
