//! Statistics of a serving: counters and logarithmic histograms, of fixed size and without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// Buckets per octave: the width of a bucket is at most a 64th of its values; values below 128 are exact.
const PARTS: u64 = 64;
const PART_BITS: u32 = PARTS.ilog2();
/// Values below [`PARTS`] have one bucket each; each octave above has [`PARTS`].
const BUCKETS: usize = (u64::BITS - PART_BITS + 1) as usize * PARTS as usize;

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

/// A histogram of `u64` values of any size.
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Histogram { counts, sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts a value.
    pub fn record(&self, value: u64) {
        if let Some(count) = self.counts.get(bucket(value)) {
            count.fetch_add(1, Ordering::Relaxed);
            self.sum.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// Counts a time, in nanoseconds.
    pub fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn read(&self) -> Counts {
        Counts {
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// A histogram at one moment.
#[derive(Debug, Clone, Default)]
struct Counts {
    counts: Vec<u64>,
    sum: u64,
}

impl Counts {
    /// The values recorded after `earlier`.
    fn since(&self, earlier: &Counts) -> Counts {
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
    fn summary(&self, unit: f64) -> Summary {
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

/// Defines the live counters and their values in snapshots and reports from one list.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Live counters.
        #[derive(Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64),* }

        /// Values of the counters at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct Counted { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            fn read(&self) -> Counted {
                Counted { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }

        impl Counted {
            fn since(&self, earlier: &Counted) -> Counted {
                Counted { $($name: self.$name - earlier.$name),* }
            }
        }
    };
}

counters! {
    /// Requests that were admitted.
    requests,
    /// Requests with an answer of the policy, which may be an error.
    answered,
    /// Requests that a full queue refused.
    busy,
    /// Requests whose deadline passed, before or after a worker took them.
    late,
    /// Requests whose caller or serving ended.
    cancelled,
    /// Batches that panicked.
    panics,
    /// Changes of the weights.
    swaps,
}

impl Counters {
    /// Requests without an answer yet. A request may be answered before it is counted.
    pub fn open(&self) -> u64 {
        let read = self.read();
        read.requests.saturating_sub(read.answered + read.late + read.cancelled)
    }
}

/// Live statistics of a serving.
#[derive(Default)]
pub struct Statistics {
    /// Counters of requests, panics and swaps.
    pub counters: Counters,
    /// Nanoseconds from the call to the start of its batch.
    pub wait: Histogram,
    /// Nanoseconds to compute a batch.
    pub compute: Histogram,
    /// Nanoseconds from the call to the answer.
    pub latency: Histogram,
    /// Requests per batch.
    pub batch: Histogram,
}

pub(super) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Statistics at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    counted: Counted,
    wait: Counts,
    compute: Counts,
    latency: Counts,
    batch: Counts,
}

/// Statistics of a serving as its users read them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Counters of requests, panics and swaps.
    #[serde(flatten)]
    pub counted: Counted,
    /// Microseconds from the call to the start of its batch.
    pub queue_wait_us: Summary,
    /// Microseconds to compute a batch.
    pub compute_us: Summary,
    /// Microseconds from the call to the answer.
    pub latency_us: Summary,
    /// Requests per batch.
    pub batch_size: Summary,
}

impl Statistics {
    /// The statistics at this moment.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            counted: self.counters.read(),
            wait: self.wait.read(),
            compute: self.compute.read(),
            latency: self.latency.read(),
            batch: self.batch.read(),
        }
    }
}

impl Snapshot {
    /// The difference to `earlier`, a snapshot of the same statistics.
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        Snapshot {
            counted: self.counted.since(&earlier.counted),
            wait: self.wait.since(&earlier.wait),
            compute: self.compute.since(&earlier.compute),
            latency: self.latency.since(&earlier.latency),
            batch: self.batch.since(&earlier.batch),
        }
    }

    /// Mean and quantiles of each histogram, with the counters.
    pub fn report(&self) -> Report {
        const NANOS: f64 = 1000.0;
        Report {
            counted: self.counted,
            queue_wait_us: self.wait.summary(NANOS),
            compute_us: self.compute.summary(NANOS),
            latency_us: self.latency.summary(NANOS),
            batch_size: self.batch.summary(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use sconce_tensor::rng::Rng;

    use super::*;

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
    fn a_difference_holds_only_later_values() {
        let statistics = Statistics::default();
        statistics.batch.record(1);
        count(&statistics.counters.requests, 1);
        let early = statistics.snapshot();
        (0..3).for_each(|_| statistics.batch.record(8));
        (0..3).for_each(|_| count(&statistics.counters.requests, 1));
        let report = statistics.snapshot().since(&early).report();
        assert_eq!((report.counted.requests, report.batch_size.count), (3, 3));
        assert_eq!((report.batch_size.p50, report.batch_size.mean), (Some(8.0), Some(8.0)));
        assert_eq!(statistics.snapshot().since(&Snapshot::default()).report().counted.requests, 4);
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
