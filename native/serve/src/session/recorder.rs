//! The segments of a recorded session that are not sent yet.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use sconce_data::{Over, Recorded, Sink};
use sconce_nn::Policy;
use sconce_nn::heads::Decision;
use sconce_nn::packed::Frame;
use sconce_nn::spec::HeadKind;
use sconce_tensor::{Error, Result};
use serde::Deserialize;

use super::carried::Carried;

/// Options of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Decisions of a segment.
    pub steps: usize,
    /// Decisions between two stored memories.
    pub stride: usize,
    /// Decisions for which a complete segment is held for late rewards.
    pub hold: usize,
}

/// A reward: one number, or numbers by the names of its terms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reward<'a> {
    /// One number, where a reward has one term.
    Number(f32),
    /// Terms; those that are not named are 0.
    Terms(&'a [(&'a str, f32)]),
}

impl From<f32> for Reward<'_> {
    fn from(number: f32) -> Self {
        Reward::Number(number)
    }
}

/// The segments of a session that are not sent yet.
pub(super) struct Recorder {
    sink: Arc<dyn Sink>,
    options: Recording,
    /// Names of the terms of a reward.
    terms: Arc<[String]>,
    /// Index of the value among the logits.
    pub(super) value: usize,
    /// Complete segments, oldest first.
    held: VecDeque<Recorded>,
    /// The segment to which decisions are added.
    open: Recorded,
    /// Decisions of the episode in segments that are sent.
    sent: u64,
    /// Sum of each reward term over the episode in segments that are sent.
    sums: Vec<f32>,
    /// Number of the episode.
    number: u64,
    /// Episodes that have ended.
    episodes: u64,
    /// Seed of the first episode.
    seed: u64,
}

impl Recorder {
    pub(super) fn new(
        sink: Arc<dyn Sink>,
        options: Recording,
        policy: &Policy,
        seed: u64,
    ) -> Result<Self> {
        let mut parts = policy.spec().heads.iter();
        let value = parts.find(|part| matches!(part.head.kind, HeadKind::Value(_)));
        let without = || Error::mismatch("heads", "a value (value_head: true)", "none");
        let terms = sink.terms();
        let mut recorder = Recorder {
            sink,
            options,
            value: value.ok_or_else(without)?.logits,
            held: VecDeque::new(),
            open: Recorded::default(),
            sent: 0,
            sums: vec![0.0; terms.len()],
            terms,
            number: by_chance(),
            episodes: 0,
            seed,
        };
        recorder.begin(0);
        Ok(recorder)
    }

    /// Begins an open segment after this many decisions of the episode. Returns the one before.
    fn begin(&mut self, before: u64) -> Recorded {
        let (number, stride, terms) = (self.number, self.options.stride, self.terms.clone());
        let next = Recorded { number, before, stride, terms, ..Recorded::default() };
        std::mem::replace(&mut self.open, next)
    }

    /// Adds a decision and the memory before it.
    pub(super) fn note(
        &mut self,
        state: &Carried,
        frame: Frame<'_>,
        decision: &Decision,
        version: u64,
    ) {
        let value = decision.logits.get(self.value).copied().unwrap_or(0.0);
        if self.open.steps() == self.options.steps {
            self.close(value, Over::No);
        } else if self.open.steps() == 0
            && let Some(last) = self.held.back_mut()
        {
            // The decision after the last segment was taken back.
            last.next_value = value;
        }
        let open = &mut self.open;
        if open.steps().is_multiple_of(self.options.stride)
            && let Carried::Numbers(numbers) = state
        {
            open.states.extend_from_slice(numbers);
        }
        open.continuous.extend_from_slice(frame.continuous);
        open.ids.extend_from_slice(frame.ids);
        open.previous.extend_from_slice(frame.previous);
        open.labels.extend_from_slice(&decision.choices);
        open.logits.extend_from_slice(&decision.logits);
        open.rewards.resize(open.rewards.len() + self.terms.len(), 0.0);
        open.versions.push(version);
        if !self.held.is_empty() {
            self.release();
        }
    }

    /// Completes the open segment.
    fn close(&mut self, next_value: f32, over: Over) {
        let open = self.begin(self.open.before + self.open.steps() as u64);
        self.held.push_back(Recorded { next_value, over, ..open });
    }

    /// Sends complete segments for which no reward may come any more.
    fn release(&mut self) {
        let mut newer = self.open.steps() + self.held.iter().map(Recorded::steps).sum::<usize>();
        while let Some(first) = self.held.front() {
            newer -= first.steps();
            // One decision after a sent segment is never taken back, so an end is always told.
            if newer <= self.options.hold {
                break;
            }
            self.send();
        }
    }

    fn send(&mut self) {
        if let Some(segment) = self.held.pop_front() {
            self.sent += segment.steps() as u64;
            add_terms(&mut self.sums, &segment.rewards);
            self.sink.put(segment);
        }
    }

    /// Takes back the last `count` decisions, which are held.
    pub(super) fn take_back(&mut self, count: usize) {
        for _ in 0..count {
            if self.open.steps() == 0 {
                match self.held.pop_back() {
                    Some(last) => self.open = last,
                    None => return,
                }
            }
            self.pop();
        }
    }

    /// Drops the last decision of the open segment.
    fn pop(&mut self) {
        let open = &mut self.open;
        let (steps, left) = (open.steps(), open.steps() - 1);
        let memories = left.div_ceil(self.options.stride) * open.states.len();
        open.states.truncate(memories / steps.div_ceil(self.options.stride));
        for column in [&mut open.continuous, &mut open.previous, &mut open.labels, &mut open.logits]
        {
            column.truncate(column.len() / steps * left);
        }
        open.ids.truncate(open.ids.len() / steps * left);
        open.rewards.truncate(left * self.terms.len());
        open.versions.truncate(left);
    }

    /// Adds a reward to decision `number`, counted from 1 in the episode, or to the last one.
    pub(super) fn reward(&mut self, number: Option<u64>, reward: Reward<'_>) -> Result<()> {
        let numbers = self.numbers(reward)?;
        let last = self.sent
            + (self.held.iter().map(Recorded::steps).sum::<usize>() + self.open.steps()) as u64;
        let number = number.unwrap_or(last);
        if number <= self.sent || number > last {
            let what = match last > self.sent {
                true => format!(
                    "decision {number} of the episode (the recording holds {} to {last})",
                    self.sent + 1
                ),
                false => "a decision to reward".to_string(),
            };
            return Err(Error::not_found(what));
        }
        let mut at = (number - self.sent - 1) as usize;
        for segment in self.held.iter_mut().chain([&mut self.open]) {
            match segment.rewards.chunks_exact_mut(numbers.len().max(1)).nth(at) {
                Some(own) => {
                    own.iter_mut().zip(&numbers).for_each(|(own, number)| *own += number);
                    break;
                }
                None => at -= segment.steps(),
            }
        }
        Ok(())
    }

    /// The number of each term.
    fn numbers(&self, reward: Reward<'_>) -> Result<Vec<f32>> {
        let mut numbers = vec![0.0; self.terms.len()];
        let named: &[(&str, f32)] = match (reward, &*self.terms) {
            (Reward::Number(number), [only]) => &[(only, number)],
            (Reward::Number(_), terms) => {
                let expected = format!("a number for each of {}", terms.join(", "));
                return Err(Error::mismatch("reward", expected, "one number"));
            }
            (Reward::Terms(named), _) => named,
        };
        for (name, number) in named {
            let found = self.terms.iter().position(|term| term == name);
            let own = found.and_then(|at| numbers.get_mut(at)).ok_or_else(|| {
                let known = self.terms.join(", ");
                Error::not_found(format!("reward term {name} (the rollout has {known})"))
            })?;
            if !number.is_finite() {
                let what = format!("reward term {name}");
                return Err(Error::NonFinite { what, value: (*number).into() });
            }
            *own += number;
        }
        Ok(numbers)
    }

    /// Drops what is not sent; the next decision has the number `decided + 1`. It need not follow the last one that is
    /// sent, so the episode has another number.
    pub(super) fn forget(&mut self, decided: u64) {
        self.held.clear();
        self.number = by_chance();
        self.begin(decided);
        self.sent = decided;
        self.sums.fill(0.0);
    }

    /// Ends the episode: all its segments are sent. Returns the seed of the next one.
    pub(super) fn done(&mut self, over: Over, next_value: f32) -> u64 {
        if self.open.steps() > 0 {
            self.close(next_value, over);
        } else if let Some(last) = self.held.back_mut() {
            (last.over, last.next_value) = (over, next_value);
        }
        let (mut sums, mut length) = (self.sums.clone(), self.sent);
        for segment in &self.held {
            add_terms(&mut sums, &segment.rewards);
            length += segment.steps() as u64;
        }
        if let Some(last) = self.held.back_mut() {
            last.episode = (sums, length.min(u32::MAX.into()) as u32);
        }
        while !self.held.is_empty() {
            self.send();
        }
        self.forget(0);
        self.episodes += 1;
        self.seed.wrapping_add(self.episodes.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// Adds rewards `[steps, terms]` to the sums of the terms.
fn add_terms(sums: &mut [f32], rewards: &[f32]) {
    for step in rewards.chunks_exact(sums.len().max(1)) {
        sums.iter_mut().zip(step).for_each(|(sum, reward)| *sum += reward);
    }
}

/// A number that is unlike those of other calls, also in other processes.
fn by_chance() -> u64 {
    RandomState::new().hash_one(())
}
