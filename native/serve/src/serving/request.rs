//! Requests of callers to a serving.

use std::hash::Hash;

use sconce_tensor::Result;

use crate::pass::{Forward, Pass};
use crate::session::{Overrides, Session};

/// The work of a request.
pub enum Work<'a> {
    /// One decision of a session.
    Act {
        /// The session of the caller.
        session: &'a mut Session,
        /// Raw frame, `[raw_width]`.
        raw: &'a [f32],
        /// Overrides of this decision.
        overrides: &'a Overrides,
        /// Whether [`Session::ask`] has already read this frame.
        asked: bool,
    },
    /// A forward pass.
    Forward(&'a Pass),
}

/// The result of a request.
pub enum Answer {
    /// The decision is [`Session::last`].
    Act,
    /// The outputs of the pass.
    Forward(Forward),
}

/// The request of a caller that waits. Dropping an unanswered request answers its caller, unless it was claimed
/// elsewhere.
pub trait Request: Send + 'static {
    /// Identifies a caller.
    type Caller: Copy + Eq + Hash + Send;

    /// The work to do.
    fn work(&mut self) -> Result<Work<'_>>;

    /// True for the first claim, made here or where the caller gives up; the first claimant ends the request.
    fn claim(&mut self) -> bool;

    /// Answers the caller, after the claim.
    fn answer(self, result: Result<Answer>);

    /// Ends the request without an answer: its caller already knows the outcome.
    fn dismiss(self);
}

/// Why a caller no longer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GaveUp {
    /// Its deadline passed.
    Late,
    /// Its process ended.
    Died,
}

/// The request if it may be answered; `None` if its caller has given up.
pub(super) fn claimed<R: Request>(mut request: R) -> Option<R> {
    match request.claim() {
        true => Some(request),
        false => {
            request.dismiss();
            None
        }
    }
}
