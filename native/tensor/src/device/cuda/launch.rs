//! Kernel launches and their arguments.

use std::ffi::c_uint;
use std::sync::{Arc, PoisonError, RwLock};

use candle_core::cuda_backend::cudarc::driver::result::memcpy_htod_async;
use candle_core::cuda_backend::cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr, CUresult};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DevicePtr, DriverError, LaunchConfig,
    PushKernelArg,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::cuda_backend::{CudaDevice, CudaStorage, CudaStorageSlice, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{DType, Device, Result, Shape, Storage, Tensor, WithDType, bail};
use half::{bf16, f16};
use sconce_cuda::kernels::Module;

use super::workspace;
use crate::device::operand::{Address, MOST_ALONG_Y};

/// The largest number of blocks of a grid along x.
const MOST_ALONG_X: usize = i32::MAX as usize;
/// The largest number of threads of a block. A thread may use up to 255 registers, and a block has 65,536.
const MOST_THREADS: usize = 256;

/// A kernel and its arguments, in the order of its signature.
pub struct Launch {
    kernel: CudaFunction,
    stream: Arc<CudaStream>,
    arguments: Vec<Argument>,
    /// A size that does not fit its argument.
    beyond: Option<usize>,
}

enum Argument {
    Pointer(CUdeviceptr),
    Long(i64),
    Int(i32),
    Float(f32),
}

impl Launch {
    /// A kernel of `module` on the card of `x`.
    pub fn of(module: Module, kernel: &str, x: &Tensor) -> Result<Self> {
        let card = card(x.device())?;
        card.cuda_stream().context().bind_to_thread().w()?;
        let kernel = loaded(card, module)?.load_function(kernel).w()?;
        Ok(Launch { kernel, stream: card.cuda_stream(), arguments: vec![], beyond: None })
    }

    /// Adds a pointer to a contiguous tensor on the card, which the kernel reads or writes.
    pub fn tensor(mut self, tensor: &Tensor) -> Result<Self> {
        self.arguments.push(Argument::Pointer(pointer(tensor)?));
        Ok(self)
    }

    /// Adds a pointer to a contiguous tensor, or a null pointer for `None`.
    pub fn option(mut self, tensor: Option<&Tensor>) -> Result<Self> {
        let pointer = tensor.map(pointer).transpose()?.unwrap_or(0);
        self.arguments.push(Argument::Pointer(pointer));
        Ok(self)
    }

    /// Adds an address.
    pub fn place(mut self, place: Address) -> Self {
        self.arguments.push(Argument::Pointer(place));
        self
    }

    /// Adds a size of 64 bits.
    pub fn long(mut self, value: usize) -> Self {
        self.arguments.push(Argument::Long(value as i64));
        self
    }

    /// Adds a size of 32 bits. [`Launch::run`] fails if `value` does not fit.
    pub fn int(mut self, value: usize) -> Self {
        if i32::try_from(value).is_err() {
            self.beyond = Some(value);
        }
        self.arguments.push(Argument::Int(value as i32));
        self
    }

    /// Adds 32 bits that are not a size.
    pub fn word(mut self, value: u32) -> Self {
        self.arguments.push(Argument::Int(value as i32));
        self
    }

    /// Adds an f32.
    pub fn float(mut self, value: f32) -> Self {
        self.arguments.push(Argument::Float(value));
        self
    }

    /// Launches the kernel on `grid` blocks of `block` threads, with `shared` bytes of dynamic shared memory per block.
    /// A no-op if the block or the grid is empty.
    ///
    /// # Errors
    /// For sizes that exceed the limits of a card or of an argument.
    ///
    /// # Safety
    /// The arguments match the kernel's signature, and the kernel accesses no memory outside of them.
    pub unsafe fn run(self, grid: [usize; 3], block: [usize; 3], shared: usize) -> Result<()> {
        // SAFETY: as the caller's.
        unsafe { self.start(grid, block, shared, false) }
    }

    /// As [`Launch::run`], with all blocks at once, so that they may wait for each other.
    ///
    /// # Errors
    /// As [`Launch::run`], and for more than [`Launch::most_together`] blocks.
    ///
    /// # Safety
    /// As [`Launch::run`], and a block waits for nothing but blocks of this launch.
    pub unsafe fn run_together(
        self,
        grid: [usize; 3],
        block: [usize; 3],
        shared: usize,
    ) -> Result<()> {
        // SAFETY: as the caller's.
        unsafe { self.start(grid, block, shared, true) }
    }

    /// The most blocks of `threads` threads, with `shared` bytes of dynamic shared memory, that the card runs at once.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn most_together(&self, threads: usize, shared: usize) -> Result<usize> {
        let kernel = &self.kernel;
        let threads = threads as u32;
        let of_one = kernel.occupancy_max_active_blocks_per_multiprocessor(threads, shared, None);
        let count = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = self.stream.context().attribute(count).w()?;
        Ok(of_one.w()? as usize * multiprocessors as usize)
    }

    unsafe fn start(
        self,
        grid: [usize; 3],
        block: [usize; 3],
        shared: usize,
        together: bool,
    ) -> Result<()> {
        if grid.contains(&0) || block.contains(&0) {
            return Ok(());
        }
        let [x, y, z] = grid;
        if x > MOST_ALONG_X || y.max(z) > MOST_ALONG_Y {
            bail!("a card has no grid of {grid:?} blocks");
        }
        if block.iter().product::<usize>() > MOST_THREADS {
            bail!("a block of {block:?} threads may need more registers than a block has");
        }
        if let Some(size) = self.beyond {
            bail!("a kernel got a size of {size}, and its argument holds at most {}", i32::MAX);
        }
        let shape = |[x, y, z]: [usize; 3]| (x as c_uint, y as c_uint, z as c_uint);
        let (grid_dim, block_dim) = (shape(grid), shape(block));
        let shared_mem_bytes = shared as c_uint;
        let mut launch = self.stream.launch_builder(&self.kernel);
        for argument in &self.arguments {
            match argument {
                Argument::Pointer(value) => launch.arg(value),
                Argument::Long(value) => launch.arg(value),
                Argument::Int(value) => launch.arg(value),
                Argument::Float(value) => launch.arg(value),
            };
        }
        let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes };
        // SAFETY: the caller guarantees the arguments. Memory that is freed meanwhile is freed in stream order, after
        // this launch.
        match together {
            true => unsafe { launch.launch_cooperative(config) },
            false => unsafe { launch.launch(config) },
        }
        .w()?;
        Ok(())
    }
}

/// A module of kernels on a card. It stays loaded, because the driver may have to compile it, which takes seconds.
struct Loaded {
    ordinal: usize,
    name: &'static str,
    kernels: Arc<CudaModule>,
}

static LOADED: RwLock<Vec<Loaded>> = RwLock::new(vec![]);

fn loaded(card: &CudaDevice, module: Module) -> Result<Arc<CudaModule>> {
    let (stream, name) = (card.cuda_stream(), module.name);
    let ordinal = stream.context().ordinal();
    let known = LOADED.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(one) = known.iter().find(|one| (one.ordinal, one.name) == (ordinal, name)) {
        return Ok(one.kernels.clone());
    }
    drop(known);
    // No lock is held during a load, so that other modules can load meanwhile. Two threads may load the same module
    // twice.
    let kernels = load(stream.context(), module).w()?;
    let loaded = Loaded { ordinal, name, kernels: kernels.clone() };
    LOADED.write().unwrap_or_else(PoisonError::into_inner).push(loaded);
    Ok(kernels)
}

/// The driver's answers to machine code that it cannot run.
const REFUSALS: [CUresult; 4] = [
    CUresult::CUDA_ERROR_INVALID_IMAGE,
    CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    CUresult::CUDA_ERROR_INVALID_SOURCE,
];

/// Loads the machine code for the card, or else the PTX, which the driver compiles.
fn load(
    card: &Arc<CudaContext>,
    module: Module,
) -> std::result::Result<Arc<CudaModule>, DriverError> {
    if let Some(machine) = module.machine_for(card.compute_capability()?) {
        match card.load_module(Ptx::from_binary(machine.to_vec())) {
            Err(error) if REFUSALS.contains(&error.0) => {}
            loaded => return loaded,
        }
    }
    card.load_module(module.ptx.into())
}

pub(crate) fn card(device: &Device) -> Result<&CudaDevice> {
    match device {
        Device::Cuda(card) => Ok(card),
        _ => bail!("this op runs on a card only"),
    }
}

/// Allocates a tensor with undefined contents on the card of `x`.
pub fn unwritten(shape: impl Into<Shape>, dtype: DType, x: &Tensor) -> Result<Tensor> {
    output(shape, dtype, x, false)
}

/// Allocates the output of an op with undefined contents on the card of `x`. With `track` the output is a candle
/// variable, for ops that a backward pass may follow.
pub fn output(shape: impl Into<Shape>, dtype: DType, x: &Tensor, track: bool) -> Result<Tensor> {
    let (shape, card) = (shape.into(), card(x.device())?);
    if let Some(kept) = workspace::kept(&shape, dtype).filter(|_| !track) {
        return Ok(kept);
    }
    let n = shape.elem_count().max(1);
    macro_rules! of {
        ($t:ty) => {
            // SAFETY: the caller writes the values before they are read.
            CudaStorage::wrap_cuda_slice(unsafe { card.alloc::<$t>(n) }?, card.clone())
        };
    }
    let storage = match dtype {
        DType::F32 => of!(f32),
        DType::F64 => of!(f64),
        DType::BF16 => of!(bf16),
        DType::F16 => of!(f16),
        DType::I32 => of!(i32),
        DType::U32 => of!(u32),
        DType::I64 => of!(i64),
        DType::U8 => of!(u8),
        other => bail!("no kernel supports {other:?}"),
    };
    let tensor = Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), track);
    workspace::taken(&tensor);
    Ok(tensor)
}

/// The address of the first value of a contiguous tensor on a card.
pub fn pointer(tensor: &Tensor) -> Result<Address> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cuda(storage), Some((first, _))) = (&*storage, layout.contiguous_offsets())
    else {
        bail!("a kernel got a tensor that is not contiguous on a card");
    };
    let stream = storage.device.cuda_stream();
    macro_rules! first_of {
        ($($slice:ident)*) => {
            match &storage.slice {
                $(CudaStorageSlice::$slice(slice) => slice.device_ptr(&stream).0,)*
                _ => bail!("no kernel supports {:?}", tensor.dtype()),
            }
        };
    }
    let begin = first_of!(F32 F64 BF16 F16 I32 U32 I64 U8);
    Ok(begin + (first * tensor.dtype().size_in_bytes()) as CUdeviceptr)
}

/// Overwrites a contiguous tensor on a card in place. Later launches on its stream see the new values.
/// [`Graph`](super::Graph) refuses a recording that contains it.
pub fn overwrite<T: WithDType>(tensor: &Tensor, values: &[T]) -> Result<()> {
    if (T::DTYPE, values.len()) != (tensor.dtype(), tensor.elem_count()) {
        bail!("{} numbers of {:?} do not fill {tensor:?}", values.len(), T::DTYPE);
    }
    let stream = card(tensor.device())?.cuda_stream();
    stream.context().bind_to_thread().w()?;
    // SAFETY: the tensor has as many elements of this type as `values`, which the call has read when it returns. A
    // recorded call has not, but `Graph` does not replay it.
    unsafe { memcpy_htod_async(pointer(tensor)?, values, stream.cu_stream()) }.w()
}
