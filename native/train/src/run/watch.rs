//! The receiver of a run's events, and its callback.

use serde::{Deserialize, Serialize};

use crate::report::Event;

/// The verdict of a callback between two steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Verdict {
    /// Learning rate from the next step on, instead of the schedule's.
    pub learning_rate: Option<f64>,
    /// Ends the run after a save of its state.
    pub stop: bool,
}

/// A callback that gets the number of a step. It waits a bounded time for a verdict, and returns `None` if none came.
pub type Ask<'a> = &'a dyn Fn(u64) -> Option<Verdict>;

/// The receiver of a run's events, and its callback.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Receives each event.
    pub events: &'a dyn Fn(Event),
    /// Callback between two steps, if there is one.
    pub ask: Option<Ask<'a>>,
}

impl<'a> Watch<'a> {
    /// Makes a watch without a callback.
    pub fn of(events: &'a dyn Fn(Event)) -> Self {
        Watch { events, ask: None }
    }
}
