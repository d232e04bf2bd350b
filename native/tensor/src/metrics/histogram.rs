//! Logarithmic histograms of fixed size, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// Buckets per octave: the width of a bucket is at most a 64th of its values; values below 128 are exact.
const PARTS: u64 = 64;
const PART_BITS: u32 = PARTS.ilog2();
/// Values below [`PARTS`] have one bucket each; each octave above has [`PARTS`].
const BUCKETS: usize = (u64::BITS - PART_BITS + 1) as usize * PARTS as usize;

#[inline]
fn bucket(value: u64) -> usize {
    match value.checked_ilog2() {
        Some(octave) if octave >= PART_BITS => {
            let part = (value >> (octave - PART_BITS)) & (PARTS - 1);
            (u64::from(octave - PART_BITS + 1) * PARTS + part) as usize
        }
        _ => value as usize,
    }
}

/// The middle of a bucket.
fn middle(bucket: usize) -> f64 {
    let (octave, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    match octave {
        0 => part as f64,
        1 => (PARTS + part) as f64,
        octave => (PARTS as f64 + part as f64 + 0.5) * 2f64.powi(octave as i32 - 1),
    }
}

/// Words of a histogram: the sum of its values, then the counts of its buckets.
pub(crate) const WORDS: usize = 1 + BUCKETS;

/// Counts a value in the words of a histogram.
#[inline]
pub(crate) fn record(words: &[AtomicU64], value: u64) {
    if let Some((sum, counts)) = words.split_first()
        && let Some(count) = counts.get(bucket(value))
    {
        sum.fetch_add(value, Ordering::Relaxed);
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A histogram of `u64` values of any size.
pub struct Histogram {
    words: Box<[AtomicU64]>,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { words: (0..WORDS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Histogram {
    /// Counts a value.
    pub fn record(&self, value: u64) {
        record(&self.words, value);
    }

    /// Counts a time, in nanoseconds.
    pub fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The values so far.
    pub fn read(&self) -> Counts {
        let mut words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        Counts { sum: words.next().unwrap_or(0), counts: words.collect() }
    }
}

/// A histogram at one moment.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    counts: Vec<u64>,
    sum: u64,
}

impl Counts {
    /// The values recorded after `earlier`.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(before).map(|(now, then)| now - then).collect();
        Counts { counts, sum: self.sum.wrapping_sub(earlier.sum) }
    }

    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The quantile `share` (0 to 1) to the precision of a bucket; `None` if there are no values.
    fn quantile(&self, share: f64) -> Option<f64> {
        let total = self.total();
        let rank = ((share * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let reaches = |count: &u64| {
            seen += count;
            seen >= rank
        };
        self.counts.iter().position(reaches).map(middle)
    }

    /// Mean and quantiles, divided by `unit`.
    pub fn summary(&self, unit: f64) -> Summary {
        let at = |share| self.quantile(share).map(|value| value / unit);
        let count = self.total();
        Summary {
            count,
            mean: (count > 0).then(|| self.sum as f64 / count as f64 / unit),
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        }
    }
}

/// Summary of a histogram; all but the count are `None` if it is empty. The relative error of quantiles and maximum is
/// at most 1/128.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Number of values.
    pub count: u64,
    /// Exact mean.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p999: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn buckets_are_contiguous_and_their_middle_is_near_each_value() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        let values = (0..65_536).chain((16..64).flat_map(|bits| [(1 << bits) - 1, 1 << bits]));
        let mut last = 0;
        for value in values {
            let at = bucket(value);
            assert!(at == last || at == last + 1 || value > 65_536, "{value}: {last} {at}");
            let error = (middle(at) - value as f64).abs() / (value as f64).max(1.0);
            assert!(error <= 1.0 / 128.0, "{value}: {}", middle(at));
            last = at;
        }
    }

    #[test]
    fn quantiles_are_exact_to_a_bucket() {
        // Values span many octaves, as waiting times do.
        let rng = Rng::new(5, "test", 0);
        let mut values: Vec<u64> =
            (0..20_000).map(|i| (100.0 * 1e5f64.powf(rng.uniform(i).into())) as u64).collect();
        let histogram = Histogram::default();
        values.iter().for_each(|value| histogram.record(*value));
        values.sort_unstable();
        let summary = histogram.read().summary(1.0);
        for (share, got) in [
            (0.5, summary.p50),
            (0.95, summary.p95),
            (0.99, summary.p99),
            (0.999, summary.p999),
            (1.0, summary.max),
        ] {
            let exact = values[(share * 20_000.0) as usize - 1] as f64;
            let error = (got.unwrap() - exact).abs() / exact;
            assert!(error <= 1.0 / 128.0, "{share}: {got:?}, not {exact}");
        }
        let mean = values.iter().sum::<u64>() as f64 / 20_000.0;
        assert_eq!((summary.count, summary.mean), (20_000, Some(mean)));
    }

    #[test]
    fn an_empty_histogram_has_no_quantiles() {
        let summary = Histogram::default().read().summary(1.0);
        assert_eq!((summary.count, summary.mean, summary.p50, summary.max), (0, None, None, None));
    }

    #[test]
    fn concurrent_records_are_all_counted() {
        let histogram = Histogram::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|value| histogram.record(value)));
            }
        });
        assert_eq!(histogram.read().total(), 40_000);
    }
}
