//! Host memory that kernels read and write in place.

use std::ptr::NonNull;

use candle_core::Device;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::{free_host, malloc_host};
use candle_core::cuda_backend::cudarc::driver::sys::CUdeviceptr;

use super::card::apart;
use crate::{Error, Result};

/// 32-bit words that host and card share. For short steps, whose two copies would take as long as the work itself.
pub struct Shared {
    device: Device,
    first: NonNull<u32>,
    len: usize,
}

// SAFETY: `Shared` owns its memory, and the contracts of `read` and `write` say when it may be accessed.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

impl Shared {
    /// `len` zeros that a card can access.
    pub fn zeros(device: &Device, len: usize) -> Result<Self> {
        let bytes = size_of::<u32>() * len.max(1);
        // SAFETY: the memory is written below before it is read.
        let first = apart(device, || unsafe { malloc_host(bytes, 0) });
        let first = first.w()?.cast::<u32>();
        let null = || candle_core::Error::Msg("the driver gave no memory".into());
        let first = NonNull::new(first).ok_or_else(null)?;
        // SAFETY: the allocation has `len` words.
        unsafe { first.write_bytes(0, len) };
        Ok(Shared { device: device.clone(), first, len })
    }

    /// The address for kernels: a card and its host have one address space.
    pub fn place(&self) -> CUdeviceptr {
        self.first.as_ptr() as CUdeviceptr
    }

    /// Writes all words.
    ///
    /// # Errors
    /// `Mismatch` if `words` has another length.
    ///
    /// # Safety
    /// The card has finished all work that reads the words, and no other thread writes them.
    pub unsafe fn write(&self, words: &[u32]) -> Result<()> {
        if words.len() != self.len {
            return Err(Error::mismatch("words", self.len, words.len()));
        }
        // SAFETY: the lengths are equal, and the caller guarantees the rest.
        unsafe { self.first.copy_from_nonoverlapping(NonNull::from(words).cast(), words.len()) };
        Ok(())
    }

    /// Returns all words.
    ///
    /// # Safety
    /// The card has finished all work that writes the words.
    pub unsafe fn read(&self) -> Vec<u32> {
        // SAFETY: the allocation has `len` words, and the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }.to_vec()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        apart(&self.device, || {
            // The driver does not promise that a free waits for work that reads the memory. Other calls report the same
            // error.
            let _ = self.device.synchronize();
            // SAFETY: the memory came from `malloc_host`.
            let _ = unsafe { free_host(self.first.as_ptr().cast()) };
        });
    }
}
