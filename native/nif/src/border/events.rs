//! Events of long work, on their way to the process that waits for its answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustler::{Env, Term};
use sconce_tensor::Result;

use super::answer::Answer;
use super::questions::Questions;
use super::reply::Reply;

/// Progress that may wait in a mailbox, some megabyte of it: what a process misses in a second at a step a millisecond.
/// A process that is further behind cannot keep up, and the latest serves it as well.
pub(crate) const MOST_PROGRESS: usize = 1024;

/// Events that may wait in a mailbox. All but progress are rare and meant to be read one by one: a process with so
/// many of them no longer reads, and the report has what they say.
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

    /// More acknowledgements than events change nothing.
    pub(crate) fn remove(&self) {
        let one_less = |n: usize| n.checked_sub(1);
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    }
}

/// Events of one piece of work, from any of its threads. No call waits for the process.
///
/// 1. Progress beyond [`MOST_PROGRESS`] unacknowledged events is held back: the latest replaces the one before it, and
///    is sent ahead of the next event of another kind and of the answer.
/// 2. Beyond [`MOST_EVENTS`] nothing is sent but the answer.
pub(crate) struct Events {
    state: Mutex<State>,
    unheard: Arc<Unheard>,
    questions: Arc<Questions>,
}

struct State {
    reply: Reply,
    /// The latest progress that was not sent.
    held: Option<Event>,
}

type Event = Box<dyn for<'a> FnOnce(Env<'a>) -> Result<Term<'a>> + Send>;

impl Events {
    pub(crate) fn new(reply: Reply, unheard: Arc<Unheard>, questions: Arc<Questions>) -> Self {
        Events { state: Mutex::new(State { reply, held: None }), unheard, questions }
    }

    /// What the process is asked.
    pub(crate) fn questions(&self) -> &Questions {
        &self.questions
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// An event that the next one of its kind replaces.
    pub(crate) fn progress<T: Answer + Send + 'static>(&self, value: T) -> Result<()> {
        let mut state = self.state();
        if self.unheard.count() >= MOST_PROGRESS {
            state.held = Some(Box::new(|env| value.into_term(env)));
            return Ok(());
        }
        state.held = None;
        self.send(&state.reply, |env| value.into_term(env))
    }

    /// An event of its own.
    pub(crate) fn tell<T: Answer>(&self, value: T) -> Result<()> {
        let mut state = self.state();
        self.send_held(&mut state)?;
        self.send(&state.reply, |env| value.into_term(env))
    }

    /// The reply, once the last progress is sent.
    pub(crate) fn end(self) -> Reply {
        // Progress that cannot be encoded is not worth the answer.
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
    fn acknowledgements_never_count_below_none() {
        let unheard = Unheard::default();
        unheard.remove();
        unheard.add();
        assert_eq!(unheard.count(), 1);
        (0..3).for_each(|_| unheard.remove());
        assert_eq!(unheard.count(), 0);
    }
}
