//! How much of a batch is worked through together, so that a run keeps within its memory.

use std::sync::atomic::AtomicBool;

use sconce_nn::Spec;
use sconce_tensor::memory::Meter;
use sconce_tensor::{Error, Kind, Result};

use crate::options::TrainOptions;
use crate::plan::{Memory, Owners};
use crate::report::Event;

pub(super) struct Room {
    limit: Option<u64>,
    /// Bytes that a run keeps beside a step.
    lasting: u64,
    batch_size: usize,
    /// Windows that are worked through together.
    windows: usize,
    /// What they take, as it was planned.
    planned: u64,
}

impl Room {
    /// Without a limit all windows of a batch are worked through together, unless an earlier part of the
    /// run had to halve them: then it keeps to the parts that it has, whatever is measured now.
    /// `batch_size`: what a device has of the windows of a batch; `validates`: whether the run has games to
    /// measure on.
    pub(super) fn plan(
        spec: &Spec,
        options: &TrainOptions,
        batch_size: usize,
        validates: bool,
        before: Option<usize>,
        cancel: &AtomicBool,
    ) -> Result<Room> {
        let limit = options.machine.memory_limit;
        let halved = before.filter(|&windows| windows < batch_size);
        if limit.is_none() {
            let windows = halved.unwrap_or(batch_size);
            return Ok(Room { limit, lasting: 0, batch_size, windows, planned: 0 });
        }
        let mut memory = Memory::measure(spec, options, cancel)?;
        memory.validates(validates);
        let windows = match halved {
            Some(windows) => windows,
            None => memory.micro_batch(batch_size, limit)?,
        };
        let owners: Owners = memory.owners(windows);
        Ok(Room { limit, lasting: owners.lasting(), batch_size, windows, planned: owners.total() })
    }

    /// Whether nothing cuts batches into parts but a device that is full.
    pub(super) fn is_unlimited(&self) -> bool {
        self.limit.is_none()
    }

    pub(super) fn windows(&self) -> usize {
        self.windows
    }

    /// What is told of a run that does not take its batches whole.
    pub(super) fn told(&self, step: u64) -> Option<Event> {
        (self.windows < self.batch_size).then(|| Event::OutOfMemory {
            step,
            micro_batch: self.windows,
            bytes: Some(self.planned).filter(|_| self.limit.is_some()),
            memory_limit: self.limit,
        })
    }

    /// Does a part of a step, and refuses it if it took more than there is.
    pub(super) fn watch<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(limit) = self.limit else { return work() };
        let meter = Meter::start()?;
        let done = work()?;
        match self.lasting.saturating_add(meter.passing()) {
            bytes if bytes > limit => {
                let what = format!("a step of {} windows", self.windows);
                Err(Error::OverLimit { what, bytes, limit })
            }
            _ => Ok(done),
        }
    }

    /// Makes room after a step that had too little, if that is what went wrong and can be done.
    pub(super) fn halve(&mut self, error: &Error, step: u64) -> Option<Event> {
        let bytes = match error {
            // Refused by its size, whatever is worked through together.
            Error::OutOfMemory { .. } => return None,
            Error::OverLimit { bytes, .. } => Some(*bytes),
            _ => None,
        };
        if error.kind() != Kind::OutOfMemory || self.windows <= 1 {
            return None;
        }
        self.windows = self.windows.div_ceil(2);
        let (micro_batch, memory_limit) = (self.windows, self.limit);
        Some(Event::OutOfMemory { step, micro_batch, bytes, memory_limit })
    }
}
