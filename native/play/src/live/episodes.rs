//! The learner's notes on an episode between two of its segments.

use std::collections::BTreeMap;

use sconce_data::Recorded;
use sconce_env::Numbers;
use sconce_tensor::{Error, Result};

/// An episode that goes on after the last segment that came.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Running {
    /// Decisions so far.
    pub decisions: u64,
    /// Update of the last segment.
    pub update: u64,
    /// Discounted return so far, by which rewards are scaled.
    pub discounted: f32,
    /// Memories of the teachers, one after the other; empty for none, and for those of a start.
    pub memory: Vec<f32>,
}

/// Episodes that go on, by their numbers.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Episodes(BTreeMap<u64, Running>);

impl Episodes {
    /// The notes on a segment's episode; none at its start, after a segment that was dropped, or after a
    /// pause that was [forgotten](Self::forget).
    pub(super) fn take(&mut self, recorded: &Recorded) -> Running {
        let kept = self.0.remove(&recorded.number);
        kept.filter(|kept| kept.decisions == recorded.before).unwrap_or_default()
    }

    pub(super) fn keep(&mut self, number: u64, running: Running) {
        self.0.insert(number, running);
    }

    /// Forgets the episodes whose last segment came before this update. Most of their games have ended without a word;
    /// one that only paused begins anew.
    pub(super) fn forget(&mut self, update: u64) {
        self.0.retain(|_, running| running.update >= update);
    }

    /// The episodes as arrays, for a checkpoint.
    pub(crate) fn numbers(&self) -> Numbers {
        let mut all = Numbers::default();
        if self.0.is_empty() {
            return all;
        }
        let words = |of: fn((&u64, &Running)) -> u64| -> Vec<u32> {
            self.0.iter().map(of).flat_map(|word| [word as u32, (word >> 32) as u32]).collect()
        };
        all.put_words("numbers", &words(|(number, _)| *number));
        all.put_words("decisions", &words(|(_, running)| running.decisions));
        all.put_words("updates", &words(|(_, running)| running.update));
        all.put("discounted", self.0.values().map(|running| running.discounted).collect());
        let memories: Vec<f32> = self.0.values().flat_map(|own| own.memory.clone()).collect();
        if !memories.is_empty() {
            all.put("memories", memories);
        }
        all
    }

    /// Goes on from [`numbers`](Self::numbers).
    ///
    /// # Errors
    /// `NotFound` and `Corrupt` for arrays of another kind.
    pub(crate) fn of_numbers(all: &Numbers) -> Result<Self> {
        if all.0.is_empty() {
            return Ok(Episodes::default());
        }
        let words = |name: &str| -> Result<Vec<u64>> {
            let words = all.words(name)?;
            let (pairs, rest) = words.as_chunks::<2>();
            match rest {
                [] => Ok(pairs.iter().map(|[low, high]| join(*low, *high)).collect()),
                _ => Err(corrupt("half a number")),
            }
        };
        let (numbers, decisions, updates) =
            (words("numbers")?, words("decisions")?, words("updates")?);
        let (discounted, memories) = (all.get("discounted")?, all.get("memories").unwrap_or(&[]));
        let n = numbers.len();
        let even = memories.len().is_multiple_of(n.max(1));
        if [decisions.len(), updates.len(), discounted.len()] != [n; 3] || !even {
            return Err(corrupt("arrays of different lengths"));
        }
        let size = memories.len() / n.max(1);
        let running = |i: usize| Running {
            decisions: decisions[i],
            update: updates[i],
            discounted: discounted[i],
            memory: memories[i * size..(i + 1) * size].to_vec(),
        };
        Ok(Episodes(numbers.iter().enumerate().map(|(i, number)| (*number, running(i))).collect()))
    }
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn corrupt(reason: &str) -> Error {
    Error::corrupt("episodes of live games", reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(number: u64, before: u64) -> Recorded {
        Recorded { number, before, ..Recorded::default() }
    }

    fn running(decisions: u64, update: u64) -> Running {
        Running { decisions, update, discounted: 0.1 * update as f32, memory: vec![0.5, -1.5] }
    }

    #[test]
    fn an_episode_goes_on_only_where_its_last_segment_ended() {
        let mut own = Episodes::default();
        own.keep(7, running(64, 1));
        own.keep(u64::MAX, running(32, 2));
        assert_eq!(own.take(&segment(u64::MAX, 32)), running(32, 2));
        // One that is taken twice, one after a lost segment, and an unknown one begin anew.
        assert_eq!(own.take(&segment(u64::MAX, 32)), Running::default());
        assert_eq!(own.take(&segment(7, 96)), Running::default());
        assert_eq!(own.take(&segment(8, 64)), Running::default());
        assert_eq!(own, Episodes::default());
    }

    #[test]
    fn silent_episodes_are_forgotten_and_the_others_come_back_from_arrays() {
        let mut own = Episodes::default();
        (1..=4).for_each(|update| own.keep(u64::MAX - update, running(u64::MAX / update, update)));
        own.forget(3);
        assert_eq!(own.0.len(), 2);
        assert_eq!(Episodes::of_numbers(&own.numbers()).unwrap(), own);
        let none = Episodes::default();
        assert_eq!(Episodes::of_numbers(&none.numbers()).unwrap(), none);
        let mut bad = own.numbers();
        bad.put("discounted", vec![0.0]);
        assert_eq!(Episodes::of_numbers(&bad).unwrap_err().kind().name(), "corrupt");
        bad.0.remove("discounted");
        assert_eq!(Episodes::of_numbers(&bad).unwrap_err().kind().name(), "not_found");
    }
}
