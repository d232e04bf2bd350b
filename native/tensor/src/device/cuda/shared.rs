//! Memory of the host that kernels read and write where it lies.

use std::ptr::NonNull;

use candle_core::Device;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::{free_host, malloc_host};
use candle_core::cuda_backend::cudarc::driver::sys::CUdeviceptr;

use super::card::apart;
use crate::{Error, Result};

/// Words that both sides have: a step so short that two copies would take as long as the work itself has none.
pub struct Shared {
    device: Device,
    first: NonNull<u32>,
    len: usize,
}

// SAFETY: it is memory of its own, and who may touch it when is said by what does so.
unsafe impl Send for Shared {}
// SAFETY: likewise.
unsafe impl Sync for Shared {}

impl Shared {
    /// So many zeros, for a card.
    pub fn zeros(device: &Device, len: usize) -> Result<Self> {
        let bytes = size_of::<u32>() * len.max(1);
        // SAFETY: it is written below.
        let first = apart(device, || unsafe { malloc_host(bytes, 0) });
        let first = first.w()?.cast::<u32>();
        let null = || candle_core::Error::Msg("the driver gave no memory".into());
        let first = NonNull::new(first).ok_or_else(null)?;
        // SAFETY: so many words begin there.
        unsafe { first.write_bytes(0, len) };
        Ok(Shared { device: device.clone(), first, len })
    }

    /// Where kernels find it: a card and its host have one address space.
    pub fn place(&self) -> CUdeviceptr {
        self.first.as_ptr() as CUdeviceptr
    }

    /// Writes all words.
    ///
    /// # Errors
    /// `Mismatch` for fewer or more.
    ///
    /// # Safety
    /// The card has done all that reads them, and nobody else writes.
    pub unsafe fn write(&self, words: &[u32]) -> Result<()> {
        if words.len() != self.len {
            return Err(Error::mismatch("words", self.len, words.len()));
        }
        // SAFETY: there are so many, and the caller says the rest.
        unsafe { self.first.copy_from_nonoverlapping(NonNull::from(words).cast(), words.len()) };
        Ok(())
    }

    /// All words.
    ///
    /// # Safety
    /// The card has done all that writes them.
    pub unsafe fn read(&self) -> Vec<u32> {
        // SAFETY: there are so many, and the caller says the rest.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }.to_vec()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        apart(&self.device, || {
            // That the driver waits for what still reads it, it does not say. What fails here fails for others too.
            let _ = self.device.synchronize();
            // SAFETY: it came from there.
            let _ = unsafe { free_host(self.first.as_ptr().cast()) };
        });
    }
}
