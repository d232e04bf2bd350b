//! `norm.cu` compared with `ops::row_norm`.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::weights::Weight;
use sconce_ops::{Norm, row_norm};
use sconce_tensor::rng::Rng;
use sconce_tensor::tape::{self, Gradients};
use sconce_tensor::tensor;

use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int, Long};
use crate::memory::{Element, Memory};
use crate::{Kernels, assert_near};

const EPS: f32 = 1e-5;

/// Rows and columns: one of each, fewer than a warp has lanes, as many, and more that are no multiple.
const SIZES: [(usize, usize); 5] = [(1, 1), (3, 5), (8, 32), (37, 100), (9, 257)];

/// Inputs of a norm, and the gradient of its output.
struct Case {
    rows: usize,
    d: usize,
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    dy: Vec<f32>,
}

/// Results of a norm; an RMSNorm has no `dbias`.
#[derive(Debug, PartialEq)]
struct Results {
    y: Vec<f32>,
    dx: Vec<f32>,
    dweight: Vec<f32>,
    dbias: Vec<f32>,
}

impl Case {
    /// Inputs are rounded to T, so that both sides read the same numbers; their mean is not 0.
    fn new<T: Element>((rows, d): (usize, usize), center: bool) -> Self {
        let numbers = |name, count: usize, shift| {
            let rng = Rng::new(1, name, (rows * d) as u64);
            (0..count as u64).map(|i| rng.normal(i) + shift).collect::<Vec<_>>()
        };
        let in_type = |v: Vec<f32>| v.into_iter().map(|v| T::of(v).value()).collect();
        Case {
            rows,
            d,
            x: in_type(numbers("x", rows * d, 3.0)),
            weight: numbers("weight", d, 1.0),
            bias: center.then(|| numbers("bias", d, 0.0)),
            dy: in_type(numbers("dy", rows * d, 0.0)),
        }
    }

    fn on_cpu(&self) -> Results {
        let _tape = tape::record();
        let variable = |v: &[f32], dims: &[usize]| {
            Var::from_slice(v, dims, &Device::Cpu).unwrap().into_inner()
        };
        let weight = |v: &[f32]| Weight::from(variable(v, &[self.d]));
        let bias = self.bias.as_deref().map(weight);
        let norm = Norm { weight: weight(&self.weight), bias, eps: EPS };
        let x = variable(&self.x, &[self.rows, self.d]);
        let y = row_norm(&x, &norm).unwrap();
        let dy = Tensor::from_slice(&self.dy, (self.rows, self.d), &Device::Cpu).unwrap();
        let store = tape::backward(&y, dy).unwrap();
        let gradient = |weight: &Weight, store: &Gradients| {
            assert!(weight.gather(store).unwrap());
            weight.gradient(|values| values.to_vec())
        };
        Results {
            y: tensor::to_vec(&y).unwrap(),
            dx: tensor::to_vec(store.get(&x).unwrap()).unwrap(),
            dweight: gradient(&norm.weight, &store),
            dbias: norm.bias.as_ref().map_or(vec![], |bias| gradient(bias, &store)),
        }
    }

    /// Results of kernels with blocks of `threads` threads.
    fn launched<T: Element>(&self, kernels: &impl Kernels, threads: u32) -> Results {
        const ROWS_PER_PART: usize = 8;
        let center = self.bias.is_some();
        let kernel = |step: &str| {
            let name = if center { "layer_norm" } else { "rms_norm" };
            format!("{name}_{}_{step}", T::NAME)
        };
        let (rows, d) = (|| Long(self.rows as i64), || Int(self.d as i32));
        let mut x = Memory::<T>::of(&self.x);
        let mut weight = Memory::<f32>::of(&self.weight);
        let mut bias = Memory::<f32>::of(self.bias.as_deref().unwrap_or(&[]));
        let mut dy = Memory::<T>::of(&self.dy);
        let mut y = Memory::<T>::unwritten(self.rows * self.d);
        let mut kept = Memory::<f32>::unwritten(2 * self.rows);
        let mut dx = Memory::<T>::unwritten(self.rows * self.d);

        let block = [threads, 1, 1];
        let by_row = [(self.rows as u32 * 32).div_ceil(threads), 1, 1];
        // With a row in registers the numbers are the same.
        let mut answers = vec![];
        for step in ["forward_few", "forward"] {
            let arguments = [
                x.argument(),
                weight.argument(),
                bias.argument(),
                y.argument(),
                kept.argument(),
                rows(),
                d(),
                Int(1),
                Float(EPS),
                Int(0),
            ];
            // A block of rows in registers has at most 256 threads.
            let threads = if step == "forward" { threads } else { threads.min(256) };
            let grid = [(self.rows as u32 * 32).div_ceil(threads), 1, 1];
            kernels.launch(&kernel(step), grid, [threads, 1, 1], &mut { arguments });
            answers.push((y.read(), kept.read()));
        }
        assert_eq!(answers[0], answers[1]);
        kernels.launch(
            &kernel("backward"),
            by_row,
            block,
            &mut [
                x.argument(),
                weight.argument(),
                kept.argument(),
                dy.argument(),
                dx.argument(),
                rows(),
                d(),
                Int(1),
            ],
        );

        let count = self.rows.div_ceil(ROWS_PER_PART);
        let n = self.d * if center { 2 } else { 1 };
        let mut parts = Memory::<f32>::unwritten(count * n);
        let by_column = |n: usize, parts: usize| [(n as u32).div_ceil(threads), parts as u32, 1];
        kernels.launch(
            &kernel("weight_parts"),
            by_column(self.d, count),
            block,
            &mut [
                x.argument(),
                kept.argument(),
                dy.argument(),
                parts.argument(),
                rows(),
                d(),
                Int(1),
                Int(ROWS_PER_PART as i32),
            ],
        );
        let sums = crate::sum(&parts.read(), n);
        let (dweight, dbias) = (sums[..self.d].to_vec(), sums[self.d..].to_vec());
        kept.read();
        Results { y: y.read(), dx: dx.read(), dweight, dbias }
    }
}

/// `rounding` is the rounding error of results in T; gradients of weights are f32 on both sides.
fn kernels_are_the_op<T: Element>(kernels: &impl Kernels, rounding: f32) {
    for center in [true, false] {
        for sizes in SIZES {
            let case = Case::new::<T>(sizes, center);
            let (want, got) = (case.on_cpu(), case.launched::<T>(kernels, 128));
            let what = |of| format!("{of} of {sizes:?}, centered: {center}");
            assert_near(&what("y"), &got.y, &want.y, rounding);
            assert_near(&what("dx"), &got.dx, &want.dx, rounding);
            assert_near(&what("dweight"), &got.dweight, &want.dweight, 2e-5);
            assert_near(&what("dbias"), &got.dbias, &want.dbias, 2e-5);
        }
    }
}

fn the_grid_changes_no_bit(kernels: &impl Kernels) {
    for center in [true, false] {
        let case = Case::new::<f32>((37, 100), center);
        let one = case.launched::<f32>(kernels, 32);
        for threads in [64, 256, 1024] {
            assert_eq!(case.launched::<f32>(kernels, threads), one);
        }
    }
}

#[test]
fn norms_in_f32_equal_the_cpu() {
    kernels_are_the_op::<f32>(&Emulated::compile("norm"), 2e-5);
}

#[test]
fn norms_in_bf16_equal_the_cpu_rounded_once() {
    kernels_are_the_op::<bf16>(&Emulated::compile("norm"), 1.0 / 256.0);
}

#[test]
fn the_shape_of_the_grid_changes_no_bit() {
    the_grid_changes_no_bit(&Emulated::compile("norm"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn norms_on_a_card_equal_the_cpu_with_any_grid() {
    let kernels = crate::card::Card::open("norm", sconce_cuda::kernels::NORM.ptx);
    kernels_are_the_op::<f32>(&kernels, 2e-5);
    kernels_are_the_op::<bf16>(&kernels, 1.0 / 256.0);
    the_grid_changes_no_bit(&kernels);
}
