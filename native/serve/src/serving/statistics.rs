//! Statistics of a serving: counters and logarithmic histograms, of fixed size and without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sconce_tensor::metrics::{Counts, Histogram, METRICS, Summary};
use serde::Serialize;

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

/// Batches since they were last read.
#[derive(Default)]
pub(super) struct Batches {
    /// Sum of their microseconds.
    time: AtomicU64,
    /// Sum of the squares of their microseconds.
    squares: AtomicU64,
    largest: AtomicU64,
}

/// Batches of an interval, see [`super::Serving::batches`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Met {
    /// Mean microseconds of the batch in flight that a request meets at a random moment: longer batches are met more
    /// often.
    pub us: f64,
    /// Requests of the largest batch; 0 without batches.
    pub largest: u64,
}

impl Batches {
    pub(super) fn record(&self, requests: usize, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        count(&self.time, us);
        count(&self.squares, us.saturating_mul(us));
        self.largest.fetch_max(requests as u64, Ordering::Relaxed);
    }

    /// Reads the batches and begins anew.
    pub(super) fn take(&self) -> Met {
        let [time, squares, largest] =
            [&self.time, &self.squares, &self.largest].map(|n| n.swap(0, Ordering::Relaxed));
        Met { us: squares as f64 / (time as f64).max(1.0), largest }
    }
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
    /// Counts requests that the queue admitted.
    pub(super) fn admitted(&self) {
        count(&self.counters.requests, 1);
        METRICS.requests.add(1);
    }

    /// Counts a request that a full queue refused.
    pub(super) fn busy(&self) {
        count(&self.counters.busy, 1);
        METRICS.requests_busy.add(1);
    }

    /// Counts a request whose deadline passed.
    pub(super) fn late(&self) {
        count(&self.counters.late, 1);
        METRICS.deadlines_missed.add(1);
    }

    /// Counts the time from a request to the start of its batch.
    pub(super) fn waited(&self, time: Duration) {
        self.wait.record_time(time);
        METRICS.request_wait.record(time);
    }

    /// Counts an answer, and the time since its request.
    pub(super) fn answered(&self, time: Duration) {
        count(&self.counters.answered, 1);
        self.latency.record_time(time);
        METRICS.request_time.record(time);
    }

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
    use super::*;

    #[test]
    fn the_batch_that_a_request_meets_is_weighted_by_its_time() {
        let batches = Batches::default();
        assert_eq!(batches.take(), Met { us: 0.0, largest: 0 });
        (0..9).for_each(|_| batches.record(2, Duration::from_micros(100)));
        batches.record(7, Duration::from_micros(900));
        assert_eq!(batches.take(), Met { us: 500.0, largest: 7 });
        batches.record(3, Duration::from_micros(50));
        assert_eq!(batches.take(), Met { us: 50.0, largest: 3 });
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
}
