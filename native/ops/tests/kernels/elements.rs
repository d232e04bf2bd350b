//! `elements.cu` compared with sums, conversions and copies of the CPU, which are exact.

use candle_core::{Device, Tensor};
use half::bf16;
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor;

use crate::Kernels;
use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Element, Memory};

/// Fewer than a block's threads, as many, and no multiple of them.
const COUNTS: [usize; 3] = [1, 64, 301];

fn numbers<T: Element>(stream: &str, count: usize) -> Vec<f32> {
    let rng = Rng::new(1, stream, 0);
    (0..count as u64).map(|i| T::of(rng.normal(i)).value()).collect()
}

fn grid(count: usize) -> [u32; 3] {
    [(count as u32).div_ceil(64), 1, 1]
}

fn numbers_are_added<T: Element>(kernels: &impl Kernels) {
    for count in COUNTS {
        let [x, y] = ["x", "y"].map(|stream| numbers::<T>(stream, count));
        let [mut a, mut b] = [&x, &y].map(|values| Memory::<T>::of(values));
        let mut sum = Memory::<T>::unwritten(count);
        let arguments = &mut [a.argument(), b.argument(), sum.argument(), Long(count as i64)];
        kernels.launch(&format!("add_{}", T::NAME), grid(count), [64, 1, 1], arguments);
        let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| T::of(x + y).value()).collect();
        assert_eq!(sum.read(), want, "{count} numbers");
    }
}

fn numbers_are_rounded(kernels: &impl Kernels) {
    for count in COUNTS {
        let x = numbers::<f32>("x", count);
        let (mut from, mut to) = (Memory::<f32>::of(&x), Memory::<bf16>::unwritten(count));
        let arguments = &mut [from.argument(), to.argument(), Long(count as i64)];
        kernels.launch("f32_to_bf16", grid(count), [64, 1, 1], arguments);
        let want: Vec<f32> = x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
        assert_eq!(to.read(), want, "{count} numbers");
    }
}

/// Copies of all numbers in other orders, and of one number to many places.
fn strides_are_followed<T: Element>(kernels: &impl Kernels, kernel: &str) {
    let x = numbers::<T>("x", 2 * 3 * 5 * 7);
    let whole = Tensor::from_slice(&x, (2, 3, 5, 7), &Device::Cpu).unwrap();
    let turned = whole.permute((3, 1, 0, 2)).unwrap();
    let rows = whole.narrow(2, 0, 1).unwrap();
    let one = whole.flatten_all().unwrap().narrow(0, 0, 1).unwrap();
    let spread = one.reshape((1, 1, 1, 1)).unwrap().broadcast_as((3, 2, 1, 40)).unwrap();
    for view in [turned, rows, spread] {
        let count = view.elem_count();
        let (mut from, mut to) = (Memory::<T>::of(&x), Memory::<T>::unwritten(count));
        let mut arguments = vec![from.argument(), to.argument(), Long(count as i64)];
        arguments.extend(view.dims()[1..].iter().map(|&size| Int(size as i32)));
        arguments.extend(view.stride().iter().map(|&apart| Long(apart as i64)));
        kernels.launch(kernel, grid(count), [64, 1, 1], &mut arguments);
        assert_eq!(to.read(), tensor::to_vec(&view).unwrap(), "{view:?}");
    }
}

fn all(kernels: &impl Kernels) {
    numbers_are_added::<f32>(kernels);
    numbers_are_added::<bf16>(kernels);
    numbers_are_rounded(kernels);
    strides_are_followed::<f32>(kernels, "copy_strided_32");
    strides_are_followed::<bf16>(kernels, "copy_strided_16");
}

#[test]
fn elements_equal_the_cpu() {
    all(&Emulated::compile("elements"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn elements_on_a_card_equal_the_cpu() {
    all(&crate::card::Card::open("elements", sconce_cuda::kernels::ELEMENTS.ptx));
}
