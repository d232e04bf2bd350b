//! How a store is opened.

use sconce_tensor::{Error, Result};
use serde::Deserialize;

use crate::prefetch::PrefetchOptions;
use crate::tensor::MAX_BLOCK;

/// How blocks are stored that have gone cold. Lossy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cold {
    /// In eight bits an element.
    Int8,
}

/// How a store is opened.
#[derive(Debug, Clone, Deserialize)]
pub struct StoreOptions {
    /// Bytes of blocks in RAM.
    pub ram: u64,
    /// Bytes of compressed blocks in RAM.
    pub compressed: u64,
    /// Bytes on disk at most.
    pub disk: Option<u64>,
    /// Bytes of a block; a tensor of fewer bytes is one block of its size.
    pub block: u64,
    /// Whether blocks are compressed that gain by it.
    pub compress: bool,
    /// How blocks that have gone cold are stored, of tensors that were put with permission to lose something.
    #[serde(default)]
    pub cold: Option<Cold>,
    /// Threads that prefetch and compress.
    pub threads: usize,
    /// Bytes a second that are read ahead, and written again by [`crate::Store::compact`], at most.
    pub background: Option<u64>,
    /// Options of prefetching.
    pub prefetch: PrefetchOptions,
    /// Whether the store is opened for reading beside a process that writes.
    pub read_only: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            ram: 256 << 20,
            compressed: 64 << 20,
            disk: None,
            block: 1 << 20,
            compress: true,
            cold: None,
            threads: 2,
            background: None,
            prefetch: PrefetchOptions::default(),
            read_only: false,
        }
    }
}

impl StoreOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let within = |field: &str, value: u64, min: u64, max: u64| {
            let inside = (min..=max).contains(&value);
            inside
                .then_some(())
                .ok_or_else(|| Error::out_of_range(field, value as f64, min as f64, max as f64))
        };
        within("block", self.block, 4096, MAX_BLOCK)?;
        within("threads", self.threads as u64, 0, 64)?;
        within("ram", self.ram, 0, 1 << 50)?;
        within("compressed", self.compressed, 0, 1 << 50)?;
        within("prefetch", self.prefetch.depth as u64, 0, 1024)?;
        within("background", self.background.unwrap_or(1), 1, u64::MAX)
    }
}
