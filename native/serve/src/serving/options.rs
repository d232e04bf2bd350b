//! How many requests a serving takes, and with how many threads.

use sconce_realtime::Format;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::session::Lane;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Requests in a batch, at most.
    pub max_batch: usize,
    /// Requests that may wait.
    pub max_queue: usize,
    /// Threads.
    pub workers: usize,
    pub weights: Format,
    /// Where steps are made, instead of the lane that their measured cost asks for.
    pub lane: Option<Lane>,
}

impl Default for Options {
    fn default() -> Self {
        Options { max_batch: 64, max_queue: 1024, workers: 1, weights: Format::F32, lane: None }
    }
}

impl Options {
    pub(super) fn validate(&self) -> Result<()> {
        let bounded = |field: &str, n: usize, max: usize| match n {
            n if (1..=max).contains(&n) => Ok(()),
            n => Err(Error::out_of_range(field, n as f64, 1.0, max as f64)),
        };
        bounded("max_batch", self.max_batch, 4096)?;
        bounded("max_queue", self.max_queue, 1 << 20)?;
        bounded("workers", self.workers, 256)
    }
}
