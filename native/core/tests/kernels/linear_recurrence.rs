//! `native/cuda/kernels/linear_recurrence.cu` beside `ops::linear_recurrence` and its cells.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_core::Result;
use sconce_core::ops::lengths::Lengths;
use sconce_core::ops::{linear_recurrence, min_gru, min_lstm, tensor};
use sconce_core::rng::Rng;

use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int};
use crate::memory::{Argument, Element, Memory};
use crate::{Kernels, Shape, assert_near};

const EPS: f32 = 1e-3;

/// `(batch, time, channels)`: one of each, and no multiple of a block's threads.
const SIZES: [[usize; 3]; 3] = [[1, 1, 1], [2, 7, 5], [3, 20, 40]];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell {
    Plain,
    MinGru,
    MinLstm,
}

const CELLS: [Cell; 3] = [Cell::Plain, Cell::MinGru, Cell::MinLstm];

impl Cell {
    fn name(self) -> &'static str {
        match self {
            Cell::Plain => "linear_recurrence",
            Cell::MinGru => "min_gru",
            Cell::MinLstm => "min_lstm",
        }
    }

    /// Tensors of inputs, and how many inputs lie beside each other in each.
    fn tensors(self) -> (usize, usize) {
        match self {
            Cell::Plain => (2, 1),
            Cell::MinGru => (1, 2),
            Cell::MinLstm => (1, 3),
        }
    }

    fn op(self, x: &[Tensor], h0: &Tensor, lengths: Lengths) -> Result<Tensor> {
        match self {
            Cell::Plain => linear_recurrence(&x[0], &x[1], h0, lengths),
            Cell::MinGru => min_gru(&x[0], h0, lengths),
            Cell::MinLstm => min_lstm(&x[0], h0, EPS, lengths),
        }
    }
}

/// Inputs `[b, t, beside * c]` each, the first states `[b, c]`, and the gradient that comes back `[b, t, c]`.
struct Case {
    cell: Cell,
    sizes: [usize; 3],
    lengths: Vec<usize>,
    x: Vec<Vec<f32>>,
    h0: Vec<f32>,
    dh: Vec<f32>,
}

/// Numbers by what they are of.
type Results = Vec<(&'static str, Vec<f32>)>;

impl Case {
    /// Numbers that T has, so that both sides read the same; the last row is as long as there are frames, the
    /// others are shorter, the first one empty if there are two.
    fn new<T: Element>(cell: Cell, sizes: [usize; 3]) -> Self {
        let [batch, time, channels] = sizes;
        let (tensors, beside) = cell.tensors();
        let numbers = |name: &str, count: usize| {
            let rng = Rng::new(1, name, count as u64);
            (0..count as u64).map(|i| T::of(0.7 * rng.normal(i)).value()).collect::<Vec<_>>()
        };
        let frames = batch * time;
        Case {
            cell,
            sizes,
            lengths: (0..batch)
                .map(|row| time * (row + 1 - usize::from(batch > 1 && row == 0)) / batch)
                .collect(),
            x: (0..tensors)
                .map(|n| numbers(&format!("x{n}"), frames * beside * channels))
                .collect(),
            h0: numbers("h0", batch * channels),
            dh: numbers("dh", frames * channels),
        }
    }

    fn on_cpu(&self) -> Results {
        let [batch, time, channels] = self.sizes;
        let variable = |v: &[f32], dims: &[usize]| {
            Var::from_slice(v, dims, &Device::Cpu).unwrap().into_inner()
        };
        let width = self.cell.tensors().1 * channels;
        let x: Vec<_> = self.x.iter().map(|x| variable(x, &[batch, time, width])).collect();
        let h0 = variable(&self.h0, &[batch, channels]);
        let h = self.cell.op(&x, &h0, Some(self.lengths.clone().into())).unwrap();
        let dh = Tensor::from_slice(&self.dh, (batch, time, channels), &Device::Cpu).unwrap();
        let store = tensor::backward(&h, dh).unwrap();
        let numbers = |t: &Tensor| tensor::to_vec(t).unwrap();
        let gradient = |t: &Tensor| numbers(store.get(t).unwrap());
        let mut results = vec![("h", numbers(&h)), ("dh0", gradient(&h0))];
        results.extend(x.iter().map(|x| ("dx", gradient(x))));
        results
    }

    fn launched<T: Element>(&self, kernels: &impl Kernels, threads: u32) -> Results {
        let [batch, time, channels] = self.sizes;
        let lengths: Vec<f32> = self.lengths.iter().map(|n| *n as f32).collect();
        let mut lengths = Memory::<i32>::of(&lengths);
        let mut x: Vec<_> = self.x.iter().map(|x| Memory::<T>::of(x)).collect();
        let mut dx: Vec<_> = self.x.iter().map(|x| Memory::<T>::unwritten(x.len())).collect();
        let mut h0 = Memory::<f32>::of(&self.h0);
        let mut dh0 = Memory::<f32>::unwritten(self.h0.len());
        let mut h = Memory::<T>::unwritten(self.dh.len());
        let mut dh = Memory::<T>::of(&self.dh);
        let (grid, block): (Shape, Shape) =
            ([(channels as u32).div_ceil(threads), batch as u32, 1], [threads, 1, 1]);
        let kernel = |way: &str| format!("{}_{}_{way}", self.cell.name(), T::NAME);
        let sizes = || {
            let eps = (self.cell == Cell::MinLstm).then_some(Float(EPS));
            [Int(time as i32), Int(channels as i32)].into_iter().chain(eps)
        };

        let mut arguments: Vec<Argument> = x.iter_mut().map(Memory::argument).collect();
        arguments.extend([h0.argument(), lengths.argument(), h.argument()]);
        arguments.extend(sizes());
        kernels.launch(&kernel("forward"), grid, block, &mut arguments);

        let mut arguments: Vec<Argument> = x.iter_mut().map(Memory::argument).collect();
        arguments.extend([h0.argument(), lengths.argument(), h.argument(), dh.argument()]);
        arguments.extend(dx.iter_mut().map(Memory::argument));
        arguments.push(dh0.argument());
        arguments.extend(sizes());
        kernels.launch(&kernel("backward"), grid, block, &mut arguments);

        let mut results = vec![("h", h.read()), ("dh0", dh0.read())];
        results.extend(dx.iter().map(|dx| ("dx", dx.read())));
        results
    }
}

/// `rounding`: of what is written in T, states among it, which the way back reads.
fn kernels_are_the_ops<T: Element>(kernels: &impl Kernels, rounding: f32) {
    for (cell, sizes) in CELLS.into_iter().flat_map(|cell| SIZES.map(|sizes| (cell, sizes))) {
        let case = Case::new::<T>(cell, sizes);
        for threads in [32, 128] {
            let pairs = case.launched::<T>(kernels, threads).into_iter().zip(case.on_cpu());
            for ((name, got), (_, want)) in pairs {
                assert_near(&format!("{name} of {cell:?} {sizes:?}"), &got, &want, rounding);
            }
        }
    }
}

#[test]
fn recurrences_in_f32_are_those_of_the_cpu() {
    kernels_are_the_ops::<f32>(&Emulated::compile("linear_recurrence"), 2e-5);
}

#[test]
fn recurrences_in_bf16_are_those_of_the_cpu_but_for_rounding() {
    kernels_are_the_ops::<bf16>(&Emulated::compile("linear_recurrence"), 1.0 / 128.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn recurrences_on_a_card_are_those_of_the_cpu() {
    let ptx = include_str!("../../../cuda/kernels/linear_recurrence.ptx");
    let kernels = crate::card::Card::open("linear_recurrence", ptx);
    kernels_are_the_ops::<f32>(&kernels, 2e-5);
    kernels_are_the_ops::<bf16>(&kernels, 1.0 / 128.0);
}
