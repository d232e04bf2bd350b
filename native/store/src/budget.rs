//! How much the background may read and write.

use std::time::{Duration, Instant};

/// Bytes a second of what the store does in the background: reading ahead, and rewriting packs.
#[derive(Debug)]
pub(crate) struct Budget {
    rate: Option<u64>,
    left: f64,
    at: Instant,
}

impl Budget {
    pub(crate) fn new(rate: Option<u64>) -> Budget {
        Budget { rate, left: 0.0, at: Instant::now() }
    }

    /// How long to wait before the next byte.
    pub(crate) fn pause(&mut self) -> Option<Duration> {
        let rate = self.rate? as f64;
        let passed = self.at.elapsed().as_secs_f64();
        self.at = Instant::now();
        // At most a tenth of a second is saved up.
        self.left = (self.left + passed * rate).min(rate / 10.0);
        (self.left < 0.0).then(|| Duration::from_secs_f64((-self.left / rate).clamp(1e-4, 1.0)))
    }

    pub(crate) fn take(&mut self, bytes: u64) {
        self.left -= bytes as f64;
    }
}
