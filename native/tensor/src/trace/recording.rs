//! A trace and what it recorded.

use std::time::Instant;

use super::event::Event;
use super::recorder;

/// A trace that records all spans of this process until it ends. Several may record at the same time.
#[derive(Debug)]
pub struct Trace {
    start: Instant,
    lost: u64,
}

/// Starts a trace.
pub fn start() -> Trace {
    let lost = recorder::begin();
    Trace { start: Instant::now(), lost }
}

/// The spans of a trace.
#[derive(Debug)]
pub struct Recording {
    /// When the trace began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// The threads that have spans.
    pub threads: Vec<Track>,
    /// Spans for which there was no room.
    pub lost: u64,
}

/// The spans of a thread, or of a card.
#[derive(Debug)]
pub struct Track {
    /// Its number within this process.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// Spans that began and ended during the trace, in the order in which they ended.
    pub events: Vec<Event>,
}

impl Trace {
    /// Ends the trace, and returns the spans that began and ended meanwhile. Waits for work on cards.
    pub fn end(self) -> Recording {
        #[cfg(feature = "cuda")]
        super::card::settle();
        let (start, end) = (self.start, Instant::now());
        let threads = recorder::tracks(start, end).into_iter();
        let threads = threads.map(|(number, name, events)| Track { number, name, events });
        let lost = recorder::lost().saturating_sub(self.lost);
        Recording { start, end, threads: threads.collect(), lost }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        recorder::end();
    }
}
