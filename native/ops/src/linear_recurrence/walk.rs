//! The walk over the frames of one row, in vectors of channels, and its backward pass.

use std::mem::MaybeUninit;

use super::cells::Cell;
use crate::columns::{LANES, Lanes, Output, fill, load, store};
use crate::simd::{dispatch, mul_add};

/// One input of a cell within a tensor `[.., stride]`: the columns from `offset` on.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
    pub(super) offset: usize,
}

/// One input's gradient within a tensor `[.., stride]`: the columns from `offset` on.
#[derive(Clone, Copy)]
pub(super) struct OutputPart<'a> {
    pub(super) data: Output<'a>,
    pub(super) stride: usize,
    pub(super) offset: usize,
}

/// The work of a shard: `frames` frames from `first` on (counted over the whole batch), of which `present` exist, and
/// the columns from `column` on.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) first: usize,
    pub(super) frames: usize,
    pub(super) present: usize,
    pub(super) column: usize,
}

#[inline(always)]
fn lane<const N: usize>(x: &[Lanes; N], l: usize) -> [f32; N] {
    std::array::from_fn(|n| x[n][l])
}

/// Computes sixteen channels of a frame from `i` on; `h` is the previous state on entry and the new state on return.
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

dispatch! {
    /// Computes one frame of one row; `h [c]` is the previous state on entry and the new state on return. Inputs and
    /// parameters (see [`Cell::parameters`]) are `[c]` each.
    pub fn step<[C: Cell<N, K>, const N: usize, const K: usize], [C, N, K]>(
        cell: C,
        h: &mut [f32],
        inputs: [&[f32]; N],
        parameters: [&[f32]; K],
    ) {
        let c = h.len();
        let (inputs, parameters) = (inputs.map(|x| &x[..c]), parameters.map(|p| &p[..c]));
        for i in 0..c {
            let (a, b) = cell.gates::<FMA>(inputs.map(|x| x[i]), parameters.map(|p| p[i]));
            h[i] = mul_add::<FMA>(a, h[i], b);
        }
    }
}

/// The backward pass of [`frame`]. On entry `carry` is the gradient that the new state gets from later frames, without
/// the gradient `dy` of the output; on return `carry` is the gradient of the state `before`.
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
    /// Walks one row; `h` holds the first state on entry and is overwritten.
    pub(super) fn walk<[C: Cell<N, K>, const N: usize, const K: usize], [C, N, K]>(
        cell: C, y: OutputPart<'_>, h: &mut [f32], inputs: [Part<'_>; N], p: [&[f32]; K], span: Span,
    ) {
        let width = h.len();
        for t in span.first..span.first + span.frames {
            // SAFETY: only this shard writes these columns of this row.
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
    /// Walks one row backwards. `carry` and `dp` hold zeros on entry; on return they are the gradients of the first
    /// state `h0` and of the parameters.
    pub(super) fn walk_back<[C: Cell<N, K>, const N: usize, const K: usize], [C, N, K]>(
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
            // SAFETY: only this shard writes these columns of this row, and the columns of the inputs do not overlap.
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
