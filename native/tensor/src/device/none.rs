//! Replacements for the card's functions in a build without CUDA.

pub(super) mod launch;

use std::convert::Infallible;

use candle_core::{CudaDevice, Device, Shape, Tensor};

use super::launch::Address;
use super::{Memory, Missing, Owner};
use crate::{Error, Result};

fn none(ordinal: usize) -> Error {
    Error::NoDevice { device: format!("cuda:{ordinal}"), missing: Missing::Build }
}

pub(super) fn look(_ordinals: &[usize]) -> std::result::Result<(), Missing> {
    Err(Missing::Build)
}

/// Opens a card with a stream of its own. Fails in this build.
pub fn open(ordinal: usize) -> Result<Device> {
    Err(none(ordinal))
}

/// The memory of a card. Fails in this build.
pub fn memory(ordinal: usize) -> Result<Memory> {
    Err(none(ordinal))
}

/// Gives unused memory of a card back to the driver, and returns the number of bytes. Fails in this build.
pub fn release(ordinal: usize) -> Result<u64> {
    Err(none(ordinal))
}

/// Returns memory to the driver that is unlikely to be reused. A no-op in this build.
pub fn settle() {}

/// [`release`] for the card of `device`. Returns 0 in this build.
pub fn shrink(_device: &Device) -> u64 {
    0
}

/// Runs work that allocates, frees, reads or writes memory of a device while no work is being recorded.
pub fn apart<R>(_device: &Device, work: impl FnOnce() -> R) -> R {
    work()
}

/// Makes the card of `device` the current one of this thread. A no-op in this build.
pub fn attach(_device: &Device) {}

/// Drops a value whose memory is on a device. Drops it at once in this build.
pub fn leave<T: Send + 'static>(_device: Device, gone: T) {
    drop(gone);
}

/// Tensors entered in the ledgers of their cards.
#[derive(Debug, Clone, Default)]
pub struct Held;

impl Held {
    /// Enters no tensor, because there is no card.
    pub fn of<'a>(_owner: Owner, _tensors: impl IntoIterator<Item = &'a Tensor>) -> Self {
        Held
    }
}

/// A guard during which its card keeps freed memory for the next allocation.
pub struct Caching;

impl Caching {
    /// The guard for the card of a device.
    pub fn on(_device: &Device) -> Self {
        Caching
    }
}

/// Work on a card that is recorded once and replayed.
pub struct Graph(Infallible);

impl Graph {
    /// Records work. Fails in this build.
    pub fn record(
        _card: &CudaDevice,
        _work: impl FnMut(bool) -> Result<()> + Send,
    ) -> Result<Option<Self>> {
        Err(none(0))
    }

    /// Replays the work.
    pub fn play(&self) -> Result<()> {
        match self.0 {}
    }
}

/// Memory that recorded work reuses.
#[derive(Default)]
pub struct Workspace(());

impl Workspace {
    /// Runs `work` and keeps the tensors that it allocates on a card.
    pub fn keep<R>(&mut self, work: impl FnOnce() -> R) -> R {
        work()
    }

    /// Runs the same work again in the tensors that were kept.
    pub fn reuse<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }

    /// The tensors that were kept.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::empty()
    }
}

/// Reasons why work of this process was not recorded.
pub fn refusals() -> Vec<String> {
    vec![]
}

/// Transfers of 32-bit words to a card that overlap with its work.
pub struct Uploads(Infallible);

impl Uploads {
    /// Allocates the buffers for transfers of `_words` words each. Fails in this build.
    pub fn new(_card: &CudaDevice, _words: usize) -> Result<Self> {
        Err(none(0))
    }

    /// Sends `_parts`, concatenated, to a tensor.
    pub fn send(&mut self, _parts: &[&[u32]], _to: &Tensor) -> Result<()> {
        match self.0 {}
    }
}

/// Host memory that kernels read and write in place.
pub struct Shared(Infallible);

impl Shared {
    /// Allocates zeroed memory of `_len` words. Fails in this build.
    pub fn zeros(_device: &Device, _len: usize) -> Result<Self> {
        Err(none(0))
    }

    /// The address of the memory for kernels.
    pub fn place(&self) -> Address {
        match self.0 {}
    }

    /// Writes all words.
    ///
    /// # Safety
    /// No requirement in this build.
    pub unsafe fn write(&self, _words: &[u32]) -> Result<()> {
        match self.0 {}
    }

    /// Returns all words.
    ///
    /// # Safety
    /// No requirement in this build.
    pub unsafe fn read(&self) -> Vec<u32> {
        match self.0 {}
    }
}

/// Floats on a card in memory of another library.
pub struct Foreign(Infallible);

impl Foreign {
    /// The `_len` floats at an address. Fails in this build.
    pub fn on(
        _device: &Device,
        _what: &str,
        (_address, _bytes): (Address, u64),
        _len: usize,
    ) -> Result<Self> {
        Err(none(0))
    }

    /// Copies the floats to a new tensor on the card.
    ///
    /// # Safety
    /// No requirement in this build.
    pub unsafe fn read(&self, _shape: impl Into<Shape>) -> Result<Tensor> {
        match self.0 {}
    }

    /// Copies the floats to the host.
    ///
    /// # Safety
    /// No requirement in this build.
    pub unsafe fn to_vec(&self) -> Result<Vec<f32>> {
        match self.0 {}
    }

    /// Overwrites the floats.
    ///
    /// # Safety
    /// No requirement in this build.
    pub unsafe fn write(&self, _from: &Tensor) -> Result<()> {
        match self.0 {}
    }
}

#[cfg(test)]
pub(super) fn place(_tensor: &Tensor) -> Option<((usize, u64), u64)> {
    None
}

#[cfg(test)]
pub(super) fn grown(_ordinal: usize) {}
