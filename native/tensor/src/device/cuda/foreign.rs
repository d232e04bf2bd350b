//! Memory on a card that another library of this process owns.

use std::ffi::{c_int, c_uint};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::{memcpy_dtod_async, memcpy_dtoh_async};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdeviceptr, CUmemorytype, CUpointer_attribute, cuPointerGetAttribute,
};
use candle_core::{DType, Device, DeviceLocation, Shape, Tensor};

use super::card::{apart, attach};
use super::launch::{card, pointer};
use crate::device::operand::Address;
use crate::{Error, Result, memory};

/// 32-bit floats on a card in memory of another library.
///
/// 1. The memory belongs to the other library, and nothing here frees it.
/// 2. The caller keeps the other library's reference to it until a copy has returned.
/// 3. A copy runs in the order of the stream of `device` and has finished when the function returns, so that the other
///    library may use its own streams before and afterwards.
pub struct Foreign {
    device: Device,
    first: CUdeviceptr,
    len: usize,
}

impl Foreign {
    /// The `len` floats at `address`, of which the other library says that they have `bytes` bytes. `what` names them in
    /// errors.
    ///
    /// # Errors
    /// `Mismatch` for a null pointer, an address that is not one of floats, another number of bytes, or memory that does
    /// not lie on the card of `device` as a whole.
    pub fn on(
        device: &Device,
        what: &str,
        (address, bytes): (Address, u64),
        len: usize,
    ) -> Result<Self> {
        let expected = (len as u64).saturating_mul(size_of::<f32>() as u64);
        if address == 0 {
            return Err(Error::mismatch(what, "an address on a card", "a null pointer"));
        }
        if bytes != expected || len == 0 {
            let [expected, got] = [expected, bytes].map(|bytes| format!("{bytes} bytes"));
            return Err(Error::mismatch(what, expected, got));
        }
        if !address.is_multiple_of(size_of::<f32>() as u64) {
            return Err(Error::mismatch(what, "an address of floats", format!("{address:#x}")));
        }
        let DeviceLocation::Cuda { gpu_id } = device.location() else {
            return Err(Error::mismatch(what, "a policy on a card", "a policy on a CPU"));
        };
        attach(device);
        match Range::around(address) {
            Some(range) if range.ordinal as usize == gpu_id && range.holds(address, bytes) => {
                Ok(Foreign { device: device.clone(), first: address, len })
            }
            found => {
                let got = match found {
                    None => format!("{address:#x}, which is no memory of a card"),
                    Some(range) if range.ordinal as usize != gpu_id => {
                        format!("memory of cuda:{}", range.ordinal)
                    }
                    Some(range) => format!("{} bytes there", range.left(address)),
                };
                Err(Error::mismatch(what, format!("{bytes} bytes on cuda:{gpu_id}"), got))
            }
        }
    }

    /// Copies the floats to a new tensor on the card.
    ///
    /// # Safety
    /// The memory has been written, and until this function returns it is neither freed nor written.
    pub unsafe fn read(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        self.fits(shape.elem_count())?;
        apart(&self.device, || {
            let to = Tensor::zeros(shape, DType::F32, &self.device)?;
            // SAFETY: both have `len` floats, and the caller guarantees those of the other library.
            unsafe { self.copy(pointer(&to)?, self.first) }?;
            Ok(to)
        })
    }

    /// Copies the floats to the host.
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    pub unsafe fn to_vec(&self) -> Result<Vec<f32>> {
        let mut to = memory::zeros(self.len);
        apart(&self.device, || {
            let stream = card(&self.device)?.cuda_stream();
            // SAFETY: `to` has `len` floats and lives until the copy has finished.
            unsafe { memcpy_dtoh_async(&mut to, self.first, stream.cu_stream()) }.w()?;
            Ok(stream.synchronize().w()?)
        })
        .map(|()| to)
    }

    /// Overwrites the floats with those of a tensor on the same device.
    ///
    /// # Safety
    /// Until this function returns, the memory is not freed, and nothing else reads or writes it.
    pub unsafe fn write(&self, from: &Tensor) -> Result<()> {
        self.fits(from.elem_count())?;
        apart(&self.device, || {
            let from = from.to_dtype(DType::F32)?.contiguous()?;
            // SAFETY: both have `len` floats, and the caller guarantees those of the other library.
            unsafe { self.copy(self.first, pointer(&from)?) }
        })
    }

    fn fits(&self, len: usize) -> Result<()> {
        match len == self.len {
            true => Ok(()),
            false => Err(Error::mismatch("floats on a card", self.len, len)),
        }
    }

    unsafe fn copy(&self, to: CUdeviceptr, from: CUdeviceptr) -> Result<()> {
        let stream = card(&self.device)?.cuda_stream();
        // SAFETY: the caller guarantees both places.
        unsafe { memcpy_dtod_async(to, from, size_of::<f32>() * self.len, stream.cu_stream()) }
            .w()?;
        Ok(stream.synchronize().w()?)
    }
}

/// An allocation on a card.
struct Range {
    ordinal: c_int,
    first: CUdeviceptr,
    bytes: usize,
}

impl Range {
    /// The allocation that contains an address. `None` for memory of the host and for addresses that the driver does not
    /// know.
    fn around(address: Address) -> Option<Range> {
        let mut kind: c_uint = 0;
        let mut found = Range { ordinal: 0, first: 0, bytes: 0 };
        use CUpointer_attribute as Of;
        let asked: [(CUpointer_attribute, *mut std::ffi::c_void); 4] = [
            (Of::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut kind).cast()),
            (Of::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (&raw mut found.ordinal).cast()),
            (Of::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (&raw mut found.first).cast()),
            (Of::CU_POINTER_ATTRIBUTE_RANGE_SIZE, (&raw mut found.bytes).cast()),
        ];
        for (attribute, value) in asked {
            // SAFETY: the driver writes a value of the attribute's type, and does not follow the address.
            unsafe { cuPointerGetAttribute(value, attribute, address) }.result().ok()?;
        }
        (kind == CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint).then_some(found)
    }

    /// Bytes from an address to the end.
    fn left(&self, address: Address) -> u64 {
        (self.first + self.bytes as u64).saturating_sub(address)
    }

    fn holds(&self, address: Address, bytes: u64) -> bool {
        self.first <= address && bytes <= self.left(address)
    }
}
