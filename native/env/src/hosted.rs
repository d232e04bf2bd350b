//! Environments whose rules are in other processes, for example modules of an Elixir app. Everything but the rules is
//! here: seeds, limits, repeated actions, stacked observations, resets, returns and episodes.

use std::ops::Range;
use std::sync::Arc;

use sconce_game::{InputKind, InputPart};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use crate::host::{Answered, Asked, Begin, Begun, Host};
use crate::numbers::Numbers;
use crate::vector::VectorEnv;
use crate::vectorised::{Autoreset, EnvOptions, EnvSpec, Episode, Label, Stepped, check, push};

/// Flag of an end by the rules.
const TERMINATED: u8 = 1;
/// Flag of an end by a limit.
const TRUNCATED: u8 = 2;

/// Environments of a host. Environment `i` depends on the seed and on `i` alone.
pub struct Hosted {
    host: Arc<Host>,
    group: u64,
    options: EnvOptions,
    spec: EnvSpec,
    labels: Vec<Label>,
    /// For each number of an input, the kind of its part and the part's classes.
    kinds: Vec<(InputKind, usize)>,
    /// Weight of each reward term.
    weights: Vec<f32>,
    /// Seeds of episodes: the step is the episode, the index the environment.
    starts: Rng,
    /// Observations as the policy reads them, `[rows, observation_size]`.
    stack: Vec<f32>,
    /// Steps of the running episodes.
    steps: Vec<u32>,
    /// Numbers of begun episodes.
    begun: Vec<u32>,
    /// Sums of rewards of the running episodes, by row.
    returns: Vec<f32>,
    /// 1 where an episode has ended and the next step begins one.
    waiting: Vec<u32>,
    finished: Vec<Episode>,
    terms: Vec<f64>,
    /// Action masks `[rows, mask_size]`. All is allowed where an episode has ended.
    masks: Vec<u8>,
}

impl Hosted {
    /// Opens environments and begins their first episodes.
    ///
    /// # Errors
    /// Those of [`spec`](crate::spec) and of the host.
    pub fn new(options: &EnvOptions, host: Arc<Host>) -> Result<Self> {
        let spec = crate::spec(options)?;
        if options.autoreset == Autoreset::Disabled {
            return Err(Error::mismatch("autoreset", "same_step or next_step", "disabled"));
        }
        let (count, group) = (options.count, host.group());
        let rows = count * spec.seats;
        host.worker.open(group, options.first, count)?;
        let mut envs = Hosted {
            group,
            labels: Label::all(&spec.inputs),
            kinds: kinds(&spec.inputs),
            weights: options.term_weights(spec.reward_terms.iter().map(|name| &**name))?,
            starts: Rng::new(options.seed, "env.start", 0),
            stack: vec![0.0; rows * spec.observation_size],
            steps: vec![0; count],
            begun: vec![0; count],
            returns: vec![0.0; rows],
            waiting: vec![0; count],
            finished: vec![],
            terms: vec![0.0; spec.reward_terms.len()],
            masks: vec![1; rows * spec.mask_size],
            options: options.clone(),
            host,
            spec,
        };
        envs.begin(&(0..count).collect::<Vec<_>>())?;
        Ok(envs)
    }

    /// Begins the next episode in some environments.
    fn begin(&mut self, envs: &[usize]) -> Result<()> {
        if envs.is_empty() {
            return Ok(());
        }
        let begin = |&at: &usize| {
            let (env, episode) = (self.options.first + at as u64, self.begun[at]);
            let [low, high, ..] = self.starts.at(episode.into()).block(env);
            Begin { at, env, episode, seed: u64::from(high) << 32 | u64::from(low) }
        };
        let begins: Vec<Begin> = envs.iter().map(begin).collect();
        let Begun { observations: seen, masks } = self.host.worker.reset(self.group, &begins)?;
        let (seats, width, size) = (self.spec.seats, self.width(), self.spec.mask_size);
        fits("observations of a reset", envs.len() * seats * width, seen.len())?;
        fits("masks of a reset", envs.len() * seats * size, masks.len())?;
        let rows = envs.iter().flat_map(|&at| self.rows_of(at));
        for (i, (row, seen)) in
            rows.collect::<Vec<_>>().into_iter().zip(seen.chunks_exact(width)).enumerate()
        {
            self.check_finite("observation", row, seen)?;
            self.show(row, seen, true);
            self.returns[row] = 0.0;
            self.take_mask(row, &masks[i * size..(i + 1) * size])?;
        }
        for &at in envs {
            (self.steps[at], self.waiting[at]) = (0, 0);
            self.begun[at] += 1;
        }
        Ok(())
    }

    /// The rows of an environment.
    fn rows_of(&self, at: usize) -> Range<usize> {
        let seats = self.spec.seats;
        at * seats..(at + 1) * seats
    }

    /// The environment of a row among all, and where there are several seats, the seat.
    fn named(&self, row: usize) -> String {
        let (seats, name) = (self.spec.seats, &self.spec.name);
        let env = self.options.first + (row / seats) as u64;
        match seats {
            1 => format!("environment {env} of {name}"),
            _ => format!("seat {} in environment {env} of {name}", row % seats),
        }
    }

    /// Takes the mask `[mask_size]` of a row.
    fn take_mask(&mut self, row: usize, mask: &[u8]) -> Result<()> {
        let size = self.spec.mask_size;
        if size == 0 {
            return Ok(());
        }
        let mut rest = mask;
        for part in &self.spec.inputs {
            let (own, others) = rest.split_at(part.kind.mask_size());
            rest = others;
            if part.kind.has_classes() && own.iter().all(|allowed| *allowed == 0) {
                let what = format!("mask of {} in {}", part.name, self.named(row));
                return Err(Error::mismatch(what, "a choice that is allowed", "none"));
            }
        }
        self.masks[row * size..][..size].copy_from_slice(mask);
        Ok(())
    }

    /// Numbers in one observation, without stacking.
    fn width(&self) -> usize {
        self.host.spec().observation_size
    }

    fn show(&mut self, row: usize, seen: &[f32], first: bool) {
        let width = self.spec.observation_size;
        push(&mut self.stack[row * width..][..width], seen, first);
    }

    fn check_finite(&self, what: &str, row: usize, numbers: &[f32]) -> Result<()> {
        match numbers.iter().find(|number| !number.is_finite()) {
            None => Ok(()),
            Some(number) => {
                let what = format!("{what} of {}", self.named(row));
                Err(Error::NonFinite { what, value: (*number).into() })
            }
        }
    }

    /// Inputs as raw values of their parts.
    fn raw(&self, inputs: &[f32]) -> Vec<f32> {
        let value = |(input, (kind, classes)): (&f32, &(InputKind, usize))| match kind {
            // A number beyond its range is the end of the range, as in native worlds.
            InputKind::Continuous { min, max, .. } => input.clamp(*min, *max),
            kind => kind.value(*input, *classes),
        };
        let rows = inputs.chunks_exact(self.kinds.len().max(1));
        rows.flat_map(|row| row.iter().zip(&self.kinds).map(value)).collect()
    }

    /// Takes one step of the host in the active environments, and clears `active` where an episode has ended.
    fn advance(
        &mut self,
        raw: &[f32],
        active: &mut [u8],
        rewards: &mut [f32],
        flags: &mut [u8],
    ) -> Result<()> {
        let asked = Asked { inputs: raw, active };
        let answered = self.host.worker.step(self.group, asked)?;
        let (width, terms, count) = (self.width(), self.terms.len(), self.options.count);
        let rows = self.rows();
        fits("observations of a step", rows * width, answered.observations.len())?;
        fits("rewards of a step", rows * terms, answered.rewards.len())?;
        fits("flags of a step", count, answered.flags.len())?;
        fits("masks of a step", self.masks.len(), answered.masks.len())?;
        for at in (0..count).filter(|at| active[*at] == 1).collect::<Vec<_>>() {
            self.steps[at] += 1;
            let limit = self.steps[at] >= self.spec.time_limit;
            flags[at] = answered.flags[at] & 3 | if limit { TRUNCATED } else { 0 };
            active[at] = u8::from(flags[at] == 0);
            for row in self.rows_of(at) {
                rewards[row] += self.take(row, &answered)?;
                let own = row * self.spec.mask_size..(row + 1) * self.spec.mask_size;
                match active[at] {
                    1 => self.take_mask(row, &answered.masks[own])?,
                    _ => self.masks[own].fill(1),
                }
            }
        }
        Ok(())
    }

    /// Takes the observation and the reward of a row, and returns the weighted reward.
    fn take(&mut self, row: usize, answered: &Answered) -> Result<f32> {
        let (width, terms) = (self.width(), self.terms.len());
        let seen = &answered.observations[row * width..][..width];
        let own = &answered.rewards[row * terms..][..terms];
        self.check_finite("observation", row, seen)?;
        self.check_finite("reward", row, own)?;
        self.show(row, seen, false);
        if row.is_multiple_of(self.spec.seats) {
            self.terms.iter_mut().zip(own).for_each(|(sum, term)| *sum += f64::from(*term));
        }
        let reward: f32 = own.iter().zip(&self.weights).map(|(r, w)| r * w).sum();
        self.returns[row] += reward;
        Ok(reward)
    }

    /// Records an episode that has ended.
    fn finish(&mut self, at: usize, flags: u8) {
        let episode = |(seat, ret): (usize, &f32)| Episode {
            env: at as u32,
            seat: seat as u32,
            ret: *ret,
            length: self.steps[at],
            terminated: flags & TERMINATED != 0,
        };
        let returns = self.returns[self.rows_of(at)].iter().enumerate();
        self.finished.extend(returns.map(episode));
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.host.worker.close(self.group);
    }
}

impl VectorEnv for Hosted {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn count(&self) -> usize {
        self.options.count
    }

    fn observe(&self, out: &mut [f32]) {
        if out.len() == self.stack.len() {
            out.copy_from_slice(&self.stack);
        }
    }

    fn masks(&self) -> &[u8] {
        &self.masks
    }

    fn step(&mut self, inputs: &[f32], out: &mut Stepped<'_>) -> Result<()> {
        let (count, width) = (self.options.count, self.spec.observation_size);
        fits("inputs", self.rows() * self.labels.len(), inputs.len())?;
        check(&self.labels, inputs)?;
        out.ended.clear();
        out.final_observations.clear();
        let raw = self.raw(inputs);
        let waits: Vec<usize> = (0..count).filter(|at| self.waiting[*at] == 1).collect();
        let mut active: Vec<u8> = self.waiting.iter().map(|waits| 1 - *waits as u8).collect();
        let mut flags = vec![0; count];
        out.rewards.fill(0.0);
        for _ in 0..self.options.action_repeat {
            if active.contains(&1) {
                self.advance(&raw, &mut active, out.rewards, &mut flags)?;
            }
        }
        let ends: Vec<usize> = (0..count).filter(|at| flags[*at] != 0).collect();
        for &at in &ends {
            let rows = self.rows_of(at);
            out.ended.extend(rows.clone().map(|row| row as u32));
            out.final_observations
                .extend_from_slice(&self.stack[rows.start * width..rows.end * width]);
            self.finish(at, flags[at]);
            self.waiting[at] = 1;
        }
        match self.options.autoreset {
            Autoreset::SameStep => self.begin(&ends)?,
            Autoreset::NextStep | Autoreset::Disabled => self.begin(&waits)?,
        }
        for (at, flags) in flags.into_iter().enumerate() {
            out.terminated[self.rows_of(at)].fill(u8::from(flags & TERMINATED != 0));
            out.truncated[self.rows_of(at)].fill(u8::from(flags & TRUNCATED != 0));
        }
        self.observe(out.observations);
        Ok(())
    }

    fn episodes(&mut self, take: &mut Vec<Episode>) {
        self.finished.sort_by_key(|episode| episode.env);
        take.append(&mut self.finished);
    }

    fn take_terms(&mut self) -> Vec<f64> {
        let none = vec![0.0; self.terms.len()];
        std::mem::replace(&mut self.terms, none)
    }

    fn state(&self, env: usize) -> Vec<f32> {
        let width = self.spec.seats * self.spec.observation_size;
        self.stack.chunks_exact(width).nth(env).unwrap_or(&[]).to_vec()
    }

    fn numbers(&self) -> Result<Numbers> {
        let mut all = Numbers::default();
        all.put_word("seed", self.options.seed);
        for (name, words) in
            [("steps", &self.steps), ("episodes", &self.begun), ("ended", &self.waiting)]
        {
            all.put_words(name, words);
        }
        all.put("returns", self.returns.clone());
        all.put("stack", self.stack.clone());
        if !self.masks.is_empty() {
            all.put("masks", self.masks.iter().map(|allowed| f32::from(*allowed)).collect());
        }
        let states = self.host.worker.save(self.group)?;
        fits("saved environments", self.options.count, states.len())?;
        let bytes = |(at, state): (usize, Vec<u8>)| {
            // One f32 holds two bytes.
            let padded = state.len().next_multiple_of(2);
            let of = |i: usize| state.get(i).copied().unwrap_or(0);
            let pair = |i| f32::from(u16::from_le_bytes([of(2 * i), of(2 * i + 1)]));
            all.put(&format!("bytes.{at}"), (0..padded / 2).map(pair).collect());
            state.len() as u32
        };
        let lengths: Vec<u32> = states.into_iter().enumerate().map(bytes).collect();
        all.put_words("lengths", &lengths);
        Ok(all)
    }

    fn restore(&mut self, numbers: &Numbers) -> Result<Vec<u32>> {
        let count = self.options.count;
        let (returns, stack) = (numbers.get("returns")?, numbers.get("stack")?);
        let (steps, begun) = (numbers.words("steps")?, numbers.words("episodes")?);
        let (waiting, lengths) = (numbers.words("ended")?, numbers.words("lengths")?);
        for length in [steps.len(), begun.len(), waiting.len(), lengths.len()] {
            fits("saved environments", count, length)?;
        }
        fits("saved returns", self.returns.len(), returns.len())?;
        fits("saved observations", self.stack.len(), stack.len())?;
        // A state of before the world had masks.
        let all = vec![1.0; self.masks.len()];
        let masks = match numbers.get("masks") {
            Ok(masks) => masks,
            Err(Error::NotFound { .. }) => &all,
            Err(error) => return Err(error),
        };
        fits("saved masks", self.masks.len(), masks.len())?;
        let states = lengths.iter().enumerate().map(|(at, length)| {
            let pairs = numbers.get(&format!("bytes.{at}"))?.iter();
            let mut bytes: Vec<u8> = pairs.flat_map(|p| (*p as u16).to_le_bytes()).collect();
            bytes.truncate(*length as usize);
            Ok(bytes)
        });
        let restored = self.host.worker.restore(self.group, states.collect::<Result<_>>()?)?;
        fits("restored environments", count, restored.len())?;
        self.starts = Rng::new(numbers.word("seed")?, "env.start", 0);
        self.stack.copy_from_slice(stack);
        self.masks = masks.iter().map(|allowed| u8::from(*allowed != 0.0)).collect();
        (self.returns, self.steps) = (returns.to_vec(), steps);
        (self.begun, self.waiting) = (begun, waiting);
        self.finished.clear();
        self.terms.fill(0.0);
        // Environments without a state begin their next episode.
        let lost: Vec<usize> = (0..count).filter(|at| !restored[*at]).collect();
        self.begin(&lost)?;
        Ok(lost.into_iter().flat_map(|at| self.rows_of(at)).map(|row| row as u32).collect())
    }
}

/// For each number of an input, the kind of its part and the part's classes.
fn kinds(parts: &[InputPart]) -> Vec<(InputKind, usize)> {
    let of = |part: &InputPart| {
        let classes = match part.kind {
            InputKind::Axis { classes, .. } => classes,
            _ => 2,
        };
        std::iter::repeat_n((part.kind.clone(), classes), part.kind.numbers())
    };
    parts.iter().flat_map(of).collect()
}

fn fits(what: &str, expected: usize, got: usize) -> Result<()> {
    match expected == got {
        true => Ok(()),
        false => Err(Error::mismatch(what, expected, got)),
    }
}
