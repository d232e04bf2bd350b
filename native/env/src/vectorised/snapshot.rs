//! The state of all environments as plain numbers.

use std::ops::Range;

use sconce_tensor::simd::LANES;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use super::Envs;
use super::shard::status;
use crate::numbers::Numbers;

/// The state of [`Envs`]. Environments that are restored from it continue with the same bits. Episodes and sums of
/// reward terms that the caller has not taken are not part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvSnapshot {
    /// Name of the world.
    pub env: String,
    /// The seed of the last reset.
    pub seed: u64,
    /// States of the world, `[count, state]`.
    pub states: Vec<f32>,
    /// Steps of the running episodes, `[count]`.
    pub steps: Vec<u32>,
    /// Numbers of begun episodes, `[count]`.
    pub episodes: Vec<u32>,
    /// 1 for an episode that has ended and waits for a reset, `[count]`.
    pub ended: Vec<u32>,
    /// Sums of rewards of the running episodes, `[count]`.
    pub returns: Vec<f32>,
    /// Stacked observations, `[rows, observation_size]`, or empty without stacking.
    pub stack: Vec<f32>,
}

impl From<EnvSnapshot> for Numbers {
    fn from(snapshot: EnvSnapshot) -> Self {
        let EnvSnapshot { env: _, seed, states, steps, episodes, ended, returns, stack } = snapshot;
        let mut all = Numbers::default();
        all.put_word("seed", seed);
        for (name, words) in [("steps", steps), ("episodes", episodes), ("ended", ended)] {
            all.put_words(name, &words);
        }
        for (name, numbers) in [("states", states), ("returns", returns), ("stack", stack)] {
            all.put(name, numbers);
        }
        all
    }
}

impl EnvSnapshot {
    /// The inverse of the conversion to [`Numbers`], for environments of the world `env`.
    ///
    /// # Errors
    /// `NotFound` or `Corrupt` for other numbers.
    pub fn of(env: &str, numbers: &Numbers) -> Result<Self> {
        Ok(EnvSnapshot {
            env: env.into(),
            seed: numbers.word("seed")?,
            states: numbers.get("states")?.to_vec(),
            steps: numbers.words("steps")?,
            episodes: numbers.words("episodes")?,
            ended: numbers.words("ended")?,
            returns: numbers.get("returns")?.to_vec(),
            stack: numbers.get("stack")?.to_vec(),
        })
    }

    /// The state of some of the environments.
    #[must_use]
    pub fn part(&self, envs: Range<usize>) -> Self {
        EnvSnapshot {
            env: self.env.clone(),
            seed: self.seed,
            states: self.of_envs(&self.states, &envs),
            steps: self.of_envs(&self.steps, &envs),
            episodes: self.of_envs(&self.episodes, &envs),
            ended: self.of_envs(&self.ended, &envs),
            returns: self.of_envs(&self.returns, &envs),
            stack: self.of_envs(&self.stack, &envs),
        }
    }

    fn of_envs<T: Copy>(&self, column: &[T], envs: &Range<usize>) -> Vec<T> {
        let width = column.len() / self.steps.len().max(1);
        column[envs.start * width..envs.end * width].to_vec()
    }

    /// The state of environments of which these are the parts, in order.
    #[must_use]
    pub fn joined(parts: Vec<Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or_default();
        for part in parts {
            all.states.extend(part.states);
            all.steps.extend(part.steps);
            all.episodes.extend(part.episodes);
            all.ended.extend(part.ended);
            all.returns.extend(part.returns);
            all.stack.extend(part.stack);
        }
        all
    }
}

impl Envs {
    /// Copies the state of all environments.
    pub fn snapshot(&self) -> EnvSnapshot {
        let mut snapshot = EnvSnapshot {
            env: self.spec.name.to_string(),
            seed: self.seed,
            stack: self.stack.clone(),
            ..EnvSnapshot::default()
        };
        for env in 0..self.options.count {
            let (counters, i) = (&self.counters[env / LANES], env % LANES);
            snapshot.states.extend(self.state(env));
            snapshot.steps.push(counters.steps.0[i]);
            snapshot.episodes.push(counters.episodes.0[i]);
            snapshot.ended.push(counters.status.0[i] & status::ENDED);
            snapshot.returns.push(counters.returns.0[i]);
        }
        snapshot
    }

    /// Restores a snapshot of environments with the same options. Discards episodes and sums of reward terms that the
    /// caller has not taken.
    ///
    /// # Errors
    /// `Mismatch` for a snapshot of another world, number or stack of environments; `OutOfRange` for impossible states.
    /// The environments are unchanged after an error.
    pub fn restore(&mut self, snapshot: &EnvSnapshot) -> Result<()> {
        self.check_snapshot(snapshot)?;
        self.seed_with(snapshot.seed);
        self.stack.copy_from_slice(&snapshot.stack);
        for (env, state) in snapshot.states.chunks_exact(self.world.kernel.state).enumerate() {
            self.write_state(env, state);
            let (counters, i) = (&mut self.counters[env / LANES], env % LANES);
            counters.steps.0[i] = snapshot.steps[env];
            counters.episodes.0[i] = snapshot.episodes[env];
            counters.status.0[i] = snapshot.ended[env];
            counters.returns.0[i] = snapshot.returns[env];
        }
        self.logs.iter_mut().for_each(|log| *log = Default::default());
        Ok(())
    }

    fn check_snapshot(&self, snapshot: &EnvSnapshot) -> Result<()> {
        if snapshot.env != self.spec.name {
            return Err(Error::mismatch("snapshot", &self.spec.name, &snapshot.env));
        }
        let count = self.options.count;
        let lengths = [
            ("states", snapshot.states.len(), count * self.world.kernel.state),
            ("steps", snapshot.steps.len(), count),
            ("episodes", snapshot.episodes.len(), count),
            ("ended", snapshot.ended.len(), count),
            ("returns", snapshot.returns.len(), count),
            ("stack", snapshot.stack.len(), self.stack.len()),
        ];
        for (name, got, expected) in lengths {
            super::fits(&format!("{name} of the snapshot"), expected, got)?;
        }
        if let Some(steps) = snapshot.steps.iter().find(|steps| **steps > self.spec.time_limit) {
            let max = f64::from(self.spec.time_limit);
            return Err(Error::out_of_range("steps", f64::from(*steps), 0.0, max));
        }
        if let Some(ended) = snapshot.ended.iter().find(|ended| **ended > status::ENDED) {
            return Err(Error::out_of_range("ended", f64::from(*ended), 0.0, 1.0));
        }
        let numbers = snapshot.states.iter().chain(&snapshot.stack);
        super::check_numbers("state of the snapshot", numbers, f32::MAX)?;
        // A huge action may cost an infinite reward.
        super::check_numbers("return of the snapshot", snapshot.returns.iter(), f32::INFINITY)
    }
}
