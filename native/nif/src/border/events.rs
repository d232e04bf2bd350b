//! Events of long work, sent to the process that waits for its answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustler::{Env, Term};
use sconce_tensor::Result;

use super::answer::Answer;
use super::questions::Questions;
use super::reply::Reply;

/// Most unacknowledged events before progress is held back, about a megabyte of a mailbox: a second of steps at one per
/// millisecond. A process further behind cannot keep up, and needs only the latest progress.
pub(crate) const MOST_PROGRESS: usize = 1024;

/// Most unacknowledged events. Events other than progress are rare and read one by one, so a process this far behind no
/// longer reads its mailbox; the report contains the same facts.
pub(crate) const MOST_EVENTS: usize = 4096;

/// Events that were sent and not yet acknowledged.
#[derive(Default)]
pub(crate) struct Unheard(AtomicUsize);

impl Unheard {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Acknowledges one event; a surplus acknowledgement is a no-op.
    pub(crate) fn remove(&self) {
        let one_less = |n: usize| n.checked_sub(1);
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    }
}

/// The events of one task, sent from any of its threads. No call waits for the process.
///
/// 1. From [`MOST_PROGRESS`] unacknowledged events on, progress is held back: the latest replaces the one before, and
///    is sent ahead of the next other event and of the answer.
/// 2. From [`MOST_EVENTS`] unacknowledged events on, only the answer is sent.
pub(crate) struct Events {
    state: Mutex<State>,
    unheard: Arc<Unheard>,
    questions: Arc<Questions>,
}

struct State {
    reply: Reply,
    /// The latest progress that is held back.
    held: Option<Event>,
}

type Event = Box<dyn for<'a> FnOnce(Env<'a>) -> Result<Term<'a>> + Send>;

impl Events {
    pub(crate) fn new(reply: Reply, unheard: Arc<Unheard>, questions: Arc<Questions>) -> Self {
        Events { state: Mutex::new(State { reply, held: None }), unheard, questions }
    }

    /// Questions to the process.
    pub(crate) fn questions(&self) -> &Questions {
        &self.questions
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sends progress, which later progress may replace.
    pub(crate) fn progress<T: Answer + Send + 'static>(&self, value: T) -> Result<()> {
        let mut state = self.state();
        if self.unheard.count() >= MOST_PROGRESS {
            state.held = Some(Box::new(|env| value.into_term(env)));
            return Ok(());
        }
        state.held = None;
        self.send(&state.reply, |env| value.into_term(env))
    }

    /// Sends an event that later events never replace.
    pub(crate) fn tell<T: Answer>(&self, value: T) -> Result<()> {
        let mut state = self.state();
        self.send_held(&mut state)?;
        self.send(&state.reply, |env| value.into_term(env))
    }

    /// Sends held progress and returns the reply.
    pub(crate) fn end(self) -> Reply {
        // Progress that cannot be encoded is dropped: the answer must still be sent.
        let _ = self.send_held(&mut self.state());
        self.state.into_inner().unwrap_or_else(|e| e.into_inner()).reply
    }

    fn send_held(&self, state: &mut State) -> Result<()> {
        state.held.take().map_or(Ok(()), |held| self.send(&state.reply, held))
    }

    fn send(
        &self,
        reply: &Reply,
        event: impl for<'a> FnOnce(Env<'a>) -> Result<Term<'a>>,
    ) -> Result<()> {
        if self.unheard.count() >= MOST_EVENTS {
            return Ok(());
        }
        reply.event(event)?;
        self.unheard.add();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surplus_acknowledgements_leave_the_count_at_zero() {
        let unheard = Unheard::default();
        unheard.remove();
        unheard.add();
        assert_eq!(unheard.count(), 1);
        (0..3).for_each(|_| unheard.remove());
        assert_eq!(unheard.count(), 0);
    }
}
