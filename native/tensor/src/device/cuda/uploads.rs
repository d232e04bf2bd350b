//! Transfers to a card that overlap with its work.

use std::mem;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::result::memcpy_dtod_async;
use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, DevicePtr, PinnedHostSlice,
};
use candle_core::cuda_backend::{CudaDevice, WrapErr};
use candle_core::{DType, Device, Tensor};

use super::card::apart;
use super::launch::pointer;
use crate::{Error, Result, pool};

/// Words per shard of the copy into pinned memory.
const SHARD: usize = 1 << 17;

/// Two buffers on the card, each with a pinned buffer on the host, which the card reads by DMA. While the card works on
/// one batch, the next batch is copied on a separate stream.
pub struct Uploads {
    card: CudaDevice,
    copies: Arc<CudaStream>,
    /// The two buffers.
    places: Vec<Slot>,
    next: usize,
}

struct Slot {
    here: PinnedHostSlice<u32>,
    there: CudaSlice<u32>,
    arrived: CudaEvent,
    /// Recorded when the card has copied the words out of `there`.
    taken: CudaEvent,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = self.arrived.synchronize();
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        let places = mem::take(&mut self.places);
        apart(&Device::Cuda(self.card.clone()), || drop(places));
    }
}

impl Uploads {
    /// Buffers for transfers of exactly `words` words.
    pub fn new(card: &CudaDevice, words: usize) -> Result<Self> {
        let stream = card.cuda_stream();
        let context = stream.context();
        let copies = context.new_stream().w()?;
        let place = || -> Result<Slot> {
            // SAFETY: both are written before they are read. The card's buffer belongs to the card's stream and is
            // freed in its order. The copies wait for the buffer's allocation, and its release waits for the copies.
            let (here, there) =
                unsafe { (context.alloc_pinned(words.max(1)), stream.alloc(words.max(1))) };
            Ok(Slot {
                here: here.w()?,
                there: there.w()?,
                arrived: copies.record_event(None).w()?,
                taken: stream.record_event(None).w()?,
            })
        };
        let both = || (0..2).map(|_| place()).collect::<Result<_>>();
        let places = apart(&Device::Cuda(card.clone()), both)?;
        Ok(Uploads { card: card.clone(), copies, places, next: 0 })
    }

    /// Sends `parts`, concatenated, to `to`, a contiguous tensor of u32. Later launches see the new words. Waits for
    /// the card only if two transfers are in flight.
    ///
    /// # Errors
    /// `Mismatch` if the number of words is not the one given to [`Uploads::new`] or not the size of `to`.
    pub fn send(&mut self, parts: &[&[u32]], to: &Tensor) -> Result<()> {
        let (stream, at) = (self.card.cuda_stream(), self.next);
        let place = &mut self.places[at];
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if to.dtype() != DType::U32 || [place.here.len(), to.elem_count()] != [len; 2] {
            let sizes = format!("{} and {}", place.here.len(), to.elem_count());
            return Err(Error::mismatch("words", sizes, len));
        }
        // The previous transfer reads this buffer until the transfer is complete. This wait blocks no other thread.
        place.arrived.synchronize().w()?;
        let mut rest = place.here.as_mut_slice().w()?;
        for part in parts {
            let (own, behind) = rest.split_at_mut(part.len());
            // A batch of windows has tens of megabytes. Copying it on one thread would take longer than training on it.
            pool::for_each_rows(own, 1, SHARD, |first, own| {
                own.copy_from_slice(&part[first..][..own.len()]);
            });
            rest = behind;
        }
        self.copies.wait(&place.taken).w()?;
        self.copies.memcpy_htod(&place.here, &mut place.there).w()?;
        place.arrived.record(&self.copies).w()?;
        stream.wait(&place.arrived).w()?;
        let (from, bytes) = (place.there.device_ptr(&stream).0, len * size_of::<u32>());
        // SAFETY: both buffers have `len` words, and the stream has waited for the copy.
        unsafe { memcpy_dtod_async(pointer(to)?, from, bytes, stream.cu_stream()) }.w()?;
        place.taken.record(&stream).w()?;
        self.next = 1 - at;
        Ok(())
    }
}
