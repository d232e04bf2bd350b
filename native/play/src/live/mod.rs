//! Learning from live games: segments that sessions record, in place of rollouts.

mod inbox;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sconce_data::{Over, Recorded};
use sconce_env::Episode;
use sconce_nn::backbone::State;
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result};
use serde_json::json;

pub use inbox::{Counts, Inbox};

use crate::heads::Choosing;
use crate::segment::Segment;

/// The live games of a run.
pub(crate) struct Live {
    inbox: Arc<Inbox>,
    /// Updates that the weights of a segment may be behind.
    max_lag: u64,
    /// Decisions that were learned from.
    steps: u64,
    finished: Vec<Episode>,
    /// Updates that the last segments were behind, as mean over their decisions.
    lag: f64,
    /// Counts at the last update.
    before: Counts,
}

impl Live {
    pub(crate) fn new(inbox: Arc<Inbox>, max_lag: u64, steps: u64) -> Self {
        let before = inbox.counts();
        Live { inbox, max_lag, steps, finished: vec![], lag: 0.0, before }
    }

    /// Publishes the policy under the number of its update, and waits for segments with this many decisions.
    ///
    /// # Errors
    /// `Cancelled` for a run that is stopped meanwhile.
    pub(crate) fn play(
        &mut self,
        policy: &Policy,
        version: u64,
        decisions: usize,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Segment>> {
        let published = Policy::from_weights(policy.spec(), policy.weights().clone())?;
        let published = published.copy_on(policy.device())?.noting(json!({"version": version}));
        self.inbox.publish(version, Arc::new(published));
        let (heads, zero) = (Choosing::of(&policy.spec().heads)?, policy.zero_state(1)?);
        let (mut segments, mut left, mut lag) = (vec![], decisions, 0.0);
        while left > 0 {
            let taken = self.inbox.take(left, cancelled).ok_or(Error::Cancelled)?;
            for recorded in taken {
                self.note_end(&recorded);
                let behind = |made: &u64| version.saturating_sub(*made);
                if recorded.versions.iter().map(behind).max() > Some(self.max_lag) {
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
