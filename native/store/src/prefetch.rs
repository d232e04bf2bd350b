//! Which blocks a reader will ask for next.
//!
//! A stream is the sequence of places that one reader asks for. Four predictors watch it: a constant step (1, another
//! one, or a negative one), a period after which places repeat, and the most frequent successor of each place. The one
//! whose latest predictions were right most often is used, while that share is at least the demanded confidence;
//! otherwise nothing is prefetched. So random access switches prefetching off, and a new pattern switches it on again.
//!
//! The depth follows Gill & Bathen (AMP, 2007): it grows when a block is asked for before it has arrived, and shrinks
//! when a prefetched block leaves the tier unused.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

/// The place of a block: in the order of the names for blocks that were there when the store was opened, then in the order
/// of the puts.
pub type Place = u64;

/// Requests that a stream remembers: twice the longest period.
const HISTORY: usize = 1024;
/// Places whose successors are remembered.
const MOST_PLACES: usize = 1 << 12;
/// Successors of a place that are remembered.
const SUCCESSORS: usize = 4;
/// How much of the former share of right predictions stays at each request.
const KEPT: f64 = 0.9;
/// The smallest depth of a stream that prefetches.
const LEAST_DEPTH: usize = 2;

/// Options of prefetching.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct PrefetchOptions {
    /// Blocks ahead at most; 0 switches prefetching off.
    pub depth: usize,
    /// Bytes that are prefetched and not asked for yet, at most, over all streams.
    pub bytes: u64,
    /// The share of right predictions that is demanded.
    pub confidence: f64,
}

impl Default for PrefetchOptions {
    fn default() -> Self {
        PrefetchOptions { depth: 32, bytes: 64 << 20, confidence: 0.8 }
    }
}

/// The predictor that fits a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// The next place is this many places behind the latest one.
    Step,
    /// The places repeat after a number of requests.
    Period,
    /// The next place is the most frequent successor.
    Successor,
}

const PATTERNS: [Pattern; 3] = [Pattern::Step, Pattern::Period, Pattern::Successor];

/// The requests of one reader.
#[derive(Debug)]
pub struct Stream {
    history: VecDeque<Place>,
    successors: HashMap<Place, [(Place, u32); SUCCESSORS]>,
    /// The place that each predictor expected next.
    said: [Option<Place>; 3],
    /// The share of the latest predictions that were right.
    right: [f64; 3],
    step: i64,
    period: usize,
    depth: usize,
}

impl Default for Stream {
    fn default() -> Self {
        Stream {
            history: VecDeque::new(),
            successors: HashMap::new(),
            said: [None; 3],
            right: [0.0; 3],
            step: 0,
            period: 0,
            depth: LEAST_DEPTH,
        }
    }
}

impl Stream {
    /// Takes the next request, and returns the places to prefetch, the nearest first.
    pub fn next(&mut self, at: Place, options: &PrefetchOptions) -> Vec<Place> {
        self.learn(at);
        self.said = PATTERNS.map(|pattern| self.after(pattern, 1).first().copied());
        match self.pattern(options.confidence) {
            None => {
                self.depth = LEAST_DEPTH;
                vec![]
            }
            Some(pattern) => self.after(pattern, self.depth.min(options.depth)),
        }
    }

    /// The predictor in use.
    pub fn pattern(&self, confidence: f64) -> Option<Pattern> {
        let mut best = None;
        for (pattern, right) in PATTERNS.into_iter().zip(self.right) {
            if right >= confidence && best.is_none_or(|(_, most)| right > most) {
                best = Some((pattern, right));
            }
        }
        best.map(|(pattern, _)| pattern)
    }

    /// Whether the stream comes back to each place after a number of requests.
    pub fn loops(&self, confidence: f64) -> bool {
        let [_, right, _] = self.right;
        self.period > 0 && right >= confidence
    }

    /// The step between two places, if the stream has one.
    pub fn step(&self) -> i64 {
        self.step
    }

    /// The blocks that are prefetched ahead.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// A block was asked for before it had arrived.
    pub fn was_late(&mut self, options: &PrefetchOptions) {
        self.depth = (self.depth + 2).min(options.depth.max(LEAST_DEPTH));
    }

    /// A prefetched block left the tier before it was asked for.
    pub fn was_unused(&mut self) {
        self.depth = (self.depth / 2).max(LEAST_DEPTH);
    }

    fn learn(&mut self, at: Place) {
        for (right, said) in self.right.iter_mut().zip(self.said) {
            let hit = f64::from(u8::from(said == Some(at)));
            *right = KEPT * *right + (1.0 - KEPT) * hit;
        }
        if let Some(before) = self.history.back().copied() {
            self.learn_step(before, at);
            self.learn_successor(before, at);
        }
        self.learn_period(at);
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(at);
    }

    /// The step changes when two requests in a row have the same other one.
    fn learn_step(&mut self, before: Place, at: Place) {
        let step = (at as i64).wrapping_sub(before as i64);
        let earlier = self.history.iter().rev().nth(1).copied();
        let same = earlier.is_some_and(|e| (before as i64).wrapping_sub(e as i64) == step);
        if same || self.history.len() == 1 {
            self.step = step;
        }
    }

    fn learn_successor(&mut self, before: Place, at: Place) {
        if self.successors.len() >= MOST_PLACES && !self.successors.contains_key(&before) {
            return;
        }
        let known = self.successors.entry(before).or_default();
        match known.iter_mut().find(|(place, count)| *count > 0 && *place == at) {
            Some((_, count)) => *count += 1,
            // The least frequent one gives way, after its count has fallen to 0.
            None => match known.iter_mut().min_by_key(|(_, count)| *count) {
                Some(least) if least.1 <= 1 => *least = (at, 1),
                Some(least) => least.1 -= 1,
                None => {}
            },
        }
        known.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
    }

    /// The period is the distance to the latest request of the same place, if the requests before agree as well.
    fn learn_period(&mut self, at: Place) {
        let count = self.history.len();
        let expected = self.ago(self.period);
        if self.period > 0 && expected == Some(at) {
            return;
        }
        let latest = self.history.iter().rev().position(|place| *place == at);
        self.period = match latest.map(|n| n + 1) {
            Some(period) if 2 * period <= HISTORY && period <= count => {
                let before = |n: usize| self.ago(n);
                let agrees = (1..period.min(8)).all(|n| before(n) == before(n + period));
                if agrees { period } else { 0 }
            }
            _ => 0,
        };
    }

    /// The request `n` requests ago: 1 is the latest.
    fn ago(&self, n: usize) -> Option<Place> {
        self.history.len().checked_sub(n).and_then(|at| self.history.get(at)).copied()
    }

    /// The next places by one predictor, without repetition.
    fn after(&self, pattern: Pattern, count: usize) -> Vec<Place> {
        let Some(latest) = self.ago(1) else { return vec![] };
        let mut places: Vec<Place> = vec![];
        match pattern {
            Pattern::Step if self.step != 0 => {
                let ahead = |n| latest.checked_add_signed(self.step.checked_mul(n)?);
                places.extend((1..=count as i64).map_while(ahead));
            }
            Pattern::Period if self.period > 0 => {
                let ahead = |n: usize| self.ago(self.period - n % self.period);
                places.extend((0..count).map_while(ahead));
            }
            Pattern::Successor => {
                let mut at = latest;
                while places.len() < count {
                    match self.successors.get(&at).and_then(|known| known.first()) {
                        Some((next, seen)) if *seen > 0 => at = *next,
                        _ => break,
                    }
                    places.push(at);
                }
            }
            _ => {}
        }
        let mut seen = std::collections::HashSet::new();
        places.retain(|place| *place != latest && seen.insert(*place));
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_tensor::rng::Rng;

    /// Of the requests after the first `skip`: the share that was prefetched, and the share of the prefetched places that
    /// were asked for within the next 64 requests.
    fn scores(requests: &[Place], skip: usize) -> (f64, f64) {
        let options = PrefetchOptions::default();
        let mut stream = Stream::default();
        let mut ahead: HashMap<Place, usize> = HashMap::new();
        let (mut asked, mut hits, mut said, mut right) = (0, 0, 0, 0);
        for (at, place) in requests.iter().enumerate() {
            let found = ahead.remove(place).is_some_and(|when| at - when <= 64);
            if at >= skip {
                asked += 1;
                hits += usize::from(found);
            }
            right += usize::from(found);
            for next in stream.next(*place, &options) {
                if ahead.insert(next, at).is_none() {
                    said += 1;
                }
            }
        }
        (hits as f64 / asked as f64, right as f64 / f64::from(said.max(1)))
    }

    fn repeat(once: &[Place], times: usize) -> Vec<Place> {
        once.iter().copied().cycle().take(once.len() * times).collect()
    }

    #[test]
    fn steps_of_either_sign_are_followed() {
        for step in [1_i64, 3, 17, -1, -5] {
            let requests: Vec<Place> = (0..500).map(|n| (10_000 + n * step) as Place).collect();
            let (recall, precision) = scores(&requests, 30);
            assert!(recall == 1.0 && precision > 0.98, "step {step}: {recall}, {precision}");
        }
    }

    #[test]
    fn a_loop_in_any_order_is_followed_also_when_a_place_comes_twice() {
        let rng = Rng::new(1, "order", 0);
        let mut once: Vec<Place> = (0..100).map(|i| rng.below(i, 1 << 40)).collect();
        let (recall, precision) = scores(&repeat(&once, 12), 200);
        assert!(recall > 0.99 && precision > 0.95, "{recall}, {precision}");
        // A layer that two others share: its successor depends on where it is met.
        once.insert(60, once[10]);
        once.insert(80, once[10]);
        let (recall, precision) = scores(&repeat(&once, 12), 300);
        assert!(recall > 0.95 && precision > 0.9, "{recall}, {precision}");
    }

    #[test]
    fn frequent_successors_are_followed_without_a_period() {
        // Runs of four blocks in an order that is random: the first of a run cannot be known.
        let rng = Rng::new(2, "runs", 0);
        let runs = (0..2000).flat_map(|i| {
            let run = rng.below(i, 40) * 1000;
            (0..16).map(move |n| run + n * n * 7)
        });
        let (recall, precision) = scores(&runs.collect::<Vec<_>>(), 4000);
        assert!(recall > 0.6 && precision > 0.7, "{recall}, {precision}");
    }

    #[test]
    fn random_access_switches_prefetching_off() {
        let rng = Rng::new(3, "random", 0);
        let options = PrefetchOptions::default();
        let mut stream = Stream::default();
        let issued: usize = (0..5000).map(|i| stream.next(rng.below(i, 256), &options).len()).sum();
        assert!(issued < 50, "{issued}");
        assert_eq!(stream.pattern(options.confidence), None);
        // A sequence switches it on again.
        let last: Vec<Vec<Place>> = (0..60).map(|n| stream.next(n, &options)).collect();
        assert_eq!(last[59], vec![60, 61]);
    }

    #[test]
    fn depth_grows_when_blocks_are_late_and_shrinks_when_they_are_unused() {
        let options = PrefetchOptions { depth: 8, ..PrefetchOptions::default() };
        let mut stream = Stream::default();
        for n in 0..40 {
            stream.next(n, &options);
        }
        (0..10).for_each(|_| stream.was_late(&options));
        assert_eq!(stream.next(40, &options), (41..49).collect::<Vec<_>>());
        stream.was_unused();
        assert_eq!(stream.next(41, &options).len(), 4);
        let off = PrefetchOptions { depth: 0, ..options };
        assert!(stream.next(42, &off).is_empty());
    }

    #[test]
    fn places_at_the_ends_of_their_range_do_no_harm() {
        let options = PrefetchOptions::default();
        let mut stream = Stream::default();
        for n in (0..40).rev() {
            assert!(stream.next(n, &options).iter().all(|place| *place < n));
        }
        for place in [u64::MAX, 0, u64::MAX - 1, 1, u64::MAX] {
            stream.next(place, &options);
        }
    }
}
