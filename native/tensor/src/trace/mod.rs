//! Spans of time on native threads, while a trace records them.
//!
//! [`span`] costs a load without a trace, and two readings of the clock and an addition to a list of its own thread with
//! one. A span is also an NVTX range if a process has that library.

#[cfg(feature = "cuda")]
mod card;
mod chrome;
mod event;
mod recorder;
mod recording;
mod summary;

use std::time::Instant;

use candle_core::Device;
use sconce_cuda::nvtx;

pub use event::{Event, Kind};
pub use recording::{Recording, Trace, Track, start};
pub use summary::Row;

/// A span that ends when it is dropped.
#[must_use = "a span ends when it is dropped"]
#[derive(Debug)]
pub struct Span(Option<Open>);

#[derive(Debug)]
struct Open {
    kind: Kind,
    name: &'static str,
    bytes: u64,
    start: Instant,
    ranged: bool,
}

/// Begins a span on this thread.
#[inline]
pub fn span(kind: Kind, name: &'static str) -> Span {
    sized(kind, name, 0)
}

/// Begins a span that reads and writes `bytes`.
#[inline]
pub fn sized(kind: Kind, name: &'static str, bytes: u64) -> Span {
    if recorder::is_on() { open(kind, name, bytes) } else { Span(None) }
}

#[cold]
fn open(kind: Kind, name: &'static str, bytes: u64) -> Span {
    let ranged = nvtx::push(name);
    Span(Some(Open { kind, name, bytes, start: Instant::now(), ranged }))
}

/// Spans of work that a card computes: one of its launches on this thread, and one of the work on the card.
pub struct CardSpan {
    _launch: Span,
    #[cfg(feature = "cuda")]
    _work: Option<card::Stopwatch>,
}

/// Begins the spans of work on a device.
#[inline]
pub fn on_card(device: &Device, kind: Kind, name: &'static str, bytes: u64) -> CardSpan {
    #[cfg(not(feature = "cuda"))]
    let _ = (device, kind, bytes);
    CardSpan {
        _launch: span(Kind::Launch, name),
        #[cfg(feature = "cuda")]
        _work: is_on().then(|| card::Stopwatch::start(device, kind, name, bytes)).flatten(),
    }
}

/// Whether a trace records spans.
#[inline]
pub fn is_on() -> bool {
    recorder::is_on()
}

impl Span {
    /// A span that nothing records.
    pub fn none() -> Self {
        Span(None)
    }

    /// Adds bytes that the span read or wrote.
    #[inline]
    pub fn add_bytes(&mut self, bytes: u64) {
        if let Some(open) = &mut self.0 {
            open.bytes += bytes;
        }
    }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            close(open);
        }
    }
}

#[cold]
fn close(Open { kind, name, bytes, start, ranged }: Open) {
    let end = Instant::now();
    if ranged {
        nvtx::pop();
    }
    recorder::record(Event { kind, name, start, end, bytes });
}

#[cfg(test)]
mod tests;
