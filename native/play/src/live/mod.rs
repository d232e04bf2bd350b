//! Learning from live games: segments that sessions record, in place of rollouts.

mod inbox;
mod retrace;

use std::sync::Arc;

use sconce_data::{Over, Recorded};
use sconce_env::Episode;
use sconce_nn::backbone::State;
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result};
use serde_json::json;

pub use inbox::{Counts, Inbox};
pub(crate) use retrace::retrace;

use crate::heads::Choosing;
use crate::segment::Segment;

/// The live games of a run.
pub(crate) struct Live {
    inbox: Arc<Inbox>,
    /// Updates that the weights of a segment may be behind.
    max_lag: u64,
    /// Decisions that were learned from.
    steps: u64,
    /// Version of the weights at the first update of this process: later than those of earlier runs.
    base: u64,
    /// Updates of the run before this process.
    begun: u64,
    finished: Vec<Episode>,
    /// Updates that the last segments were behind, as mean over their decisions.
    lag: f64,
    /// Counts at the last update.
    before: Counts,
}

impl Live {
    /// The live games of a run after some steps and updates.
    pub(crate) fn new(inbox: Arc<Inbox>, max_lag: u64, [steps, begun]: [u64; 2]) -> Self {
        let (before, newest) = (inbox.counts(), inbox.newest());
        let base = newest.map_or(0, |(version, _)| version + 1);
        Live { inbox, max_lag, steps, base, begun, finished: vec![], lag: 0.0, before }
    }

    /// Publishes a policy after this many updates of the run. Returns its version.
    ///
    /// # Errors
    /// Those of [`Policy::from_weights`].
    pub(crate) fn publish(&self, policy: &Policy, update: u64) -> Result<u64> {
        let version = self.base + update.saturating_sub(self.begun);
        // Weights that no longer learn are shared.
        let own = Policy::from_weights(policy.spec(), policy.weights().clone())?;
        self.inbox.publish(version, Arc::new(own.noting(json!({"version": version}))));
        Ok(version)
    }

    /// Publishes the policy and waits for segments with this many decisions.
    ///
    /// # Errors
    /// `Cancelled` once `over` says so.
    pub(crate) fn play(
        &mut self,
        policy: &Policy,
        update: u64,
        decisions: usize,
        over: &dyn Fn() -> bool,
    ) -> Result<Vec<Segment>> {
        let version = self.publish(policy, update)?;
        let (heads, zero) = (Choosing::of(&policy.spec().heads)?, policy.zero_state(1)?);
        let (mut segments, mut left, mut lag) = (vec![], decisions, 0.0);
        while left > 0 {
            let taken = self.inbox.take(left, over).ok_or(Error::Cancelled)?;
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
                segments.push(segment(policy.spec(), &heads, &zero, recorded)?);
            }
        }
        let played: usize = segments.iter().map(Segment::frames).sum();
        self.steps += played as u64;
        self.lag = lag / played.max(1) as f64;
        Ok(segments)
    }

    fn note_end(&mut self, recorded: &Recorded) {
        if recorded.over != Over::No {
            let (ret, length) = recorded.episode;
            let terminated = recorded.over == Over::Terminated;
            self.finished.push(Episode { env: 0, seat: 0, ret, length, terminated });
        }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
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

/// A recorded segment as one of a single row.
fn segment(spec: &Spec, heads: &Choosing, zero: &State, recorded: Recorded) -> Result<Segment> {
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
    let Recorded { continuous, ids, previous, labels, rewards, .. } = recorded;
    Ok(Segment { continuous, ids, previous, labels, rewards, ..segment })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use sconce_data::Sink;
    use sconce_serve::session::{Overrides, Recording, Session};
    use sconce_serve::{Format, Model};

    use super::*;
    use crate::returns::{Bars, Discounts};

    #[derive(Default)]
    struct All(Mutex<Vec<Recorded>>);

    impl Sink for All {
        fn put(&self, segment: Recorded) {
            self.0.lock().unwrap().push(segment);
        }
    }

    fn policy() -> Arc<Policy> {
        let spec: Spec = serde_json::from_value(json!({
            "embedding": {"vector": 2},
            "backbone": {"gru": {"hidden_size": 8, "num_layers": 1, "layer_norm": false,
                "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}},
            "heads": {
                "kind": "autoregressive", "stream_size": 8, "prior": false,
                "parts": [
                    {"name": "keys", "kind": {"bernoulli": 2}, "hidden_size": 0},
                    {"name": "move", "kind": {"categorical": 3}, "hidden_size": 0},
                    {"name": "value", "kind": {"value": 1}, "hidden_size": 0},
                ],
            },
        }))
        .unwrap();
        Arc::new(Policy::init(&spec, 3).unwrap())
    }

    #[test]
    fn a_recorded_segment_has_the_masks_of_its_decisions_and_v_trace_repeats_their_likelihoods() {
        let (policy, all) = (policy(), Arc::<All>::default());
        let model = Arc::new(Model::new(policy.clone(), Format::F32).unwrap());
        let options = serde_json::from_value(json!({
            "mode": "carry", "window_size": 4, "seed": 1,
            "sampling": sconce_nn::sampling::Sampling::default(),
        }));
        let mut session = Session::over(model, options.unwrap()).unwrap();
        session.record(all.clone(), Recording { steps: 6, stride: 3, hold: 0 }).unwrap();
        // The second half of the episode has no masks.
        let mask = |t: usize| (t < 6).then(|| vec![1, 0, u8::from(t.is_multiple_of(2)), 1, 0]);
        for t in 0..12 {
            let overrides = Overrides { mask: mask(t), ..Overrides::default() };
            session.act(&[0.3 * t as f32, -0.2], &overrides).unwrap();
            session.reward(None, t as f32).unwrap();
        }
        session.done(Over::Terminated, None).unwrap();
        let (heads, zero) =
            (Choosing::of(&policy.spec().heads).unwrap(), policy.zero_state(1).unwrap());
        let taken = std::mem::take(&mut *all.0.lock().unwrap());
        let read = |recorded: &Recorded| {
            // Segments of other nodes come as bytes.
            let recorded = Recorded::from_bytes(&recorded.to_bytes()).unwrap();
            segment(policy.spec(), &heads, &zero, recorded).unwrap()
        };
        let mut traced: Vec<Segment> = taken.iter().map(read).collect();
        assert_eq!(traced[0].mask, (0..6).flat_map(|t| mask(t).unwrap()).collect::<Vec<_>>());
        assert!(traced[1].mask.is_empty());
        let mut summed = traced.clone();
        let discounts = Discounts { gamma: 0.9, lambda: 0.8 };
        retrace(&policy, &mut traced, discounts, Bars { rho: 9.0, c: 9.0 }).unwrap();
        for (traced, summed) in traced.iter().zip(&mut summed) {
            summed.estimate(discounts).unwrap();
            let pairs = traced.returns.targets.iter().zip(&summed.returns.targets);
            pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-4, "{a} and {b}"));
        }
    }
}
