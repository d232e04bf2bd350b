//! Counters and histograms of a process.
//!
//! `metrics.exs` is the catalogue, which Elixir reads too. An update of [`METRICS`] is one or two atomic additions. The
//! values lie in memory of this process until [`crate::region::share`] moves them into a
//! mapped file.

pub(crate) mod histogram;

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use histogram::{Counts, Histogram, Summary};

/// Points of a series. A full one drops every second point.
const POINTS: usize = 256;
/// Words of a text.
const TEXT: usize = 64;

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// A number that only grows.
    Counter = 1,
    /// A number.
    Gauge = 2,
    /// A distribution of whole numbers.
    Histogram = 3,
    /// A curve.
    Series = 4,
    /// Words for people.
    Text = 5,
}

impl Kind {
    /// Words of a metric of this kind.
    pub const fn words(self) -> usize {
        match self {
            Kind::Counter | Kind::Gauge => 1,
            Kind::Histogram => histogram::WORDS,
            Kind::Series => 3 + 2 * POINTS,
            Kind::Text => 2 + TEXT,
        }
    }
}

/// The description of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Name, with labels as in Prometheus.
    pub name: &'a str,
    /// Unit; `ns` for times.
    pub unit: &'a str,
    /// Meaning.
    pub help: &'a str,
}

/// A number that only grows.
#[derive(Debug, Clone, Copy)]
pub struct Counter(usize);

/// A histogram of nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Times(usize);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(self, n: u64) {
        values(self.0, 1).iter().for_each(|word| {
            word.fetch_add(n, Ordering::Relaxed);
        });
    }

    /// The present value.
    pub fn get(self) -> u64 {
        values(self.0, 1).iter().map(|word| word.load(Ordering::Relaxed)).sum()
    }
}

impl Times {
    /// Counts the time since `start`.
    #[inline]
    pub fn since(self, start: Instant) {
        self.record(start.elapsed());
    }

    /// Counts a time.
    #[inline]
    pub fn record(self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        histogram::record(values(self.0, histogram::WORDS), nanos);
    }
}

/// The type of a metric of the catalogue, and its kind.
macro_rules! kind {
    (counter) => {
        Counter
    };
    (histogram) => {
        Times
    };
    (kind counter) => {
        Kind::Counter
    };
    (kind histogram) => {
        Kind::Histogram
    };
}

macro_rules! metrics {
    ($($id:ident: [kind: : $kind:ident, name: $name:literal, unit: $unit:literal, doc: $doc:literal $(,)?]),* $(,)?) => {
        /// The catalogue of this library's metrics.
        pub const CATALOGUE: &[Metric<'static>] = &[$(Metric {
            kind: kind!(kind $kind),
            name: $name,
            unit: $unit,
            help: $doc,
        }),*];

        /// The metrics of the catalogue.
        #[derive(Debug)]
        pub struct Metrics { $(#[doc = $doc] pub $id: kind!($kind)),* }

        #[allow(non_camel_case_types)]
        enum Index { $($id),* }

        /// The metrics of this process.
        pub static METRICS: Metrics = Metrics {
            $($id: kind!($kind)(OFFSETS[Index::$id as usize])),*
        };
    };
}
include!("../../metrics.exs");

/// Places of the catalogue's metrics within their words, and the number of all words.
const OFFSETS: [usize; CATALOGUE.len() + 1] = {
    let mut offsets = [0; CATALOGUE.len() + 1];
    let mut i = 0;
    while i < CATALOGUE.len() {
        offsets[i + 1] = offsets[i] + CATALOGUE[i].kind.words();
        i += 1;
    }
    offsets
};
/// Words of the catalogue.
pub(crate) const WORDS: usize = OFFSETS[CATALOGUE.len()];

/// The values before [`move_to`].
static OWN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The first of `WORDS` words that are never freed.
static VALUES: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const OWN).cast_mut().cast());

#[inline]
fn values(at: usize, words: usize) -> &'static [AtomicU64] {
    debug_assert!(at + words <= WORDS);
    let first = VALUES.load(Ordering::Relaxed);
    // SAFETY: `VALUES` points to `WORDS` words of `OWN` or of `move_to`, which are never freed, and all places come from
    // `OFFSETS`.
    unsafe { std::slice::from_raw_parts(first.add(at), words) }
}

/// The values are in these words from now on, which have those of before. Updates at this very moment may be lost.
pub(crate) fn move_to(words: &'static [AtomicU64]) {
    assert!(words.len() >= WORDS);
    for (word, own) in words.iter().zip(&OWN) {
        word.store(own.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    VALUES.store(words.as_ptr().cast_mut(), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_those_of_counters_and_times_end_as_prometheus_asks() {
        let mut names: Vec<_> = CATALOGUE.iter().map(|metric| metric.name).collect();
        for metric in CATALOGUE {
            let (end, unit) = match metric.kind {
                Kind::Counter => ("_total", metric.unit),
                _ => ("_seconds", "ns"),
            };
            assert!(metric.name.ends_with(end) && metric.unit == unit, "{}", metric.name);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CATALOGUE.len());
    }
}
