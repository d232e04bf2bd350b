//! The place where segments of live games wait for their learner, and where its newest weights wait for the games.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sconce_data::{MOST_TERMS, Recorded, Sink};
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result};
use serde::Serialize;

/// Interval at which a waiting learner looks whether its run was stopped.
const LOOK: Duration = Duration::from_millis(50);

/// Segments by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Decisions that came.
    pub decisions: u64,
    /// Segments that came.
    pub received: u64,
    /// Segments that were dropped for newer ones, because the inbox was full.
    pub displaced: u64,
    /// Segments that were dropped because their weights were too old.
    pub stale: u64,
    /// Segments that were dropped because they do not fit the policy or the reward terms.
    pub misfits: u64,
    /// Segments that wait.
    pub waiting: u64,
}

/// A bounded queue of segments. The order is that of their arrival.
pub struct Inbox {
    spec: Spec,
    /// Numbers of a memory.
    state_size: usize,
    /// Names of the terms of a reward.
    terms: Arc<[String]>,
    /// Most decisions that wait.
    capacity: usize,
    state: Mutex<State>,
    told: Condvar,
    newest: Mutex<Option<(u64, Arc<Policy>)>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Recorded>,
    decisions: usize,
    counts: Counts,
}

impl Inbox {
    /// An inbox for segments of policies of `spec` with rewards of these `terms`, which holds at most `capacity`
    /// decisions.
    ///
    /// # Errors
    /// `Mismatch` for a Spec without a value, and for a term that is named twice; `OutOfRange` for no term or too many.
    pub fn new(
        spec: &Spec,
        state_size: usize,
        terms: &[String],
        capacity: usize,
    ) -> Result<Arc<Self>> {
        crate::heads::Choosing::of(&spec.heads)?;
        if !(1..=MOST_TERMS).contains(&terms.len()) {
            let (count, most) = (terms.len() as f64, MOST_TERMS as f64);
            return Err(Error::out_of_range("reward_terms", count, 1.0, most));
        }
        let mut known = BTreeSet::new();
        if let Some(twice) = terms.iter().find(|term| !known.insert(*term)) {
            return Err(Error::mismatch(
                "reward_terms",
                "distinct names",
                format!("{twice} twice"),
            ));
        }
        Ok(Arc::new(Inbox {
            spec: spec.clone(),
            state_size,
            terms: terms.into(),
            capacity,
            state: Mutex::default(),
            told: Condvar::new(),
            newest: Mutex::default(),
        }))
    }

    /// The Spec of the policies whose segments it takes.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    fn check(&self, segment: &Recorded) -> Result<()> {
        segment.check(&self.spec, self.state_size, &self.terms)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a segment, unless the inbox is full.
    ///
    /// # Errors
    /// `Busy` if it is full; those of [`Recorded::check`].
    pub fn offer(&self, segment: Recorded) -> Result<()> {
        if let Err(error) = self.check(&segment) {
            self.state().counts.misfits += 1;
            return Err(error);
        }
        let mut state = self.state();
        if state.decisions + segment.steps() > self.capacity && !state.waiting.is_empty() {
            return Err(Error::Busy { what: "queue of segments".into() });
        }
        self.add(&mut state, segment);
        Ok(())
    }

    /// Takes a segment as bytes, as [`offer`](Self::offer) does; other bytes are a misfit.
    ///
    /// # Errors
    /// Those of [`offer`](Self::offer) and of [`Recorded::from_bytes`].
    pub fn offer_bytes(&self, bytes: &[u8]) -> Result<()> {
        let segment = Recorded::from_bytes(bytes);
        let segment = segment.inspect_err(|_| self.state().counts.misfits += 1)?;
        self.offer(segment)
    }

    fn add(&self, state: &mut State, segment: Recorded) {
        state.counts.received += 1;
        state.counts.decisions += segment.steps() as u64;
        state.decisions += segment.steps();
        state.waiting.push_back(segment);
        self.told.notify_all();
    }

    /// Waits for segments and takes those that there are, up to this many decisions. Returns `None` once `over` says so.
    pub fn take(&self, decisions: usize, over: impl Fn() -> bool) -> Option<Vec<Recorded>> {
        let mut state = self.state();
        while state.waiting.is_empty() {
            if over() {
                return None;
            }
            let waited = self.told.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let (mut taken, mut left) = (vec![], decisions);
        while left > 0 {
            let Some(segment) = state.waiting.pop_front() else { break };
            state.decisions -= segment.steps();
            left = left.saturating_sub(segment.steps());
            taken.push(segment);
        }
        Some(taken)
    }

    /// Takes at most `most` segments at once, for another node.
    pub fn take_some(&self, most: usize) -> Vec<Recorded> {
        let mut state = self.state();
        let n = most.min(state.waiting.len());
        let taken: Vec<Recorded> = state.waiting.drain(..n).collect();
        state.decisions -= taken.iter().map(Recorded::steps).sum::<usize>();
        taken
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        let state = self.state();
        Counts { waiting: state.waiting.len() as u64, ..state.counts }
    }

    pub(super) fn count_stale(&self, segments: u64) {
        self.state().counts.stale += segments;
    }

    /// Makes weights the newest ones.
    pub fn publish(&self, version: u64, policy: Arc<Policy>) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((version, policy));
    }

    /// The newest weights and their version.
    pub fn newest(&self) -> Option<(u64, Arc<Policy>)> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Sink for Inbox {
    fn terms(&self) -> Arc<[String]> {
        self.terms.clone()
    }

    /// Takes a segment in any case: where the inbox is full, the oldest ones go.
    fn put(&self, segment: Recorded) {
        if self.check(&segment).is_err() {
            self.state().counts.misfits += 1;
            return;
        }
        let mut state = self.state();
        while state.decisions + segment.steps() > self.capacity {
            let Some(oldest) = state.waiting.pop_front() else { break };
            state.decisions -= oldest.steps();
            state.counts.displaced += 1;
        }
        self.add(&mut state, segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(capacity: usize) -> Arc<Inbox> {
        let spec = serde_json::from_value(serde_json::json!({
            "embedding": {"vector": 1},
            "backbone": {"mlp": {"hidden_sizes": [8], "layer_norm": false, "residual": false,
                "dropout": 0.0, "input_dropout": 0.0}},
            "heads": {
                "kind": "independent", "stream_size": 8, "prior": false,
                "parts": [
                    {"name": "go", "kind": {"categorical": 2}, "hidden_size": 0},
                    {"name": "value", "kind": {"value": 1}, "hidden_size": 0},
                ],
            },
        }));
        Inbox::new(&spec.unwrap(), 0, &["reward".to_string()], capacity).unwrap()
    }

    fn segment(steps: usize) -> Recorded {
        Recorded {
            continuous: vec![0.0; steps],
            previous: vec![0.0; steps],
            labels: vec![0.0; steps],
            logits: vec![0.0; 3 * steps],
            rewards: vec![steps as f32; steps],
            terms: ["reward".to_string()].into(),
            versions: vec![0; steps],
            stride: 16,
            ..Recorded::default()
        }
    }

    #[test]
    fn a_full_inbox_refuses_an_offer_and_drops_the_oldest_for_a_game_of_this_vm() {
        let inbox = inbox(10);
        (1..=4).for_each(|steps| inbox.offer(segment(steps)).unwrap());
        assert_eq!(inbox.offer(segment(1)).unwrap_err().kind().name(), "busy");
        inbox.put(segment(5));
        let counts = inbox.counts();
        assert_eq!((counts.received, counts.displaced, counts.waiting), (5, 3, 2));
        let taken = inbox.take(6, || false).unwrap();
        assert_eq!(taken.iter().map(Recorded::steps).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(inbox.counts().decisions, 15);
        // One segment that is longer than the inbox is taken alone.
        inbox.put(segment(11));
        assert_eq!(inbox.take_some(9).len(), 1);
    }

    #[test]
    fn misfits_are_counted_and_a_stopped_run_waits_no_longer() {
        let inbox = inbox(10);
        let bad = Recorded { logits: vec![], ..segment(2) };
        assert!(inbox.offer(bad.clone()).is_err());
        inbox.put(bad);
        assert_eq!(inbox.counts().misfits, 2);
        let other = Recorded { terms: ["damage".to_string()].into(), ..segment(2) };
        let error = inbox.offer_bytes(&other.to_bytes()).unwrap_err().to_string();
        assert!(error.contains("reward terms") && error.contains("damage"), "{error}");
        inbox.put(other);
        assert_eq!(inbox.counts().misfits, 4);
        assert!(inbox.take(1, || true).is_none());
        // A run gets what there is, though it wants more than the inbox holds.
        inbox.put(segment(3));
        assert_eq!(inbox.take(100, || true).unwrap().len(), 1);
    }

    #[test]
    fn terms_are_named_once() {
        let spec = inbox(1).spec().clone();
        let of = |terms: &[&str]| {
            let terms: Vec<String> = terms.iter().map(|term| term.to_string()).collect();
            Inbox::new(&spec, 0, &terms, 1).map(drop).unwrap_err().to_string()
        };
        assert!(of(&["hit", "time", "hit"]).contains("hit twice"));
        assert!(of(&[]).contains("reward_terms"));
        assert!(of(&["hit"; 65]).contains("reward_terms"));
    }
}
