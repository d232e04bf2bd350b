//! `dropout.cu` compared with `ops::dropout`.

use candle_core::Tensor;
use half::bf16;
use sconce_ops::dropout::{Dropout, Origin};
use sconce_ops::dropout_columns;
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor;

use crate::Kernels;
use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int, Long};
use crate::memory::{Element, Memory};

const P: f32 = 0.3;

/// Rows of windows, and their numbers: fewer than a block of words, as many, and no whole number of blocks.
const SIZES: [(usize, usize); 4] = [(1, 1), (6, 4), (12, 33), (3, 130)];

/// A stream of random numbers whose step exceeds 32 bits.
fn stream() -> Rng {
    Rng::new(7, "dropout.0", (5 << 32) + 3)
}

/// The rows that share a mask, and their positions in a window.
#[derive(Debug, Clone, Copy)]
struct Way {
    repeat: usize,
    place: Origin,
}

fn ways() -> [Way; 3] {
    let chunk = Origin { window: 8, before: 2, frames: 3 };
    let columns = Origin { before: 5, ..Origin::default() };
    [
        Way { repeat: 1, place: Origin::default() },
        Way { repeat: 1, place: chunk },
        Way { repeat: 3, place: columns },
    ]
}

fn on_cpu(way: Way, x: &[f32], rows: usize, d: usize) -> Vec<f32> {
    let x = |dims: &[usize]| Tensor::from_slice(x, dims, &candle_core::Device::Cpu).unwrap();
    let y = match way.repeat {
        1 => Dropout::new(P, stream(), way.place).apply(&x(&[rows, d])),
        t => dropout_columns(&x(&[rows / t, t, d]), P, stream(), way.place.before),
    };
    tensor::to_vec(&y.unwrap()).unwrap()
}

/// Runs the kernel; if `counted`, part of the step is on the card.
fn launched<T: Element>(
    kernels: &impl Kernels,
    way: Way,
    [x, residual]: [&[f32]; 2],
    d: usize,
    counted: bool,
) -> Vec<f32> {
    let [key0, key1, low, high] = stream().words();
    let step = u64::from(high) << 32 | u64::from(low);
    let rows = x.len() / d;
    let mut x = Memory::<T>::of(x);
    let mut residual = Memory::<T>::of(residual);
    let mut y = Memory::<T>::unwritten(rows * d);
    let mut counter = Memory::<i64>::exactly(&[2]);
    let step = if counted { step - 2 } else { step };
    let mut arguments = [
        x.argument(),
        if residual.read().is_empty() { Long(0) } else { residual.argument() },
        y.argument(),
        if counted { counter.argument() } else { Long(0) },
        Long(step as i64),
        Int(key0 as i32),
        Int(key1 as i32),
        Long(rows as i64),
        Int(d as i32),
        Int(way.repeat as i32),
        Int(way.place.window as i32),
        Int(way.place.before as i32),
        Int(way.place.frames as i32),
        Float(P),
        Float(1.0 / (1.0 - P)),
    ];
    let threads = rows * d.div_ceil(4);
    let grid = [threads.div_ceil(64) as u32, 1, 1];
    kernels.launch(&format!("dropout_{}", T::NAME), grid, [64, 1, 1], &mut arguments);
    y.read()
}

fn the_same_numbers_are_dropped_as_on_the_cpu<T: Element>(kernels: &impl Kernels) {
    let rounded = |v: f32| T::of(v).value();
    for way in ways() {
        for (rows, d) in SIZES {
            let rows = rows * way.repeat;
            let numbers = |name| {
                let rng = Rng::new(1, name, d as u64);
                (0..(rows * d) as u64).map(|i| rounded(rng.normal(i))).collect::<Vec<f32>>()
            };
            let (x, residual) = (numbers("x"), numbers("residual"));
            let dropped = on_cpu(way, &x, rows, d);
            let added = residual.iter().zip(&dropped).map(|(r, y)| rounded(r + y));
            let added: Vec<f32> = added.collect();
            let dropped: Vec<f32> = dropped.into_iter().map(rounded).collect();
            assert!(rows * d < 100 || dropped.contains(&0.0) && dropped.iter().any(|y| *y != 0.0));
            for counted in [false, true] {
                let what = format!("{way:?}, {rows} of {d}, counted: {counted}");
                let got = launched::<T>(kernels, way, [&x, &[]], d, counted);
                assert_eq!(got, dropped, "{what}");
                let got = launched::<T>(kernels, way, [&x, &residual], d, counted);
                assert_eq!(got, added, "{what}, with a residual");
            }
        }
    }
}

#[test]
fn dropout_in_f32_drops_the_numbers_of_the_cpu() {
    the_same_numbers_are_dropped_as_on_the_cpu::<f32>(&Emulated::compile("dropout"));
}

#[test]
fn dropout_in_bf16_drops_the_numbers_of_the_cpu() {
    the_same_numbers_are_dropped_as_on_the_cpu::<bf16>(&Emulated::compile("dropout"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn dropout_on_a_card_drops_the_numbers_of_the_cpu() {
    let module = sconce_cuda::kernels::DROPOUT;
    let kernels = crate::card::Card::open(module.name, module.ptx);
    the_same_numbers_are_dropped_as_on_the_cpu::<f32>(&kernels);
    the_same_numbers_are_dropped_as_on_the_cpu::<bf16>(&kernels);
}
