//! GRU and LSTM over the pixels of a signal. The products of the inputs are a convolution of one pixel before.

use std::ops::Range;

use sconce_tensor::simd::{dispatch, sigmoid_with, tanh_with};

use crate::packed::attention::add_scaled;
use crate::packed::values::Value;

/// The kind of the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    /// Gates r, z, n.
    Gru,
    /// Gates i, f, g, o.
    Lstm,
}

impl Cell {
    pub(crate) fn gates(self) -> usize {
        match self {
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }
}

/// The states after each pixel, or the last one, from the products of the inputs.
pub(crate) struct Recurrent {
    pub(crate) cell: Cell,
    pub(crate) size: usize,
    /// `W_hh` by its columns: for each number of the state one for each number of the gates.
    pub(crate) matrix: Range<usize>,
    pub(crate) bias: Range<usize>,
    /// Whether the output has all states.
    pub(crate) sequence: bool,
}

impl Recurrent {
    /// Numbers of `W_hh h + b_hh`, of the state, and of the cell.
    pub(crate) fn scratch(&self) -> usize {
        (self.cell.gates() + 2) * self.size
    }

    /// Products of a pixel.
    pub(crate) fn products(&self) -> u64 {
        (self.cell.gates() * self.size * self.size) as u64
    }

    pub(crate) fn run(
        &self,
        weights: &[f32],
        (xs, x): (&Value, &[f32]),
        (ys, y): (&Value, &mut [f32]),
        scratch: &mut [f32],
    ) {
        let (size, wide) = (self.size, self.cell.gates() * self.size);
        let (matrix, bias) = (&weights[self.matrix.clone()], &weights[self.bias.clone()]);
        let (gates, rest) = scratch.split_at_mut(wide);
        let (state, rest) = rest.split_at_mut(size);
        let cell = &mut rest[..size];
        state.fill(0.0);
        cell.fill(0.0);
        for t in 0..xs.size.width {
            gates.copy_from_slice(bias);
            for (h, column) in state.iter().zip(matrix.chunks_exact(wide)) {
                add_scaled(gates, *h, column);
            }
            let at = xs.place(0, t);
            let input = &x[at..at + wide];
            match self.cell {
                Cell::Gru => gru(state, gates, input),
                Cell::Lstm => lstm(state, cell, gates, input),
            }
            if self.sequence || t + 1 == xs.size.width {
                let to = ys.place(0, if self.sequence { t } else { 0 });
                y[to..to + size].copy_from_slice(state);
            }
        }
    }
}

dispatch! {
    fn gru(state: &mut [f32], gates: &[f32], input: &[f32]) {
        let n = state.len();
        let (hr, hz, hn) = (&gates[..n], &gates[n..2 * n], &gates[2 * n..3 * n]);
        let (xr, xz, xn) = (&input[..n], &input[n..2 * n], &input[2 * n..3 * n]);
        let of_state = hr.iter().zip(hz).zip(hn);
        let of_input = xr.iter().zip(xz).zip(xn);
        for ((h, ((hr, hz), hn)), ((xr, xz), xn)) in state.iter_mut().zip(of_state).zip(of_input) {
            let r = sigmoid_with::<FMA>(hr + xr);
            let z = sigmoid_with::<FMA>(hz + xz);
            let new = tanh_with::<FMA>(xn + r * hn);
            *h = (1.0 - z) * new + z * *h;
        }
    }
}

dispatch! {
    fn lstm(state: &mut [f32], cell: &mut [f32], gates: &mut [f32], input: &[f32]) {
        let n = state.len();
        for (gate, x) in gates.iter_mut().zip(input) {
            *gate += x;
        }
        let (i, f) = (&gates[..n], &gates[n..2 * n]);
        let (g, o) = (&gates[2 * n..3 * n], &gates[3 * n..4 * n]);
        let gates = i.iter().zip(f).zip(g.iter().zip(o));
        for ((h, c), ((i, f), (g, o))) in state.iter_mut().zip(cell).zip(gates) {
            *c = sigmoid_with::<FMA>(*f) * *c + sigmoid_with::<FMA>(*i) * tanh_with::<FMA>(*g);
            *h = sigmoid_with::<FMA>(*o) * tanh_with::<FMA>(*c);
        }
    }
}
