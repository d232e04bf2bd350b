//! The micro-batch of a run, chosen so that the run stays within its memory limit.

mod growth;

use std::sync::atomic::AtomicBool;

pub(super) use growth::Growth;

use sconce_nn::Spec;
use sconce_tensor::memory::Meter;
use sconce_tensor::{Error, Kind, Result};

use crate::options::TrainOptions;
use crate::plan::{Memory, Owners};
use crate::report::Event;

pub(super) struct Room {
    limit: Option<u64>,
    /// Bytes that stay allocated from step to step.
    lasting: u64,
    batch_size: usize,
    /// Windows that are computed together.
    windows: usize,
    /// Planned bytes of these windows.
    planned: u64,
    /// For a run whose micro-batch grows again.
    growth: Option<Growth>,
}

/// The growth up to `wanted`, with what an earlier part of the run knew.
fn growth_to(wanted: usize, before: Option<Growth>) -> Growth {
    before.map_or_else(|| Growth::new(wanted), |growth| growth.towards(wanted))
}

impl Room {
    /// Plans the micro-batch. Without a limit all windows of a batch are computed together. If an earlier part of the
    /// run had to halve them, the micro-batch stays halved, whatever is measured now. `batch_size` is the number of
    /// windows of a batch on one device; `validates` tells whether the run has validation games. `before` is the micro-batch
    /// of the earlier part, and its growth.
    pub(super) fn plan(
        spec: &Spec,
        options: &TrainOptions,
        batch_size: usize,
        validates: bool,
        before: (Option<usize>, Option<Growth>),
        cancel: &AtomicBool,
    ) -> Result<Room> {
        let limit = options.machine.memory_limit;
        let (before, growth) = before;
        let halved = before.filter(|&windows| windows < batch_size);
        let grows = options.machine.grow_micro_batch;
        if limit.is_none() {
            let windows = halved.unwrap_or(batch_size);
            let growth = grows.then(|| growth_to(batch_size, growth));
            return Ok(Room { limit, lasting: 0, batch_size, windows, planned: 0, growth });
        }
        let mut memory = Memory::measure(spec, options, cancel)?;
        memory.validates(validates);
        let (windows, whole) = match (halved, memory.micro_batch(batch_size, limit)) {
            (Some(windows), whole) => (windows, whole.unwrap_or(windows)),
            (None, whole) => whole.map(|whole| (whole, whole))?,
        };
        let owners: Owners = memory.owners(windows);
        let (lasting, planned) = (owners.lasting(), owners.total());
        // The size that was planned first stays, because what is measured may differ by a little.
        let wanted = growth.as_ref().map_or(whole, |own| own.wanted().min(batch_size));
        let growth = grows.then(|| growth_to(wanted, growth));
        Ok(Room { limit, lasting, batch_size, windows, planned, growth })
    }

    /// Whether there is no memory limit, so that only a full device causes smaller micro-batches.
    pub(super) fn is_unlimited(&self) -> bool {
        self.limit.is_none()
    }

    pub(super) fn windows(&self) -> usize {
        self.windows
    }

    /// The event to report if the run does not compute whole batches together.
    pub(super) fn told(&self, step: u64) -> Option<Event> {
        (self.windows < self.batch_size).then(|| Event::OutOfMemory {
            step,
            micro_batch: self.windows,
            bytes: Some(self.planned).filter(|_| self.limit.is_some()),
            memory_limit: self.limit,
        })
    }

    /// Runs a part of a step, and returns an error if the part took more memory than the limit.
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

    /// Counts a good step. Returns the event of a micro-batch that grows from the next step on.
    pub(super) fn went_well(&mut self, step: u64) -> Option<Event> {
        let windows = self.growth.as_mut()?.went_well(self.windows);
        let grows = windows > self.windows;
        self.windows = windows;
        grows.then_some(Event::Grown { step, micro_batch: windows })
    }

    /// The growth to save; `None` if the micro-batch does not grow.
    pub(super) fn growth(&self) -> Option<Growth> {
        self.growth.clone()
    }

    /// Makes the micro-batch smaller after a step that ran out of memory: half of it, or the last one that went well.
    /// Returns `None` for another kind of error, or if only
    /// one window is left.
    pub(super) fn halve(&mut self, error: &Error, step: u64) -> Option<Event> {
        let bytes = match error {
            // An allocation refused for its size does not depend on the micro-batch.
            Error::OutOfMemory { .. } => return None,
            Error::OverLimit { bytes, .. } => Some(*bytes),
            _ => None,
        };
        if error.kind() != Kind::OutOfMemory || self.windows <= 1 {
            return None;
        }
        self.windows = match &mut self.growth {
            Some(growth) => growth.smaller(self.windows),
            None => self.windows.div_ceil(2),
        };
        let (micro_batch, memory_limit) = (self.windows, self.limit);
        Some(Event::OutOfMemory { step, micro_batch, bytes, memory_limit })
    }
}
