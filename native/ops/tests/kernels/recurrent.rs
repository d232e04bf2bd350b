//! `recurrent.cu`, with the products between its frames, compared with `ops::lstm`, `ops::gru` and `ops::slstm`.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::lengths::Lengths;
use sconce_ops::recurrent::{Gates, SlstmState};
use sconce_ops::weights::Weight;
use sconce_ops::{gru, lstm, slstm};
use sconce_tensor::rng::Rng;
use sconce_tensor::tape::{self, Gradients};
use sconce_tensor::tensor;

use crate::emulated::Emulated;
use crate::memory::Argument::Int;
use crate::memory::{Argument, Element, Memory, NULL};
use crate::{Kernels, Shape, assert_near};

mod walk;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell {
    Lstm,
    Gru,
    Slstm,
}

use Cell::{Gru, Lstm, Slstm};

/// Batch, frames, heads, and the width of a head: one of each, no multiple of a block's threads, more than one block.
/// The last sizes have `whole` kernels: less than a tile, and several tiles.
const SIZES: [(Cell, [usize; 4]); 11] = [
    (Lstm, [1, 1, 1, 1]),
    (Lstm, [3, 9, 1, 37]),
    (Gru, [1, 1, 1, 1]),
    (Gru, [3, 9, 1, 37]),
    (Slstm, [1, 1, 1, 1]),
    (Slstm, [3, 9, 3, 13]),
    (Slstm, [2, 4, 1, 6]),
    (Lstm, [1, 2, 1, 16]),
    (Lstm, [35, 3, 1, 80]),
    (Gru, [1, 2, 1, 16]),
    (Gru, [35, 3, 1, 80]),
];

/// Threads of a block of a `whole` kernel, and its rows of the batch and numbers of the state.
const WHOLE_THREADS: u32 = 256;
const TILE: [u32; 2] = [32, 16];

/// The inputs of a layer are its gates: its input weight is the identity.
struct Case {
    cell: Cell,
    batch: usize,
    time: usize,
    heads: usize,
    /// Width of all heads together.
    width: usize,
    lengths: Vec<usize>,
    /// Inputs, `[b, t, gates * width]`.
    x: Vec<f32>,
    /// The recurrent weight, `[gates * width, width / heads]`.
    weight: Vec<f32>,
    /// Both biases, `[gates * width]`; empty for an sLSTM.
    biases: [Vec<f32>; 2],
    /// First states `[b, width]`: h, then c, n and m if the cell has them.
    states: Vec<Vec<f32>>,
    /// Gradient of the sequence; `d_states` are those of the last states that have one.
    dy: Vec<f32>,
    d_states: Vec<Vec<f32>>,
}

/// Results by name.
type Results = Vec<(&'static str, Vec<f32>)>;

const STATES: [&str; 4] = ["h", "c", "n", "m"];
const D_STATES: [&str; 3] = ["dh0", "dc0", "dn0"];

impl Case {
    /// Inputs are rounded to T, so that both sides read the same numbers. The last row has all frames, the others
    /// fewer; if there are two rows, the first has none. The second row has seen no frame.
    fn new<T: Element>(cell: Cell, [batch, time, heads, w]: [usize; 4]) -> Self {
        let width = heads * w;
        let gates = if cell == Gru { 3 } else { 4 };
        let scaled = |name: &str, count: usize, scale: f32| {
            let rng = Rng::new(1, name, count as u64);
            (0..count as u64).map(|i| T::of(scale * rng.normal(i)).value()).collect::<Vec<_>>()
        };
        let numbers = |name: &str, count: usize| scaled(name, count, 0.7);
        let bias = |name| if cell == Slstm { vec![] } else { numbers(name, gates * width) };
        let (states, d_states) = match cell {
            Lstm => (2, 2),
            Gru => (1, 1),
            Slstm => (4, 3),
        };
        let mut states: Vec<_> =
            STATES[..states].iter().map(|name| numbers(name, batch * width)).collect();
        if let Some(n) = states.get_mut(2) {
            n.iter_mut().for_each(|n| *n = T::of(n.abs() + 0.5).value());
            n[width.min((batch - 1) * width)..][..width].fill(0.0);
        }
        Case {
            cell,
            batch,
            time,
            heads,
            width,
            lengths: (0..batch)
                .map(|row| time * (row + 1 - usize::from(batch > 1 && row == 0)) / batch)
                .collect(),
            x: numbers("x", batch * time * gates * width),
            weight: scaled("weight", gates * width * w, 0.7 / (w as f32).sqrt()),
            biases: [bias("bias_ih"), bias("bias_hh")],
            states,
            dy: numbers("dy", batch * time * width),
            d_states: D_STATES[..d_states].iter().map(|d| numbers(d, batch * width)).collect(),
        }
    }

    fn gates(&self) -> usize {
        if self.cell == Gru { 3 } else { 4 }
    }

    fn on_cpu(&self) -> Results {
        let _tape = tape::record();
        let (b, t, h) = (self.batch, self.time, self.width);
        let rows = self.gates() * h;
        let variable = |v: &[f32], dims: &[usize]| {
            Var::from_slice(v, dims, &Device::Cpu).unwrap().into_inner()
        };
        let x = variable(&self.x, &[b, t, rows]);
        let weight = Weight::from(variable(&self.weight, &[rows, h / self.heads]));
        let states: Vec<_> = self.states.iter().map(|s| variable(s, &[b, h])).collect();
        let lengths: Lengths = Some(self.lengths.clone().into());
        let biases = self.biases.each_ref().map(|v| Weight::from(variable(v, &[v.len()])));
        let gates = || {
            let one: Vec<f32> = (0..rows * rows).map(|i| f32::from(i % (rows + 1) == 0)).collect();
            let [bias_ih, bias_hh] = biases.clone();
            Gates::new(variable(&one, &[rows, rows]).into(), weight.clone(), bias_ih, bias_hh)
        };
        let outputs = match (self.cell, &states[..]) {
            (Lstm, [h, c]) => {
                let (y, h, c) = lstm(&x, &gates(), h, c, lengths).unwrap();
                vec![y, h, c]
            }
            (Gru, [h]) => <[Tensor; 2]>::from(gru(&x, &gates(), h, lengths).unwrap()).into(),
            (_, [h, c, n, m]) => {
                let [h, c, n, m] = [h, c, n, m].map(Tensor::clone);
                let state = SlstmState { h, c, n, m };
                let (y, SlstmState { h, c, n, m }) =
                    slstm(&x, &weight, self.heads, &state, lengths).unwrap();
                vec![y, h, c, n, m]
            }
            _ => unreachable!("a cell has its states"),
        };
        let given = [&self.dy].into_iter().chain(&self.d_states);
        let loss = outputs.iter().zip(given).map(|(y, d)| {
            let d = Tensor::from_slice(d, y.dims(), &Device::Cpu).unwrap();
            (y * d).unwrap().sum_all().unwrap()
        });
        let loss = loss.reduce(|a, b| (a + b).unwrap()).unwrap();
        let store = tape::backward(&loss, loss.ones_like().unwrap()).unwrap();
        self.named(&outputs, &x, &states, &weight, &biases, &store)
    }

    fn named(
        &self,
        outputs: &[Tensor],
        x: &Tensor,
        states: &[Tensor],
        weight: &Weight,
        biases: &[Weight; 2],
        store: &Gradients,
    ) -> Results {
        let numbers = |t: &Tensor| tensor::to_vec(t).unwrap();
        let of_weight = |weight: &Weight| {
            assert!(weight.gather(store).unwrap());
            weight.gradient(|values| values.to_vec())
        };
        let mut results = vec![("y", numbers(&outputs[0]))];
        results.extend(STATES.into_iter().zip(outputs[1..].iter().map(numbers)));
        results.push(("dx", numbers(store.get(x).unwrap())));
        let gradients = states.iter().map(|state| numbers(store.get(state).unwrap()));
        results.extend(D_STATES.into_iter().zip(gradients.take(self.d_states.len())));
        results.push(("dweight", of_weight(weight)));
        if self.cell != Slstm {
            results.push(("dbias_ih", of_weight(&biases[0])));
            results.push(("dbias_hh", of_weight(&biases[1])));
        }
        results
    }

    /// The index of a gate of a channel in a product with the recurrent weight; an sLSTM groups the gates by head.
    fn place(&self, gate: usize, channel: usize) -> usize {
        let w = self.width / self.heads;
        match self.cell {
            Slstm => channel / w * w * 4 + gate * w + channel % w,
            _ => gate * self.width + channel,
        }
    }

    /// Each number of the recurrent weight, with its index in the gates of a row, and the channel of h that it
    /// multiplies.
    fn weights(&self) -> impl Iterator<Item = (f32, usize, usize)> {
        let w = self.width / self.heads;
        self.weight.iter().enumerate().map(move |(i, weight)| {
            let (gate, channel) = (i / w / self.width, i / w % self.width);
            (*weight, self.place(gate, channel), channel / w * w + i % w)
        })
    }

    /// The product with the recurrent weight, `[b, gates * width]`.
    fn product(&self, h: &[f32]) -> Vec<f32> {
        let rows = self.gates() * self.width;
        let mut gates = vec![0.0; self.batch * rows];
        for (weight, to, from) in self.weights() {
            for (gates, h) in gates.chunks_mut(rows).zip(h.chunks(self.width)) {
                gates[to] += weight * h[from];
            }
        }
        gates
    }

    /// The gradient of h from that of the gates, `[b, width]`.
    fn back(&self, gates: &[f32]) -> Vec<f32> {
        let mut dh = vec![0.0; self.batch * self.width];
        for (weight, from, to) in self.weights() {
            let rows = gates.chunks(self.gates() * self.width);
            dh.chunks_mut(self.width)
                .zip(rows)
                .for_each(|(dh, gates)| dh[to] += weight * gates[from]);
        }
        dh
    }

    /// Frame t of a sequence.
    fn frame(&self, all: &[f32], t: usize) -> Vec<f32> {
        let width = all.len() / self.batch / self.time;
        (0..self.batch)
            .flat_map(|row| &all[(row * self.time + t) * width..][..width])
            .copied()
            .collect()
    }

    /// The gradient of the weight, from gradients `[b, t, gates * width]` laid out as the input's, and the previous
    /// states.
    fn weight_gradient(&self, d: &[f32], previous: &[f32]) -> Vec<f32> {
        let (rows, w) = (self.gates() * self.width, self.width / self.heads);
        let mut dweight = vec![0.0; rows * w];
        for (d, h) in d.chunks(rows).zip(previous.chunks(self.width)) {
            for (row, dweight) in dweight.chunks_mut(w).enumerate() {
                let h = &h[row % self.width / w * w..][..w];
                dweight.iter_mut().zip(h).for_each(|(dweight, h)| *dweight += d[row] * h);
            }
        }
        dweight
    }

    /// The gradient of the bias, summed over all frames.
    fn bias_gradient(&self, d: &[f32]) -> Vec<f32> {
        let mut sum = vec![0.0; self.gates() * self.width];
        let frames = d.chunks(sum.len());
        frames.for_each(|d| sum.iter_mut().zip(d).for_each(|(sum, d)| *sum += d));
        sum
    }

    /// Results of the kernels; without a number of threads, of the `whole` kernels.
    fn launched<T: Element, O: Element>(
        &self,
        kernels: &impl Kernels,
        threads: Option<u32>,
    ) -> Results {
        let lengths: Vec<f32> = self.lengths.iter().map(|n| *n as f32).collect();
        let launch = |way: &str, t: usize, arguments: Vec<Argument>| {
            let name = format!("{:?}_{}_{way}", self.cell, suffix::<T, O>()).to_lowercase();
            // Each row of the grid has several rows of the batch.
            let (width, batch) = (self.width as u32, self.batch as u32);
            let grid: Shape = match threads {
                Some(threads) => [width.div_ceil(threads), 2.min(batch), 1],
                None => [width.div_ceil(TILE[1]), batch.div_ceil(TILE[0]), 1],
            };
            let mut lengths = Memory::<i32>::of(&lengths);
            let mut arguments: Vec<Argument> = arguments;
            let w = (self.cell == Slstm).then_some(self.width / self.heads);
            arguments.extend(w.map(|w| Int(w as i32)));
            arguments.push(lengths.argument());
            arguments.extend([t, self.time, self.batch, self.width].map(|n| Int(n as i32)));
            let threads = threads.unwrap_or(WHOLE_THREADS);
            kernels.launch(&name, grid, [threads, 1, 1], &mut arguments);
        };
        match self.cell {
            Lstm if threads.is_none() => self.whole_lstm::<T, O>(launch),
            Gru if threads.is_none() => self.whole_gru::<T, O>(launch),
            Lstm => self.lstm::<T, O>(launch),
            Gru => self.gru::<T, O>(launch),
            Slstm => self.slstm::<T, O>(launch),
        }
    }

    fn sequence<T: Element>(&self, parts: usize) -> Memory<T> {
        Memory::unwritten(self.batch * self.time * parts * self.width)
    }

    fn state<T: Element>(&self) -> Memory<T> {
        Memory::unwritten(self.batch * self.width)
    }

    fn lstm<T: Element, O: Element>(&self, launch: impl Fn(&str, usize, Vec<Argument>)) -> Results {
        let mut x = Memory::<T>::of(&self.x);
        let [mut bias_ih, mut bias_hh] = self.biases.each_ref().map(|v| Memory::<f32>::of(v));
        let (mut h0, mut c0) =
            (Memory::<T>::of(&self.states[0]), Memory::<f32>::of(&self.states[1]));
        let (mut y, mut gates, mut cells) =
            (self.sequence::<T>(1), self.sequence::<T>(4), self.sequence::<f32>(1));
        let (mut c, mut c_new) = (Memory::<f32>::of(&self.states[1]), self.state::<f32>());
        // A pass that saves nothing gives the same.
        for kept in [false, true] {
            c = Memory::of(&self.states[1]);
            let mut operand = Memory::<O>::of(&self.states[0]);
            for t in 0..self.time {
                let mut recurrent = Memory::<f32>::of(&self.product(&operand.read()));
                let first =
                    [x.argument(), recurrent.argument(), bias_ih.argument(), bias_hh.argument()];
                let mut arguments = Vec::from(first);
                arguments.extend([h0.argument(), c.argument(), y.argument(), c_new.argument()]);
                arguments.push(operand.argument());
                match kept {
                    true => arguments.extend([gates.argument(), cells.argument()]),
                    false => arguments.extend([NULL, NULL]),
                }
                launch("forward", t, arguments);
                std::mem::swap(&mut c, &mut c_new);
            }
        }
        let mut results =
            vec![("y", y.read()), ("h", self.frame(&y.read(), self.time - 1)), ("c", c.read())];

        let mut dy = Memory::<T>::of(&self.dy);
        let (mut dgates, mut previous) = (self.sequence::<O>(4), self.sequence::<O>(1));
        let mut through = Memory::<f32>::of(&self.d_states[0]);
        let (mut dh, mut dh_before) = (self.state::<f32>(), self.state::<f32>());
        let (mut dc, mut dc_before) = (Memory::<f32>::of(&self.d_states[1]), self.state::<f32>());
        for t in (0..self.time).rev() {
            let first =
                [gates.argument(), c0.argument(), cells.argument(), h0.argument(), y.argument()];
            let mut arguments = Vec::from(first);
            arguments.extend([dy.argument(), through.argument()]);
            arguments.push(if t + 1 == self.time { NULL } else { dh.argument() });
            arguments.extend([dc.argument(), dh_before.argument(), dc_before.argument()]);
            arguments.extend([dgates.argument(), previous.argument()]);
            launch("backward", t, arguments);
            through = Memory::of(&self.back(&self.frame(&dgates.read(), t)));
            std::mem::swap(&mut dh, &mut dh_before);
            std::mem::swap(&mut dc, &mut dc_before);
        }
        let d = dgates.read();
        results.push(("dx", d.clone()));
        results.push(("dh0", sum(&dh.read(), &through.read())));
        results.push(("dc0", dc.read()));
        results.push(("dweight", self.weight_gradient(&d, &previous.read())));
        results.extend(["dbias_ih", "dbias_hh"].map(|name| (name, self.bias_gradient(&d))));
        results
    }

    fn gru<T: Element, O: Element>(&self, launch: impl Fn(&str, usize, Vec<Argument>)) -> Results {
        let mut x = Memory::<T>::of(&self.x);
        let [mut bias_ih, mut bias_hh] = self.biases.each_ref().map(|v| Memory::<f32>::of(v));
        let mut h0 = Memory::<T>::of(&self.states[0]);
        let (mut y, mut gates, mut reset) =
            (self.sequence::<T>(1), self.sequence::<T>(3), self.sequence::<T>(1));
        let (mut h, mut h_new) = (self.state::<f32>(), self.state::<f32>());
        for kept in [false, true] {
            h = Memory::of(&self.states[0]);
            let mut operand = Memory::<O>::of(&self.states[0]);
            for t in 0..self.time {
                let mut recurrent = Memory::<f32>::of(&self.product(&operand.read()));
                let first =
                    [x.argument(), recurrent.argument(), bias_ih.argument(), bias_hh.argument()];
                let mut arguments = Vec::from(first);
                arguments.extend([
                    h.argument(),
                    y.argument(),
                    h_new.argument(),
                    operand.argument(),
                ]);
                match kept {
                    true => arguments.extend([gates.argument(), reset.argument()]),
                    false => arguments.extend([NULL, NULL]),
                }
                launch("forward", t, arguments);
                std::mem::swap(&mut h, &mut h_new);
            }
        }
        let mut results = vec![("y", y.read()), ("h", h.read())];

        let mut dy = Memory::<T>::of(&self.dy);
        let (mut dx, mut d, mut previous) =
            (self.sequence::<O>(3), self.sequence::<O>(3), self.sequence::<O>(1));
        let mut through = Memory::<f32>::of(&self.d_states[0]);
        let (mut dh, mut dh_before) = (self.state::<f32>(), self.state::<f32>());
        for t in (0..self.time).rev() {
            let first = [gates.argument(), reset.argument(), h0.argument(), y.argument()];
            let mut arguments = Vec::from(first);
            arguments.extend([dy.argument(), through.argument()]);
            arguments.push(if t + 1 == self.time { NULL } else { dh.argument() });
            arguments.extend([
                dh_before.argument(),
                dx.argument(),
                d.argument(),
                previous.argument(),
            ]);
            launch("backward", t, arguments);
            through = Memory::of(&self.back(&self.frame(&d.read(), t)));
            std::mem::swap(&mut dh, &mut dh_before);
        }
        results.push(("dx", dx.read()));
        results.push(("dh0", sum(&dh.read(), &through.read())));
        results.push(("dweight", self.weight_gradient(&d.read(), &previous.read())));
        results.push(("dbias_ih", self.bias_gradient(&dx.read())));
        results.push(("dbias_hh", self.bias_gradient(&d.read())));
        results
    }

    /// [`lstm`](Self::lstm) by `whole` kernels; the only product here is that of the first state's gradient.
    fn whole_lstm<T: Element, O: Element>(
        &self,
        launch: impl Fn(&str, usize, Vec<Argument>),
    ) -> Results {
        let mut x = Memory::<T>::of(&self.x);
        let [mut bias_ih, mut bias_hh] = self.biases.each_ref().map(|v| Memory::<f32>::of(v));
        let (mut h0, mut c0) =
            (Memory::<T>::of(&self.states[0]), Memory::<f32>::of(&self.states[1]));
        let mut weight = Memory::<O>::of(&self.weight);
        let (mut y, mut gates, mut cells) =
            (self.sequence::<T>(1), self.sequence::<T>(4), self.sequence::<f32>(1));
        let (mut c, mut c_new) = (Memory::<f32>::of(&self.states[1]), self.state::<f32>());
        let (mut h, mut next) = (Memory::<O>::of(&self.states[0]), self.state::<O>());
        for t in 0..self.time {
            let mut arguments = vec![x.argument(), h.argument(), weight.argument()];
            arguments.extend([bias_ih.argument(), bias_hh.argument(), h0.argument()]);
            arguments.extend([c.argument(), y.argument(), c_new.argument(), next.argument()]);
            arguments.extend([gates.argument(), cells.argument()]);
            launch("whole_forward", t, arguments);
            std::mem::swap(&mut c, &mut c_new);
            std::mem::swap(&mut h, &mut next);
        }
        let mut results =
            vec![("y", y.read()), ("h", self.frame(&y.read(), self.time - 1)), ("c", c.read())];

        // The gradient of the last state is added to that of the sequence's last frame.
        let mut dy = Memory::<T>::of(&self.with_last_state());
        let (mut dgates, mut previous) = (self.sequence::<O>(4), self.sequence::<O>(1));
        let (mut dh, mut dh_before) = (self.state::<f32>(), self.state::<f32>());
        let (mut dc, mut dc_before) = (Memory::<f32>::of(&self.d_states[1]), self.state::<f32>());
        for t in (0..self.time).rev() {
            let mut arguments =
                vec![gates.argument(), c0.argument(), cells.argument(), h0.argument()];
            arguments.extend([y.argument(), dy.argument(), weight.argument()]);
            arguments.push(if t + 1 == self.time { NULL } else { dh.argument() });
            arguments.extend([dc.argument(), dh_before.argument(), dc_before.argument()]);
            arguments.extend([dgates.argument(), previous.argument()]);
            launch("whole_backward", t, arguments);
            std::mem::swap(&mut dh, &mut dh_before);
            std::mem::swap(&mut dc, &mut dc_before);
        }
        let d = dgates.read();
        results.push(("dx", d.clone()));
        results.push(("dh0", sum(&dh.read(), &self.back(&self.frame(&d, 0)))));
        results.push(("dc0", dc.read()));
        results.push(("dweight", self.weight_gradient(&d, &previous.read())));
        results.extend(["dbias_ih", "dbias_hh"].map(|name| (name, self.bias_gradient(&d))));
        results
    }

    /// The gradient `dy`, with that of the last h added in the last frame.
    fn with_last_state(&self) -> Vec<f32> {
        let mut dy = self.dy.clone();
        for (row, d) in self.d_states[0].chunks(self.width).enumerate() {
            let last = &mut dy[((row + 1) * self.time - 1) * self.width..][..self.width];
            last.iter_mut().zip(d).for_each(|(dy, d)| *dy += d);
        }
        dy
    }

    fn whole_gru<T: Element, O: Element>(
        &self,
        launch: impl Fn(&str, usize, Vec<Argument>),
    ) -> Results {
        let mut x = Memory::<T>::of(&self.x);
        let [mut bias_ih, mut bias_hh] = self.biases.each_ref().map(|v| Memory::<f32>::of(v));
        let mut h0 = Memory::<T>::of(&self.states[0]);
        let mut weight = Memory::<O>::of(&self.weight);
        let (mut y, mut gates, mut reset) =
            (self.sequence::<T>(1), self.sequence::<T>(3), self.sequence::<T>(1));
        let (mut h, mut h_new) = (Memory::<f32>::of(&self.states[0]), self.state::<f32>());
        let (mut before, mut next) = (Memory::<O>::of(&self.states[0]), self.state::<O>());
        for t in 0..self.time {
            let mut arguments = vec![x.argument(), before.argument(), weight.argument()];
            arguments.extend([bias_ih.argument(), bias_hh.argument(), h.argument()]);
            arguments.extend([y.argument(), h_new.argument(), next.argument()]);
            arguments.extend([gates.argument(), reset.argument()]);
            launch("whole_forward", t, arguments);
            std::mem::swap(&mut h, &mut h_new);
            std::mem::swap(&mut before, &mut next);
        }
        let mut results = vec![("y", y.read()), ("h", h.read())];

        let mut dy = Memory::<T>::of(&self.with_last_state());
        let (mut dx, mut d, mut previous) =
            (self.sequence::<O>(3), self.sequence::<O>(3), self.sequence::<O>(1));
        let (mut dh, mut dh_before) = (self.state::<f32>(), self.state::<f32>());
        for t in (0..self.time).rev() {
            let mut arguments =
                vec![gates.argument(), reset.argument(), h0.argument(), y.argument()];
            arguments.extend([dy.argument(), weight.argument()]);
            arguments.push(if t + 1 == self.time { NULL } else { dh.argument() });
            arguments.extend([dh_before.argument(), dx.argument()]);
            arguments.extend([d.argument(), previous.argument()]);
            launch("whole_backward", t, arguments);
            std::mem::swap(&mut dh, &mut dh_before);
        }
        results.push(("dx", dx.read()));
        results.push(("dh0", sum(&dh.read(), &self.back(&self.frame(&d.read(), 0)))));
        results.push(("dweight", self.weight_gradient(&d.read(), &previous.read())));
        results.push(("dbias_ih", self.bias_gradient(&dx.read())));
        results.push(("dbias_hh", self.bias_gradient(&d.read())));
        results
    }

    fn slstm<T: Element, O: Element>(
        &self,
        launch: impl Fn(&str, usize, Vec<Argument>),
    ) -> Results {
        let mut x = Memory::<T>::of(&self.x);
        let mut h0 = Memory::<T>::of(&self.states[0]);
        let [mut c0, mut n0] = [1, 2].map(|i: usize| Memory::<f32>::of(&self.states[i]));
        let (mut y, mut gates, mut slopes) =
            (self.sequence::<T>(1), self.sequence::<T>(4), self.sequence::<T>(1));
        let (mut cells, mut norms) = (self.sequence::<f32>(1), self.sequence::<f32>(1));
        let (mut h, mut h_new) = (self.state::<T>(), self.state::<T>());
        let (mut states, mut new) =
            ([(); 3].map(|()| self.state::<f32>()), [(); 3].map(|()| self.state::<f32>()));
        for kept in [false, true] {
            h = Memory::of(&self.states[0]);
            let mut operand = Memory::<O>::of(&self.states[0]);
            states = [1, 2, 3].map(|i: usize| Memory::of(&self.states[i]));
            for t in 0..self.time {
                let mut recurrent = Memory::<f32>::of(&self.product(&operand.read()));
                let mut arguments = vec![x.argument(), recurrent.argument(), h.argument()];
                arguments.extend(states.iter_mut().map(Memory::argument));
                arguments.extend([y.argument(), h_new.argument()]);
                arguments.extend(new.iter_mut().map(Memory::argument));
                arguments.push(operand.argument());
                match kept {
                    true => {
                        arguments.extend([gates.argument(), slopes.argument()]);
                        arguments.extend([cells.argument(), norms.argument()]);
                    }
                    false => arguments.extend([NULL, NULL, NULL, NULL]),
                }
                launch("forward", t, arguments);
                std::mem::swap(&mut h, &mut h_new);
                std::mem::swap(&mut states, &mut new);
            }
        }
        let mut results = vec![("y", y.read()), ("h", h.read())];
        results.extend(["c", "n", "m"].into_iter().zip(states.iter().map(Memory::read)));

        let mut dy = Memory::<T>::of(&self.dy);
        let (mut dx, mut previous) = (self.sequence::<T>(4), self.sequence::<O>(1));
        let mut d = Memory::<O>::unwritten(self.batch * 4 * self.width);
        let mut through = Memory::<f32>::of(&self.d_states[0]);
        let mut carried = [(); 3].map(|()| self.state::<f32>());
        let mut before =
            [self.state(), Memory::of(&self.d_states[1]), Memory::of(&self.d_states[2])];
        for t in (0..self.time).rev() {
            std::mem::swap(&mut carried, &mut before);
            let first = [gates.argument(), slopes.argument(), c0.argument(), n0.argument()];
            let mut arguments = Vec::from(first);
            arguments.extend([cells.argument(), norms.argument(), h0.argument(), y.argument()]);
            arguments.extend([dy.argument(), through.argument()]);
            let last = t + 1 == self.time;
            let [dh, dc, dn] = &mut carried;
            arguments.push(if last { NULL } else { dh.argument() });
            arguments.extend([dc.argument(), dn.argument()]);
            arguments.extend(before.iter_mut().map(Memory::argument));
            arguments.extend([dx.argument(), d.argument(), previous.argument()]);
            launch("backward", t, arguments);
            through = Memory::of(&self.back(&d.read()));
        }
        results.push(("dx", dx.read()));
        let [dh, dc, dn] = before;
        results.push(("dh0", sum(&dh.read(), &through.read())));
        results.extend([("dc0", dc.read()), ("dn0", dn.read())]);
        results.push(("dweight", self.weight_gradient(&dx.read(), &previous.read())));
        results
    }
}

/// The suffix of kernels of numbers T whose products have operands O.
fn suffix<T: Element, O: Element>() -> &'static str {
    if T::NAME == O::NAME { T::NAME } else { "mixed" }
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// `rounding` is the rounding error of results in T and O, and of products carried from frame to frame.
fn kernels_are_the_ops<T: Element, O: Element>(kernels: &impl Kernels, rounding: f32) {
    for (cell, sizes) in SIZES {
        let case = Case::new::<T>(cell, sizes);
        let want = case.on_cpu();
        let whole = cell != Slstm && case.width.is_multiple_of(TILE[1] as usize);
        let ways = [Some(32), Some(128)].into_iter().chain(whole.then_some(None));
        for threads in ways {
            let got = case.launched::<T, O>(kernels, threads);
            assert_eq!(got.len(), want.len());
            for ((name, got), (also, want)) in got.iter().zip(&want) {
                assert_eq!(name, also);
                let what =
                    format!("{name} of {cell:?} {sizes:?}, {}, {threads:?}", suffix::<T, O>());
                assert_near(&what, got, want, rounding);
            }
        }
    }
}

#[test]
fn cells_in_f32_equal_the_cpu() {
    kernels_are_the_ops::<f32, f32>(&Emulated::compile("recurrent"), 2e-5);
}

#[test]
fn cells_in_bf16_equal_the_cpu_up_to_rounding() {
    let kernels = Emulated::compile("recurrent");
    kernels_are_the_ops::<bf16, bf16>(&kernels, 1.0 / 64.0);
    kernels_are_the_ops::<f32, bf16>(&kernels, 1.0 / 64.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn cells_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::RECURRENT.ptx;
    let kernels = crate::card::Card::open("recurrent", ptx);
    kernels_are_the_ops::<f32, f32>(&kernels, 2e-5);
    kernels_are_the_ops::<bf16, bf16>(&kernels, 1.0 / 64.0);
    kernels_are_the_ops::<f32, bf16>(&kernels, 1.0 / 64.0);
}
