//! What a step of a game gives.

use crate::backbone::{Context, State};
use crate::heads::Decision;

/// A decision, and the state after it.
pub type Stepped = (Decision, State);

/// The context of a step: of its last frame, which is its only one.
pub(super) fn last() -> Context {
    Context::default().of_last()
}
