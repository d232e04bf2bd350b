//! `gather.cu` compared with `ops::gather`.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::gather;
use sconce_tensor::rng::Rng;
use sconce_tensor::{tape, tensor};

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Element, Memory};
use crate::{Kernels, assert_near};

/// Ids of a run; the smallest and the largest id of each run are precomputed.
const RUN: usize = 256;
/// Columns of a warp.
const COLUMNS: usize = 128;

/// Rows and columns of the table, ids, and runs of a part: one of each, columns for two warps, rows without an id and
/// one with most of them, parts of which the last is shorter.
const SIZES: [[usize; 4]; 4] = [[1, 1, 1, 1], [3, 130, 40, 1], [7, 5, 1500, 2], [400, 9, 900, 9]];

/// The output `y`, and the gradient of the table.
type Results = [Vec<f32>; 2];

struct Case {
    sizes: [usize; 4],
    table: Vec<f32>,
    ids: Vec<u32>,
    dy: Vec<f32>,
}

impl Case {
    fn new<T: Element>(sizes: [usize; 4]) -> Self {
        let [rows, w, n, _] = sizes;
        let numbers = |name: &str, count: usize| {
            let rng = Rng::new(1, name, count as u64);
            (0..count as u64).map(|i| T::of(rng.normal(i)).value()).collect::<Vec<_>>()
        };
        let rng = Rng::new(1, "ids", n as u64);
        // Half of the ids are 0.
        let id = |i: u64| if i.is_multiple_of(2) { 0 } else { rng.below(i, rows as u64) as u32 };
        Case {
            sizes,
            table: numbers("table", rows * w),
            ids: (0..n as u64).map(id).collect(),
            dy: numbers("dy", n * w),
        }
    }

    fn on_cpu(&self) -> Results {
        let _tape = tape::record();
        let [rows, w, n, _] = self.sizes;
        let table = Var::from_slice(&self.table, (rows, w), &Device::Cpu).unwrap().into_inner();
        let y = gather(&table, self.ids.clone().into(), "ids").unwrap();
        let dy = Tensor::from_slice(&self.dy, (n, w), &Device::Cpu).unwrap();
        let store = tape::backward(&y, dy).unwrap();
        [&y, store.get(&table).unwrap()].map(|t| tensor::to_vec(t).unwrap())
    }

    fn launched<T: Element>(&self, kernels: &impl Kernels, threads: usize) -> Results {
        let [rows, w, n, runs_per_part] = self.sizes;
        let (runs, chunks) = (n.div_ceil(RUN), w.div_ceil(COLUMNS));
        let count = runs.div_ceil(runs_per_part);
        let mut ids = Memory::exactly(&self.ids);
        let mut of_runs = Memory::<u32>::unwritten(2 * runs);
        let mut table = Memory::<T>::of(&self.table);
        let mut dy = Memory::<T>::of(&self.dy);
        let mut y = Memory::<T>::unwritten(self.dy.len());
        let mut parts = Memory::<f32>::unwritten(count * rows * w);
        let mut dtable = Memory::<T>::unwritten(rows * w);
        let kernel = |step: &str| format!("gather_{}_{step}", T::NAME);
        let (long, int) = (|n: usize| Long(n as i64), |n: usize| Int(n as i32));
        let block = [threads as u32, 1, 1];
        let by_number = |n: usize| [n.div_ceil(threads) as u32, 1, 1];

        let arguments = &mut [table.argument(), ids.argument(), y.argument(), long(n), int(w)];
        kernels.launch(&kernel("forward"), by_number(n * w), block, arguments);
        let arguments = &mut [ids.argument(), of_runs.argument(), long(n)];
        kernels.launch("gather_runs", by_number(runs * 32), block, arguments);
        let arguments = &mut [
            ids.argument(),
            of_runs.argument(),
            dy.argument(),
            parts.argument(),
            long(n),
            int(rows),
            int(w),
            int(count),
            int(runs_per_part),
        ];
        let warps = rows * chunks * count;
        kernels.launch(&kernel("backward"), by_number(warps * 32), block, arguments);
        let arguments = &mut [parts.argument(), dtable.argument(), int(count), long(rows * w)];
        kernels.launch(&kernel("sum"), by_number(rows * w), block, arguments);
        of_runs.read();
        parts.read();
        [y.read(), dtable.read()]
    }
}

/// `rounding` is the rounding error of results in T.
fn kernels_are_the_op<T: Element>(kernels: &impl Kernels, rounding: f32) {
    for sizes in SIZES {
        let case = Case::new::<T>(sizes);
        let ([y, dtable], got) = (case.on_cpu(), case.launched::<T>(kernels, 128));
        assert_eq!(got[0], y, "{sizes:?}");
        assert_near(&format!("gradient of {sizes:?}"), &got[1], &dtable, rounding);
        assert_eq!(case.launched::<T>(kernels, 32), got, "{sizes:?}");
    }
}

/// Labels of three heads: bits, a class, bits.
fn labels_are_one_hot(kernels: &impl Kernels) {
    let (rows, all) = (70, 6);
    let label = |i: usize| if i % all == 3 { i % 17 } else { i % 2 } as f32;
    let labels: Vec<f32> = (0..rows * all).map(label).collect();
    for (first, w, classes) in [(0, 3, false), (3, 17, true), (4, 2, false)] {
        let mut there = Memory::exactly(&labels);
        let mut y = Memory::<f32>::unwritten(rows * w);
        let sizes = [w, all, first, usize::from(classes)].map(|size| Int(size as i32));
        let mut arguments = vec![there.argument(), y.argument(), Long(rows as i64)];
        arguments.extend(sizes);
        let blocks = (rows * w).div_ceil(128) as u32;
        kernels.launch("one_hot", [blocks, 1, 1], [128, 1, 1], &mut arguments);
        for (i, got) in y.read().into_iter().enumerate() {
            let (row, column) = (i / w, i % w);
            let own = &labels[row * all + first..];
            let want = if classes { own[0] as usize == column } else { own[column] == 1.0 };
            assert_eq!(got, f32::from(u8::from(want)), "row {row}, column {column}");
        }
    }
}

#[test]
fn one_hot_labels_equal_the_cpu() {
    labels_are_one_hot(&Emulated::compile("gather"));
}

#[test]
fn rows_by_id_in_f32_equal_the_cpu() {
    kernels_are_the_op::<f32>(&Emulated::compile("gather"), 2e-5);
}

#[test]
fn rows_by_id_in_bf16_equal_the_cpu_rounded_once() {
    kernels_are_the_op::<bf16>(&Emulated::compile("gather"), 1.0 / 256.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn rows_by_id_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::GATHER.ptx;
    let kernels = crate::card::Card::open("gather", ptx);
    kernels_are_the_op::<f32>(&kernels, 2e-5);
    kernels_are_the_op::<bf16>(&kernels, 1.0 / 256.0);
    labels_are_one_hot(&kernels);
}
