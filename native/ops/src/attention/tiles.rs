//! The arithmetic of one row on a CPU: blocks of queries against chunks of keys.

use std::ops::Range;

use super::window::{CHUNK, Window};
use crate::matmul::{View, matmul};
use crate::memory;
use crate::simd::{LANES, dispatch, dot, exp, mul_add};

/// Queries of a block.
pub(super) const BLOCK: usize = 16;

/// One row of the batch. Frames are counted from the oldest cached one that the first query sees.
pub(super) struct Sequence<'a> {
    pub(super) qkv: &'a [f32],
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    pub(super) seen: usize,
    pub(super) past: usize,
    pub(super) frames: usize,
}

/// Reads memory once in address order, to bring it into the cache: the elements of one head lie hundreds of bytes
/// apart, and the hardware does not prefetch such a stride.
pub(super) fn fetch(x: &[f32]) {
    let sum = x.iter().step_by(LANES).fold(0, |sum, v| sum ^ v.to_bits());
    std::hint::black_box(sum);
}

/// The location of a frame: a slot of the ring, or the sequence.
pub(super) enum Source {
    Slot(usize),
    Frame(usize),
}

impl Sequence<'_> {
    pub(super) fn chunks(&self, w: &Window) -> impl Iterator<Item = Chunk> {
        (0..self.frames).step_by(CHUNK).map(|begin| Chunk::new(w, self, begin))
    }

    /// Prefetches the frames of a chunk, which the heads read one after the other.
    pub(super) fn fetch(&self, w: &Window, chunk: Chunk) {
        fetch(&self.qkv[3 * chunk.begin * w.width()..3 * chunk.end * w.width()]);
    }

    #[inline(always)]
    pub(super) fn source(&self, window: usize, frame: usize) -> Source {
        match frame.checked_sub(self.past) {
            Some(frame) => Source::Frame(frame),
            None => Source::Slot((self.seen - self.past + frame) % window),
        }
    }

    #[inline(always)]
    pub(super) fn key(&self, w: &Window, head: usize, frame: usize) -> &[f32] {
        let d = w.width();
        match self.source(w.window, frame) {
            Source::Slot(slot) => &self.keys[slot * d + head * w.head_dim..][..w.head_dim],
            Source::Frame(t) => &self.qkv[(3 * t + 1) * d + head * w.head_dim..][..w.head_dim],
        }
    }

    #[inline(always)]
    pub(super) fn value(&self, w: &Window, head: usize, frame: usize) -> &[f32] {
        let d = w.width();
        match self.source(w.window, frame) {
            Source::Slot(slot) => &self.values[slot * d + head * w.head_dim..][..w.head_dim],
            Source::Frame(t) => &self.qkv[(3 * t + 2) * d + head * w.head_dim..][..w.head_dim],
        }
    }

    #[inline(always)]
    pub(super) fn query(&self, w: &Window, head: usize, t: usize) -> &[f32] {
        &self.qkv[3 * t * w.width() + head * w.head_dim..][..w.head_dim]
    }
}

/// Buffers for one head at a time, allocated once per shard. Rows are padded with zeros.
#[derive(Default)]
pub(super) struct Scratch {
    /// Rotated keys of a chunk `[keys, padded_dim]`; `keys_turned` is their transpose `[padded_dim, stride]`.
    pub(super) keys: Vec<f32>,
    pub(super) keys_turned: Vec<f32>,
    pub(super) values: Vec<f32>,
    pub(super) values_turned: Vec<f32>,
    /// Rotated queries of a block `[BLOCK, padded_dim]`.
    pub(super) queries: Vec<f32>,
    /// Scores of a block, then weights `[BLOCK, stride]`.
    pub(super) weights: Vec<f32>,
    /// Output of a block `[BLOCK, padded_dim]`.
    pub(super) mixed: Vec<f32>,
    /// Gradient of `keys`; each `d_` field is the gradient of the field after which it is named.
    pub(super) d_keys: Vec<f32>,
    pub(super) d_values: Vec<f32>,
    pub(super) d_queries: Vec<f32>,
    pub(super) d_mixed: Vec<f32>,
    pub(super) d_weights: Vec<f32>,
    /// Length of a row of transposed keys and of scores: an odd number of cache lines, since otherwise the rows of one
    /// column would share a few sets of the cache.
    pub(super) stride: usize,
}

impl Scratch {
    /// Allocates buffers for whole blocks if `blocks`, else for single queries; if `backward`, also for the gradients.
    pub(super) fn new(
        w: &Window,
        frames: usize,
        past: usize,
        blocks: bool,
        backward: bool,
    ) -> Self {
        let d = w.padded_dim();
        let most = (past + frames).min(w.window - 1 + CHUNK).next_multiple_of(LANES);
        let stride = if (most / LANES).is_multiple_of(2) { most + LANES } else { most };
        let zeros = |wanted: bool, n: usize| memory::zeros(if wanted { n } else { 0 });
        Scratch {
            keys: zeros(true, if blocks { most * d } else { d }),
            keys_turned: zeros(blocks, stride * d),
            values: zeros(blocks, most * d),
            values_turned: zeros(backward, stride * d),
            queries: zeros(true, BLOCK * d),
            weights: zeros(true, BLOCK * stride),
            mixed: zeros(true, BLOCK * d),
            d_keys: zeros(backward, most * d),
            d_values: zeros(backward, most * d),
            d_queries: zeros(backward, BLOCK * d),
            d_mixed: zeros(backward, BLOCK * d),
            d_weights: zeros(backward, BLOCK * stride),
            stride,
        }
    }
}

/// Queries of one chunk, and the frames that they see.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    /// The queries are `begin..end` of the sequence.
    pub(super) begin: usize,
    pub(super) end: usize,
    /// The first frame that one of the queries sees; `keys` counts the frames from there.
    pub(super) first: usize,
    pub(super) keys: usize,
}

/// At most `BLOCK` queries of a chunk.
pub(super) struct Block {
    pub(super) begin: usize,
    pub(super) end: usize,
    /// Keys of the chunk that at least one of the queries sees, as whole vectors.
    pub(super) keys: Range<usize>,
}

impl Block {
    #[inline(always)]
    pub(super) fn queries(&self) -> usize {
        self.end - self.begin
    }
}

impl Chunk {
    #[inline(always)]
    pub(super) fn new(w: &Window, row: &Sequence<'_>, begin: usize) -> Self {
        let end = (begin + CHUNK).min(row.frames);
        let first = (row.past + begin + 1).saturating_sub(w.window);
        Chunk { begin, end, first, keys: row.past + end - first }
    }

    /// The position of query t's own frame among the keys of the chunk.
    #[inline(always)]
    pub(super) fn position(&self, row: &Sequence<'_>, t: usize) -> usize {
        row.past + t - self.first
    }

    /// Keys of the chunk that query t sees.
    #[inline(always)]
    pub(super) fn seen(&self, w: &Window, row: &Sequence<'_>, t: usize) -> Range<usize> {
        let own = self.position(row, t);
        (own + 1).saturating_sub(w.window)..own + 1
    }

    #[inline(always)]
    pub(super) fn block(&self, w: &Window, row: &Sequence<'_>, begin: usize) -> Block {
        let end = (begin + BLOCK).min(self.end);
        let first = self.seen(w, row, begin).start / LANES * LANES;
        let last = self.seen(w, row, end - 1).end.next_multiple_of(LANES);
        Block { begin, end, keys: first..last }
    }
}

/// Transposes 16 rows of 16 elements by four rounds of the perfect shuffle.
#[inline(always)]
pub(super) fn turn_tile(rows: [[f32; LANES]; LANES]) -> [[f32; LANES]; LANES] {
    let mut now = rows;
    for _ in 0..4 {
        let mut next = [[0.0; LANES]; LANES];
        for i in 0..LANES / 2 {
            let (a, b) = (now[i], now[i + LANES / 2]);
            for j in 0..LANES / 2 {
                next[2 * i][2 * j] = a[j];
                next[2 * i][2 * j + 1] = b[j];
                next[2 * i + 1][2 * j] = a[LANES / 2 + j];
                next[2 * i + 1][2 * j + 1] = b[LANES / 2 + j];
            }
        }
        now = next;
    }
    now
}

/// `out [d, stride] = x^T`, `x [rows, d]`; rows and d are multiples of 16.
#[inline(always)]
pub(super) fn turn(out: &mut [f32], stride: usize, x: &[f32], rows: usize, d: usize) {
    for row in (0..rows).step_by(LANES) {
        for column in (0..d).step_by(LANES) {
            let mut tile = [[0.0; LANES]; LANES];
            for (i, tile) in tile.iter_mut().enumerate() {
                tile.copy_from_slice(&x[(row + i) * d + column..][..LANES]);
            }
            for (i, tile) in turn_tile(tile).iter().enumerate() {
                out[(column + i) * stride + row..][..LANES].copy_from_slice(tile);
            }
        }
    }
}

/// Reduces 16 elements by halves: sequentially, each step would wait for the one before.
#[inline(always)]
pub(super) fn fold(lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| f(lanes[i], lanes[i + 8]));
    let four: [f32; 4] = std::array::from_fn(|i| f(eight[i], eight[i + 4]));
    f(f(four[0], four[2]), f(four[1], four[3]))
}

/// Computes `e^(x - largest)` in place, 0 outside of `seen`; returns the sum and the largest element. The length of `x`
/// is a multiple of 16.
#[inline(always)]
pub fn exponentials(x: &mut [f32], seen: Range<usize>) -> (f32, f32) {
    // This comparison is one instruction; `f32::max` takes more, because it handles NaN.
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    x[..seen.start].fill(f32::NEG_INFINITY);
    x[seen.end..].fill(f32::NEG_INFINITY);
    let mut most = [f32::NEG_INFINITY; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            most[i] = larger(x[i], most[i]);
        }
    }
    let most = fold(most, larger);
    let mut sums = [0.0f32; LANES];
    for x in x.as_chunks_mut::<LANES>().0 {
        for i in 0..LANES {
            x[i] = exp(x[i] - most);
            sums[i] += x[i];
        }
    }
    x[..seen.start].fill(0.0);
    x[seen.end..].fill(0.0);
    (fold(sums, |a, b| a + b), most)
}

/// Copies keys (rotated) and values of a chunk, and the transposed keys.
#[inline(always)]
pub(super) fn load(w: &Window, row: &Sequence<'_>, head: usize, chunk: Chunk, s: &mut Scratch) {
    let d = w.padded_dim();
    for (j, out) in s.keys.chunks_exact_mut(d).take(chunk.keys).enumerate() {
        w.rotate(out, row.key(w, head, chunk.first + j), j, 1.0);
    }
    for (j, out) in s.values.chunks_exact_mut(d).take(chunk.keys).enumerate() {
        out[..w.head_dim].copy_from_slice(row.value(w, head, chunk.first + j));
    }
    let padded = chunk.keys.next_multiple_of(LANES);
    s.keys[chunk.keys * d..padded * d].fill(0.0);
    s.values[chunk.keys * d..padded * d].fill(0.0);
    turn(&mut s.keys_turned, s.stride, &s.keys, padded, d);
}

/// Copies the queries of a block, rotated and scaled.
#[inline(always)]
pub(super) fn load_queries(
    w: &Window,
    row: &Sequence<'_>,
    head: usize,
    chunk: Chunk,
    block: &Block,
    s: &mut Scratch,
) {
    let d = w.padded_dim();
    for (t, out) in (block.begin..block.end).zip(s.queries.chunks_exact_mut(d)) {
        w.rotate(out, row.query(w, head, t), chunk.position(row, t), w.scale());
    }
}

dispatch! {
    /// Writes the output of a chunk and a head to `y [t, heads * head_dim]`, and to `log_sums [t]` unless that is
    /// empty.
    pub(super) fn forward_chunk(w: &Window, row: &Sequence<'_>, chunk: Chunk, head: usize, s: &mut Scratch, y: &mut [f32], log_sums: &mut [f32]) {
        let (d, width) = (w.padded_dim(), w.width());
        load(w, row, head, chunk, s);
        for begin in (chunk.begin..chunk.end).step_by(BLOCK) {
            let block = chunk.block(w, row, begin);
            load_queries(w, row, head, chunk, &block, s);
            let (from, n, m) = (block.keys.start, block.keys.len(), block.queries());
            let keys = View::strided(&s.keys_turned[from..], w.head_dim, n, s.stride);
            let queries = View::strided(&s.queries, m, w.head_dim, d);
            matmul(&mut s.weights, s.stride, queries, keys, false);
            let mut inverse = [0.0; BLOCK];
            for (i, t) in (block.begin..block.end).enumerate() {
                let seen = chunk.seen(w, row, t);
                let scores = &mut s.weights[i * s.stride..][..n];
                let (sum, most) = exponentials(scores, seen.start - from..seen.end - from);
                inverse[i] = 1.0 / sum;
                if let Some(log_sum) = log_sums.get_mut(t) {
                    *log_sum = most + sum.ln();
                }
            }
            let weights = View::strided(&s.weights, m, n, s.stride);
            matmul(&mut s.mixed, d, weights, View::rows(&s.values[from * d..], n, d), false);
            for (i, t) in (block.begin..block.end).enumerate() {
                let out = &mut y[t * width + head * w.head_dim..][..w.head_dim];
                for (out, mixed) in out.iter_mut().zip(&s.mixed[i * d..]) {
                    *out = mixed * inverse[i];
                }
            }
        }
    }
}

dispatch! {
    /// Computes [`forward_chunk`] for a few queries, without laying the keys out for blocks; `y` holds only these
    /// queries.
    pub(super) fn forward_few(w: &Window, row: &Sequence<'_>, queries: Range<usize>, head: usize, s: &mut Scratch, y: &mut [f32], log_sums: &mut [f32]) {
        let (hd, width) = (w.head_dim, w.width());
        let chunk = Chunk::new(w, row, queries.start);
        for (i, t) in queries.enumerate() {
            let query = &mut s.queries[..hd];
            w.rotate(query, row.query(w, head, t), chunk.position(row, t), w.scale());
            let seen = chunk.seen(w, row, t);
            for j in seen.clone() {
                w.rotate(&mut s.keys, row.key(w, head, chunk.first + j), j, 1.0);
                s.weights[j] = dot(query, &s.keys[..hd]);
            }
            let scores = &mut s.weights[..seen.end.next_multiple_of(LANES)];
            let (sum, most) = exponentials(scores, seen.clone());
            if let Some(log_sum) = log_sums.get_mut(t) {
                *log_sum = most + sum.ln();
            }
            let mixed = &mut s.mixed[..hd];
            mixed.fill(0.0);
            for j in seen {
                for (out, v) in mixed.iter_mut().zip(row.value(w, head, chunk.first + j)) {
                    *out = mul_add::<FMA>(s.weights[j], *v, *out);
                }
            }
            for (out, mixed) in y[i * width + head * hd..][..hd].iter_mut().zip(mixed) {
                *out = *mixed / sum;
            }
        }
    }
}

dispatch! {
    /// Attention weights by age, `[t, window]`.
    pub(super) fn weights_of_head(w: &Window, row: &Sequence<'_>, head: usize, weights: &mut [f32]) {
        let (mut query, mut key) = (memory::zeros(w.head_dim), memory::zeros(w.head_dim));
        let mut scores = memory::zeros(w.window.next_multiple_of(LANES));
        for t in 0..row.frames {
            let chunk = Chunk::new(w, row, t);
            let seen = chunk.seen(w, row, t);
            w.rotate(&mut query, row.query(w, head, t), chunk.position(row, t), w.scale());
            for j in seen.clone() {
                w.rotate(&mut key, row.key(w, head, chunk.first + j), j, 1.0);
                scores[j] = dot(&query, &key);
            }
            let (sum, _) = exponentials(&mut scores, seen.clone());
            for j in seen.clone() {
                weights[t * w.window + seen.end - 1 - j] = scores[j] / sum;
            }
        }
    }
}

/// Inputs of a backward pass for one row of the batch, besides the row itself.
pub(super) struct Given<'a> {
    pub(super) y: &'a [f32],
    pub(super) dy: &'a [f32],
    pub(super) log_sums: &'a [f32],
}

/// The gradients of one row; the ring's gradients are empty if not wanted.
pub(super) struct Gradients<'a> {
    pub(super) qkv: &'a mut [f32],
    pub(super) keys: &'a mut [f32],
    pub(super) values: &'a mut [f32],
}

/// Adds the gradients of a chunk's keys and values to the gradients of their source.
#[inline(always)]
pub(super) fn store(
    w: &Window,
    row: &Sequence<'_>,
    head: usize,
    chunk: Chunk,
    s: &Scratch,
    out: &mut Gradients<'_>,
) {
    let (d, width, hd) = (w.padded_dim(), w.width(), w.head_dim);
    for j in 0..chunk.keys {
        let (d_key, d_value) = (&s.d_keys[j * d..][..hd], &s.d_values[j * d..][..hd]);
        let at = head * hd;
        let (key, value) = match row.source(w.window, chunk.first + j) {
            Source::Frame(t) => {
                let (key, value) = out.qkv[3 * t * width..][..3 * width].split_at_mut(2 * width);
                (&mut key[width + at..][..hd], &mut value[at..][..hd])
            }
            Source::Slot(_) if out.keys.is_empty() => continue,
            Source::Slot(slot) => {
                let at = slot * width + at;
                (&mut out.keys[at..][..hd], &mut out.values[at..][..hd])
            }
        };
        w.rotate_back(key, d_key, j, 1.0);
        for (value, d) in value.iter_mut().zip(d_value) {
            *value += d;
        }
    }
}

dispatch! {
    /// Recomputes the weights P: `dV = P^T dY`, `dS = P * (dY V^T - sum of dY * Y)`, `dQ = dS K`, `dK = dS^T Q`.
    pub(super) fn backward_chunk(w: &Window, row: &Sequence<'_>, chunk: Chunk, head: usize, s: &mut Scratch, given: &Given<'_>, out: &mut Gradients<'_>) {
        let (d, width, hd) = (w.padded_dim(), w.width(), w.head_dim);
        let time = given.log_sums.len() / w.heads;
        let log_sums = &given.log_sums[head * time..][..time];
        load(w, row, head, chunk, s);
        let padded = chunk.keys.next_multiple_of(LANES);
        turn(&mut s.values_turned, s.stride, &s.values, padded, d);
        s.d_keys[..padded * d].fill(0.0);
        s.d_values[..padded * d].fill(0.0);
        for begin in (chunk.begin..chunk.end).step_by(BLOCK) {
            let block = chunk.block(w, row, begin);
            load_queries(w, row, head, chunk, &block, s);
            let mut along = [0.0; BLOCK];
            for (i, t) in (block.begin..block.end).enumerate() {
                let at = t * width + head * hd;
                let (y, dy) = (&given.y[at..][..hd], &given.dy[at..][..hd]);
                s.d_mixed[i * d..][..hd].copy_from_slice(dy);
                along[i] = dot(y, dy);
            }
            let (from, n, m) = (block.keys.start, block.keys.len(), block.queries());
            let keys = View::strided(&s.keys_turned[from..], hd, n, s.stride);
            let queries = View::strided(&s.queries, m, hd, d);
            matmul(&mut s.weights, s.stride, queries, keys, false);
            let values = View::strided(&s.values_turned[from..], hd, n, s.stride);
            let d_mixed = View::strided(&s.d_mixed, m, hd, d);
            matmul(&mut s.d_weights, s.stride, d_mixed, values, false);
            for (i, t) in (block.begin..block.end).enumerate() {
                let weights = &mut s.weights[i * s.stride..][..n];
                let d_weights = &mut s.d_weights[i * s.stride..][..n];
                let seen = chunk.seen(w, row, t);
                for x in weights.iter_mut() {
                    *x = exp(*x - log_sums[t]);
                }
                weights[..seen.start - from].fill(0.0);
                weights[seen.end - from..].fill(0.0);
                for (d, p) in d_weights.iter_mut().zip(weights) {
                    *d = *p * (*d - along[i]);
                }
            }
            let d_weights = View::strided(&s.d_weights, m, n, s.stride);
            let keys = View::rows(&s.keys[from * d..], n, d);
            matmul(&mut s.d_queries, d, d_weights, keys, false);
            for (i, t) in (block.begin..block.end).enumerate() {
                let dq = &mut out.qkv[3 * t * width + head * hd..][..hd];
                w.rotate_back(dq, &s.d_queries[i * d..], chunk.position(row, t), w.scale());
            }
            let queries = View::rows(&s.queries, m, d);
            matmul(&mut s.d_keys[from * d..], d, d_weights.transposed(), queries, true);
            let weights = View::strided(&s.weights, m, n, s.stride);
            let d_mixed = View::rows(&s.d_mixed, m, d);
            matmul(&mut s.d_values[from * d..], d, weights.transposed(), d_mixed, true);
        }
        store(w, row, head, chunk, s, out);
    }
}
