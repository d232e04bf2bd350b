//! NVIDIA cards, as the driver lists them.
//!
//! The build links against stubs that open the real libraries on their first call (`bin/cuda-toolkit`), so that the
//! library also loads on machines without CUDA.

mod card;
mod foreign;
mod graph;
pub(super) mod launch;
mod nccl;
mod nodes;
mod pool;
pub(super) mod product;
mod shared;
mod uploads;
mod workspace;

use std::ffi::c_int;
use std::panic::{UnwindSafe, catch_unwind};

use candle_core::Device;
use candle_core::cuda_backend::cudarc::cublas::sys::{
    cublasGetProperty, cublasStatus_t, libraryPropertyType,
};
use candle_core::cuda_backend::cudarc::cublaslt::sys::cublasLtGetVersion;
use candle_core::cuda_backend::cudarc::curand::sys::{curandGetVersion, curandStatus_t};
use candle_core::cuda_backend::cudarc::driver::result::{self, DriverError, device};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdevice_attribute, CUresult, cuDriverGetVersion,
};
use card::Card;
pub use card::{Caching, apart, attach, leave, memory, release, settle, shrink};
pub(super) use card::{grown, place};
pub use foreign::Foreign;
pub use graph::{Graph, refusals};
use nccl::Nccl;
pub use shared::Shared;
pub use uploads::Uploads;
pub use workspace::Workspace;

use super::{AllReduce, Missing};
use crate::error::{self, panic_message};
use crate::{Error, Kind, Result};

/// The lowest driver version of this build: 1000 times the major plus 10 times the minor version.
const CUDA_VERSION: c_int = 13_000;
/// The compute capability of the kernels in this build: major and minor.
const CAPABILITY: (c_int, c_int) = (8, 0);

type Found<T> = std::result::Result<T, Missing>;

/// Opens a card with a stream of its own. All work of the caller runs in the order of that stream. (Candle's default is
/// one stream per thread, with no ordering between them.)
pub fn open(ordinal: usize) -> Result<Device> {
    let refused = |missing| Error::NoDevice { device: format!("cuda:{ordinal}"), missing };
    error::set_full_card(card::full);
    look(&[ordinal]).map_err(refused)?;
    let opened = guard(|| Ok(Card::of(ordinal).and_then(|card| card.device()))).map_err(refused)?;
    opened.map_err(|error| match error {
        full if full.kind() == Kind::OutOfMemory => full,
        Error::Tensor(other) => refused(Missing::Refused(other.to_string())),
        other => other,
    })
}

/// Checks that policies can run on the cards. Creates no context and takes no memory.
pub(super) fn look(ordinals: &[usize]) -> Found<()> {
    guard(|| {
        driver()?;
        ordinals.iter().try_for_each(|&ordinal| card(ordinal))?;
        libraries()?;
        if ordinals.len() > 1 { nccl::look() } else { Ok(()) }
    })
}

pub(super) fn all_reduce(devices: &[Device]) -> Result<Box<dyn AllReduce>> {
    Ok(Box::new(Nccl::of(devices)?))
}

/// Runs work and turns panics into errors: cudarc panics if a library lacks a function that it expects.
fn guard<T>(work: impl FnOnce() -> Found<T> + UnwindSafe) -> Found<T> {
    catch_unwind(work).unwrap_or_else(|payload| Err(Missing::Refused(panic_message(&*payload))))
}

fn driver() -> Found<()> {
    result::init().map_err(refusal)?;
    let mut version: c_int = 0;
    // SAFETY: the driver writes one number to the given address.
    unsafe { cuDriverGetVersion(&mut version) }.result().map_err(refusal)?;
    if version < CUDA_VERSION { Err(Missing::DriverVersion(version)) } else { Ok(()) }
}

fn card(ordinal: usize) -> Found<()> {
    let count = device::get_count().map_err(refusal)? as usize;
    if ordinal >= count {
        return Err(Missing::Card { ordinal, count });
    }
    let card = device::get(ordinal as c_int).map_err(refusal)?;
    // SAFETY: the driver has just returned this card.
    let attribute = |which| unsafe { device::get_attribute(card, which) }.map_err(refusal);
    let capability = (
        attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    if capability < CAPABILITY {
        let name = device::get_name(card).map_err(refusal)?;
        return Err(Missing::Capability { name, capability });
    }
    Ok(())
}

/// Checks the libraries that candle opens together with a card.
fn libraries() -> Found<()> {
    let mut number: c_int = 0;
    // SAFETY: each function writes one number to the given address or has no argument.
    let (blas, blas_lt, random) = unsafe {
        (
            cublasGetProperty(libraryPropertyType::MAJOR_VERSION, &mut number),
            cublasLtGetVersion(),
            curandGetVersion(&mut number),
        )
    };
    if blas != cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        Err(Missing::Library("libcublas.so.13"))
    } else if blas_lt == 0 {
        Err(Missing::Library("libcublasLt.so.13"))
    } else if random != curandStatus_t::CURAND_STATUS_SUCCESS {
        Err(Missing::Library("libcurand.so.10"))
    } else {
        Ok(())
    }
}

fn refusal(error: DriverError) -> Missing {
    match error.0 {
        CUresult::CUDA_ERROR_STUB_LIBRARY => Missing::Driver,
        CUresult::CUDA_ERROR_NO_DEVICE => Missing::Card { ordinal: 0, count: 0 },
        // Reports the code's name: its text would come from the driver, which may not respond.
        other => Missing::Refused(format!("{other:?}")),
    }
}
