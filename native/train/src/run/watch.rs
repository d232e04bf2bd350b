//! Whom a run tells what happens, and whom it asks what to do.

use serde::{Deserialize, Serialize};

use crate::report::Event;

/// What a run is told to do between two steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Verdict {
    /// The learning rate from the next step on, whatever the schedule says.
    pub learning_rate: Option<f64>,
    /// Ends the run, its state saved.
    pub stop: bool,
}

/// Asks what to do after a step, and waits for the answer for a bounded time: none where it did not come.
pub type Ask<'a> = &'a dyn Fn(u64) -> Option<Verdict>;

/// Whom a run tells what happens, and whom it asks.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    pub events: &'a dyn Fn(Event),
    pub ask: Option<Ask<'a>>,
}

impl<'a> Watch<'a> {
    /// Nobody is asked.
    pub fn of(events: &'a dyn Fn(Event)) -> Self {
        Watch { events, ask: None }
    }
}
