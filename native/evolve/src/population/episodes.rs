//! Whole episodes of all individuals, each in an environment of its own.

use sconce_env::{Autoreset, EnvOptions, EnvSpec, Envs, Stepped, spec};
use sconce_nn::head::Chance;
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::HeadKind;
use sconce_tensor::rng::Rng;
use sconce_tensor::simd::LANES;
use sconce_tensor::{Error, Result, memory, pool};
use serde::{Deserialize, Serialize};

use super::kernel::Lanes;
use super::stored::SHARD;
use super::{Network, Population, gather};
use crate::stop::{Stop, go_on, never};

/// Most episodes of an individual in one call.
const MOST_EPISODES: u32 = 1 << 16;
/// Most measures of an individual.
const MOST_MEASURES: usize = 64;

/// Episodes of a call.
#[derive(Debug, Clone, Deserialize)]
pub struct Episodes {
    /// The environments. The count and the treatment of ends are those of the call.
    pub env: EnvOptions,
    /// Episodes of each individual, one after the other.
    pub episodes: u32,
    /// Whether all individuals begin in the same states.
    pub same_starts: bool,
    /// The measures of an individual.
    pub measures: Vec<Measure>,
}

/// A number that says what an individual did: a mean over its episodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// A number of the last observation of an episode.
    Final(usize),
    /// A number of the observations, averaged over the decisions of all episodes.
    Observation(usize),
    /// A number of the inputs, averaged over all decisions.
    Input(usize),
    /// Steps of an episode.
    Length,
}

/// The results of episodes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Evaluated {
    /// Mean return of an individual's episodes, `[count]`.
    pub returns: Vec<f64>,
    /// `[count, measures]`.
    pub measures: Vec<f64>,
    /// Decisions of all individuals.
    pub decisions: u64,
}

impl Episodes {
    /// Checks the options for policies of a network.
    ///
    /// # Errors
    /// Those of [`spec`]; `OutOfRange` for numbers out of range; `Mismatch` for an environment with two players and no
    /// opponent, for one whose rules are not native, and for policies of other observations or inputs.
    pub fn check(&self, network: &Network) -> Result<EnvSpec> {
        if self.env.host.is_some() {
            let name = &self.env.env;
            return Err(Error::mismatch("environment", "one with native rules", name));
        }
        let spec = spec(&EnvOptions { count: 1, ..self.env.clone() })?;
        if !(1..=MOST_EPISODES).contains(&self.episodes) {
            let (value, most) = (self.episodes.into(), MOST_EPISODES.into());
            return Err(Error::out_of_range("episodes", value, 1.0, most));
        }
        if self.measures.len() > MOST_MEASURES {
            let (count, most) = (self.measures.len() as f64, MOST_MEASURES as f64);
            return Err(Error::out_of_range("measures (number)", count, 0.0, most));
        }
        if spec.seats > 1 {
            return Err(Error::mismatch("opponent", "a scripted one", "none"));
        }
        spec.check_policy(network.spec())?;
        for measure in &self.measures {
            let (at, count) = match measure {
                Measure::Final(at) | Measure::Observation(at) => (*at, spec.observation_size),
                Measure::Input(at) => (*at, spec.labels()),
                Measure::Length => continue,
            };
            if at >= count {
                let (at, last) = (at as f64, count as f64 - 1.0);
                return Err(Error::out_of_range("index of a measure", at, 0.0, last));
            }
        }
        Ok(spec)
    }
}

/// The part of [`Evaluated`] of one shard.
struct Part<'a> {
    returns: &'a mut [f64],
    measures: &'a mut [f64],
    outcome: &'a mut Result<u64>,
}

impl Population {
    /// Plays episodes. An individual chooses the most likely action; a number of it that is not finite counts as 0.
    /// Results do not depend on the number of threads. On a card one launch plays all episodes.
    ///
    /// # Errors
    /// Those of [`Episodes::check`]; on a card `Unavailable` for an environment whose rules run on CPUs only.
    pub fn episodes(&self, options: &Episodes) -> Result<Evaluated> {
        self.episodes_until(options, &never)
    }

    /// [`episodes`](Self::episodes) that end early if `stop` says so. It is asked at each step of a few individuals, and
    /// on a card before the launch.
    ///
    /// # Errors
    /// Those of `episodes`, and `Cancelled`.
    pub fn episodes_until(&self, options: &Episodes, stop: Stop<'_>) -> Result<Evaluated> {
        let spec = options.check(&self.network)?;
        if let Some(resident) = self.resident()? {
            go_on(stop)?;
            return resident.episodes(&self.network, options, &spec.name);
        }
        let width = options.measures.len();
        let shards = self.count.div_ceil(SHARD);
        let mut all = memory::caught(|| {
            Ok(Evaluated {
                returns: memory::repeated(0.0, self.count),
                measures: memory::repeated(0.0, self.count * width),
                decisions: 0,
            })
        })?;
        let mut outcomes: Vec<Result<u64>> = (0..shards).map(|_| Ok(0)).collect();
        let mut measures = all.measures.chunks_mut((SHARD * width).max(1));
        let parts = all.returns.chunks_mut(SHARD).zip(&mut outcomes).map(|(returns, outcome)| {
            Part { returns, measures: measures.next().unwrap_or_default(), outcome }
        });
        pool::hand_out(parts.collect(), |at, part| {
            let Part { returns, measures, outcome } = part;
            let first = at * SHARD;
            *outcome = Game::new(self, options, &spec, first, returns.len())
                .and_then(|mut game| game.play(returns, measures, stop));
        });
        for outcome in outcomes {
            all.decisions += outcome?;
        }
        Ok(all)
    }
}

/// The episodes of a shard of individuals.
struct Game<'a> {
    population: &'a Population,
    options: &'a Episodes,
    /// The first individual.
    first: usize,
    envs: Envs,
    observation: usize,
    labels: usize,
    /// `[count, observation]`.
    observations: Vec<f32>,
    /// `[count, labels]`.
    inputs: Vec<f32>,
    /// Episodes that each individual has to finish.
    left: Vec<u32>,
    /// Decisions of each individual.
    decisions: Vec<u32>,
    units: Vec<Lanes>,
}

impl<'a> Game<'a> {
    fn new(
        population: &'a Population,
        options: &'a Episodes,
        spec: &EnvSpec,
        first: usize,
        count: usize,
    ) -> Result<Self> {
        let own = if options.same_starts { 0 } else { first as u64 };
        let envs = Envs::new(&EnvOptions {
            count,
            first: options.env.first.wrapping_add(own),
            alike: options.same_starts,
            autoreset: Autoreset::SameStep,
            ..options.env.clone()
        })?;
        let (observation, labels) = (spec.observation_size, spec.labels());
        Ok(Game {
            population,
            options,
            first,
            envs,
            observation,
            labels,
            observations: vec![0.0; count * observation],
            inputs: vec![0.0; count * labels],
            left: vec![options.episodes; count],
            decisions: vec![0; count],
            units: vec![[0.0; LANES]; population.network.units],
        })
    }

    /// Plays to the end, and returns the number of decisions.
    fn play(&mut self, returns: &mut [f64], measures: &mut [f64], stop: Stop<'_>) -> Result<u64> {
        let count = self.left.len();
        let (mut rewards, mut terminated, mut truncated) =
            (vec![0.0; count], vec![0; count], vec![0; count]);
        let (mut ended, mut finals) = (vec![], vec![]);
        self.envs.observe(&mut self.observations);
        let mut running = count;
        while running > 0 {
            go_on(stop)?;
            self.decide();
            self.note(measures);
            self.envs.step(
                &self.inputs,
                &mut Stepped {
                    observations: &mut self.observations,
                    rewards: &mut rewards,
                    terminated: &mut terminated,
                    truncated: &mut truncated,
                    ended: &mut ended,
                    final_observations: &mut finals,
                },
            )?;
            let own = returns.iter_mut().zip(&mut self.decisions).zip(&self.left).zip(&rewards);
            for (((sum, decisions), left), reward) in own {
                if *left > 0 {
                    *sum += f64::from(*reward);
                    *decisions += 1;
                }
            }
            for (env, seen) in ended.iter().zip(finals.chunks_exact(self.observation)) {
                running -= usize::from(self.end(*env as usize, seen, measures));
            }
        }
        self.average(returns, measures);
        Ok(self.decisions.iter().map(|n| u64::from(*n)).sum())
    }

    /// Writes the inputs of all individuals that have episodes left.
    fn decide(&mut self) {
        let network = &self.population.network;
        let (observation, labels) = (self.observation, self.labels);
        let blocks = self.inputs.chunks_mut(LANES * labels).zip(self.left.chunks(LANES));
        let observations = self.observations.chunks(LANES * observation);
        for (block, ((inputs, left), seen)) in blocks.zip(observations).enumerate() {
            if left.iter().all(|left| *left == 0) {
                continue;
            }
            gather(seen, observation, &mut self.units);
            let at = self.first / LANES + block;
            self.population.stored.forward(network, at, &mut self.units);
            choose(network, &self.units[network.logits.clone()], inputs, labels);
        }
    }

    /// Adds observations and inputs to the measures that are averages over decisions.
    fn note(&self, measures: &mut [f64]) {
        let width = self.options.measures.len();
        for (column, measure) in self.options.measures.iter().enumerate() {
            let (numbers, stride, at) = match measure {
                Measure::Observation(at) => (&self.observations, self.observation, *at),
                Measure::Input(at) => (&self.inputs, self.labels, *at),
                Measure::Final(_) | Measure::Length => continue,
            };
            let rows = measures.chunks_exact_mut(width).zip(numbers.chunks_exact(stride));
            for ((row, numbers), left) in rows.zip(&self.left) {
                if *left > 0 {
                    row[column] += f64::from(numbers[at]);
                }
            }
        }
    }

    /// Ends an episode with its last observation. Returns whether it was the last one of the individual.
    fn end(&mut self, env: usize, seen: &[f32], measures: &mut [f64]) -> bool {
        if self.left[env] == 0 {
            return false;
        }
        self.left[env] -= 1;
        let width = self.options.measures.len();
        for (column, measure) in self.options.measures.iter().enumerate() {
            if let Measure::Final(at) = measure {
                measures[env * width + column] += f64::from(seen[*at]);
            }
        }
        self.left[env] == 0
    }

    /// Turns sums into means.
    fn average(&self, returns: &mut [f64], measures: &mut [f64]) {
        let episodes = f64::from(self.options.episodes);
        returns.iter_mut().for_each(|sum| *sum /= episodes);
        let width = self.options.measures.len().max(1);
        for (row, decisions) in measures.chunks_exact_mut(width).zip(&self.decisions) {
            let decisions = f64::from(*decisions);
            for (sum, measure) in row.iter_mut().zip(&self.options.measures) {
                *sum = match measure {
                    Measure::Final(_) => *sum / episodes,
                    Measure::Observation(_) | Measure::Input(_) => *sum / decisions,
                    Measure::Length => decisions / episodes,
                };
            }
        }
    }
}

/// Writes the most likely input of each individual of a block.
fn choose(network: &Network, logits: &[Lanes], inputs: &mut [f32], labels: usize) {
    let sampling = Sampling { deterministic: true, ..Sampling::default() };
    // A deterministic choice reads no random number.
    let rng = Rng::new(0, "evolve.episodes", 0);
    for (kind, logit, label) in network.heads() {
        let logits = &logits[logit..][..kind.logits()];
        if let HeadKind::Categorical(_) = kind {
            let best = largest(logits);
            let rows = inputs.chunks_exact_mut(labels).zip(best);
            rows.for_each(|(input, class)| input[label] = class);
            continue;
        }
        let mut own = vec![0.0; logits.len()];
        for (lane, input) in inputs.chunks_exact_mut(labels).enumerate() {
            own.iter_mut().zip(logits).for_each(|(v, logit)| *v = logit[lane]);
            let chance = Chance { sampling: &sampling, rng: &rng, index: 0, held: None };
            let chosen = &mut input[label..][..kind.labels()];
            kind.choose(&own, &chance, chosen);
            chosen.iter_mut().filter(|v| !v.is_finite()).for_each(|v| *v = 0.0);
        }
    }
}

/// The first class with the largest logit in each lane.
fn largest(logits: &[Lanes]) -> Lanes {
    let mut best = logits.first().copied().unwrap_or_default();
    let mut class = [0.0; LANES];
    for (at, logits) in logits.iter().enumerate().skip(1) {
        for i in 0..LANES {
            let is_larger = logits[i] > best[i];
            class[i] = if is_larger { at as f32 } else { class[i] };
            best[i] = if is_larger { logits[i] } else { best[i] };
        }
    }
    class
}
