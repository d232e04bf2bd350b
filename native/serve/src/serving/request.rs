//! What is asked of a serving, and by whom.

use std::hash::Hash;

use sconce_tensor::Result;

use crate::pass::{Forward, Pass};
use crate::session::{Overrides, Session};

/// What is asked for.
pub enum Work<'a> {
    Act {
        session: &'a mut Session,
        raw: &'a [f32],
        overrides: &'a Overrides,
        /// Whether the session was [asked](Session::ask) this already.
        asked: bool,
    },
    Forward(&'a Pass),
}

pub enum Answer {
    /// The last one of the session.
    Act,
    Forward(Forward),
}

/// A caller who waits. One that is dropped unanswered answers for itself, unless somebody else claimed it.
pub trait Request: Send + 'static {
    /// What callers are told apart by.
    type Caller: Copy + Eq + Hash + Send;

    fn work(&mut self) -> Result<Work<'_>>;

    /// True for the first who asks, here or where its caller gives up: that one has the say.
    fn claim(&mut self) -> bool;

    /// Answers, after the claim.
    fn answer(self, result: Result<Answer>);

    /// Ends it without an answer: its caller knows.
    fn dismiss(self);
}

/// Why nobody waits any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GaveUp {
    Late,
    Died,
}

/// The request if it may be answered; otherwise its caller has given up.
pub(super) fn claimed<R: Request>(mut request: R) -> Option<R> {
    match request.claim() {
        true => Some(request),
        false => {
            request.dismiss();
            None
        }
    }
}
