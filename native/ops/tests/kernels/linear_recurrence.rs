//! `linear_recurrence.cu` compared with `ops::linear_recurrence` and its cells.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::lengths::Lengths;
use sconce_ops::{diagonal_ssm, hgrn, linear_recurrence, min_gru, min_lstm, rg_lru};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Result, tape, tensor};

use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int};
use crate::memory::{Argument, Element, Memory};
use crate::{Kernels, Shape, assert_near, sum};

const EPS: f32 = 1e-3;

/// Sizes `(batch, time, channels)`: one of each, and no multiple of a block's threads.
const SIZES: [[usize; 3]; 3] = [[1, 1, 1], [2, 7, 5], [3, 20, 40]];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell {
    Plain,
    Constant,
    MinGru,
    MinLstm,
    RgLru,
    Hgrn,
    Diagonal,
}

const CELLS: [Cell; 7] = [
    Cell::Plain,
    Cell::Constant,
    Cell::MinGru,
    Cell::MinLstm,
    Cell::RgLru,
    Cell::Hgrn,
    Cell::Diagonal,
];

impl Cell {
    fn name(self) -> &'static str {
        match self {
            Cell::Plain => "linear_recurrence",
            Cell::Constant => "constant_recurrence",
            Cell::MinGru => "min_gru",
            Cell::MinLstm => "min_lstm",
            Cell::RgLru => "rg_lru",
            Cell::Hgrn => "hgrn",
            Cell::Diagonal => "diagonal_ssm",
        }
    }

    /// The number of inputs side by side in each tensor of inputs.
    fn tensors(self) -> &'static [usize] {
        match self {
            Cell::Plain => &[1, 1],
            Cell::Constant | Cell::Diagonal => &[1],
            Cell::MinGru => &[2],
            Cell::MinLstm | Cell::Hgrn => &[3],
            Cell::RgLru => &[2, 1],
        }
    }

    fn weights(self) -> usize {
        match self {
            Cell::Plain | Cell::MinGru | Cell::MinLstm => 0,
            Cell::Constant | Cell::RgLru | Cell::Hgrn => 1,
            Cell::Diagonal => 2,
        }
    }

    /// A weight from a normal number: gates and bounds are in 0..1.
    fn weight(self, v: f32) -> f32 {
        match self {
            Cell::Constant | Cell::Hgrn => 0.5 + 0.5 * v.tanh(),
            _ => v,
        }
    }

    fn op(self, x: &[Tensor], w: &[Tensor], h0: &Tensor, lengths: Lengths) -> Result<Tensor> {
        match self {
            Cell::Plain => linear_recurrence(&x[0], &x[1], h0, lengths),
            Cell::Constant => linear_recurrence(&w[0], &x[0], h0, lengths),
            Cell::MinGru => min_gru(&x[0], h0, lengths),
            Cell::MinLstm => min_lstm(&x[0], h0, EPS, lengths),
            Cell::RgLru => rg_lru(&x[0], &x[1], &w[0], h0, lengths),
            Cell::Hgrn => hgrn(&x[0], &w[0], h0, lengths),
            Cell::Diagonal => diagonal_ssm(&x[0], &w[0], &w[1], h0, lengths),
        }
    }
}

/// Inputs `[b, t, inputs * c]` each, weights `[c]`, the first states `[b, c]`, and the gradient of the output `[b, t,
/// c]`.
struct Case {
    cell: Cell,
    sizes: [usize; 3],
    lengths: Vec<usize>,
    x: Vec<Vec<f32>>,
    w: Vec<Vec<f32>>,
    h0: Vec<f32>,
    dh: Vec<f32>,
}

/// Results by name.
type Results = Vec<(&'static str, Vec<f32>)>;

impl Case {
    /// Inputs are rounded to T, so that both sides read the same numbers. The last row has all frames, the others
    /// fewer; if there are two rows, the first has none.
    fn new<T: Element>(cell: Cell, sizes: [usize; 3]) -> Self {
        let [batch, time, channels] = sizes;
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
            x: (cell.tensors().iter().enumerate())
                .map(|(n, beside)| numbers(&format!("x{n}"), frames * beside * channels))
                .collect(),
            w: (0..cell.weights())
                .map(|n| numbers(&format!("w{n}"), channels))
                .map(|w| w.into_iter().map(|v| cell.weight(v)).collect())
                .collect(),
            h0: numbers("h0", batch * channels),
            dh: numbers("dh", frames * channels),
        }
    }

    fn on_cpu(&self) -> Results {
        let _tape = tape::record();
        let [batch, time, channels] = self.sizes;
        let variable = |v: &[f32], dims: &[usize]| {
            Var::from_slice(v, dims, &Device::Cpu).unwrap().into_inner()
        };
        let x: Vec<_> = (self.x.iter().zip(self.cell.tensors()))
            .map(|(x, beside)| variable(x, &[batch, time, beside * channels]))
            .collect();
        let w: Vec<_> = self.w.iter().map(|w| variable(w, &[channels])).collect();
        let h0 = variable(&self.h0, &[batch, channels]);
        let h = self.cell.op(&x, &w, &h0, Some(self.lengths.clone().into())).unwrap();
        let dh = Tensor::from_slice(&self.dh, (batch, time, channels), &Device::Cpu).unwrap();
        let store = tape::backward(&h, dh).unwrap();
        let numbers = |t: &Tensor| tensor::to_vec(t).unwrap();
        let gradient = |t: &Tensor| numbers(store.get(t).unwrap());
        let mut results = vec![("h", numbers(&h)), ("dh0", gradient(&h0))];
        results.extend(x.iter().map(|x| ("dx", gradient(x))));
        results.extend(w.iter().map(|w| ("dw", gradient(w))));
        results
    }

    fn launched<T: Element>(&self, kernels: &impl Kernels, threads: u32) -> Results {
        let [batch, time, channels] = self.sizes;
        let lengths: Vec<f32> = self.lengths.iter().map(|n| *n as f32).collect();
        let mut lengths = Memory::<i32>::of(&lengths);
        let mut x: Vec<_> = self.x.iter().map(|x| Memory::<T>::of(x)).collect();
        let mut dx: Vec<_> = self.x.iter().map(|x| Memory::<T>::unwritten(x.len())).collect();
        let mut w: Vec<_> = self.w.iter().map(|w| Memory::<f32>::of(w)).collect();
        let mut parts = Memory::<f32>::unwritten(batch * w.len() * channels);
        let mut h0 = Memory::<f32>::of(&self.h0);
        let mut dh0 = Memory::<f32>::unwritten(self.h0.len());
        let mut h = Memory::<T>::unwritten(self.dh.len());
        let mut dh = Memory::<T>::of(&self.dh);
        let (grid, block): (Shape, Shape) =
            ([(channels as u32).div_ceil(threads) * batch as u32, 1, 1], [threads, 1, 1]);
        let kernel = |way: &str| format!("{}_{}_{way}", self.cell.name(), T::NAME);
        let sizes = || {
            let eps = (self.cell == Cell::MinLstm).then_some(Float(EPS));
            [Int(time as i32), Int(channels as i32)].into_iter().chain(eps)
        };

        let mut arguments: Vec<Argument> = x.iter_mut().map(Memory::argument).collect();
        arguments.extend(w.iter_mut().map(Memory::argument));
        arguments.extend([h0.argument(), lengths.argument(), h.argument()]);
        arguments.extend(sizes());
        kernels.launch(&kernel("forward"), grid, block, &mut arguments);

        let mut arguments: Vec<Argument> = x.iter_mut().map(Memory::argument).collect();
        arguments.extend(w.iter_mut().map(Memory::argument));
        arguments.extend([h0.argument(), lengths.argument(), h.argument(), dh.argument()]);
        arguments.extend(dx.iter_mut().map(Memory::argument));
        arguments.push(dh0.argument());
        arguments.extend((!self.w.is_empty()).then(|| parts.argument()));
        arguments.extend(sizes());
        kernels.launch(&kernel("backward"), grid, block, &mut arguments);

        let mut results = vec![("h", h.read()), ("dh0", dh0.read())];
        results.extend(dx.iter().map(|dx| ("dx", dx.read())));
        let dw = sum(&parts.read(), self.w.len() * channels);
        results.extend(dw.chunks(channels).map(|dw| ("dw", dw.to_vec())));
        results
    }
}

/// `rounding` is the rounding error of results in T, including the states, which the backward pass reads.
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
fn recurrences_in_f32_equal_the_cpu() {
    kernels_are_the_ops::<f32>(&Emulated::compile("linear_recurrence"), 2e-5);
}

#[test]
fn recurrences_in_bf16_equal_the_cpu_up_to_rounding() {
    kernels_are_the_ops::<bf16>(&Emulated::compile("linear_recurrence"), 1.0 / 128.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn recurrences_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::LINEAR_RECURRENCE.ptx;
    let kernels = crate::card::Card::open("linear_recurrence", ptx);
    kernels_are_the_ops::<f32>(&kernels, 2e-5);
    kernels_are_the_ops::<bf16>(&kernels, 1.0 / 128.0);
}
