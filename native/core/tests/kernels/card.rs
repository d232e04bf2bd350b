//! Kernels on the first card.

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, LaunchConfig, PushKernelArg};
use candle_core::{CudaDevice, Device, Tensor, Var};
use sconce_core::device;

use crate::memory::Argument;
use crate::{Kernels, Shape};

/// The kernels of a PTX on a stream of their own.
pub struct Card {
    device: CudaDevice,
    name: &'static str,
    ptx: &'static str,
}

impl Card {
    pub fn open(name: &'static str, ptx: &'static str) -> Self {
        match device::open(0).unwrap() {
            Device::Cuda(device) => Card { device, name, ptx },
            other => panic!("{other:?} is no card"),
        }
    }
}

impl Kernels for Card {
    /// What is around the numbers goes with them there and back.
    fn launch(&self, kernel: &str, grid: Shape, block: Shape, arguments: &mut [Argument]) {
        let stream = self.device.cuda_stream();
        let there: Vec<CudaSlice<u8>> =
            memories(arguments).map(|(bytes, _)| stream.clone_htod(&*bytes).unwrap()).collect();
        let firsts = memories(arguments).map(|(_, first)| *first);
        let views: Vec<CudaView<u8>> =
            there.iter().zip(firsts).map(|(there, first)| there.slice(first..)).collect();

        let function = self.device.get_or_load_custom_func(kernel, self.name, self.ptx).unwrap();
        let mut launch = function.builder();
        let mut next = views.iter();
        for argument in arguments.iter() {
            match argument {
                Argument::Memory { .. } => launch.arg(next.next().unwrap()),
                Argument::Long(value) => launch.arg(value),
                Argument::Int(value) => launch.arg(value),
                Argument::Float(value) => launch.arg(value),
            };
        }
        let (grid_dim, block_dim) = (grid.into(), block.into());
        let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
        // SAFETY: a test gives a kernel what its signature says.
        unsafe { launch.launch(config) }.unwrap();
        for ((bytes, _), there) in memories(arguments).zip(&there) {
            stream.memcpy_dtoh(there, bytes).unwrap();
        }
        stream.synchronize().unwrap();
    }
}

fn memories<'a>(
    arguments: &'a mut [Argument],
) -> impl Iterator<Item = (&'a mut [u8], &'a mut usize)> {
    arguments.iter_mut().filter_map(|argument| match argument {
        Argument::Memory { bytes, first } => Some((&mut **bytes, first)),
        _ => None,
    })
}

/// What the library links with is opened when it is called: driver, cuBLAS, and candle's kernels.
#[test]
#[ignore = "needs an NVIDIA card"]
#[allow(clippy::disallowed_methods)]
fn a_product_and_its_gradient_on_a_card_are_those_of_the_cpu() {
    let on = |device: &Device| {
        let x = Var::from_tensor(&Tensor::arange(0f32, 12.0, device)?.reshape((3, 4))?)?;
        let w = Tensor::arange(0f32, 8.0, device)?.reshape((4, 2))?;
        let y = x.matmul(&w)?.tanh()?.sum_all()?;
        let gradients = y.backward()?;
        let dx = gradients.get(&x).unwrap().flatten_all()?;
        candle_core::Result::Ok((y.to_scalar::<f32>()?, dx.to_vec1::<f32>()?))
    };
    let (want, got) = (on(&Device::Cpu).unwrap(), on(&device::open(0).unwrap()).unwrap());
    assert!((want.0 - got.0).abs() < 1e-5, "{} is not {}", got.0, want.0);
    for (want, got) in want.1.iter().zip(&got.1) {
        assert!((want - got).abs() < 1e-5, "{got} is not {want}");
    }
}
