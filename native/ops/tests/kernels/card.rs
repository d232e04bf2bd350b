//! Kernels on the first card.

use std::sync::{Arc, PoisonError, RwLock};

use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg,
};
use candle_core::{CudaDevice, Device, Tensor, Var};
use sconce_tensor::device;

use crate::memory::Argument;
use crate::{Kernels, Shape};

/// Held exclusively while work is recorded through the driver's own calls, because opening a card waits for all of it.
pub static OPENING: RwLock<()> = RwLock::new(());

/// The first card.
pub fn open() -> Device {
    let _opening = OPENING.read().unwrap_or_else(PoisonError::into_inner);
    device::open(0).unwrap()
}

/// The kernels of a PTX on a stream of their own.
pub struct Card {
    device: CudaDevice,
    name: &'static str,
    ptx: &'static str,
}

impl Card {
    pub fn open(name: &'static str, ptx: &'static str) -> Self {
        match open() {
            Device::Cuda(device) => Card { device, name, ptx },
            other => panic!("{other:?} is not a card"),
        }
    }
}

impl Kernels for Card {
    fn launch_with(
        &self,
        kernel: &str,
        grid: Shape,
        block: Shape,
        together: Option<u32>,
        arguments: &mut [Argument],
    ) {
        let stream = self.device.cuda_stream();
        let mut there = There { stream: &stream, memories: vec![], tables: vec![] };
        let values: Vec<u64> = arguments.iter().map(|argument| there.value(argument)).collect();
        let function = self.device.get_or_load_custom_func(kernel, self.name, self.ptx).unwrap();
        let mut launch = function.builder();
        values.iter().for_each(|value| {
            launch.arg(value);
        });
        let (grid_dim, block_dim) = (grid.into(), block.into());
        let shared_mem_bytes = together.unwrap_or(0);
        let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes };
        // SAFETY: tests pass a kernel the arguments of its signature.
        match together {
            Some(_) => unsafe { launch.launch_cooperative(config) },
            None => unsafe { launch.launch(config) },
        }
        .unwrap();
        let mut memories = there.memories.iter();
        arguments.iter_mut().for_each(|argument| read(argument, &stream, &mut memories));
        stream.synchronize().unwrap();
    }
}

/// The arguments of a launch in the card's memory.
struct There<'a> {
    stream: &'a Arc<CudaStream>,
    memories: Vec<CudaSlice<u8>>,
    tables: Vec<CudaSlice<u64>>,
}

impl There<'_> {
    /// The bits of an argument, in the lowest bytes. Memory is copied together with its guard numbers.
    fn value(&mut self, argument: &Argument) -> u64 {
        match argument {
            Argument::Memory { bytes, first } => {
                let there = self.stream.clone_htod(&**bytes).unwrap();
                let pointer = there.device_ptr(self.stream).0 + *first as u64;
                self.memories.push(there);
                pointer
            }
            Argument::Pointers(all) => {
                let table: Vec<u64> = all.iter().map(|argument| self.value(argument)).collect();
                let there = self.stream.clone_htod(&table).unwrap();
                let pointer = there.device_ptr(self.stream).0;
                self.tables.push(there);
                pointer
            }
            Argument::Long(value) => *value as u64,
            Argument::Int(value) => u64::from(*value as u32),
            Argument::Float(value) => u64::from(value.to_bits()),
        }
    }
}

fn read<'a>(
    argument: &mut Argument,
    stream: &Arc<CudaStream>,
    there: &mut impl Iterator<Item = &'a CudaSlice<u8>>,
) {
    match argument {
        Argument::Memory { bytes, .. } => {
            stream.memcpy_dtoh(there.next().unwrap(), &mut **bytes).unwrap();
        }
        Argument::Pointers(all) => all.iter_mut().for_each(|a| read(a, stream, &mut *there)),
        _ => {}
    }
}

/// Linked libraries are opened at the first call: driver, cuBLAS, and candle's kernels.
#[test]
#[ignore = "needs an NVIDIA card"]
#[allow(clippy::disallowed_methods)]
fn a_product_and_its_gradient_on_a_card_equal_the_cpu() {
    let on = |device: &Device| {
        let x = Var::from_tensor(&Tensor::arange(0f32, 12.0, device)?.reshape((3, 4))?)?;
        let w = Tensor::arange(0f32, 8.0, device)?.reshape((4, 2))?;
        let y = x.matmul(&w)?.tanh()?.sum_all()?;
        let gradients = y.backward()?;
        let dx = gradients.get(&x).unwrap().flatten_all()?;
        candle_core::Result::Ok((y.to_scalar::<f32>()?, dx.to_vec1::<f32>()?))
    };
    let (want, got) = (on(&Device::Cpu).unwrap(), on(&open()).unwrap());
    assert!((want.0 - got.0).abs() < 1e-5, "got {}, expected {}", got.0, want.0);
    for (want, got) in want.1.iter().zip(&got.1) {
        assert!((want - got).abs() < 1e-5, "got {got}, expected {want}");
    }
}
