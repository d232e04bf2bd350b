//! `h_t = a_t * h_{t-1} + b_t`, channel by channel, and the cells built on it.
//!
//! A cell defines one channel's gate `a` and addend `b` as functions of its inputs in a frame; the walk over time, the
//! vectors, the threads and the backward pass are shared. Gates are computed within the walk and recomputed in the
//! backward pass, which is cheaper than storing them.
//!
//! The walk is sequential in time, so it is exact at any gate and length. The form `P_t * cumsum(b / P)` with the
//! cumulative product `P` of the gates is not: P underflows.

mod card;
pub mod cells;
pub(crate) mod composed;
mod walk;

use candle_core::Tensor;

use self::cells::{Cell, Constant, Diagonal, Hgrn, MinGru, MinLstm, Plain, RgLru};
pub use self::walk::step;
use self::walk::{OutputPart, Part, Span, walk, walk_back};
use crate::columns::{Grid, copy, outputs};
use crate::form::Form;
use crate::lengths::Lengths;
use crate::op::{self, Op, Pass};
use crate::{Result, memory, tensor};

/// The states `h [b, t, c]` after each frame (Martin & Cundy 2018, eq. 7).
///
/// `a [b, t, c]`, or `a [c]` for a constant gate; `b [b, t, c]`, `h0 [b, c]`. Any gate is allowed: 0 is a reset, a
/// negative gate alternates.
///
/// Backward, with `g_t = dh_t + a_{t+1} g_{t+1}`: `da_t = g_t h_{t-1}`, `db_t = g_t`,
/// `dh0 = a_0 g_0`.
///
/// Frames of a row from its length on do not exist: their output is 0 and gives no gradient.
pub fn linear_recurrence(a: &Tensor, b: &Tensor, h0: &Tensor, lengths: Lengths) -> Result<Tensor> {
    let constant = a.rank() == 1;
    let grid = match constant {
        true => grid::<Constant, 1, 1>(&[(b, 1)], &[a], h0, lengths)?,
        false => grid::<Plain, 2, 0>(&[(a, 1), (b, 1)], &[], h0, lengths)?,
    };
    match (Form::of(b), constant) {
        (Form::Cpu, true) => run(Constant, grid, &[b], &[a], h0),
        (Form::Cpu, false) => run(Plain, grid, &[a, b], &[], h0),
        (Form::Card, true) => card::constant_recurrence(a, b, h0, &grid.lengths),
        (Form::Card, false) => card::linear_recurrence(a, b, h0, &grid.lengths),
        (Form::Composed, _) => composed::linear_recurrence(a, b, h0, &grid.lengths),
    }
}

/// minGRU over `projected [b, t, 2c]` (pre-activations of z, candidates) from `h0 [b, c]`:
/// `h = (1 - sigmoid(z)) h + sigmoid(z) c` (Feng et al. 2024, section 3.1.3) -> `[b, t, c]`.
pub fn min_gru(projected: &Tensor, h0: &Tensor, lengths: Lengths) -> Result<Tensor> {
    let grid = grid::<MinGru, 2, 0>(&[(projected, 2)], &[], h0, lengths)?;
    match Form::of(projected) {
        Form::Cpu => run(MinGru, grid, &[projected], &[], h0),
        Form::Card => card::min_gru(projected, h0, &grid.lengths),
        Form::Composed => composed::min_gru(projected, h0, &grid.lengths),
    }
}

/// minLSTM over `projected [b, t, 3c]` (pre-activations of f and i, candidates) from `h0 [b, c]`:
/// `h = f / (f + i + eps) h + i / (f + i + eps) c` (Feng et al. 2024, section 3.2.4) -> `[b, t, c]`.
pub fn min_lstm(projected: &Tensor, h0: &Tensor, eps: f32, lengths: Lengths) -> Result<Tensor> {
    let grid = grid::<MinLstm, 3, 0>(&[(projected, 3)], &[], h0, lengths)?;
    match Form::of(projected) {
        Form::Cpu => run(MinLstm { eps }, grid, &[projected], &[], h0),
        Form::Card => card::min_lstm(projected, h0, eps, &grid.lengths),
        Form::Composed => composed::min_lstm(projected, h0, eps, &grid.lengths),
    }
}

/// The real-gated linear recurrent unit (De et al. 2024, eq. 1 to 4) -> `[b, t, c]`.
///
/// `gates [b, t, 2c]` holds the pre-activations of r and i, `x [b, t, c]` the input, `lambda [c]`
/// the decay, `h0 [b, c]` the first state:
///
/// ```text
/// a = sigmoid(lambda)^(8 sigmoid(r))      h = a h + sqrt(1 - a^2) sigmoid(i) x
/// ```
pub fn rg_lru(
    gates: &Tensor,
    x: &Tensor,
    lambda: &Tensor,
    h0: &Tensor,
    lengths: Lengths,
) -> Result<Tensor> {
    let grid = grid::<RgLru, 3, 1>(&[(gates, 2), (x, 1)], &[lambda], h0, lengths)?;
    match Form::of(x) {
        Form::Cpu => run(RgLru, grid, &[gates, x], &[lambda], h0),
        Form::Card => card::rg_lru(gates, x, lambda, h0, &grid.lengths),
        Form::Composed => composed::rg_lru(gates, x, lambda, h0, &grid.lengths),
    }
}

/// The HGRN's recurrence (Qin et al. 2023, eq. 3 to 5, on the real line) -> `[b, t, c]`.
///
/// `projected [b, t, 3c]` holds the pre-activations of the forget gate, the input gate and the value, `bound [c]` the
/// lower bound of the forget gate, in 0..1, `h0 [b, c]` the first state:
///
/// ```text
/// f = bound + (1 - bound) sigmoid(f)      h = f h + sigmoid(i) silu(v)
/// ```
pub fn hgrn(projected: &Tensor, bound: &Tensor, h0: &Tensor, lengths: Lengths) -> Result<Tensor> {
    let grid = grid::<Hgrn, 3, 1>(&[(projected, 3)], &[bound], h0, lengths)?;
    match Form::of(projected) {
        Form::Cpu => run(Hgrn, grid, &[projected], &[bound], h0),
        Form::Card => card::hgrn(projected, bound, h0, &grid.lengths),
        Form::Composed => composed::hgrn(projected, bound, h0, &grid.lengths),
    }
}

/// A real diagonal state space `h' = -exp(a_log) h + u`, discretised with steps of `dt = exp(dt_log)` (zero-order hold:
/// Smith et al. 2023, eq. 6) -> `[b, t, c]`.
///
/// `u [b, t, c]`, `a_log [c]`, `dt_log [c]`, `h0 [b, c]`:
///
/// ```text
/// a = exp(-exp(a_log) dt)      h = a h + (1 - a) / exp(a_log) u
/// ```
pub fn diagonal_ssm(
    u: &Tensor,
    a_log: &Tensor,
    dt_log: &Tensor,
    h0: &Tensor,
    lengths: Lengths,
) -> Result<Tensor> {
    let grid = grid::<Diagonal, 1, 2>(&[(u, 1)], &[a_log, dt_log], h0, lengths)?;
    match Form::of(u) {
        Form::Cpu => run(Diagonal, grid, &[u], &[a_log, dt_log], h0),
        Form::Card => card::diagonal_ssm(u, a_log, dt_log, h0, &grid.lengths),
        Form::Composed => composed::diagonal_ssm(u, a_log, dt_log, h0, &grid.lengths),
    }
}

/// Computes the states of a cell over one or two input tensors; the second tensor holds the last input.
fn run<C: Cell<N, K>, const N: usize, const K: usize>(
    cell: C,
    grid: Grid,
    sources: &[&Tensor],
    weights: &[&Tensor; K],
    h0: &Tensor,
) -> Result<Tensor> {
    let split = if sources.len() == 1 { N } else { N - 1 };
    let shape = (grid.batch, grid.time, grid.channels);
    let inputs: Vec<&Tensor> = sources.iter().chain(weights).chain([&h0]).copied().collect();
    op::apply(Scan { cell, grid, split }, &inputs, shape)
}

/// Checks all shapes.
fn grid<C: Cell<N, K>, const N: usize, const K: usize>(
    sources: &[(&Tensor, usize)],
    weights: &[&Tensor],
    h0: &Tensor,
    lengths: Lengths,
) -> Result<Grid> {
    let (batch, channels) = h0.dims2()?;
    let time = sources.first().map_or(Ok(0), |(x, _)| x.dim(1))?;
    let check = |what: &str, expected: &[usize], got: &Tensor| {
        tensor::check_shape(format_args!("{what} of {}", C::NAME), expected, got.dims())
    };
    for (source, inputs) in sources {
        check("input", &[batch, time, inputs * channels], source)?;
    }
    weights.iter().try_for_each(|w| check("weight", &[channels], w))?;
    Grid::new(batch, time, channels, lengths)
}

/// The values of all inputs; the second source is empty if one tensor holds all inputs of a frame.
struct Inputs<'a, const K: usize> {
    sources: [&'a [f32]; 2],
    weights: [&'a [f32]; K],
    h0: &'a [f32],
}

struct Scan<C, const N: usize, const K: usize> {
    cell: C,
    grid: Grid,
    /// The number of inputs in the first tensor.
    split: usize,
}

impl<C: Cell<N, K>, const N: usize, const K: usize> Scan<C, N, K> {
    /// The location of input `n`: its tensor, the stride of its frames, and their first column.
    fn place(&self, n: usize) -> (usize, usize, usize) {
        let c = self.grid.channels;
        match n < self.split {
            true => (0, self.split * c, n * c),
            false => (1, (N - self.split) * c, (n - self.split) * c),
        }
    }

    fn parts<'a>(&self, sources: [&'a [f32]; 2]) -> [Part<'a>; N] {
        std::array::from_fn(|n| {
            let (source, stride, offset) = self.place(n);
            Part { data: sources[source], stride, offset }
        })
    }

    /// The values of all inputs, in the order of [`run`].
    fn inputs<'a>(&self, inputs: &[&'a [f32]]) -> Inputs<'a, K> {
        let sources = inputs.len() - K - 1;
        let second = if sources > 1 { inputs[1] } else { &[] };
        let weights = std::array::from_fn(|k| inputs[sources + k]);
        Inputs { sources: [inputs[0], second], weights, h0: inputs[sources + K] }
    }

    /// The parameters of all channels.
    fn parameters(&self, weights: [&[f32]; K]) -> [Vec<f32>; K] {
        let c = self.grid.channels;
        let mut parameters = [(); K].map(|()| Vec::with_capacity(c));
        for i in 0..c {
            let p = self.cell.parameters(weights.map(|weight| weight[i]));
            parameters.iter_mut().zip(p).for_each(|(all, p)| all.push(p));
        }
        parameters
    }

    fn span(&self, row: usize, column: usize) -> Span {
        let frames = self.grid.time;
        Span { first: row * frames, frames, present: self.grid.frames(row), column }
    }

    fn states(&self, inputs: &Inputs<'_, K>) -> Vec<f32> {
        let Grid { batch, time, channels: c, .. } = self.grid;
        let (parameters, h0) = (self.parameters(inputs.weights), inputs.h0);
        let inputs = self.parts(inputs.sources);
        // SAFETY: the grid visits every row and column, and `walk` writes all of their frames.
        let [y] = unsafe {
            outputs([batch * time * c], |[y]| {
                let y = OutputPart { data: y, stride: c, offset: 0 };
                self.grid.for_each(|row, columns| {
                    let mut h = h0[row * c..][columns.clone()].to_vec();
                    let p = parameters.each_ref().map(|p| &p[columns.clone()]);
                    walk(self.cell, y, &mut h, inputs, p, self.span(row, columns.start));
                });
            })
        };
        y
    }

    /// Gradients of the inputs, in the order of [`run`].
    fn gradients(&self, all: &Inputs<'_, K>, y: &[f32], dy: &[f32]) -> Vec<Vec<f32>> {
        let Grid { batch, time, channels: c, .. } = self.grid;
        let (parameters, h0) = (self.parameters(all.weights), all.h0);
        let inputs = self.parts(all.sources);
        let frames = batch * time;
        let sizes =
            [frames * self.split * c, frames * (N - self.split) * c, batch * c, batch * K * c];
        // SAFETY: the grid visits every row and column, `walk_back` writes all of their frames, and `carry` and `dp`
        // are written below.
        let [first, second, d_h0, d_rows] = unsafe {
            outputs(sizes, |[first, second, d_h0, d_rows]| {
                let d_inputs = std::array::from_fn(|n| {
                    let (source, stride, offset) = self.place(n);
                    OutputPart { data: [first, second][source], stride, offset }
                });
                self.grid.for_each(|row, columns| {
                    let width = columns.len();
                    let mut carry = memory::zeros(width);
                    let mut dp = [(); K].map(|()| memory::zeros(width));
                    let p = parameters.each_ref().map(|p| &p[columns.clone()]);
                    let h0 = &h0[row * c..][columns.clone()];
                    let part = |data| Part { data, stride: c, offset: 0 };
                    let span = self.span(row, columns.start);
                    let (y, dy) = (part(y), part(dy));
                    walk_back(self.cell, d_inputs, &mut dp, &mut carry, inputs, p, h0, y, dy, span);
                    copy(d_h0.range(row * c + columns.start, width), &carry);
                    for (k, dp) in dp.iter().enumerate() {
                        let at = (row * K + k) * c + columns.start;
                        copy(d_rows.range(at, width), dp);
                    }
                });
            })
        };
        let mut gradients = vec![first];
        gradients.extend((self.split < N).then_some(second));
        gradients.extend(self.weight_gradients(all.weights, &d_rows));
        gradients.push(d_h0);
        gradients
    }

    /// Gradients of the weights, `[c]` each, from the gradients of the parameters of each row, `[b, k, c]`.
    fn weight_gradients(&self, weights: [&[f32]; K], d_rows: &[f32]) -> [Vec<f32>; K] {
        let c = self.grid.channels;
        let mut sum = memory::zeros(K * c);
        if K > 0 {
            crate::simd::add_rows(&mut sum, d_rows);
        }
        let mut gradients = [(); K].map(|()| memory::zeros(c));
        for i in 0..if K > 0 { c } else { 0 } {
            let of_parameters = std::array::from_fn(|k| sum[k * c + i]);
            let found = self.cell.weights_backward(weights.map(|w| w[i]), of_parameters);
            gradients.iter_mut().zip(found).for_each(|(all, found)| all[i] = found);
        }
        gradients
    }
}

impl<C: Cell<N, K>, const N: usize, const K: usize> Op for Scan<C, N, K> {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        Ok(vec![self.states(&self.inputs(inputs))])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let inputs = self.inputs(pass.inputs);
        Ok(self.gradients(&inputs, pass.outputs[0], pass.gradient()?))
    }
}
