//! `columns.cu` compared with sums in f64.

use half::bf16;
use sconce_tensor::rng::Rng;

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Element, Memory};
use crate::{Kernels, assert_near};

/// Rows and columns: one of each, fewer rows than lanes, and no multiple of a block.
const SIZES: [(usize, usize); 4] = [(1, 1), (3, 40), (8, 32), (301, 77)];

fn numbers<T: Element>(count: usize) -> Vec<f32> {
    let rng = Rng::new(1, "x", count as u64);
    (0..count as u64).map(|i| T::of(rng.normal(i)).value()).collect()
}

fn sums<T: Element>(kernels: &impl Kernels, x: &[f32], n: usize, per_part: usize) -> Vec<f32> {
    let rows = x.len() / n;
    let parts = rows.div_ceil(per_part);
    let mut sums = Memory::<f32>::unwritten(parts * n);
    let grid = [(n as u32).div_ceil(32), parts as u32, 1];
    let mut x = Memory::<T>::of(x);
    let arguments = &mut [
        x.argument(),
        sums.argument(),
        Long(rows as i64),
        Int(n as i32),
        Int(per_part as i32),
    ];
    kernels.launch(&format!("column_sums_{}", T::NAME), grid, [32, 8, 1], arguments);
    sums.read()
}

fn kernels_add_up<T: Element>(kernels: &impl Kernels) {
    for (rows, n) in SIZES {
        let x = numbers::<T>(rows * n);
        let column = |i: usize| x[i..].iter().step_by(n).map(|v| f64::from(*v)).sum::<f64>() as f32;
        let want: Vec<f32> = (0..n).map(column).collect();
        for per_part in [rows, 5] {
            let parts = sums::<T>(kernels, &x, n, per_part);
            let got = sums::<f32>(kernels, &parts, n, rows);
            assert_near(&format!("{rows} rows of {n}, by {per_part}"), &got, &want, 1e-6);
        }
    }
}

#[test]
fn sums_of_columns_equal_the_cpu() {
    let kernels = Emulated::compile("columns");
    kernels_add_up::<f32>(&kernels);
    kernels_add_up::<bf16>(&kernels);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn sums_of_columns_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::COLUMNS.ptx;
    let kernels = crate::card::Card::open("columns", ptx);
    kernels_add_up::<f32>(&kernels);
    kernels_add_up::<bf16>(&kernels);
}
