//! `few_rows.cu` compared with `ops::linear`.

use candle_core::{Device, Tensor};
use half::bf16;
use sconce_ops::{Activation, linear};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor;

use crate::emulated::Emulated;
use crate::memory::Argument::Int;
use crate::memory::{Element, Memory, NULL};
use crate::{Kernels, assert_near};

/// Rows, columns and numbers of a row: one of each, all numbers of rows with a kernel, more numbers than lanes load at
/// once, more rows than a block has. Tiles are for rows of whole pieces: less than a line, several, and several tiles.
const SIZES: [[usize; 3]; 12] = [
    [1, 1, 1],
    [1, 7, 300],
    [2, 5, 33],
    [3, 9, 64],
    [4, 4, 31],
    [7, 6, 259],
    [8, 3, 5],
    [9, 3, 40],
    [29, 5, 17],
    [9, 8, 8],
    [32, 9, 80],
    [37, 3, 1032],
];

fn numbers<T: Element>(name: &str, count: usize) -> Vec<f32> {
    let rng = Rng::new(1, name, count as u64);
    (0..count as u64).map(|i| T::of(rng.normal(i)).value()).collect()
}

fn on_cpu([rows, n, k]: [usize; 3], parts: [&[f32]; 4], given: bool) -> Vec<f32> {
    let there = |v: &[f32], dims: &[usize]| Tensor::from_slice(v, dims, &Device::Cpu).unwrap();
    let [x, w, bias, rest] = parts;
    let bias = given.then(|| there(bias, &[n]).into());
    let activation = if given { Activation::Gelu } else { Activation::None };
    let w = there(w, &[n, k]).into();
    let y = linear(&there(x, &[rows, k]), &w, bias.as_ref(), activation).unwrap();
    let y = if given { (y + there(rest, &[rows, n])).unwrap() } else { y };
    tensor::to_vec(&y).unwrap()
}

fn launched<T: Element>(
    kernels: &impl Kernels,
    [rows, n, k]: [usize; 3],
    parts: [&[f32]; 4],
    given: bool,
    tiled: bool,
) -> Vec<f32> {
    let [mut x, mut w, mut bias, mut rest] = parts.map(Memory::<T>::of);
    let mut y = Memory::<T>::unwritten(rows * n);
    let [bias, rest] = [&mut bias, &mut rest].map(|t| if given { t.argument() } else { NULL });
    let activation = if given { Activation::Gelu } else { Activation::None };
    let sizes = [rows, n, k, activation as usize].map(|size| Int(size as i32));
    let mut arguments = vec![x.argument(), w.argument(), bias, rest, y.argument()];
    arguments.extend(sizes);
    let (n, rows) = (n as u32, rows as u32);
    let (kernel, grid, threads) = match tiled {
        true => ("tile_of_rows", [n.div_ceil(8), rows.div_ceil(32), 1], 256),
        false => ("few_rows", [(n * 32).div_ceil(64), rows.div_ceil(8), 1], 64),
    };
    kernels.launch(&format!("{kernel}_{}", T::NAME), grid, [threads, 1, 1], &mut arguments);
    y.read()
}

fn kernels_are_the_op<T: Element>(kernels: &impl Kernels, rounding: f32) {
    for sizes @ [rows, n, k] in SIZES {
        let counts = [("x", rows * k), ("w", n * k), ("bias", n), ("rest", rows * n)];
        let parts = counts.map(|(name, count)| numbers::<T>(name, count));
        let parts = parts.each_ref().map(|part| &part[..]);
        for given in [true, false] {
            let want = on_cpu(sizes, parts, given);
            let whole = (k * size_of::<T>()).is_multiple_of(16);
            for tiled in [Some(false), whole.then_some(true)].into_iter().flatten() {
                let got = launched::<T>(kernels, sizes, parts, given, tiled);
                let what = format!("{sizes:?}, with all: {given}, tiled: {tiled}");
                assert_near(&what, &got, &want, rounding);
            }
        }
    }
}

#[test]
fn layers_of_few_rows_equal_the_cpu() {
    let kernels = Emulated::compile("few_rows");
    kernels_are_the_op::<f32>(&kernels, 1e-5);
    kernels_are_the_op::<bf16>(&kernels, 1.0 / 128.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn layers_of_few_rows_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::FEW_ROWS.ptx;
    let kernels = crate::card::Card::open("few_rows", ptx);
    kernels_are_the_op::<f32>(&kernels, 1e-5);
    kernels_are_the_op::<bf16>(&kernels, 1.0 / 128.0);
}
