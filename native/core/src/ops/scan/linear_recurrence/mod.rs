//! `h_t = a_t * h_{t-1} + b_t`, channel by channel, and the cells that are made of it.
//!
//! A cell says how one channel's gate `a` and addend `b` come from its inputs of a frame; the walk
//! over time, the vectors, the threads and the backward pass are the same for all. Gates are worked
//! out within the walk and again within the backward one: that is cheaper than to write them out
//! and read them back.
//!
//! The walk is sequential in time, so it is exact at any gate and length. The form
//! `P_t * cumsum(b / P)` with the cumulative product `P` of the gates is not: P underflows.

pub mod cells;
mod walk;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Shape, Tensor};

use self::cells::{Cell, Constant, Diagonal, Hgrn, MinGru, MinLstm, Plain, RgLru};
use self::walk::{OutputPart, Part, Span, walk, walk_back};
use crate::Result;
use crate::memory;
use crate::ops::columns::{Grid, copy, outputs};
use crate::ops::lengths::Lengths;
use crate::ops::{composed, tensor};

pub use self::walk::step;

/// The states `h [b, t, c]` after each frame (Martin & Cundy 2018, eq. 7).
///
/// `a [b, t, c]`, or `a [c]` for a gate that does not change; `b [b, t, c]`, `h0 [b, c]`. Any gate is
/// allowed: 0 is a reset, a negative one alternates.
///
/// Backward, with `g_t = dh_t + a_{t+1} g_{t+1}`: `da_t = g_t h_{t-1}`, `db_t = g_t`,
/// `dh0 = a_0 g_0`.
///
/// Frames of a row from its length on do not exist: their output is 0 and gives no gradient.
pub fn linear_recurrence(a: &Tensor, b: &Tensor, h0: &Tensor, lengths: Lengths) -> Result<Tensor> {
    if composed::wanted(b) {
        return composed::scan::linear_recurrence(a, b, h0, lengths);
    }
    match a.dims().len() {
        1 => run1(Constant, b, &[a], h0, lengths),
        _ => run2(Plain, [a, b], &[], h0, lengths),
    }
}

/// minGRU over `projected [b, t, 2c]` (pre-activations of z, candidates) from `h0 [b, c]`:
/// `h = (1 - sigmoid(z)) h + sigmoid(z) c` (Feng et al. 2024, section 3.1.3) -> `[b, t, c]`.
pub fn min_gru(projected: &Tensor, h0: &Tensor, lengths: Lengths) -> Result<Tensor> {
    if composed::wanted(projected) {
        return composed::scan::min_gru(projected, h0, lengths);
    }
    run1(MinGru, projected, &[], h0, lengths)
}

/// minLSTM over `projected [b, t, 3c]` (pre-activations of f and i, candidates) from `h0 [b, c]`:
/// `h = f / (f + i + eps) h + i / (f + i + eps) c` (Feng et al. 2024, section 3.2.4) -> `[b, t, c]`.
pub fn min_lstm(projected: &Tensor, h0: &Tensor, eps: f32, lengths: Lengths) -> Result<Tensor> {
    if composed::wanted(projected) {
        return composed::scan::min_lstm(projected, h0, eps, lengths);
    }
    run1(MinLstm { eps }, projected, &[], h0, lengths)
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
    if composed::wanted(x) {
        return composed::scan::rg_lru(gates, x, lambda, h0, lengths);
    }
    run2(RgLru, [gates, x], &[lambda], h0, lengths)
}

/// The HGRN's recurrence (Qin et al. 2023, eq. 3 to 5, on the real line) -> `[b, t, c]`.
///
/// `projected [b, t, 3c]` holds the pre-activations of the forget gate, the input gate and the value,
/// `bound [c]` the least forget gate, in 0..1, `h0 [b, c]` the first state:
///
/// ```text
/// f = bound + (1 - bound) sigmoid(f)      h = f h + sigmoid(i) silu(v)
/// ```
pub fn hgrn(projected: &Tensor, bound: &Tensor, h0: &Tensor, lengths: Lengths) -> Result<Tensor> {
    if composed::wanted(projected) {
        return composed::scan::hgrn(projected, bound, h0, lengths);
    }
    run1(Hgrn, projected, &[bound], h0, lengths)
}

/// A real diagonal state space `h' = -exp(a_log) h + u`, held over steps of `dt = exp(dt_log)`
/// (zero-order hold: Smith et al. 2023, eq. 6) -> `[b, t, c]`.
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
    if composed::wanted(u) {
        return composed::scan::diagonal_ssm(u, a_log, dt_log, h0, lengths);
    }
    run1(Diagonal, u, &[a_log, dt_log], h0, lengths)
}

fn run1<C: Cell<N, K>, const N: usize, const K: usize>(
    cell: C,
    projected: &Tensor,
    weights: &[&Tensor; K],
    h0: &Tensor,
    lengths: Lengths,
) -> Result<Tensor> {
    let scan =
        Scan { cell, grid: grid::<C, N, K>(&[(projected, N)], weights, h0, lengths)?, split: N };
    Ok(projected.contiguous()?.apply_op2(&rest(weights, h0)?, scan)?)
}

/// The second tensor holds the last input, the first all others.
fn run2<C: Cell<N, K>, const N: usize, const K: usize>(
    cell: C,
    [projected, last]: [&Tensor; 2],
    weights: &[&Tensor; K],
    h0: &Tensor,
    lengths: Lengths,
) -> Result<Tensor> {
    let sources = [(projected, N - 1), (last, 1)];
    let scan = Scan { cell, grid: grid::<C, N, K>(&sources, weights, h0, lengths)?, split: N - 1 };
    Ok(projected.contiguous()?.apply_op3(&last.contiguous()?, &rest(weights, h0)?, scan)?)
}

/// Candle's ops take three tensors: weights and first state travel as one, `[k + b, c]`.
fn rest(weights: &[&Tensor], h0: &Tensor) -> Result<Tensor> {
    if weights.is_empty() {
        return Ok(h0.contiguous()?);
    }
    let mut rows =
        weights.iter().map(|w| w.unsqueeze(0)).collect::<candle_core::Result<Vec<_>>>()?;
    rows.push(h0.clone());
    Ok(Tensor::cat(&rows, 0)?)
}

/// Checks all shapes.
pub(in crate::ops) fn grid<C: Cell<N, K>, const N: usize, const K: usize>(
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

struct Scan<C, const N: usize, const K: usize> {
    cell: C,
    grid: Grid,
    /// Inputs that the first tensor holds.
    split: usize,
}

impl<C: Cell<N, K>, const N: usize, const K: usize> Scan<C, N, K> {
    /// Where input `n` lies: in which tensor, how far apart its frames are, and where they begin.
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

    /// The parameters of all channels, and the first states.
    fn unpack<'a>(&self, rest: &'a [f32]) -> ([Vec<f32>; K], &'a [f32]) {
        let c = self.grid.channels;
        let (weights, h0) = rest.split_at(K * c);
        let mut parameters = [(); K].map(|()| Vec::with_capacity(c));
        for i in 0..c {
            let p = self.cell.parameters(std::array::from_fn(|k| weights[k * c + i]));
            parameters.iter_mut().zip(p).for_each(|(all, p)| all.push(p));
        }
        (parameters, h0)
    }

    fn span(&self, row: usize, column: usize) -> Span {
        let frames = self.grid.time;
        Span { first: row * frames, frames, present: self.grid.frames(row), column }
    }

    fn forward(&self, sources: [&[f32]; 2], rest: &[f32]) -> Vec<f32> {
        let Grid { batch, time, channels: c, .. } = self.grid;
        let inputs = self.parts(sources);
        let (parameters, h0) = self.unpack(rest);
        // SAFETY: the grid visits every row and column, and `walk` writes all frames of them.
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

    /// Gradients of the two sources and of the rest.
    fn backward(&self, sources: [&[f32]; 2], rest: &[f32], y: &[f32], dy: &[f32]) -> [Vec<f32>; 3] {
        let Grid { batch, time, channels: c, .. } = self.grid;
        let inputs = self.parts(sources);
        let (parameters, h0) = self.unpack(rest);
        let frames = batch * time;
        let sizes =
            [frames * self.split * c, frames * (N - self.split) * c, batch * c, batch * K * c];
        // SAFETY: the grid visits every row and column, `walk_back` writes all frames of them, and
        // what it leaves in `carry` and `dp` is written below.
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
        let mut d_rest = self.weights_gradient(rest, &d_rows);
        d_rest.extend_from_slice(&d_h0);
        [first, second, d_rest]
    }

    /// `[k, c]` from the gradients of the parameters of each row, `[b, k, c]`.
    fn weights_gradient(&self, rest: &[f32], d_rows: &[f32]) -> Vec<f32> {
        let c = self.grid.channels;
        let mut d = memory::zeros(K * c);
        if K > 0 {
            crate::ops::simd::add_rows(&mut d, d_rows);
        }
        for i in 0..if K > 0 { c } else { 0 } {
            let weights = std::array::from_fn(|k| rest[k * c + i]);
            let gradient = std::array::from_fn(|k| d[k * c + i]);
            let gradient = self.cell.weights_backward(weights, gradient);
            gradient.iter().enumerate().for_each(|(k, g)| d[k * c + i] = *g);
        }
        d
    }

    fn shape(&self) -> Shape {
        Shape::from((self.grid.batch, self.grid.time, self.grid.channels))
    }
}

impl<C: Cell<N, K>, const N: usize, const K: usize> CustomOp2 for Scan<C, N, K> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        r: &CpuStorage,
        rl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let y = self.forward([tensor::slice(x, xl)?, &[]], tensor::slice(r, rl)?);
        Ok((CpuStorage::F32(y), self.shape()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        rest: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, _, d_rest] = tensor::with(x, |x| {
            tensor::with(rest, |rest| {
                tensor::with(y, |y| tensor::with(dy, |dy| Ok(self.backward([x, &[]], rest, y, dy))))
            })
        })?;
        let d_rest = tensor::tensor(d_rest, rest.shape())?;
        Ok((Some(tensor::tensor(dx, x.shape())?), Some(d_rest)))
    }
}

impl<C: Cell<N, K>, const N: usize, const K: usize> CustomOp3 for Scan<C, N, K> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        al: &Layout,
        b: &CpuStorage,
        bl: &Layout,
        r: &CpuStorage,
        rl: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let sources = [tensor::slice(a, al)?, tensor::slice(b, bl)?];
        Ok((CpuStorage::F32(self.forward(sources, tensor::slice(r, rl)?)), self.shape()))
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        rest: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [da, db, d_rest] = tensor::with(a, |a| {
            tensor::with(b, |b| {
                tensor::with(rest, |rest| {
                    tensor::with(y, |y| {
                        tensor::with(dy, |dy| Ok(self.backward([a, b], rest, y, dy)))
                    })
                })
            })
        })?;
        let [da, db] = [tensor::tensor(da, a.shape())?, tensor::tensor(db, b.shape())?];
        Ok((Some(da), Some(db), Some(tensor::tensor(d_rest, rest.shape())?)))
    }
}
