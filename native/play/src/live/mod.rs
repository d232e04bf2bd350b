//! Learning from live games: segments that sessions record, in place of rollouts.

mod episodes;
mod inbox;
mod listener;
mod retrace;

use std::sync::Arc;

use sconce_data::{Over, Recorded, Sink};
use sconce_env::Episode;
use sconce_nn::backbone::State;
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result};
use serde_json::json;

pub(crate) use episodes::Episodes;
pub use inbox::{Counts, Inbox};
pub(crate) use listener::Listener;
pub(crate) use retrace::retrace;

use crate::heads::Choosing;
use crate::options::PpoOptions;
use crate::segment::Segment;
use crate::statistics::Statistics;

/// The live games of a run.
pub(crate) struct Live {
    inbox: Arc<Inbox>,
    /// Weights of the reward terms.
    weights: Vec<f32>,
    /// Updates that the weights of a segment may be behind.
    max_lag: u64,
    teachers: Vec<Listener>,
    episodes: Episodes,
    /// Decisions that were learned from.
    steps: u64,
    /// Version of the weights at the first update of this process: later than those of earlier runs.
    base: u64,
    /// Updates of the run before this process.
    begun: u64,
    finished: Vec<Episode>,
    /// Updates that the last segments were behind, as mean over their decisions.
    lag: f64,
    /// Means of the reward terms of the last segments per decision.
    terms: Vec<f64>,
    /// Counts at the last update.
    before: Counts,
}

/// The wishes of an update: its policy, and the number of decisions.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The policy that learns.
    pub policy: &'a Policy,
    /// Updates of the run so far.
    pub update: u64,
    /// Least number of decisions.
    pub decisions: usize,
    /// Whether the run ends, though it waits.
    pub over: &'a dyn Fn() -> bool,
}

impl Live {
    /// The live games of a run after some steps and updates, and episodes that go on.
    ///
    /// # Errors
    /// `NotFound` for a weight of an unknown reward term.
    pub(crate) fn new(
        inbox: &Arc<Inbox>,
        options: &PpoOptions,
        teachers: Vec<Listener>,
        [steps, begun]: [u64; 2],
        episodes: Episodes,
    ) -> Result<Self> {
        let (before, newest) = (inbox.counts(), inbox.newest());
        let terms = inbox.terms();
        Ok(Live {
            inbox: inbox.clone(),
            weights: options.env("live").term_weights(terms.iter().map(String::as_str))?,
            max_lag: options.rollout.max_lag,
            teachers,
            episodes,
            steps,
            base: newest.map_or(0, |(version, _)| version + 1),
            begun,
            finished: vec![],
            lag: 0.0,
            terms: vec![0.0; terms.len()],
            before,
        })
    }

    /// Version of the weights after this many updates of the run.
    fn version(&self, update: u64) -> u64 {
        self.base + update.saturating_sub(self.begun)
    }

    /// Publishes a policy after this many updates of the run.
    ///
    /// # Errors
    /// Those of [`Policy::from_weights`].
    pub(crate) fn publish(&self, policy: &Policy, update: u64) -> Result<()> {
        let version = self.version(update);
        // Weights that no longer learn are shared.
        let own = Policy::from_weights(policy.spec(), policy.weights().clone())?;
        self.inbox.publish(version, Arc::new(own.noting(json!({"version": version}))));
        Ok(())
    }

    /// Publishes the policy and waits for the segments of an update.
    ///
    /// # Errors
    /// `Cancelled` once `over` says so.
    pub(crate) fn play(
        &mut self,
        wanted: Wanted<'_>,
        statistics: &mut Statistics,
    ) -> Result<Vec<Segment>> {
        self.publish(wanted.policy, wanted.update)?;
        let segments = self.gather(wanted, statistics)?;
        self.steps += segments.iter().map(|segment| segment.frames() as u64).sum::<u64>();
        Ok(segments)
    }

    /// Observes the decisions of an update, which the servings make with their own weights, and learns nothing of them.
    ///
    /// # Errors
    /// Those of [`play`](Self::play).
    pub(crate) fn look(&mut self, wanted: Wanted<'_>, statistics: &mut Statistics) -> Result<()> {
        self.gather(wanted, statistics)?;
        self.finished.clear();
        // Those weights see frames on another scale than the first ones of the run: what they still decide is too old.
        self.base += self.max_lag + 1;
        Ok(())
    }

    /// Waits for the segments of an update, and prepares them.
    fn gather(&mut self, wanted: Wanted<'_>, statistics: &mut Statistics) -> Result<Vec<Segment>> {
        let taken = self.wait(wanted)?;
        self.terms = means(&taken, self.weights.len());
        self.episodes.forget(wanted.update.saturating_sub(self.max_lag + 1));
        let policy = wanted.policy;
        let parts = (Choosing::of(&policy.spec().heads)?, policy.zero_state(1)?);
        let prepared = |own| self.prepared(own, wanted, &parts, statistics);
        taken.into_iter().map(prepared).collect()
    }

    /// Waits for segments with this many decisions, of weights that are not too old.
    fn wait(&mut self, wanted: Wanted<'_>) -> Result<Vec<Recorded>> {
        let version = self.version(wanted.update);
        let (mut segments, mut left, mut lag) = (vec![], wanted.decisions, 0.0);
        while left > 0 {
            let taken = self.inbox.take(left, wanted.over).ok_or(Error::Cancelled)?;
            for recorded in taken {
                self.note_end(&recorded);
                let behind = |made: &u64| version.saturating_sub(*made);
                // A version that does not exist yet is no version of this run.
                let unknown = recorded.versions.iter().any(|made| *made > version);
                if unknown || recorded.versions.iter().map(behind).max() > Some(self.max_lag) {
                    self.inbox.count_stale(1);
                    continue;
                }
                lag += recorded.versions.iter().map(behind).sum::<u64>() as f64;
                left = left.saturating_sub(recorded.steps());
                segments.push(recorded);
            }
        }
        let played: usize = segments.iter().map(Recorded::steps).sum();
        self.lag = lag / played.max(1) as f64;
        Ok(segments)
    }

    /// A recorded segment as the learner reads it: frames are normalised as the policy does, and rewards are weighed and
    /// scaled.
    fn prepared(
        &mut self,
        recorded: Recorded,
        Wanted { policy, update, .. }: Wanted<'_>,
        (heads, zero): &(Choosing, State),
        statistics: &mut Statistics,
    ) -> Result<Segment> {
        let mut running = self.episodes.take(&recorded);
        let (number, over) = (recorded.number, recorded.over);
        running.decisions = recorded.before.saturating_add(recorded.steps() as u64);
        running.update = update;
        let spec = policy.spec();
        let mut segment = segment(spec, heads, zero, recorded, &self.weights)?;
        statistics.observe_rows(&segment.continuous)?;
        let mut memory = running.memory.as_slice();
        let mut after = vec![];
        for teacher in &self.teachers {
            after.extend(teacher.listen(spec, &mut segment, &mut memory)?);
        }
        running.memory = after;
        spec.embedding.normalise(&mut segment.continuous);
        statistics.scale_episode(&mut running.discounted, &mut segment.rewards)?;
        if over == Over::No {
            self.episodes.keep(number, running);
        }
        Ok(segment)
    }

    fn note_end(&mut self, recorded: &Recorded) {
        if recorded.over != Over::No {
            let (returns, length) = &recorded.episode;
            let (ret, length) = (weighed(returns, &self.weights), *length);
            let terminated = recorded.over == Over::Terminated;
            self.finished.push(Episode { env: 0, seat: 0, ret, length, terminated });
        }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Episodes that go on.
    pub(crate) fn episodes(&self) -> &Episodes {
        &self.episodes
    }

    /// Names of the reward terms.
    pub(crate) fn names(&self) -> Arc<[String]> {
        self.inbox.terms()
    }

    /// Means of the reward terms of the last segments per decision.
    pub(crate) fn terms(&self) -> &[f64] {
        &self.terms
    }

    pub(crate) fn take_episodes(&mut self) -> Vec<Episode> {
        std::mem::take(&mut self.finished)
    }

    /// Figures of the games since the last call: lag in updates, and segments that were dropped or wait.
    pub(crate) fn take_figures(&mut self) -> [(&'static str, f64); 5] {
        let now = self.inbox.counts();
        let before = std::mem::replace(&mut self.before, now);
        [
            ("lag", self.lag),
            ("stale", (now.stale - before.stale) as f64),
            ("displaced", (now.displaced - before.displaced) as f64),
            ("misfits", (now.misfits - before.misfits) as f64),
            ("waiting", now.waiting as f64),
        ]
    }
}

/// The mean of each reward term per decision.
fn means(segments: &[Recorded], terms: usize) -> Vec<f64> {
    let mut sums = vec![0.0; terms];
    for step in segments.iter().flat_map(|own| own.rewards.chunks_exact(terms.max(1))) {
        sums.iter_mut().zip(step).for_each(|(sum, reward)| *sum += f64::from(*reward));
    }
    let played = segments.iter().map(Recorded::steps).sum::<usize>().max(1) as f64;
    sums.iter().map(|sum| sum / played).collect()
}

/// The weighted sum of the terms of a reward.
fn weighed(terms: &[f32], weights: &[f32]) -> f32 {
    terms.iter().zip(weights).map(|(term, weight)| term * weight).sum()
}

/// A recorded segment as one of a single row, with frames as they were recorded.
fn segment(
    spec: &Spec,
    heads: &Choosing,
    zero: &State,
    recorded: Recorded,
    weights: &[f32],
) -> Result<Segment> {
    let (steps, stride) = (recorded.steps(), recorded.stride);
    let mut segment = Segment::new(spec, 1, steps, stride);
    let logits = recorded.logits.chunks_exact(heads.num_logits);
    let labels = recorded.labels.chunks_exact(heads.num_labels);
    for (t, (logits, labels)) in logits.zip(labels).enumerate() {
        segment.values[t] = logits[heads.value];
        segment.log_likelihoods[t] = -heads.nll(logits, labels) as f32;
    }
    // The logits of a decision say which actions were allowed.
    let mask = recorded.logits.chunks_exact(heads.num_logits).flat_map(|row| heads.mask_of(row));
    let mask: Vec<u8> = mask.collect();
    segment.mask = if mask.contains(&0) { mask } else { vec![] };
    for t in 0..steps {
        let next = segment.values.get(t + 1);
        segment.next_values[t] = *next.unwrap_or(&recorded.next_value);
    }
    if let Some(last) = steps.checked_sub(1) {
        segment.terminated[last] = u8::from(recorded.over == Over::Terminated);
        segment.truncated[last] = u8::from(recorded.over == Over::Truncated);
    }
    let numbers: usize = zero.0.iter().map(sconce_tensor::Tensor::elem_count).sum();
    if numbers > 0 {
        let states = recorded.states.chunks_exact(numbers);
        segment.states = states.map(|own| zero.with_values(own)).collect::<Result<_>>()?;
    }
    let terms = recorded.rewards.chunks_exact(weights.len().max(1));
    let rewards = terms.map(|terms| weighed(terms, weights)).collect();
    let Recorded { continuous, ids, previous, labels, .. } = recorded;
    Ok(Segment { continuous, ids, previous, labels, rewards, ..segment })
}

#[cfg(test)]
mod tests;
