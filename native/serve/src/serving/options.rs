//! Options of a serving.

use sconce_realtime::Format;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::session::Lane;

/// Sizes of the queue and of its batches, number of workers, format of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Maximum number of requests in a batch.
    pub max_batch: usize,
    /// Maximum number of requests in the queue.
    pub max_queue: usize,
    /// Number of worker threads.
    pub workers: usize,
    /// Format of the packed weights.
    pub weights: Format,
    /// The lane of steps; `None` chooses by measured cost.
    pub lane: Option<Lane>,
}

impl Default for Options {
    fn default() -> Self {
        Options { max_batch: 64, max_queue: 1024, workers: 1, weights: Format::Stored, lane: None }
    }
}

impl Options {
    pub(super) fn validate(&self) -> Result<()> {
        bounded("max_batch", self.max_batch, 4096)?;
        bounded("max_queue", self.max_queue, 1 << 20)?;
        bounded("workers", self.workers, 256)
    }
}

pub(super) fn bounded(field: &str, n: usize, max: usize) -> Result<()> {
    match (1..=max).contains(&n) {
        true => Ok(()),
        false => Err(Error::out_of_range(field, n as f64, 1.0, max as f64)),
    }
}
