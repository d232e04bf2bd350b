//! Chunks of heads with one decay for each key channel.
//!
//! The weight between an input and a frame is then a vector, and computing it as a quotient of cumulative factors would
//! overflow. Here a key is carried from frame to frame, multiplied by each frame's factor (`fading` in the code: `k_j
//! e^(c_i - c_j)`), and multiplied with each frame's query. A running product of factors in 0..1 may underflow to 0 but
//! never overflows. Apart from these short walks everything is a matrix product, as for heads with one decay.

use super::Options;
use super::chunk::Chunk;
use super::sizes::Sizes;
use crate::matmul::{View, matmul};
use crate::memory;
use crate::simd::{LANES, dispatch, dot, exp, scale_all};

/// Buffers of rows of `lanes` values, a multiple of [`LANES`]; values past the key are 0.
pub(super) struct Kernel {
    lanes: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    factors: Vec<f32>,
    /// `q_i e^c_i`; `until` is `k_j e^(c_L - c_j)`.
    since: Vec<f32>,
    until: Vec<f32>,
    /// The decay over the whole chunk, one row.
    whole: Vec<f32>,
    /// Scores over pairs of frames, with the input as the row.
    scores: Vec<f32>,
    d_scores: Vec<f32>,
    d_since: Vec<f32>,
    d_until: Vec<f32>,
    d_whole: Vec<f32>,
    d: Gradients,
}

#[derive(Default)]
struct Gradients {
    q: Vec<f32>,
    k: Vec<f32>,
    logs: Vec<f32>,
}

dispatch! {
    /// Copies `count` columns from `first` on of `from [frames, width]` to `to [frames, lanes]`.
    fn gather(to: &mut [f32], lanes: usize, from: &[f32], width: usize, first: usize, count: usize) {
        for (to, from) in to.chunks_exact_mut(lanes).zip(from.chunks_exact(width)) {
            to[..count].copy_from_slice(&from[first..first + count]);
        }
    }
}

dispatch! {
    /// The inverse of [`gather`].
    fn scatter(to: &mut [f32], width: usize, first: usize, from: &[f32], lanes: usize, count: usize) {
        for (to, from) in to.chunks_exact_mut(width).zip(from.chunks_exact(lanes)) {
            to[first..first + count].copy_from_slice(&from[..count]);
        }
    }
}

dispatch! {
    fn exponentials(x: &mut [f32]) {
        for x in x.iter_mut() {
            *x = exp(*x);
        }
    }
}

dispatch! {
    /// `scores [j, i] = sum of k_j e^(c_i - c_j) q_i`, and the keys after the chunk.
    fn meet(scores: &mut [f32], until: &mut [f32], q: &[f32], k: &[f32], factors: &[f32], lanes: usize) {
        let n = k.len() / lanes;
        for (j, fading) in until.chunks_exact_mut(lanes).enumerate() {
            let scores = &mut scores[j * n..(j + 1) * n];
            scores[..j].fill(0.0);
            fading.copy_from_slice(&k[j * lanes..(j + 1) * lanes]);
            scores[j] = dot(fading, &q[j * lanes..(j + 1) * lanes]);
            for i in j + 1..n {
                let (q, factors) = (&q[i * lanes..(i + 1) * lanes], &factors[i * lanes..(i + 1) * lanes]);
                for (x, f) in fading.iter_mut().zip(factors) {
                    *x *= f;
                }
                scores[i] = dot(fading, q);
            }
        }
    }
}

dispatch! {
    /// `since_i = q_i e^c_i`, and the decay over the whole chunk.
    fn fade_state(since: &mut [f32], whole: &mut [f32], q: &[f32], factors: &[f32]) {
        let lanes = whole.len();
        whole.fill(1.0);
        let frames = since.chunks_exact_mut(lanes).zip(q.chunks_exact(lanes)).zip(factors.chunks_exact(lanes));
        for ((since, q), factors) in frames {
            for (((since, q), f), whole) in since.iter_mut().zip(q).zip(factors).zip(whole.iter_mut()) {
                *whole *= f;
                *since = q * *whole;
            }
        }
    }
}

/// `LANES` values of a row.
#[inline(always)]
fn load(x: &[f32], at: usize) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes.copy_from_slice(&x[at..at + LANES]);
    lanes
}

dispatch! {
    /// Gradients through the walk of a decaying state: `dq_i = e^c_i d_since_i`, and the gradients of the logarithms.
    fn state_walk_backward(dq: &mut [f32], dlogs: &mut [f32], q: &[f32], factors: &[f32], d_since: &[f32], d_whole: &[f32]) {
        let lanes = d_whole.len();
        let n = q.len() / lanes;
        for b in (0..lanes).step_by(LANES) {
            let mut fading = [1.0f32; LANES];
            for i in 0..n {
                let (f, d) = (load(factors, i * lanes + b), load(d_since, i * lanes + b));
                // Stores the walk in the buffer of the logarithms' gradients.
                for l in 0..LANES {
                    fading[l] *= f[l];
                    dq[i * lanes + b + l] = fading[l] * d[l];
                    dlogs[i * lanes + b + l] = fading[l];
                }
            }
            let mut back = load(d_whole, b);
            for i in (0..n).rev() {
                let (f, d, q) = (load(factors, i * lanes + b), load(d_since, i * lanes + b), load(q, i * lanes + b));
                for l in 0..LANES {
                    back[l] += q[l] * d[l];
                    dlogs[i * lanes + b + l] *= back[l];
                    back[l] *= f[l];
                }
            }
        }
    }
}

/// Inputs of [`key_walks_backward`]: rows of `lanes` values, and the gradient of the scores.
#[derive(Clone, Copy)]
struct Walks<'a> {
    q: &'a [f32],
    k: &'a [f32],
    factors: &'a [f32],
    d_until: &'a [f32],
    d_scores: &'a [f32],
    lanes: usize,
}

dispatch! {
    /// Adds the gradients through the walk of each key to `dq` and `dlogs`, and writes `dk`. `trail` is a buffer for
    /// one walk.
    fn key_walks_backward(dq: &mut [f32], dk: &mut [f32], dlogs: &mut [f32], trail: &mut [f32], walks: Walks<'_>) {
        let Walks { q, k, factors, d_until, d_scores, lanes } = walks;
        let n = k.len() / lanes;
        for b in (0..lanes).step_by(LANES) {
            for j in 0..n {
                let mut fading = load(k, j * lanes + b);
                for i in j..n {
                    let (at, d) = (i * lanes + b, d_scores[j * n + i]);
                    let f = load(factors, at);
                    let dq = &mut dq[at..at + LANES];
                    let trail = &mut trail[i * LANES..(i + 1) * LANES];
                    for l in 0..LANES {
                        // The walk begins after the frame of the key.
                        fading[l] *= if i > j { f[l] } else { 1.0 };
                        dq[l] += d * fading[l];
                    }
                    trail.copy_from_slice(&fading);
                }
                let mut back = load(d_until, j * lanes + b);
                for i in (j + 1..n).rev() {
                    let (at, d) = (i * lanes + b, d_scores[j * n + i]);
                    let (f, q) = (load(factors, at), load(q, at));
                    let dlogs = &mut dlogs[at..at + LANES];
                    let trail = &trail[i * LANES..(i + 1) * LANES];
                    for l in 0..LANES {
                        back[l] += d * q[l];
                        dlogs[l] += trail[l] * back[l];
                        back[l] *= f[l];
                    }
                }
                let (q, d) = (load(q, j * lanes + b), d_scores[j * n + j]);
                let dk = &mut dk[j * lanes + b..][..LANES];
                for l in 0..LANES {
                    dk[l] = back[l] + d * q[l];
                }
            }
        }
    }
}

dispatch! {
    /// `S [wide, key] *= whole` in each row.
    fn fade_rows(state: &mut [f32], whole: &[f32]) {
        for state in state.chunks_exact_mut(whole.len()) {
            for (s, f) in state.iter_mut().zip(whole) {
                *s *= f;
            }
        }
    }
}

dispatch! {
    /// `sums[i] = sum over the rows of a_i b_i`.
    fn column_dots(sums: &mut [f32], a: &[f32], b: &[f32]) {
        sums.fill(0.0);
        for (a, b) in a.chunks_exact(sums.len()).zip(b.chunks_exact(sums.len())) {
            for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                *sum += a * b;
            }
        }
    }
}

dispatch! {
    /// Runs one frame of one head by the recurrence itself: `S = S diag(factors) + v k^T`, `y = S q`.
    pub fn recur(y: &mut [f32], state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], factors: &[f32]) {
        for ((y, v), state) in y.iter_mut().zip(v).zip(state.chunks_exact_mut(k.len())) {
            for ((state, k), f) in state.iter_mut().zip(k).zip(factors) {
                *state = f * *state + v * k;
            }
            *y = dot(state, q);
        }
    }
}

/// Chunks with fewer frames are computed frame by frame.
const FEW: usize = 3;

impl Kernel {
    pub(super) fn new(sizes: &Sizes) -> Self {
        let lanes = sizes.options.key.next_multiple_of(LANES);
        let chunk = sizes.chunk();
        let rows = || memory::zeros(chunk * lanes);
        Kernel {
            lanes,
            q: rows(),
            k: rows(),
            factors: rows(),
            since: rows(),
            until: rows(),
            whole: memory::zeros(lanes),
            scores: memory::zeros(chunk * chunk),
            d_scores: vec![],
            d_since: vec![],
            d_until: vec![],
            d_whole: vec![],
            d: Gradients::default(),
        }
    }

    /// Allocates the buffers of the backward pass.
    fn grow(&mut self, sizes: &Sizes) {
        let chunk = sizes.chunk();
        let d = &mut self.d;
        for rows in [&mut self.d_since, &mut self.d_until, &mut d.q, &mut d.k, &mut d.logs] {
            rows.resize(chunk * self.lanes, 0.0);
        }
        self.d_whole.resize(self.lanes, 0.0);
        self.d_scores.resize(chunk * chunk, 0.0);
    }

    /// Copies the queries, keys and factors of a head.
    fn read(&mut self, chunk: &Chunk<'_>, head: usize) {
        let Options { key, heads, .. } = chunk.sizes.options;
        let Chunk { width, q, k, .. } = *chunk;
        let lanes = self.lanes;
        let size = chunk.frames * lanes;
        gather(&mut self.q[..size], lanes, chunk.streams, width, q + head * key, key);
        gather(&mut self.k[..size], lanes, chunk.streams, width, k + head * key, key);
        scale_all(&mut self.k[..size], chunk.sizes.options.scale);
        let factors = &mut self.factors[..size];
        gather(factors, lanes, chunk.gates, heads * key, head * key, key);
        exponentials(factors);
    }

    /// The walks of the keys and of the state.
    fn walk(&mut self, n: usize) {
        let size = n * self.lanes;
        let (q, k, factors) = (&self.q[..size], &self.k[..size], &self.factors[..size]);
        meet(&mut self.scores[..n * n], &mut self.until[..size], q, k, factors, self.lanes);
        fade_state(&mut self.since[..size], &mut self.whole, q, factors);
    }

    pub(super) fn forward(&mut self, chunk: &Chunk<'_>, read: &mut [f32], state: &mut [f32]) {
        let (sizes, n) = (chunk.sizes, chunk.frames);
        let Options { heads, key, .. } = sizes.options;
        let (wide, all) = (sizes.wide, heads * sizes.wide);
        for head in 0..heads {
            self.read(chunk, head);
            let state = &mut state[head * wide * key..][..wide * key];
            let first = head * wide;
            if n < FEW {
                self.recurrent(chunk, &mut read[first..], &chunk.v[first..], state);
                continue;
            }
            self.walk(n);
            let v = View::strided(&chunk.v[first..], n, wide, all);
            let since = View::strided(&self.since, n, key, self.lanes);
            let until = View::strided(&self.until, n, key, self.lanes);
            let scores = View::rows(&self.scores, n, n).transposed();
            let view = View::rows(state, wide, key);
            matmul(&mut read[first..], all, since, view.transposed(), false);
            matmul(&mut read[first..], all, scores, v, true);
            fade_rows(state, &self.whole[..key]);
            matmul(state, key, v.transposed(), until, true);
        }
    }

    fn recurrent(&self, chunk: &Chunk<'_>, read: &mut [f32], v: &[f32], state: &mut [f32]) {
        let Options { heads, key, .. } = chunk.sizes.options;
        let wide = chunk.sizes.wide;
        for i in 0..chunk.frames {
            let row = |x: &[f32]| i * self.lanes..i * self.lanes + key.min(x.len());
            let (q, k) = (&self.q[row(&self.q)], &self.k[row(&self.k)]);
            let factors = &self.factors[row(&self.factors)];
            let at = i * heads * wide;
            recur(&mut read[at..at + wide], state, q, k, &v[at..at + wide], factors);
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn backward(
        &mut self,
        chunk: &Chunk<'_>,
        state: &[f32],
        d_read: &[f32],
        d_state: &mut [f32],
        dv: &mut [f32],
        d_streams: &mut [f32],
        d_gates: &mut [f32],
    ) {
        self.grow(chunk.sizes);
        let (sizes, n) = (chunk.sizes, chunk.frames);
        let Options { heads, key, q: q_at, k: k_at, .. } = sizes.options;
        let (wide, all, lanes) = (sizes.wide, heads * sizes.wide, self.lanes);
        for head in 0..heads {
            self.read(chunk, head);
            self.walk(n);
            let state = &state[head * wide * key..][..wide * key];
            let d_state = &mut d_state[head * wide * key..][..wide * key];
            let first = head * wide;
            let v = View::strided(&chunk.v[first..], n, wide, all);
            let dy = View::strided(&d_read[first..], n, wide, all);
            let scores = View::rows(&self.scores, n, n);
            let since = View::strided(&self.since, n, key, lanes);
            let until = View::strided(&self.until, n, key, lanes);
            matmul(&mut self.d_scores, n, v, dy.transposed(), false);
            matmul(&mut dv[first..], all, scores, dy, false);
            matmul(&mut dv[first..], all, until, View::rows(d_state, wide, key).transposed(), true);
            matmul(&mut self.d_since, lanes, dy, View::rows(state, wide, key), false);
            matmul(&mut self.d_until, lanes, v, View::rows(d_state, wide, key), false);
            column_dots(&mut self.d_whole[..key], state, d_state);
            fade_rows(d_state, &self.whole[..key]);
            matmul(d_state, key, dy.transposed(), since, true);
            self.walks_backward(n);
            scale_all(&mut self.d.k, sizes.options.scale);
            let d = &self.d;
            scatter(d_streams, sizes.width, q_at + head * key, &d.q, lanes, key);
            scatter(d_streams, sizes.width, k_at + head * key, &d.k, lanes, key);
            scatter(d_gates, heads * key, head * key, &d.logs, lanes, key);
        }
    }

    fn walks_backward(&mut self, n: usize) {
        let size = n * self.lanes;
        let Gradients { q: dq, k: dk, logs } = &mut self.d;
        let (dq, dk, logs) = (&mut dq[..size], &mut dk[..size], &mut logs[..size]);
        let (q, k, factors) = (&self.q[..size], &self.k[..size], &self.factors[..size]);
        state_walk_backward(dq, logs, q, factors, &self.d_since[..size], &self.d_whole);
        let walks = Walks {
            q,
            k,
            factors,
            d_until: &self.d_until[..size],
            d_scores: &self.d_scores[..n * n],
            lanes: self.lanes,
        };
        // The walks of the forward pass are no longer needed.
        key_walks_backward(dq, dk, logs, &mut self.since[..n * LANES], walks);
    }
}
