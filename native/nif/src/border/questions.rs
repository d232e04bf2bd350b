//! Questions of long work to the process that waits for its answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which a waiting question checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// Numbered questions, one at a time: a late answer never answers a later question.
#[derive(Default)]
pub(crate) struct Questions {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of the open question; 0 if there is none.
    asked: u64,
    last: u64,
    answer: Option<serde_json::Value>,
}

impl Questions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks by `tell`, which gets the question's number, and waits for the answer until the deadline or until
    /// `cancelled` is set.
    pub(crate) fn ask(
        &self,
        deadline: Duration,
        cancelled: &AtomicBool,
        tell: impl FnOnce(u64),
    ) -> Option<serde_json::Value> {
        let end = Instant::now() + deadline;
        let mut state = self.state();
        state.last += 1;
        state.asked = state.last;
        drop(state);
        tell(self.state().asked);
        let mut state = self.state();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if state.answer.is_some() || left.is_zero() || cancelled.load(Ordering::Relaxed) {
                state.asked = 0;
                return state.answer.take();
            }
            let waited = self.told.wait_timeout(state, left.min(LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Answers a question; false if the question is no longer open.
    pub(crate) fn answer(&self, number: u64, answer: serde_json::Value) -> bool {
        let mut state = self.state();
        let asked = number != 0 && state.asked == number && state.answer.is_none();
        if asked {
            state.answer = Some(answer);
            self.told.notify_all();
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_matches_its_question_and_no_question_waits_beyond_its_deadline() {
        let (questions, never) = (Questions::default(), AtomicBool::new(false));
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(60));
        assert!(!questions.answer(0, json!(0)));
        assert_eq!(questions.ask(short, &never, |_| ()), None);
        assert!(!questions.answer(1, json!(1)), "late");
        let told = |number| assert!(questions.answer(number, json!(number)));
        assert_eq!(questions.ask(long, &never, told), Some(json!(2)));
        let twice = |number| {
            assert!(questions.answer(number, json!("first")));
            assert!(!questions.answer(number, json!("second")));
        };
        assert_eq!(questions.ask(long, &never, twice), Some(json!("first")));
        let cancelled = AtomicBool::new(true);
        assert_eq!(questions.ask(long, &cancelled, |_| ()), None);
    }
}
