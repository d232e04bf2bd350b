//! The result of a step of one game.

use crate::backbone::{Context, State};
use crate::heads::Decision;

/// A decision and the state after it.
pub type Stepped = (Decision, State);

/// The context of a step, whose single frame is the last frame.
pub(super) fn last() -> Context {
    Context::default().of_last()
}
