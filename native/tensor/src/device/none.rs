//! A build without CUDA: there is no card.

pub(super) mod launch;

use std::convert::Infallible;

use candle_core::{CudaDevice, Device, Tensor};

use super::launch::Address;
use super::{Memory, Missing, Owner};
use crate::{Error, Result};

fn none(ordinal: usize) -> Error {
    Error::NoDevice { device: format!("cuda:{ordinal}"), missing: Missing::Build }
}

pub(super) fn look(_ordinals: &[usize]) -> std::result::Result<(), Missing> {
    Err(Missing::Build)
}

/// A card with one stream of its own.
pub fn open(ordinal: usize) -> Result<Device> {
    Err(none(ordinal))
}

/// The memory of a card.
pub fn memory(ordinal: usize) -> Result<Memory> {
    Err(none(ordinal))
}

/// Gives what is not in use of a card back to its driver: how many bytes.
pub fn release(ordinal: usize) -> Result<u64> {
    Err(none(ordinal))
}

/// Gives back what nobody will want again, once something may have left a card.
pub fn settle() {}

/// [`release`], of the card of a device, if it is one.
pub fn shrink(_device: &Device) -> u64 {
    0
}

/// Does on a device what takes, frees, reads or writes memory there.
pub fn apart<R>(_device: &Device, work: impl FnOnce() -> R) -> R {
    work()
}

/// Has what this thread asks of a driver from now on be of the card of a device.
pub fn attach(_device: &Device) {}

/// Drops what is on a device where that may take its time.
pub fn leave<T: Send + 'static>(_device: Device, gone: T) {
    drop(gone);
}

/// Tensors in the ledgers of their cards.
#[derive(Debug, Clone, Default)]
pub struct Held;

impl Held {
    pub fn of<'a>(_owner: Owner, _tensors: impl IntoIterator<Item = &'a Tensor>) -> Self {
        Held
    }
}

/// While it lives, its card keeps what is freed there for what is taken next.
pub struct Caching;

impl Caching {
    pub fn on(_device: &Device) -> Self {
        Caching
    }
}

/// Work on a card that is recorded once and played again.
pub struct Graph(Infallible);

impl Graph {
    pub fn record(
        _card: &CudaDevice,
        _work: impl FnMut(bool) -> Result<()> + Send,
    ) -> Result<Option<Self>> {
        Err(none(0))
    }

    pub fn play(&self) -> Result<()> {
        match self.0 {}
    }
}

/// The memory that recorded work uses.
#[derive(Default)]
pub struct Workspace(());

impl Workspace {
    pub fn keep<R>(&mut self, work: impl FnOnce() -> R) -> R {
        work()
    }

    pub fn reuse<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }

    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::empty()
    }
}

/// Why work of this process was not recorded.
pub fn refusals() -> Vec<String> {
    vec![]
}

/// Words that go to a card while it works.
pub struct Uploads(Infallible);

impl Uploads {
    pub fn new(_card: &CudaDevice, _words: usize) -> Result<Self> {
        Err(none(0))
    }

    pub fn send(&mut self, _parts: &[&[u32]], _to: &Tensor) -> Result<()> {
        match self.0 {}
    }
}

/// Memory of the host that kernels read and write where it lies.
pub struct Shared(Infallible);

impl Shared {
    pub fn zeros(_device: &Device, _len: usize) -> Result<Self> {
        Err(none(0))
    }

    pub fn place(&self) -> Address {
        match self.0 {}
    }

    /// # Safety
    /// There is none.
    pub unsafe fn write(&self, _words: &[u32]) -> Result<()> {
        match self.0 {}
    }

    /// # Safety
    /// There is none.
    pub unsafe fn read(&self) -> Vec<u32> {
        match self.0 {}
    }
}

#[cfg(test)]
pub(super) fn place(_tensor: &Tensor) -> Option<((usize, u64), u64)> {
    None
}

#[cfg(test)]
pub(super) fn grown(_ordinal: usize) {}
