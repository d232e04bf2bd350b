//! Chunks of heads with one decay for the whole head: weights between frames are scalars, and all work is matrix
//! products. The file is long because both passes share the intermediate results of a chunk.
//!
//! With `c_i` the summed logarithms up to frame i of the chunk and `s_j` the factor of input j, the weight of input j
//! in frame i is `e_ij s_j = e^(c_i - c_j) s_j`; with `a_ij = q_i k_j e_ij s_j`
//!
//! ```text
//! y_i = e^c_i S q_i + sum_j<=i a_ij v_j        S' = e^c_L S + sum_j e^(c_L - c_j) s_j v_j k_j^T
//! ```
//!
//! Matrices over pairs of frames are stored with the input j as the row.

use super::chunk::Chunk;
use super::sizes::Sizes;
use super::{Decay, Options};
use crate::matmul::{View, matmul};
use crate::memory;
use crate::simd::{LANES, axpy, dispatch, dot, exp, scale_all, sum};

pub(super) struct Kernel {
    /// `k_j q_i` of a group; then, for the heads of a group, e, a s and their gradients, `[frames, frames]` each.
    products: Vec<f32>,
    fade: Vec<f32>,
    scores: Vec<f32>,
    d_scores: Vec<f32>,
    d_products: Vec<f32>,
    /// Buffers for the heads of a group, `[frames, heads of a group, wide]`.
    scaled: Vec<f32>,
    read: Vec<f32>,
    input: Vec<f32>,
    clock: Clock,
    /// Sums over the inputs before a frame, `[frames]`.
    before: Vec<f32>,
}

/// The decay of one head over a chunk; each field is `[frames]`.
#[derive(Default)]
struct Clock {
    /// Summed logarithms, in f64 because differences of large sums may be small.
    summed: Vec<f64>,
    /// `e^c_i`, the decay from the state before the chunk to frame i.
    since: Vec<f32>,
    /// `e^(c_L - c_j)`, the decay from frame j to the state after the chunk.
    until: Vec<f32>,
    /// The input factors s, multiplied by the scale of the keys.
    input: Vec<f32>,
}

impl Clock {
    /// The decay over the whole chunk.
    fn whole(&self) -> f32 {
        self.since.last().copied().unwrap_or(1.0)
    }

    fn set(&mut self, chunk: &Chunk<'_>, head: usize) {
        let Options { heads, scale, .. } = chunk.sizes.options;
        self.summed.clear();
        self.input.clear();
        let mut sum = 0.0;
        match &chunk.sizes.options.decay {
            Decay::Constant(logs) => {
                for _ in 0..chunk.frames {
                    sum += f64::from(logs[head]);
                    self.summed.push(sum);
                }
                self.input.resize(chunk.frames, scale);
            }
            decay => {
                let inputs = matches!(decay, Decay::HeadAndInput);
                let width = if inputs { 2 * heads } else { heads };
                for gates in chunk.gates.chunks_exact(width) {
                    sum += f64::from(gates[head]);
                    self.summed.push(sum);
                    self.input.push(if inputs { scale * gates[heads + head] } else { scale });
                }
            }
        }
        self.since.resize(chunk.frames, 0.0);
        self.until.resize(chunk.frames, 0.0);
        exponentials(&mut self.since, &mut self.until, &self.summed);
    }
}

dispatch! {
    fn exponentials(since: &mut [f32], until: &mut [f32], summed: &[f64]) {
        let last = summed[summed.len() - 1];
        for ((since, until), c) in since.iter_mut().zip(until).zip(summed) {
            *since = exp(*c as f32);
            *until = exp((last - c) as f32);
        }
    }
}

dispatch! {
    /// `e [j, i] = e^(c_i - c_j)` from the diagonal on, 0 before it.
    fn fading(e: &mut [f32], c: &[f64]) {
        let n = c.len();
        for (j, e) in e.chunks_exact_mut(n).enumerate() {
            let (before, after) = e.split_at_mut(j);
            before.fill(0.0);
            for (e, ci) in after.iter_mut().zip(&c[j..]) {
                *e = exp((ci - c[j]) as f32);
            }
        }
    }
}

dispatch! {
    /// `a [j, i] = g e s_j`.
    fn weigh(a: &mut [f32], g: &[f32], e: &[f32], s: &[f32]) {
        let n = s.len();
        let rows = a.chunks_exact_mut(n).zip(g.chunks_exact(n)).zip(e.chunks_exact(n));
        for (((a, g), e), s) in rows.zip(s) {
            for ((a, g), e) in a.iter_mut().zip(g).zip(e) {
                *a = g * e * s;
            }
        }
    }
}

/// Inputs of [`weigh_backward`] for one head: over pairs of frames the gradient of the scores, the products and the
/// decay, and the input factors.
#[derive(Clone, Copy)]
struct Pairs<'a> {
    da: &'a [f32],
    g: &'a [f32],
    e: &'a [f32],
    s: &'a [f32],
}

dispatch! {
    /// Takes the gradient `da [j, i]` of the scores: computes `dg (+)= da e s` and adds to the gradients of s and of
    /// the logarithms. The logarithm at t is summed over the pairs of an input before t and a frame from t on, and only
    /// over these: nothing cancels.
    fn weigh_backward(dg: &mut [f32], ds: &mut [f32], dc: &mut [f32], before: &mut [f32], pairs: Pairs<'_>, first: bool) {
        let Pairs { da, g, e, s } = pairs;
        let n = s.len();
        before.fill(0.0);
        for j in 0..n {
            let span = j * n + j..j * n + n;
            let (da, g, e) = (&da[span.clone()], &g[span.clone()], &e[span.clone()]);
            let dg = &mut dg[span];
            let before = &mut before[j..n];
            if j > 0 {
                let mut sums = [0.0f32; LANES];
                for chunk in before.chunks(LANES) {
                    for (sum, v) in sums.iter_mut().zip(chunk) {
                        *sum += v;
                    }
                }
                dc[j] += sum(sums);
            }
            let mut sums = [0.0f32; LANES];
            for (((da, g), (e, dg)), before) in da
                .chunks(LANES)
                .zip(g.chunks(LANES))
                .zip(e.chunks(LANES).zip(dg.chunks_mut(LANES)))
                .zip(before.chunks_mut(LANES))
            {
                for ((((da, g), (e, dg)), before), sum) in da
                    .iter()
                    .zip(g)
                    .zip(e.iter().zip(dg.iter_mut()))
                    .zip(before.iter_mut())
                    .zip(sums.iter_mut())
                {
                    let faded = da * e;
                    let moved = faded * g;
                    *sum += moved;
                    *before += moved * s[j];
                    let d = faded * s[j];
                    *dg = if first { d } else { *dg + d };
                }
            }
            ds[j] += sum(sums);
        }
    }
}

dispatch! {
    /// `x *= factor`, for rows of `wide` values that are `stride` apart.
    fn scale_rows_in_place(x: &mut [f32], factors: &[f32], wide: usize, stride: usize) {
        for (x, f) in x.chunks_mut(stride).zip(factors) {
            for x in &mut x[..wide] {
                *x *= f;
            }
        }
    }
}

dispatch! {
    /// `sums[i] = factors[i] (a_i . b_i)`, for rows of `wide` values.
    fn row_dots(sums: &mut [f32], a: &[f32], a_stride: usize, b: &[f32], b_stride: usize, factors: &[f32], wide: usize) {
        let rows = a.chunks(a_stride).zip(b.chunks(b_stride)).zip(factors);
        for (sum, ((a, b), f)) in sums.iter_mut().zip(rows) {
            *sum = f * dot(&a[..wide], &b[..wide]);
        }
    }
}

dispatch! {
    /// `sum[0] += factor (a . b)`.
    fn add_dot(sum: &mut [f32], a: &[f32], b: &[f32], factor: f32) {
        sum[0] += factor * dot(a, b);
    }
}

dispatch! {
    /// `y_j += factor_j x_j`, for rows of `wide` values.
    fn add_rows_scaled(y: &mut [f32], y_stride: usize, x: &[f32], x_stride: usize, factors: &[f32], wide: usize) {
        for ((y, x), f) in y.chunks_mut(y_stride).zip(x.chunks(x_stride)).zip(factors) {
            axpy(&mut y[..wide], *f, &x[..wide]);
        }
    }
}

dispatch! {
    /// Runs one frame of one head by the recurrence itself: `S = fade S + (s v) k^T`, `y = S q`.
    pub fn recur(y: &mut [f32], state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], fade: f32, s: f32) {
        for ((y, v), state) in y.iter_mut().zip(v).zip(state.chunks_exact_mut(k.len())) {
            let v = s * v;
            for (state, k) in state.iter_mut().zip(k) {
                *state = fade * *state + v * k;
            }
            *y = dot(state, q);
        }
    }
}

/// Chunks with fewer frames are computed frame by frame, which is less work than matrix products.
const FEW: usize = 3;

impl Kernel {
    pub(super) fn new(sizes: &Sizes) -> Self {
        let Options { heads_per_group: heads, .. } = sizes.options;
        let chunk = sizes.chunk();
        let pairs = || memory::zeros(chunk * chunk);
        let rows = || memory::zeros(chunk * heads * sizes.wide);
        if sizes.time < FEW {
            return Kernel::empty();
        }
        Kernel {
            products: pairs(),
            fade: pairs(),
            scores: pairs(),
            scaled: rows(),
            ..Kernel::empty()
        }
    }

    fn empty() -> Self {
        Kernel {
            products: vec![],
            fade: vec![],
            scores: vec![],
            d_scores: vec![],
            d_products: vec![],
            scaled: vec![],
            read: vec![],
            input: vec![],
            clock: Clock::default(),
            before: vec![],
        }
    }

    /// Allocates the buffers of the backward pass.
    fn grow(&mut self, sizes: &Sizes) {
        let chunk = sizes.chunk();
        for pairs in [
            &mut self.products,
            &mut self.fade,
            &mut self.scores,
            &mut self.d_scores,
            &mut self.d_products,
        ] {
            pairs.resize(chunk * chunk, 0.0);
        }
        for rows in [&mut self.scaled, &mut self.read, &mut self.input] {
            rows.resize(chunk * sizes.options.heads_per_group * sizes.wide, 0.0);
        }
        self.before.resize(chunk, 0.0);
    }

    pub(super) fn forward(&mut self, chunk: &Chunk<'_>, read: &mut [f32], state: &mut [f32]) {
        if chunk.frames < FEW {
            return self.recurrent(chunk, read, state);
        }
        let (sizes, n) = (chunk.sizes, chunk.frames);
        let Options { heads, heads_per_group, key, .. } = sizes.options;
        let (wide, all) = (sizes.wide, heads * sizes.wide);
        let own = heads_per_group * wide;
        for group in 0..sizes.options.groups() {
            let (q, k) = (chunk.q(group), chunk.k(group));
            let state = &mut state[group * own * key..][..own * key];
            let first = group * own;
            let products = &mut self.products[..n * n];
            matmul(products, n, k, q.transposed(), false);
            let view = View::rows(state, own, key);
            matmul(&mut read[first..], all, q, view.transposed(), false);
            for h in 0..heads_per_group {
                let first = first + h * wide;
                self.clock.set(chunk, group * heads_per_group + h);
                let (fade, scores) = (&mut self.fade[..n * n], &mut self.scores[..n * n]);
                fading(fade, &self.clock.summed);
                weigh(scores, products, fade, &self.clock.input);
                scale_rows_in_place(&mut read[first..], &self.clock.since, wide, all);
                let scores = View::rows(scores, n, n).transposed();
                let v = View::strided(&chunk.v[first..], n, wide, all);
                matmul(&mut read[first..], all, scores, v, true);
                self.clock.weigh_inputs();
                let scaled = &mut self.scaled[h * wide..];
                copy_scaled(scaled, own, &chunk.v[first..], all, &self.clock.until, wide);
                scale_all(&mut state[h * wide * key..][..wide * key], self.clock.whole());
            }
            let scaled = View::rows(&self.scaled, n, own).transposed();
            matmul(state, key, scaled, k, true);
        }
    }

    fn recurrent(&mut self, chunk: &Chunk<'_>, read: &mut [f32], state: &mut [f32]) {
        let sizes = chunk.sizes;
        let Options { heads, heads_per_group, key, .. } = sizes.options;
        let wide = sizes.wide;
        for head in 0..heads {
            self.clock.set(chunk, head);
            let state = &mut state[head * wide * key..][..wide * key];
            for (i, stream) in chunk.streams.chunks_exact(chunk.width).enumerate() {
                let before = if i > 0 { self.clock.summed[i - 1] } else { 0.0 };
                let fade = exp((self.clock.summed[i] - before) as f32);
                let at = head / heads_per_group * key;
                let (q, k) = (&stream[chunk.q + at..][..key], &stream[chunk.k + at..][..key]);
                let at = (i * heads + head) * wide;
                let (read, v) = (&mut read[at..][..wide], &chunk.v[at..][..wide]);
                recur(read, state, q, k, v, fade, self.clock.input[i]);
            }
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
        let sizes = chunk.sizes;
        let own = sizes.options.heads_per_group * sizes.wide;
        let size = own * sizes.options.key;
        for group in 0..sizes.options.groups() {
            let span = group * size..(group + 1) * size;
            let (state, d_state) = (&state[span.clone()], &mut d_state[span]);
            self.group_backward(chunk, group, state, d_read, d_state, dv, d_gates);
            self.shared_backward(chunk, group, state, d_state, d_streams);
        }
    }

    /// Computes the gradients of one head alone; leaves `sum of da e s`, `e^c dy` and `e^(c_L - c) s v` of the group in
    /// their buffers.
    #[allow(clippy::too_many_arguments)]
    fn group_backward(
        &mut self,
        chunk: &Chunk<'_>,
        group: usize,
        state: &[f32],
        d_read: &[f32],
        d_state: &mut [f32],
        dv: &mut [f32],
        d_gates: &mut [f32],
    ) {
        let (sizes, n) = (chunk.sizes, chunk.frames);
        let Options { heads, heads_per_group, key, .. } = sizes.options;
        let (wide, all) = (sizes.wide, heads * sizes.wide);
        let own = heads_per_group * wide;
        let (q, k) = (chunk.q(group), chunk.k(group));
        let products = &mut self.products[..n * n];
        matmul(products, n, k, q.transposed(), false);
        // The values that each frame read from the state, and the gradient of its contribution to the state.
        matmul(&mut self.read, own, q, View::rows(state, own, key).transposed(), false);
        matmul(&mut self.input, own, k, View::rows(d_state, own, key).transposed(), false);
        for h in 0..heads_per_group {
            let (head, first) = (group * heads_per_group + h, group * own + h * wide);
            self.clock.set(chunk, head);
            let clock = &mut self.clock;
            let fade = &mut self.fade[..n * n];
            let scores = &mut self.scores[..n * n];
            let d_scores = &mut self.d_scores[..n * n];
            fading(fade, &clock.summed);
            weigh(scores, products, fade, &clock.input);
            let v = View::strided(&chunk.v[first..], n, wide, all);
            let dy = View::strided(&d_read[first..], n, wide, all);
            matmul(d_scores, n, v, dy.transposed(), false);
            matmul(&mut dv[first..], all, View::rows(scores, n, n), dy, false);

            let mut d = HeadGradients::new(n);
            let d_products = &mut self.d_products[..n * n];
            let pairs = Pairs { da: d_scores, g: products, e: fade, s: &clock.input };
            weigh_backward(
                d_products,
                &mut d.input,
                &mut d.logs,
                &mut self.before[..n],
                pairs,
                h == 0,
            );
            let (read, input) = (&self.read[h * wide..], &self.input[h * wide..]);
            row_dots(&mut d.since, &d_read[first..], all, read, own, &clock.since, wide);
            row_dots(&mut d.until, &chunk.v[first..], all, input, own, &clock.until, wide);
            let span = h * wide * key..(h + 1) * wide * key;
            add_dot(&mut d.whole, &state[span.clone()], &d_state[span.clone()], clock.whole());
            d.leave(clock, d_gates, head, &sizes.options);

            clock.weigh_inputs();
            add_rows_scaled(&mut dv[first..], all, input, own, &clock.until, wide);
            copy_scaled(
                &mut self.input[h * wide..],
                own,
                &chunk.v[first..],
                all,
                &clock.until,
                wide,
            );
            copy_scaled(&mut self.read[h * wide..], own, &d_read[first..], all, &clock.since, wide);
        }
    }

    /// Computes the gradients of the queries and keys that a group's heads share, and of the heads' states.
    fn shared_backward(
        &mut self,
        chunk: &Chunk<'_>,
        group: usize,
        state: &[f32],
        d_state: &mut [f32],
        d_streams: &mut [f32],
    ) {
        let (sizes, n) = (chunk.sizes, chunk.frames);
        let Options { heads_per_group, key, .. } = sizes.options;
        let own = heads_per_group * sizes.wide;
        let (q, k) = (chunk.q(group), chunk.k(group));
        let (q_at, k_at) = (sizes.options.q + group * key, sizes.options.k + group * key);
        let d_products = &mut self.d_products[..n * n];
        for j in 1..n {
            d_products[j * n..][..j].fill(0.0);
        }
        let d_products = View::rows(d_products, n, n);
        let (read, input) = (View::rows(&self.read, n, own), View::rows(&self.input, n, own));
        let width = sizes.width;
        matmul(&mut d_streams[q_at..], width, d_products.transposed(), k, false);
        matmul(&mut d_streams[q_at..], width, read, View::rows(state, own, key), true);
        matmul(&mut d_streams[k_at..], width, d_products, q, false);
        matmul(&mut d_streams[k_at..], width, input, View::rows(d_state, own, key), true);
        for h in 0..heads_per_group {
            self.clock.set(chunk, group * heads_per_group + h);
            let size = sizes.wide * key;
            scale_all(&mut d_state[h * size..][..size], self.clock.whole());
        }
        matmul(d_state, key, read.transposed(), q, true);
    }
}

dispatch! {
    /// `to_j = factor_j from_j`, for rows of `wide` values.
    fn copy_scaled(to: &mut [f32], to_stride: usize, from: &[f32], from_stride: usize, factors: &[f32], wide: usize) {
        for ((to, from), f) in to.chunks_mut(to_stride).zip(from.chunks(from_stride)).zip(factors) {
            for (to, from) in to[..wide].iter_mut().zip(&from[..wide]) {
                *to = from * f;
            }
        }
    }
}

impl Clock {
    /// Multiplies `until` by the input factors: the weight of an input in the state after the chunk.
    fn weigh_inputs(&mut self) {
        for (until, s) in self.until.iter_mut().zip(&self.input) {
            *until *= s;
        }
    }
}

/// Gradients of one head by frame.
struct HeadGradients {
    logs: Vec<f32>,
    input: Vec<f32>,
    /// The gradients through `e^c_i`; `until` has the gradients through `e^(c_L - c_j)`, without the input factor.
    since: Vec<f32>,
    until: Vec<f32>,
    /// The gradient through the decay of the state over the whole chunk.
    whole: [f32; 1],
}

impl HeadGradients {
    fn new(n: usize) -> Self {
        let zeros = || memory::zeros(n);
        HeadGradients {
            logs: zeros(),
            input: zeros(),
            since: zeros(),
            until: zeros(),
            whole: [0.0],
        }
    }

    /// Sums the gradients of each frame's logarithm, and writes them to the gates.
    fn leave(&mut self, clock: &Clock, d_gates: &mut [f32], head: usize, options: &Options) {
        let mut passed = 0.0;
        for (log, d) in self.logs.iter_mut().zip(&self.since).rev() {
            passed += d;
            *log += passed + self.whole[0];
        }
        let mut passed = 0.0;
        for (i, (d, s)) in self.until.iter().zip(&clock.input).enumerate() {
            self.logs[i] += passed;
            passed += d * s;
            self.input[i] += d;
        }
        let heads = options.heads;
        match options.decay {
            Decay::Constant(_) | Decay::Key => {}
            Decay::Head => {
                for (gates, d) in d_gates.chunks_exact_mut(heads).zip(&self.logs) {
                    gates[head] = *d;
                }
            }
            Decay::HeadAndInput => {
                let frames = d_gates.chunks_exact_mut(2 * heads);
                for (gates, (d, ds)) in frames.zip(self.logs.iter().zip(&self.input)) {
                    gates[head] = *d;
                    gates[heads + head] = options.scale * ds;
                }
            }
        }
    }
}
