//! Sums across cards by NCCL, NVIDIA's collective library.
//!
//! One thread submits for all cards: a sum is queued either on the streams of all cards, behind the work that computes
//! their parts, or on none. So no card waits for a card that does not take part.

use candle_core::cuda_backend::CudaStorage;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::cuda_backend::cudarc::nccl::result::{NcclError, get_nccl_version};
use candle_core::cuda_backend::cudarc::nccl::{Comm, ReduceOp, group_end, group_start};
use candle_core::op::BackpropOp;
use candle_core::{Device, Storage, Tensor};

use super::card::share;
use super::{AllReduce, Found, Missing};
use crate::device::missing::NCCL;
use crate::{Error, Result};

pub(super) fn look() -> Found<()> {
    get_nccl_version().map(drop).map_err(|_| Missing::Library(NCCL))
}

/// The communicators of the cards, in their order. Dropping them ends sums in flight.
pub(super) struct Nccl(Vec<Comm>);

impl Nccl {
    pub(super) fn of(devices: &[Device]) -> Result<Self> {
        look().map_err(|missing| Error::NoDevice { device: "cuda".into(), missing })?;
        share(devices)?;
        let streams = devices.iter().map(|device| Ok(device.as_cuda_device()?.cuda_stream()));
        Ok(Nccl(Comm::from_devices(streams.collect::<Result<_>>()?).map_err(refusal)?))
    }
}

impl AllReduce for Nccl {
    fn sum(&self, parts: &[Tensor]) -> Result<Vec<Tensor>> {
        if parts.len() != self.0.len() {
            return Err(Error::mismatch("parts of a sum", self.0.len(), parts.len()));
        }
        let mut sums = parts.iter().map(unwritten).collect::<Result<Vec<_>>>()?;
        group_start().map_err(refusal)?;
        let mut cards = self.0.iter().zip(parts).zip(&mut sums);
        let queued = cards.try_for_each(|((comm, part), sum)| queue(comm, part, sum));
        let ended = group_end().map_err(refusal);
        queued?;
        ended?;
        sums.into_iter().zip(parts).map(|(sum, part)| tensor(sum, part)).collect()
    }
}

fn queue(comm: &Comm, part: &Tensor, sum: &mut CudaSlice<f32>) -> Result<()> {
    let (storage, layout) = part.storage_and_layout();
    let (Storage::Cuda(storage), Some((begin, end))) = (&*storage, layout.contiguous_offsets())
    else {
        return Err(Error::mismatch("part of a sum", "contiguous on a card", format!("{part:?}")));
    };
    let part = storage.as_cuda_slice::<f32>()?.slice(begin..end);
    comm.all_reduce(&part, sum, &ReduceOp::Sum).map(drop).map_err(refusal)
}

/// Allocates memory for a sum on the card of its part.
fn unwritten(part: &Tensor) -> Result<CudaSlice<f32>> {
    let card = part.device().as_cuda_device()?;
    // SAFETY: the sum is written before it is read.
    Ok(unsafe { card.alloc::<f32>(part.elem_count()) }?)
}

fn tensor(sum: CudaSlice<f32>, part: &Tensor) -> Result<Tensor> {
    let storage = CudaStorage::wrap_cuda_slice(sum, part.device().as_cuda_device()?.clone());
    let none = BackpropOp::none();
    Ok(Tensor::from_storage(Storage::Cuda(storage), part.shape().clone(), none, false))
}

/// Builds an error with the name of NCCL's status.
fn refusal(error: NcclError) -> Error {
    Error::Unavailable { what: "NCCL".into(), reason: format!("{:?}", error.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_in_the_error_before_it_is_used() {
        let refused = Nccl::of(&[]).err();
        let told = matches!(&refused, Some(Error::NoDevice { missing: Missing::Library(name), .. })
            if *name == "libnccl.so.2");
        assert_eq!(told, look().is_err(), "{refused:?}");
    }
}
