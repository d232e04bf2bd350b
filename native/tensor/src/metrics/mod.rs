//! Counters, gauges and histograms of a process, and the files by which other processes read them.
//!
//! `metrics.exs` is the catalogue, which Elixir reads too. An update of [`METRICS`] is one or two atomic additions. The
//! values lie in memory of this process until [`share`] moves them into a mapped file.

mod histogram;
mod region;
mod words;

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use histogram::{Counts, Histogram, Summary};
pub use region::{Kind, Metric, Region, State};

use crate::Result;

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
const TOTAL: usize = OFFSETS[CATALOGUE.len()];

/// The values before [`share`].
static OWN: [AtomicU64; TOTAL] = [const { AtomicU64::new(0) }; TOTAL];
/// The first of `TOTAL` words that are never freed.
static VALUES: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const OWN).cast_mut().cast());
static SHARED: OnceLock<Region> = OnceLock::new();

#[inline]
fn values(at: usize, words: usize) -> &'static [AtomicU64] {
    debug_assert!(at + words <= TOTAL);
    let first = VALUES.load(Ordering::Relaxed);
    // SAFETY: `VALUES` points to `TOTAL` words of `OWN` or of `SHARED`, which are never freed, and all places come from
    // `OFFSETS`.
    unsafe { std::slice::from_raw_parts(first.add(at), words) }
}

/// The region of this process, in memory of its own until [`share`] gives it a file.
///
/// # Errors
/// `OutOfMemory` without memory for it.
pub fn own() -> Result<&'static Region> {
    match SHARED.get() {
        Some(region) => Ok(region),
        None => share(None, ""),
    }
}

/// Makes the region of this process, with the file `path`, and moves the catalogue's values there. Updates at this very
/// moment may be lost. Later calls return the same region.
///
/// # Errors
/// `Io` for a file that cannot be written, after which the values stay where they are.
pub fn share(path: Option<&Path>, meta: &str) -> Result<&'static Region> {
    static MAKING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = MAKING.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(region) = SHARED.get() {
        return Ok(region);
    }
    let region = Region::new(path, meta, SLOTS, TOTAL + MORE_WORDS)?;
    let first = region.reserve(CATALOGUE, TOTAL)?;
    for (word, own) in first.iter().zip(&OWN) {
        word.store(own.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let region = SHARED.get_or_init(|| region);
    let first = region.first(TOTAL)?;
    VALUES.store(first.as_ptr().cast_mut(), Ordering::Release);
    Ok(region)
}

/// Metrics of a process: the catalogue's, and those of servings, sessions, devices and the app.
const SLOTS: usize = 1024;
/// Words for metrics outside the catalogue: sixteen histograms, and a thousand numbers.
const MORE_WORDS: usize = 16 * histogram::WORDS + SLOTS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_move_into_the_file_and_go_on_there() {
        METRICS.panics.add(3);
        METRICS.decision_time.record(Duration::from_micros(5));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.vm");
        let region = share(Some(&path), "{}").unwrap();
        METRICS.panics.add(4);
        METRICS.decision_time.record(Duration::from_micros(7));
        assert_eq!(METRICS.panics.get(), 7);
        let words = region::tests::file_words(&path);
        let place = |name: &str| {
            let i = CATALOGUE.iter().position(|metric| metric.name == name).unwrap();
            region::tests::data_of(&words, i)
        };
        assert_eq!(words[place("sconce_panics_total")], 7);
        let times = place("sconce_decision_seconds");
        assert_eq!(words[times], 12_000);
        assert_eq!(words[times + 1..times + histogram::WORDS].iter().sum::<u64>(), 2);
        // A second call changes nothing.
        assert!(std::ptr::eq(share(None, "{}").unwrap(), region));
    }

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
