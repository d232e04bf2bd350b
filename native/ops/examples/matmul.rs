//! GFLOP/s of products by the `gemm` crate, by `matmul` and by a `Packed` right operand, compared with the peak of one
//! thread, for the shapes of a policy and its training.
//!
//! `cargo run --release -p sconce-ops --example matmul [name]`

use std::hint::black_box;
use std::time::Instant;

use sconce_ops::ceilings::peak_flops;
use sconce_ops::matmul::{Packed, View, matmul};

/// Seconds spent on one shape.
const SECONDS: f64 = 0.2;

/// The operands of a product: `y = x W^T`, `dx = dy W`, `dW = dy^T x`.
#[derive(Clone, Copy)]
enum Form {
    Forward,
    Input,
    Weight,
}
use Form::{Forward, Input, Weight};

/// The product `[m, k] [k, n]` as (m, n, k).
type Shape = (usize, usize, usize);

const CASES: &[(&str, Form, &[Shape])] = &[
    (
        "forward",
        Forward,
        &[
            (128, 1024, 288),
            (128, 1024, 256),
            (128, 768, 288),
            (128, 512, 288),
            (128, 512, 512),
            (128, 256, 512),
            (128, 81, 256),
            (128, 64, 512),
            (128, 48, 512),
            (128, 512, 16),
        ],
    ),
    (
        "input gradient",
        Input,
        &[
            (128, 288, 1024),
            (128, 256, 1024),
            (128, 512, 512),
            (128, 512, 256),
            (128, 256, 81),
            (128, 512, 64),
            (128, 16, 512),
        ],
    ),
    (
        "weight gradient",
        Weight,
        &[
            (256, 288, 1920),
            (256, 256, 1920),
            (128, 512, 1920),
            (21, 256, 1920),
            (16, 512, 1920),
            (128, 16, 1920),
            (256, 288, 256),
            (128, 512, 256),
        ],
    ),
    ("step", Forward, &[(1, 1024, 256), (2, 1024, 256), (8, 1024, 256), (16, 1024, 256)]),
    ("step back", Input, &[(1, 256, 1024), (2, 256, 1024), (8, 256, 1024), (16, 256, 1024)]),
    ("one decision", Forward, &[(1, 1024, 288), (1, 512, 512), (1, 81, 256), (1, 512, 16)]),
    ("few", Forward, &[(2, 1024, 288), (3, 1024, 288), (4, 1024, 288), (7, 1024, 288)]),
    ("scores", Forward, &[(60, 60, 32)]),
    ("values", Input, &[(60, 32, 60)]),
];

fn main() {
    let only = std::env::args().nth(1);
    let peak = peak_flops(1, 1.0) / 1e9;
    println!("peak of one thread {peak:.0} GFLOP/s\n");
    println!("{:16}{:>5}{:>6}{:>6}{:>8}{:>8}{:>8}", "", "m", "n", "k", "gemm", "matmul", "Packed");
    for (name, form, shapes) in CASES {
        if only.as_deref().is_none_or(|only| only == *name) {
            for &(m, n, k) in *shapes {
                let rates = rates(*form, m, n, k);
                print!("{name:16}{m:5}{n:6}{k:6}");
                rates.iter().for_each(|rate| print!("{rate:8.1}"));
                rates.iter().for_each(|rate| print!("{:5.0} %", 100.0 * rate / peak));
                println!();
            }
        }
    }
}

/// GFLOP/s of the three, measured in turn so that other load on the machine affects all of them. The fastest run of
/// each counts, because other load only slows a run.
fn rates(form: Form, m: usize, n: usize, k: usize) -> [f64; 3] {
    let a: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
    let b: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.71).cos()).collect();
    let left = match form {
        Weight => View::rows(&a, k, m).transposed(),
        Forward | Input => View::rows(&a, m, k),
    };
    let right = match form {
        Forward => View::rows(&b, n, k).transposed(),
        Input | Weight => View::rows(&b, k, n),
    };
    let packed = Packed::new(right);
    let mut out = vec![0.0; m * n];
    let flops = 2.0 * (m * n * k) as f64;
    // A run is long enough for the clock, however small the product.
    let repeats = (1e7 / flops).ceil() as usize;
    let mut best = [f64::INFINITY; 3];
    let clock = Instant::now();
    while clock.elapsed().as_secs_f64() < SECONDS {
        for (which, best) in best.iter_mut().enumerate() {
            let start = Instant::now();
            for _ in 0..repeats {
                let out = black_box(&mut out);
                match which {
                    0 => gemm(out, form, &a, &b, (m, n, k)),
                    1 => matmul(out, n, left, right, false),
                    _ => packed.matmul(out, n, left, false),
                }
            }
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    best.map(|seconds| flops * repeats as f64 / seconds / 1e9)
}

fn gemm(out: &mut [f32], form: Form, a: &[f32], b: &[f32], (m, n, k): Shape) {
    let (a_row, a_column) = if matches!(form, Weight) { (1, m) } else { (k, 1) };
    let (b_row, b_column) = if matches!(form, Forward) { (1, k) } else { (n, 1) };
    assert!(out.len() == m * n && a.len() == m * k && b.len() == n * k);
    // SAFETY: the lengths were checked, and the strides are those of contiguous matrices.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr(),
            a_column as isize,
            a_row as isize,
            b.as_ptr(),
            b_column as isize,
            b_row as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
