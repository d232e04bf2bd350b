//! The segments of a recorded session that are not sent yet.

use std::collections::VecDeque;
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

/// The segments of a session that are not sent yet.
pub(super) struct Recorder {
    sink: Arc<dyn Sink>,
    options: Recording,
    /// Index of the value among the logits.
    pub(super) value: usize,
    /// Complete segments, oldest first.
    held: VecDeque<Recorded>,
    /// The segment to which decisions are added.
    open: Recorded,
    /// Decisions of the episode in segments that are sent.
    sent: u64,
    /// Rewards of the episode in segments that are sent.
    sum: f32,
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
        Ok(Recorder {
            sink,
            options,
            value: value.ok_or_else(without)?.logits,
            held: VecDeque::new(),
            open: Recorded { stride: options.stride, ..Recorded::default() },
            sent: 0,
            sum: 0.0,
            episodes: 0,
            seed,
        })
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
        open.rewards.push(0.0);
        open.versions.push(version);
        if !self.held.is_empty() {
            self.release();
        }
    }

    /// Completes the open segment.
    fn close(&mut self, next_value: f32, over: Over) {
        let next = Recorded { stride: self.options.stride, ..Recorded::default() };
        let open = std::mem::replace(&mut self.open, next);
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
            self.sum += segment.rewards.iter().sum::<f32>();
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
        open.rewards.truncate(left);
        open.versions.truncate(left);
    }

    /// Adds a reward to decision `number`, counted from 1 in the episode, or to the last one.
    pub(super) fn reward(&mut self, number: Option<u64>, reward: f32) -> Result<()> {
        if !reward.is_finite() {
            return Err(Error::NonFinite { what: "reward".into(), value: reward.into() });
        }
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
            match segment.rewards.get_mut(at) {
                Some(own) => {
                    *own += reward;
                    break;
                }
                None => at -= segment.steps(),
            }
        }
        Ok(())
    }

    /// Drops what is not sent; the next decision has the number `decided + 1`.
    pub(super) fn forget(&mut self, decided: u64) {
        self.held.clear();
        self.open = Recorded { stride: self.options.stride, ..Recorded::default() };
        (self.sent, self.sum) = (decided, 0.0);
    }

    /// Ends the episode: all its segments are sent. Returns the seed of the next one.
    pub(super) fn done(&mut self, over: Over, next_value: f32) -> u64 {
        if self.open.steps() > 0 {
            self.close(next_value, over);
        } else if let Some(last) = self.held.back_mut() {
            (last.over, last.next_value) = (over, next_value);
        }
        let all = self.held.iter();
        let sum = self.sum + all.clone().flat_map(|segment| &segment.rewards).sum::<f32>();
        let length = self.sent + all.map(|segment| segment.steps() as u64).sum::<u64>();
        if let Some(last) = self.held.back_mut() {
            last.episode = (sum, length.min(u32::MAX.into()) as u32);
        }
        while !self.held.is_empty() {
            self.send();
        }
        (self.sent, self.sum) = (0, 0.0);
        self.episodes += 1;
        self.seed.wrapping_add(self.episodes.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}
