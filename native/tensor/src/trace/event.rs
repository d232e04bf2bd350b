//! Spans and their kinds.

use std::time::{Duration, Instant};

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A call from Elixir on its own thread.
    Call,
    /// Work of a call on a thread of this library.
    Job,
    /// A part of a training step, of a rollout or of a loader.
    Step,
    /// A wait for another thread.
    Wait,
    /// A decision of sessions; the device computes.
    Decision,
    /// The forward pass of an op; the device computes.
    Forward,
    /// The backward pass of an op; the device computes.
    Backward,
    /// Shards of the work of another thread; the device computes.
    Shards,
    /// Launches of an op on a card, which computes later.
    Launch,
}

impl Kind {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Call => "call",
            Kind::Job => "job",
            Kind::Step => "step",
            Kind::Wait => "wait",
            Kind::Decision => "decision",
            Kind::Forward => "forward",
            Kind::Backward => "backward",
            Kind::Shards => "shards",
            Kind::Launch => "launch",
        }
    }

    /// Whether a device computes during such a span.
    pub fn computes(self) -> bool {
        matches!(self, Kind::Decision | Kind::Forward | Kind::Backward | Kind::Shards)
    }
}

/// A span that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// Its kind.
    pub kind: Kind,
    /// Its name, or the name of the type of an op.
    pub name: &'static str,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// Bytes that it read and wrote; 0 if unknown.
    pub bytes: u64,
}

impl Event {
    /// The time from start to end.
    pub fn time(&self) -> Duration {
        self.end.saturating_duration_since(self.start)
    }
}
