//! `h_t = a_t * h_{t-1} + b_t`, channel by channel, and the cells that are made of it.
//!
//! A cell says how one channel's gate `a` and addend `b` come from its inputs of a frame; the walk
//! over time, the vectors, the threads and the backward pass are the same for all. Gates are worked
//! out within the walk and again within the backward one: that is cheaper than to write them out
//! and read them back.
//!
//! The walk is sequential in time, so it is exact at any gate and length. The form
//! `P_t * cumsum(b / P)` with the cumulative product `P` of the gates is not: P underflows.

use std::mem::MaybeUninit;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Shape, Tensor};

use crate::Result;
use crate::ops::columns::{Grid, LANES, Lanes, Output, copy, fill, load, outputs, store};
use crate::ops::lengths::Lengths;
use crate::ops::simd::{dispatch, expm1_with, mul_add, sigmoid, sigmoid_with, softplus_with};
use crate::ops::tensor;

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
    match a.dims().len() {
        1 => run1(Constant, b, &[a], h0, lengths),
        _ => run2(Plain, [a, b], &[], h0, lengths),
    }
}

/// minGRU over `projected [b, t, 2c]` (pre-activations of z, candidates) from `h0 [b, c]`:
/// `h = (1 - sigmoid(z)) h + sigmoid(z) c` (Feng et al. 2024, section 3.1.3) -> `[b, t, c]`.
pub fn min_gru(projected: &Tensor, h0: &Tensor, lengths: Lengths) -> Result<Tensor> {
    run1(MinGru, projected, &[], h0, lengths)
}

/// minLSTM over `projected [b, t, 3c]` (pre-activations of f and i, candidates) from `h0 [b, c]`:
/// `h = f / (f + i + eps) h + i / (f + i + eps) c` (Feng et al. 2024, section 3.2.4) -> `[b, t, c]`.
pub fn min_lstm(projected: &Tensor, h0: &Tensor, eps: f32, lengths: Lengths) -> Result<Tensor> {
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
    run1(Diagonal, u, &[a_log, dt_log], h0, lengths)
}

/// What a frame's gradient `g` of one channel's state becomes.
struct Gradient<const N: usize, const K: usize> {
    /// The gate: `a g` goes on to the frame before.
    a: f32,
    inputs: [f32; N],
    parameters: [f32; K],
}

/// One channel of a cell with N inputs a frame and K parameters.
trait Cell<const N: usize, const K: usize>: Copy + Send + Sync + 'static {
    const NAME: &'static str;

    /// What the walk uses of a channel's weights: worked out once, not once a frame.
    fn parameters(self, weights: [f32; K]) -> [f32; K] {
        weights
    }

    /// Gradient of the weights from that of the parameters.
    fn weights_backward(self, _weights: [f32; K], d: [f32; K]) -> [f32; K] {
        d
    }

    /// The gate and the addend.
    fn gates<const FMA: bool>(self, x: [f32; N], p: [f32; K]) -> (f32, f32);

    /// For the gradient `g` of the new state; `h` is the state before.
    fn backward<const FMA: bool>(self, x: [f32; N], p: [f32; K], h: f32, g: f32) -> Gradient<N, K>;
}

#[derive(Clone, Copy)]
struct Plain;

impl Cell<2, 0> for Plain {
    const NAME: &'static str = "linear-recurrence";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [a, b]: [f32; 2], _: [f32; 0]) -> (f32, f32) {
        (a, b)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [a, _]: [f32; 2],
        _: [f32; 0],
        h: f32,
        g: f32,
    ) -> Gradient<2, 0> {
        Gradient { a, inputs: [g * h, g], parameters: [] }
    }
}

#[derive(Clone, Copy)]
struct Constant;

impl Cell<1, 1> for Constant {
    const NAME: &'static str = "linear-recurrence-constant";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [b]: [f32; 1], [a]: [f32; 1]) -> (f32, f32) {
        (a, b)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        _: [f32; 1],
        [a]: [f32; 1],
        h: f32,
        g: f32,
    ) -> Gradient<1, 1> {
        Gradient { a, inputs: [g], parameters: [g * h] }
    }
}

#[derive(Clone, Copy)]
struct MinGru;

impl Cell<2, 0> for MinGru {
    const NAME: &'static str = "min-gru";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [z, c]: [f32; 2], _: [f32; 0]) -> (f32, f32) {
        let z = sigmoid_with::<FMA>(z);
        (1.0 - z, z * c)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [z, c]: [f32; 2],
        _: [f32; 0],
        h: f32,
        g: f32,
    ) -> Gradient<2, 0> {
        let z = sigmoid_with::<FMA>(z);
        Gradient { a: 1.0 - z, inputs: [g * (c - h) * z * (1.0 - z), g * z], parameters: [] }
    }
}

#[derive(Clone, Copy)]
struct MinLstm {
    eps: f32,
}

impl Cell<3, 0> for MinLstm {
    const NAME: &'static str = "min-lstm";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [f, i, c]: [f32; 3], _: [f32; 0]) -> (f32, f32) {
        let (f, i) = (sigmoid_with::<FMA>(f), sigmoid_with::<FMA>(i));
        let scale = 1.0 / (f + i + self.eps);
        (f * scale, i * scale * c)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [f, i, c]: [f32; 3],
        _: [f32; 0],
        h: f32,
        g: f32,
    ) -> Gradient<3, 0> {
        let (f, i) = (sigmoid_with::<FMA>(f), sigmoid_with::<FMA>(i));
        let scale = 1.0 / (f + i + self.eps);
        let (keep, take) = (f * scale, i * scale);
        // d keep / d ln f = keep (1 - keep), d take / d ln f = -keep take, and the other way round.
        let df = g * (h * (1.0 - keep) - c * take) * keep;
        let di = g * (c * (1.0 - take) - h * keep) * take;
        Gradient { a: keep, inputs: [df * (1.0 - f), di * (1.0 - i), g * take], parameters: [] }
    }
}

#[derive(Clone, Copy)]
struct RgLru;

impl RgLru {
    /// `c` of the paper.
    const POWER: f32 = 8.0;

    /// `(a, sqrt(1 - a^2))` for `log a`, without the cancellation at a near 1.
    #[inline(always)]
    fn decay<const FMA: bool>(log_a: f32) -> (f32, f32) {
        let less = expm1_with::<FMA>(log_a);
        (1.0 + less, (-less * (2.0 + less)).sqrt())
    }
}

impl Cell<3, 1> for RgLru {
    const NAME: &'static str = "rg-lru";

    /// `log a` at r = 1.
    fn parameters(self, [lambda]: [f32; 1]) -> [f32; 1] {
        [-Self::POWER * softplus_with::<false>(-lambda)]
    }

    fn weights_backward(self, [lambda]: [f32; 1], [d]: [f32; 1]) -> [f32; 1] {
        [d * Self::POWER * sigmoid(-lambda)]
    }

    #[inline(always)]
    fn gates<const FMA: bool>(self, [r, i, x]: [f32; 3], [p]: [f32; 1]) -> (f32, f32) {
        let (a, keep) = Self::decay::<FMA>(sigmoid_with::<FMA>(r) * p);
        (a, keep * sigmoid_with::<FMA>(i) * x)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [r, i, x]: [f32; 3],
        [p]: [f32; 1],
        h: f32,
        g: f32,
    ) -> Gradient<3, 1> {
        let (r, i) = (sigmoid_with::<FMA>(r), sigmoid_with::<FMA>(i));
        let (a, keep) = Self::decay::<FMA>(r * p);
        // d keep / d log a = -a^2 / keep; at a = 1 nothing is kept, and nothing reaches the decay.
        let slope = a * a / keep.max(1e-18);
        let d_log_a = g * (h * a - i * x * slope);
        let d_i = g * keep * x;
        let inputs = [d_log_a * p * r * (1.0 - r), d_i * i * (1.0 - i), g * keep * i];
        Gradient { a, inputs, parameters: [d_log_a * r] }
    }
}

#[derive(Clone, Copy)]
struct Hgrn;

impl Cell<3, 1> for Hgrn {
    const NAME: &'static str = "hgrn";

    #[inline(always)]
    fn gates<const FMA: bool>(self, [f, i, v]: [f32; 3], [bound]: [f32; 1]) -> (f32, f32) {
        (
            bound + (1.0 - bound) * sigmoid_with::<FMA>(f),
            sigmoid_with::<FMA>(i) * v * sigmoid_with::<FMA>(v),
        )
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [f, i, v]: [f32; 3],
        [bound]: [f32; 1],
        h: f32,
        g: f32,
    ) -> Gradient<3, 1> {
        let (f, i, s) = (sigmoid_with::<FMA>(f), sigmoid_with::<FMA>(i), sigmoid_with::<FMA>(v));
        let df = g * h;
        let inputs = [
            df * (1.0 - bound) * f * (1.0 - f),
            g * v * s * i * (1.0 - i),
            g * i * s * (1.0 + v * (1.0 - s)),
        ];
        Gradient { a: bound + (1.0 - bound) * f, inputs, parameters: [df * (1.0 - f)] }
    }
}

#[derive(Clone, Copy)]
struct Diagonal;

impl Cell<1, 2> for Diagonal {
    const NAME: &'static str = "diagonal-ssm";

    fn parameters(self, [a_log, dt_log]: [f32; 2]) -> [f32; 2] {
        let rate = a_log.exp();
        let less = (-rate * dt_log.exp()).exp_m1();
        [1.0 + less, -less / rate]
    }

    fn weights_backward(self, [a_log, dt_log]: [f32; 2], [da, dscale]: [f32; 2]) -> [f32; 2] {
        let (rate, dt) = (f64::from(a_log).exp(), f64::from(dt_log).exp());
        let (da, dscale) = (f64::from(da), f64::from(dscale));
        let decay = rate * dt;
        let (a, less) = ((-decay).exp(), (-decay).exp_m1());
        let d_rate = -da * dt * a + dscale * (decay * a + less) / (rate * rate);
        let d_dt = -da * rate * a + dscale * a;
        [(d_rate * rate) as f32, (d_dt * dt) as f32]
    }

    #[inline(always)]
    fn gates<const FMA: bool>(self, [u]: [f32; 1], [a, scale]: [f32; 2]) -> (f32, f32) {
        (a, scale * u)
    }

    #[inline(always)]
    fn backward<const FMA: bool>(
        self,
        [u]: [f32; 1],
        [a, scale]: [f32; 2],
        h: f32,
        g: f32,
    ) -> Gradient<1, 2> {
        Gradient { a, inputs: [g * scale], parameters: [g * h, g * u] }
    }
}

/// One input of a cell within a tensor `[.., stride]`: the columns from `offset` on.
#[derive(Clone, Copy)]
struct Part<'a> {
    data: &'a [f32],
    stride: usize,
    offset: usize,
}

/// The same of a gradient.
#[derive(Clone, Copy)]
struct OutputPart<'a> {
    data: Output<'a>,
    stride: usize,
    offset: usize,
}

/// Where a shard works: `frames` frames from `first` on (in all of the batch), of which only
/// `present` exist, and the columns from `column` on.
#[derive(Clone, Copy)]
struct Span {
    first: usize,
    frames: usize,
    present: usize,
    column: usize,
}

#[inline(always)]
fn lane<const N: usize>(x: &[Lanes; N], l: usize) -> [f32; N] {
    std::array::from_fn(|n| x[n][l])
}

/// Sixteen channels of a frame from `i` on; `h` goes from the state before to the one after.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // lanes of several arrays at once
fn frame<const FULL: bool, C: Cell<N, K>, const N: usize, const K: usize, const FMA: bool>(
    cell: C,
    y: &mut [MaybeUninit<f32>],
    h: &mut [f32],
    x: &[&[f32]; N],
    p: &[&[f32]; K],
    i: usize,
) {
    let x: [Lanes; N] = std::array::from_fn(|n| load::<FULL>(x[n], i));
    let p: [Lanes; K] = std::array::from_fn(|k| load::<FULL>(p[k], i));
    let mut state = load::<FULL>(h, i);
    for l in 0..LANES {
        let (a, b) = cell.gates::<FMA>(lane(&x, l), lane(&p, l));
        state[l] = mul_add::<FMA>(a, state[l], b);
    }
    store::<FULL>(h, i, &state);
    fill::<FULL>(y, i, &state);
}

/// The way back through [`frame`]; `carry` goes from the gradient of the state after, without that
/// of the output `dy`, to the one of the state `before`.
#[inline(always)]
#[allow(clippy::too_many_arguments, clippy::needless_range_loop)] // as above
fn frame_back<const FULL: bool, C: Cell<N, K>, const N: usize, const K: usize, const FMA: bool>(
    cell: C,
    dx: &mut [&mut [MaybeUninit<f32>]; N],
    dp: &mut [Vec<f32>; K],
    carry: &mut [f32],
    x: &[&[f32]; N],
    p: &[&[f32]; K],
    before: &[f32],
    dy: &[f32],
    i: usize,
) {
    let x: [Lanes; N] = std::array::from_fn(|n| load::<FULL>(x[n], i));
    let p: [Lanes; K] = std::array::from_fn(|k| load::<FULL>(p[k], i));
    let (h, dy) = (load::<FULL>(before, i), load::<FULL>(dy, i));
    let mut g = load::<FULL>(carry, i);
    let mut d = [[0.0; LANES]; N];
    let mut sum: [Lanes; K] = std::array::from_fn(|k| load::<FULL>(&dp[k], i));
    for l in 0..LANES {
        let back = cell.backward::<FMA>(lane(&x, l), lane(&p, l), h[l], g[l] + dy[l]);
        g[l] = back.a * (g[l] + dy[l]);
        for n in 0..N {
            d[n][l] = back.inputs[n];
        }
        for k in 0..K {
            sum[k][l] += back.parameters[k];
        }
    }
    store::<FULL>(carry, i, &g);
    for n in 0..N {
        fill::<FULL>(dx[n], i, &d[n]);
    }
    for k in 0..K {
        store::<FULL>(&mut dp[k], i, &sum[k]);
    }
}

dispatch! {
    /// Walks one row; `h` holds the first state and is used up.
    fn walk<[C: Cell<N, K>, const N: usize, const K: usize], [C, N, K]>(
        cell: C, y: OutputPart<'_>, h: &mut [f32], inputs: [Part<'_>; N], p: [&[f32]; K], span: Span,
    ) {
        let width = h.len();
        for t in span.first..span.first + span.frames {
            // SAFETY: the columns of this row are this shard's alone.
            let y = unsafe { y.data.range(t * y.stride + span.column, width) };
            if t >= span.first + span.present {
                y.iter_mut().for_each(|v| _ = v.write(0.0));
                continue;
            }
            let x = inputs.map(|part| &part.data[t * part.stride + part.offset + span.column..][..width]);
            let whole = width - width % LANES;
            for i in (0..whole).step_by(LANES) {
                frame::<true, C, N, K, FMA>(cell, y, h, &x, &p, i);
            }
            if whole < width {
                frame::<false, C, N, K, FMA>(cell, y, h, &x, &p, whole);
            }
        }
    }
}

dispatch! {
    /// Walks one row back. `carry` holds zeros and becomes the gradient of the first state, `h0`;
    /// `dp` holds zeros and becomes that of the parameters.
    fn walk_back<[C: Cell<N, K>, const N: usize, const K: usize], [C, N, K]>(
        cell: C,
        d_inputs: [OutputPart<'_>; N],
        dp: &mut [Vec<f32>; K],
        carry: &mut [f32],
        inputs: [Part<'_>; N],
        p: [&[f32]; K],
        h0: &[f32],
        y: Part<'_>,
        dy: Part<'_>,
        span: Span,
    ) {
        let width = carry.len();
        for t in (span.first..span.first + span.frames).rev() {
            // SAFETY: the columns of this row are this shard's alone, and the inputs' columns lie apart.
            let mut dx = d_inputs.map(|d| unsafe {
                d.data.range(t * d.stride + d.offset + span.column, width)
            });
            if t >= span.first + span.present {
                dx.iter_mut().for_each(|d| d.iter_mut().for_each(|v| _ = v.write(0.0)));
                continue;
            }
            let x = inputs.map(|part| &part.data[t * part.stride + part.offset + span.column..][..width]);
            let dy = &dy.data[t * dy.stride + span.column..][..width];
            let before = match t > span.first {
                true => &y.data[(t - 1) * y.stride + span.column..][..width],
                false => &h0[..width],
            };
            let whole = width - width % LANES;
            for i in (0..whole).step_by(LANES) {
                frame_back::<true, C, N, K, FMA>(cell, &mut dx, dp, carry, &x, &p, before, dy, i);
            }
            if whole < width {
                frame_back::<false, C, N, K, FMA>(cell, &mut dx, dp, carry, &x, &p, before, dy, whole);
            }
        }
    }
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
                    let mut carry = vec![0.0; width];
                    let mut dp = [(); K].map(|()| vec![0.0; width]);
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
        let mut d = vec![0.0; K * c];
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
