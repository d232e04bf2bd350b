//! The walk over the frames of one row, and the backward pass over saved states.

use std::ops::Range;

use crate::memory;
use crate::simd::{
    LANES, dispatch, exp_with, load, mul_add, sigmoid_with, softplus_with, store, sum,
};

/// Frames between saved states. The states and decays of a chunk, for one block of channels, fit the first two cache
/// levels.
pub(super) const CHUNK: usize = 16;

/// One row of the batch; `a` is laid out for the kernel.
pub(super) struct Sequence<'a> {
    pub(super) u: &'a [f32],
    pub(super) dt: &'a [f32],
    pub(super) dt_bias: &'a [f32],
    pub(super) z: Option<&'a [f32]>,
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
    pub(super) c: &'a [f32],
    pub(super) d: &'a [f32],
    pub(super) channels: usize,
    pub(super) state: usize,
    pub(super) length: usize,
    pub(super) softplus: bool,
    pub(super) steady: bool,
}

/// Intermediate values of a chunk of whole frames, computed in memory order, so that the hardware prefetches, before
/// the walk over blocks of channels.
pub(super) struct Chunk {
    dt: Vec<f32>,
    /// Step size times input, `dt * u`.
    du: Vec<f32>,
    /// The product `C h`.
    out: Vec<f32>,
}

impl Chunk {
    pub(super) fn new(channels: usize) -> Self {
        let zeros = || memory::zeros(CHUNK * channels);
        Chunk { dt: zeros(), du: zeros(), out: zeros() }
    }

    /// Computes the values of the frames `span`.
    #[inline(always)]
    fn read<const FMA: bool>(&mut self, row: &Sequence<'_>, span: Range<usize>) {
        let c = row.channels;
        let frames = self.dt.chunks_exact_mut(c).zip(self.du.chunks_exact_mut(c));
        for ((to, du), at) in frames.zip(span.step_by(c)) {
            let dt = if row.steady { row.dt } else { &row.dt[at..at + c] };
            to.copy_from_slice(dt);
            for (to, bias) in to.iter_mut().zip(row.dt_bias) {
                *to += bias;
            }
            if row.softplus {
                for to in to.iter_mut() {
                    *to = softplus_with::<FMA>(*to);
                }
            }
            for ((du, dt), u) in du.iter_mut().zip(to).zip(&row.u[at..at + c]) {
                *du = *dt * u;
            }
        }
    }
}

/// Adds the skip and applies the gate, if they are given.
#[inline(always)]
fn finish<const FMA: bool>(y: &mut [f32], out: &[f32], row: &Sequence<'_>, first: usize) {
    let c = row.channels;
    for (i, (y, out)) in y.chunks_exact_mut(c).zip(out.chunks_exact(c)).enumerate() {
        let span = (first + i) * c..(first + i + 1) * c;
        y.copy_from_slice(out);
        for ((y, u), d) in y.iter_mut().zip(&row.u[span.clone()]).zip(row.d) {
            *y = mul_add::<FMA>(*d, *u, *y);
        }
        if let Some(z) = row.z {
            for (y, z) in y.iter_mut().zip(&z[span]) {
                *y *= z * sigmoid_with::<FMA>(*z);
            }
        }
    }
}

dispatch! {
    /// All frames of one row. `h` and the saved states are packed; if `kept` is empty, nothing is saved.
    pub(super) fn forward(y: &mut [f32], h: &mut [f32], kept: &mut [f32], scratch: &mut Chunk, row: &Sequence<'_>) {
        let (c, n) = (row.channels, row.state);
        let packed = h.len();
        for first in (0..row.length).step_by(CHUNK) {
            let count = CHUNK.min(row.length - first);
            scratch.read::<FMA>(row, first * c..(first + count) * c);
            let Chunk { dt, du, out } = scratch;
            if !kept.is_empty() {
                kept[first / CHUNK * packed..][..packed].copy_from_slice(h);
            }
            for (block, (h, a)) in
                h.chunks_exact_mut(n * LANES).zip(row.a.chunks_exact(n * LANES)).enumerate()
            {
                let at = block * LANES;
                let width = LANES.min(c - at);
                let (h, a) = (h.as_chunks_mut::<LANES>().0, a.as_chunks::<LANES>().0);
                for k in 0..count {
                    let (dt, du) = (load(dt, k * c + at, width), load(du, k * c + at, width));
                    let mut sum = [0.0; LANES];
                    let span = (first + k) * n..(first + k + 1) * n;
                    let (b, c_t) = (&row.b[span.clone()], &row.c[span]);
                    for (((h, a), b), c) in h.iter_mut().zip(a).zip(b).zip(c_t) {
                        for i in 0..LANES {
                            let decay = exp_with::<FMA>(dt[i] * a[i]);
                            h[i] = mul_add::<FMA>(decay, h[i], du[i] * b);
                            sum[i] = mul_add::<FMA>(h[i], *c, sum[i]);
                        }
                    }
                    store(out, k * c + at, width, sum);
                }
            }
            finish::<FMA>(&mut y[first * c..][..count * c], out, row, first);
        }
    }
}

dispatch! {
    /// [`forward`] for a few frames, with unpacked `h` and `row.a`, `[c, n]`: the SIMD vectors run over the state of
    /// one channel.
    pub(super) fn forward_few(y: &mut [f32], h: &mut [f32], scratch: &mut Chunk, row: &Sequence<'_>) {
        let (c, n) = (row.channels, row.state);
        scratch.read::<FMA>(row, 0..row.length * c);
        let Chunk { dt, du, out } = scratch;
        for t in 0..row.length {
            let (b, c_t) = (&row.b[t * n..][..n], &row.c[t * n..][..n]);
            let (dt, du) = (&dt[t * c..][..c], &du[t * c..][..c]);
            let states = h.chunks_exact_mut(n).zip(row.a.chunks_exact(n));
            for (((out, dt), du), (h, a)) in out[t * c..][..c].iter_mut().zip(dt).zip(du).zip(states) {
                let mut partial = [0.0; LANES];
                for j in (0..n).step_by(LANES) {
                    let width = LANES.min(n - j);
                    let (a, b, c) = (load(a, j, width), load(b, j, width), load(c_t, j, width));
                    let mut now = load(h, j, width);
                    for i in 0..LANES {
                        let decay = exp_with::<FMA>(dt * a[i]);
                        now[i] = mul_add::<FMA>(decay, now[i], du * b[i]);
                        partial[i] = mul_add::<FMA>(now[i], c[i], partial[i]);
                    }
                    store(h, j, width, now);
                }
                *out = sum(partial);
            }
        }
        finish::<FMA>(&mut y[..row.length * c], out, row, 0);
    }
}

/// Gradients of one row, and the gradients that all rows add to: `a` (packed), `d` and `dt_bias`.
pub(super) struct Gradients<'a> {
    pub(super) u: &'a mut [f32],
    pub(super) dt: &'a mut [f32],
    /// Empty if there is no gate.
    pub(super) z: &'a mut [f32],
    pub(super) b: &'a mut [f32],
    pub(super) c: &'a mut [f32],
    /// The packed gradient of the last state on entry, and of the first state on return.
    pub(super) h: &'a mut [f32],
    pub(super) a: &'a mut [f32],
    pub(super) d: &'a mut [f32],
    pub(super) dt_bias: &'a mut [f32],
}

/// Buffers of a backward pass: a chunk, the gradient of `C h + D u`, decays and states of one block, and gradients of B
/// and C in lanes.
pub(super) struct Scratch {
    chunk: Chunk,
    dy: Vec<f32>,
    /// The gradient of dt through the decays.
    through: Vec<f32>,
    decay: Vec<[f32; LANES]>,
    states: Vec<[f32; LANES]>,
    db: Vec<[f32; LANES]>,
    dc: Vec<[f32; LANES]>,
}

impl Scratch {
    pub(super) fn new(channels: usize, n: usize) -> Self {
        let zeros = |frames: usize| vec![[0.0; LANES]; frames * n];
        Scratch {
            chunk: Chunk::new(channels),
            dy: memory::zeros(CHUNK * channels),
            through: memory::zeros(CHUNK * channels),
            decay: zeros(CHUNK),
            states: zeros(CHUNK + 1),
            db: zeros(CHUNK),
            dc: zeros(CHUNK),
        }
    }
}

dispatch! {
    pub(super) fn backward(to: &mut Gradients<'_>, scratch: &mut Scratch, dy: &[f32], kept: &[f32], row: &Sequence<'_>) {
        let (c, n) = (row.channels, row.state);
        let packed = row.a.len();
        for first in (0..row.length).step_by(CHUNK).rev() {
            let count = CHUNK.min(row.length - first);
            let whole = first * c..(first + count) * c;
            scratch.chunk.read::<FMA>(row, whole.clone());
            let Scratch { chunk, dy: inner, through, decay, states, db, dc } = scratch;
            let Chunk { dt, du: chunk_du, out } = chunk;
            match row.z {
                Some(z) => {
                    for ((to, dy), z) in inner.iter_mut().zip(&dy[whole.clone()]).zip(&z[whole.clone()]) {
                        *to = dy * z * sigmoid_with::<FMA>(*z);
                    }
                }
                None => inner[..whole.len()].copy_from_slice(&dy[whole.clone()]),
            }
            db.fill([0.0; LANES]);
            dc.fill([0.0; LANES]);
            for (block, at) in (0..c).step_by(LANES).enumerate() {
                let width = LANES.min(c - at);
                let span = block * n * LANES..(block + 1) * n * LANES;
                let a = row.a[span.clone()].as_chunks::<LANES>().0;
                let dh = to.h[span.clone()].as_chunks_mut::<LANES>().0;
                let da = to.a[span.clone()].as_chunks_mut::<LANES>().0;
                states[..n]
                    .as_flattened_mut()
                    .copy_from_slice(&kept[first / CHUNK * packed..][span]);
                // Recomputes the states of the chunk.
                for k in 0..count {
                    let (dt, du) = (load(dt, k * c + at, width), load(chunk_du, k * c + at, width));
                    let at_t = (first + k) * n..(first + k + 1) * n;
                    let (b, c_t) = (&row.b[at_t.clone()], &row.c[at_t]);
                    let (before, after) = states[k * n..][..2 * n].split_at_mut(n);
                    let decay = &mut decay[k * n..][..n];
                    let mut sum = [0.0; LANES];
                    for j in 0..n {
                        // Copies, so that the compiler sees that the slices do not alias.
                        let (b, c, a, mut now) = (b[j], c_t[j], a[j], before[j]);
                        let mut fades = [0.0; LANES];
                        for i in 0..LANES {
                            fades[i] = exp_with::<FMA>(dt[i] * a[i]);
                            now[i] = mul_add::<FMA>(fades[i], now[i], du[i] * b);
                            sum[i] = mul_add::<FMA>(now[i], c, sum[i]);
                        }
                        (decay[j], after[j]) = (fades, now);
                    }
                    store(out, k * c + at, width, sum);
                }
                for k in (0..count).rev() {
                    let (dt, du) = (load(dt, k * c + at, width), load(chunk_du, k * c + at, width));
                    let dy = load(inner, k * c + at, width);
                    let at_t = (first + k) * n..(first + k + 1) * n;
                    let (b, c_t) = (&row.b[at_t.clone()], &row.c[at_t]);
                    let decay = &decay[k * n..][..n];
                    let (before, after) = states[k * n..][..2 * n].split_at(n);
                    let (db, dc) = (&mut db[k * n..][..n], &mut dc[k * n..][..n]);
                    let (mut through_b, mut through_a) = ([0.0; LANES], [0.0; LANES]);
                    for j in 0..n {
                        let (b, c, a, decay) = (b[j], c_t[j], a[j], decay[j]);
                        let (before, after) = (before[j], after[j]);
                        let (mut to_h, mut to_a, mut to_b, mut to_c) = (dh[j], da[j], db[j], dc[j]);
                        for i in 0..LANES {
                            let g = mul_add::<FMA>(c, dy[i], to_h[i]);
                            to_c[i] = mul_add::<FMA>(dy[i], after[i], to_c[i]);
                            to_b[i] = mul_add::<FMA>(g, du[i], to_b[i]);
                            through_b[i] = mul_add::<FMA>(g, b, through_b[i]);
                            to_h[i] = g * decay[i];
                            let q = to_h[i] * before[i];
                            through_a[i] = mul_add::<FMA>(q, a[i], through_a[i]);
                            to_a[i] = mul_add::<FMA>(q, dt[i], to_a[i]);
                        }
                        (dh[j], da[j], db[j], dc[j]) = (to_h, to_a, to_b, to_c);
                    }
                    // Overwrites `dt * u`, which is no longer needed.
                    store(chunk_du, k * c + at, width, through_b);
                    store(through, k * c + at, width, through_a);
                }
            }
            for (to, lanes) in to.b[first * n..][..count * n].iter_mut().zip(db.iter()) {
                *to = sum(*lanes);
            }
            for (to, lanes) in to.c[first * n..][..count * n].iter_mut().zip(dc.iter()) {
                *to = sum(*lanes);
            }
            scratch.end::<FMA>(to, dy, row, first, count);
        }
    }
}

impl Scratch {
    /// Gradients of the inputs of single channels.
    #[inline(always)]
    fn end<const FMA: bool>(
        &self,
        to: &mut Gradients<'_>,
        dy: &[f32],
        row: &Sequence<'_>,
        first: usize,
        count: usize,
    ) {
        let c = row.channels;
        for k in 0..count {
            let (own, global) = (k * c..(k + 1) * c, (first + k) * c..(first + k + 1) * c);
            let u = &row.u[global.clone()];
            let raw = if row.steady { row.dt } else { &row.dt[global.clone()] };
            let (inner, dt) = (&self.dy[own.clone()], &self.chunk.dt[own.clone()]);
            let (through_b, through_a) = (&self.chunk.du[own.clone()], &self.through[own.clone()]);
            let d_u = &mut to.u[global.clone()];
            for ((d_u, dt), through) in d_u.iter_mut().zip(dt).zip(through_b) {
                *d_u = dt * through;
            }
            for (((d_u, dy), d), (u, d_skip)) in
                d_u.iter_mut().zip(inner).zip(row.d).zip(u.iter().zip(to.d.iter_mut()))
            {
                *d_u = mul_add::<FMA>(*dy, *d, *d_u);
                *d_skip = mul_add::<FMA>(*dy, *u, *d_skip);
            }
            let d_dt = &mut to.dt[global.clone()];
            for (((to, a), b), u) in d_dt.iter_mut().zip(through_a).zip(through_b).zip(u) {
                *to = mul_add::<FMA>(*u, *b, *a);
            }
            if row.softplus {
                // For dt = ln(1 + e^x), the slope is sigmoid(x).
                if row.dt_bias.is_empty() {
                    for (to, raw) in d_dt.iter_mut().zip(raw) {
                        *to *= sigmoid_with::<FMA>(*raw);
                    }
                }
                for ((to, raw), bias) in d_dt.iter_mut().zip(raw).zip(row.dt_bias) {
                    *to *= sigmoid_with::<FMA>(raw + bias);
                }
            }
            for (sum, d) in to.dt_bias.iter_mut().zip(&*d_dt) {
                *sum += d;
            }
            if let Some(z) = row.z {
                let dz = &mut to.z[global.clone()];
                dz.copy_from_slice(&self.chunk.out[own]);
                for ((to, d), u) in dz.iter_mut().zip(row.d).zip(u) {
                    *to = mul_add::<FMA>(*d, *u, *to);
                }
                for ((to, dy), z) in dz.iter_mut().zip(&dy[global.clone()]).zip(&z[global]) {
                    let s = sigmoid_with::<FMA>(*z);
                    *to *= dy * s * (1.0 + z * (1.0 - s));
                }
            }
        }
    }
}
