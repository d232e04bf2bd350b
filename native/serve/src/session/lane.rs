//! The lane of the next decision, and how much of the past it reads.

use super::open::Session;
use super::options::{INLINE_US, Lane, MAX_INLINE_US, Mode};

/// Overhead of a decision in microseconds: reading the frame and encoding the answer.
const BORDER_US: f64 = 3.0;

impl Session {
    /// Whether the next decision is a step of the plan.
    pub fn steps(&self) -> bool {
        self.model.plan().is_some() && !self.looks_back()
    }

    /// The lane of the next decision.
    pub fn next_lane(&self) -> Lane {
        self.lane(self.next_us())
    }

    /// Microseconds of the next decision.
    pub(super) fn next_us(&self) -> f64 {
        if self.looks_back() { self.cost.window_us } else { self.cost.step_us }
    }

    /// Whether every decision reads a window, so that only frames are remembered.
    pub(super) fn windows(&self) -> bool {
        self.options.mode == Mode::Window && self.model.remembers()
    }

    pub(super) fn lane(&self, cost_us: f64) -> Lane {
        // A scheduler never waits for a card.
        let most = match self.options.lane {
            Some(Lane::Inline) if self.policy().device().is_cpu() => MAX_INLINE_US,
            None if self.policy().device().is_cpu() => INLINE_US,
            _ => 0.0,
        };
        if cost_us < most { Lane::Inline } else { Lane::Worker }
    }

    /// Whether the next decision reads a whole window from a zero state. The first one always does: a window of copies
    /// of the first frame warms the state.
    pub(super) fn looks_back(&self) -> bool {
        let frames = self.moments.now().frames;
        self.model.remembers()
            && match self.options.mode {
                Mode::Carry => frames == 0 && !self.records(),
                Mode::Window => true,
                Mode::Resync(every) => frames.is_multiple_of(every),
            }
    }
}

/// The lane of one call that makes the next decisions of these sessions: inline if each decision is inline and their
/// total time is short enough.
pub fn lane<'a>(sessions: impl Iterator<Item = &'a Session>) -> Lane {
    let (mut us, mut forced) = (0.0, true);
    for session in sessions {
        if session.next_lane() == Lane::Worker {
            return Lane::Worker;
        }
        us += session.next_us() + BORDER_US;
        forced &= session.options.lane.is_some();
    }
    let most = if forced { MAX_INLINE_US } else { INLINE_US };
    if us < most { Lane::Inline } else { Lane::Worker }
}
