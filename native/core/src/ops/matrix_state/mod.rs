//! Recurrences whose state is a matrix: Mamba-2, RetNet, GLA, mLSTM, by chunks.

mod head;
mod key;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::{Shape, Tensor};

use super::many::{self, Many, Numbers};
use super::matmul::View;
use super::recurrence::{Lengths, check_lengths, for_each_shard};
use super::simd::{self, dispatch};
use super::tensor;
use crate::weights::Weight;
use crate::{Error, Result};

/// How fast the state fades. All logarithms are of factors in 0..1, so at most 0.
#[derive(Debug, Clone)]
pub enum Decay {
    /// A logarithm per head, the same at every frame (RetNet). The gates are not read.
    Constant(Arc<[f32]>),
    /// The gates are a logarithm per frame and head, `[b, t, heads]`.
    Head,
    /// The gates are a logarithm and a factor of the key per frame and head, `[b, t, 2 * heads]`:
    /// first the logarithms of all heads, then the factors (Mamba-2's dt, mLSTM's input gate).
    HeadAndInput,
    /// The gates are a logarithm per frame, head and key channel, `[b, t, heads * key]` (GLA).
    Key,
}

impl Decay {
    /// The length of a chunk that costs least. Where key channels fade by themselves the products
    /// inside one are not matrix products, and half the length costs half.
    pub fn chunk(&self) -> usize {
        if matches!(self, Decay::Key) { 16 } else { 32 }
    }
}

/// Where the queries, keys and values of all heads lie in a frame of the streams `[b, t, ..]`, and
/// what else there is to the recurrence.
#[derive(Debug, Clone)]
pub struct Options {
    pub heads: usize,
    /// Heads that read the same queries and keys; they lie next to each other. A divisor of `heads`.
    pub heads_per_group: usize,
    /// Numbers of a query and of a key of one head.
    pub key: usize,
    /// Numbers of a value of one head.
    pub value: usize,
    /// First column of the queries `[heads / heads_per_group, key]`, of the keys, and of the values
    /// `[heads, value]`.
    pub q: usize,
    pub k: usize,
    pub v: usize,
    pub decay: Decay,
    /// What keys are multiplied with.
    pub scale: f32,
    /// Frames that are computed together; see [`Decay::chunk`].
    pub chunk: usize,
    pub lengths: Lengths,
}

impl Options {
    /// Queries, keys and values of `heads` heads side by side: `q | k | v`.
    pub fn side_by_side(heads: usize, key: usize, value: usize, decay: Decay) -> Self {
        Options {
            heads,
            heads_per_group: 1,
            key,
            value,
            q: 0,
            k: heads * key,
            v: 2 * heads * key,
            chunk: decay.chunk(),
            decay,
            scale: 1.0,
            lengths: None,
        }
    }

    fn groups(&self) -> usize {
        self.heads / self.heads_per_group
    }

    fn gates(&self) -> Option<usize> {
        match self.decay {
            Decay::Constant(_) => None,
            Decay::Head => Some(self.heads),
            Decay::HeadAndInput => Some(2 * self.heads),
            Decay::Key => Some(self.heads * self.key),
        }
    }

    fn check(&self, width: usize) -> Result<()> {
        let groups = self.heads / self.heads_per_group.max(1);
        if self.heads == 0 || groups * self.heads_per_group != self.heads {
            let what = "heads of a matrix state";
            let expected = format!("a multiple of {}", self.heads_per_group);
            return Err(Error::mismatch(what, expected, self.heads));
        }
        if matches!(self.decay, Decay::Key) && self.heads_per_group != 1 {
            let what = "heads that share keys which fade by channel";
            return Err(Error::mismatch(what, 1, self.heads_per_group));
        }
        if let Decay::Constant(logs) = &self.decay
            && logs.len() != self.heads
        {
            return Err(Error::mismatch("constant decays", self.heads, logs.len()));
        }
        let needed = [
            self.q + groups * self.key,
            self.k + groups * self.key,
            self.v + self.heads * self.value,
        ];
        match needed.into_iter().max() {
            Some(needed) if needed > width || self.key == 0 || self.value == 0 => {
                Err(Error::mismatch("columns of a matrix state", format!(">= {needed}"), width))
            }
            _ => Ok(()),
        }
    }
}

/// What is done to the values that were read.
#[derive(Debug, Clone, Default)]
pub enum Readout {
    #[default]
    Plain,
    /// `y + D v` with one weight a head (the skip of Mamba-2).
    Skip(Weight),
    /// `y / max(|n q|, e^-m)`, where n is the state of a value that is always 1 and `m [b, t, heads]`
    /// the logarithm by which the state is too small (Beck et al. 2024, eq. 21, stabilised). The
    /// state has n as one more row: `[b, heads, value + 1, key]`. No gradient flows through m: y does
    /// not depend on it.
    Normalised(Tensor),
}

/// `(y [b, t, heads * value], state after the last frame)` of the recurrence, for each head
///
/// ```text
/// S_t = S_{t-1} diag(e^decay_t) + input_t v_t k_t^T        y_t = S_t q_t
/// ```
///
/// with S `[value, key]` (Mamba-2's `ssm_state`, the transpose of what the RetNet and GLA papers
/// write). `streams [b, t, ..]` holds q, k and v (see [`Options`]), `gates` the decays and input factors
/// (see [`Decay`]), `state [b, heads, value, key]` the first state.
///
/// By chunks (Dao & Gu 2024, section 6; Yang et al. 2023, section 4): inside one the products of q and
/// k, weighted by how far the state faded between the two frames, times the values; between them
/// the state. A weight is the exponential of a difference of summed logarithms (f64), or a running
/// product of factors where each key channel fades by itself. Both are at most 1 and never divided
/// by: exact at any decay and length. The gradient of a decay is a sum over the pairs of frames that
/// it lies between, not a difference of larger sums.
pub fn matrix_state(
    streams: &Tensor,
    gates: Option<&Tensor>,
    state: &Tensor,
    readout: Readout,
    options: &Options,
) -> Result<(Tensor, Tensor)> {
    let (batch, time, width) = streams.dims3()?;
    options.check(width)?;
    check_lengths(&options.lengths, batch, time)?;
    let wide = options.value + usize::from(matches!(readout, Readout::Normalised(_)));
    let check = |what: &str, expected: &[usize], got: &[usize]| match got == expected {
        true => Ok(()),
        false => Err(Error::mismatch(what, format!("{expected:?}"), format!("{got:?}"))),
    };
    check("first matrix state", &[batch, options.heads, wide, options.key], state.dims())?;
    match (options.gates(), gates) {
        (Some(expected), Some(gates)) => {
            check("gates of a matrix state", &[batch, time, expected], gates.dims())?;
        }
        (Some(expected), None) => {
            return Err(Error::mismatch("gates of a matrix state", expected, "none"));
        }
        (None, _) => {}
    }
    let weights = match &readout {
        Readout::Plain => None,
        Readout::Skip(skip) => {
            check("skip of a matrix state", &[options.heads], skip.dims())?;
            Some(tensor::to_vec(skip)?)
        }
        Readout::Normalised(m) => {
            check("stabiliser of a matrix state", &[batch, time, options.heads], m.dims())?;
            Some(tensor::to_vec(m)?)
        }
    };
    let op = MatrixState {
        sizes: Sizes { batch, time, width, wide, options: options.clone() },
        readout,
        weights: weights.unwrap_or_default(),
        kept: OnceLock::new(),
    };
    let mut inputs = vec![streams, state];
    inputs.extend(gates.filter(|_| options.gates().is_some()));
    let [y, last] = many::take(many::apply(op, &inputs)?)?;
    Ok((y, last))
}

/// `matrix_state` of `q, k [b, t, heads, key]`, `v [b, t, heads, value]` that lie apart.
pub fn matrix_state_of(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    gates: Option<&Tensor>,
    state: &Tensor,
    decay: Decay,
    lengths: Lengths,
) -> Result<(Tensor, Tensor)> {
    let (_, _, heads, key) = k.dims4()?;
    let (_, _, _, value) = v.dims4()?;
    let flat = |x: &Tensor| x.flatten(2, 3);
    let streams = Tensor::cat(&[flat(q)?, flat(k)?, flat(v)?], 2)?;
    let options = Options { lengths, ..Options::side_by_side(heads, key, value, decay) };
    matrix_state(&streams, gates, state, Readout::Plain, &options)
}

/// The memory of a chunk grows with its square.
const MAX_CHUNK: usize = 256;

/// Shapes of one run.
struct Sizes {
    batch: usize,
    time: usize,
    /// Columns of the streams.
    width: usize,
    /// Rows of a head's state: its values, and one more for a normaliser.
    wide: usize,
    options: Options,
}

impl Sizes {
    /// Frames of a chunk.
    fn chunk(&self) -> usize {
        self.options.chunk.min(MAX_CHUNK).clamp(1, self.time.max(1))
    }

    fn chunks(&self) -> usize {
        self.time.div_ceil(self.chunk())
    }

    fn state(&self) -> usize {
        self.options.heads * self.wide * self.options.key
    }

    fn gates(&self) -> usize {
        self.options.gates().unwrap_or(0)
    }

    /// Rows of the batch in one shard.
    fn shard(&self) -> usize {
        self.batch.div_ceil(8).max(1)
    }

    fn length(&self, row: usize) -> usize {
        self.options.lengths.as_ref().map_or(self.time, |lengths| lengths[row])
    }

    /// The chunks of a row that has `length` frames.
    fn spans(&self, length: usize) -> impl DoubleEndedIterator<Item = (usize, Range<usize>)> {
        let chunk = self.chunk();
        (0..length.div_ceil(chunk)).map(move |i| (i, i * chunk..length.min((i + 1) * chunk)))
    }
}

struct MatrixState {
    sizes: Sizes,
    readout: Readout,
    /// D of a skip or m of a normaliser.
    weights: Vec<f32>,
    kept: OnceLock<Kept>,
}

struct Kept {
    /// The state before each chunk, `[b, chunks, heads, wide, key]`.
    states: Vec<f32>,
    /// Under a normaliser: n q of each frame and head, `[b, t, heads]`, and the results.
    norms: Vec<f32>,
    y: Vec<f32>,
}

/// Values and results of one chunk, `[frames, heads, wide]`, and what a kernel needs besides.
struct Chunk<'a> {
    sizes: &'a Sizes,
    frames: usize,
    /// The frames of the chunk in the streams and in the gates.
    streams: &'a [f32],
    gates: &'a [f32],
    /// The values; where there is a normaliser, with a 1 behind those of each head.
    v: &'a [f32],
}

impl Chunk<'_> {
    fn q(&self, group: usize) -> View<'_> {
        let Options { q, key, .. } = self.sizes.options;
        View::strided(&self.streams[q + group * key..], self.frames, key, self.sizes.width)
    }

    fn k(&self, group: usize) -> View<'_> {
        let Options { k, key, .. } = self.sizes.options;
        View::strided(&self.streams[k + group * key..], self.frames, key, self.sizes.width)
    }
}

dispatch! {
    /// `to [rows, wide]` gets the rows of `from`, each followed by a 1 where `wide` leaves room.
    fn widen(to: &mut [f32], from: &[f32], wide: usize, value: usize) {
        for (to, from) in to.chunks_exact_mut(wide).zip(from.chunks_exact(value)) {
            to[..value].copy_from_slice(from);
            to[value..].fill(1.0);
        }
    }
}

/// Lanes of a sum. In one lane each addition would wait for the one before.
const LANES: usize = 16;

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (chunks_a, rest_a) = a.as_chunks::<LANES>();
    let (chunks_b, rest_b) = b.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (a, b) in chunks_a.iter().zip(chunks_b) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    sum_lanes(&sums) + rest
}

/// Adds halves to halves: vector additions instead of a chain of sixteen.
#[inline(always)]
fn sum_lanes(sums: &[f32; LANES]) -> f32 {
    let mut s = *sums;
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            s[i] += s[i + n];
        }
        n /= 2;
    }
    s[0]
}

#[inline(always)]
fn axpy(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

dispatch! {
    fn scale_all(x: &mut [f32], factor: f32) {
        for x in x.iter_mut() {
            *x *= factor;
        }
    }
}

dispatch! {
    /// `y = read + D v`
    fn read_skip(y: &mut [f32], read: &[f32], v: &[f32], weights: &[f32], value: usize) {
        let heads = y.chunks_exact_mut(value).zip(read.chunks_exact(value)).zip(v.chunks_exact(value));
        for (((y, read), v), d) in heads.zip(weights.iter().cycle()) {
            for ((y, read), v) in y.iter_mut().zip(read).zip(v) {
                *y = read + d * v;
            }
        }
    }
}

dispatch! {
    /// `y = read / max(|n|, e^-m)`; leaves n in `norms`.
    fn read_normalised(y: &mut [f32], norms: &mut [f32], read: &[f32], m: &[f32], value: usize) {
        let heads = y.chunks_exact_mut(value).zip(read.chunks_exact(value + 1));
        for (((y, read), norm), m) in heads.zip(norms.iter_mut()).zip(m) {
            *norm = read[value];
            let scale = 1.0 / norm.abs().max((-m).exp());
            for (y, read) in y.iter_mut().zip(read) {
                *y = read * scale;
            }
        }
    }
}

dispatch! {
    /// The gradient of what was read, from that of `y = read / max(|n|, e^-m)`.
    fn read_normalised_backward(d: &mut [f32], dy: &[f32], y: &[f32], norms: &[f32], m: &[f32], value: usize) {
        let heads = d.chunks_exact_mut(value + 1).zip(dy.chunks_exact(value)).zip(y.chunks_exact(value));
        for (((d, dy), y), (norm, m)) in heads.zip(norms.iter().zip(m)) {
            let floor = (-m).exp();
            let scale = 1.0 / norm.abs().max(floor);
            let slope = dot(dy, y);
            for (d, dy) in d.iter_mut().zip(dy) {
                *d = dy * scale;
            }
            d[value] = if norm.abs() > floor { -slope * scale * norm.signum() } else { 0.0 };
        }
    }
}

dispatch! {
    /// Gradients of a skip: `dv += D dy`, `dD += dy v`.
    fn skip_backward(dv: &mut [f32], dd: &mut [f32], dy: &[f32], v: &[f32], weights: &[f32], value: usize) {
        let heads = weights.len();
        let rows = dv.chunks_exact_mut(value).zip(dy.chunks_exact(value)).zip(v.chunks_exact(value));
        for (i, ((dv, dy), v)) in rows.enumerate() {
            axpy(dv, weights[i % heads], dy);
            dd[i % heads] += dot(dy, v);
        }
    }
}

impl MatrixState {
    /// `(y, last state)`
    fn run(
        &self,
        streams: &[f32],
        gates: &[f32],
        first: &[f32],
        track: bool,
    ) -> (Vec<f32>, Vec<f32>) {
        let s = &self.sizes;
        let Options { heads, value, .. } = s.options;
        let (states, norms) = match (track, &self.readout) {
            (false, Readout::Normalised(_)) => (0, s.chunk() * heads),
            (false, _) => (0, 0),
            (true, Readout::Normalised(_)) => (s.chunks() * s.state(), s.time * heads),
            (true, _) => (s.chunks() * s.state(), 0),
        };
        let mut y = vec![0.0; s.batch * s.time * heads * value];
        let mut last = first.to_vec();
        let mut kept = Kept {
            states: vec![0.0; s.batch * states],
            norms: vec![0.0; s.batch * norms],
            y: vec![],
        };
        let buffers = [
            (&mut y[..], s.time * heads * value),
            (&mut last[..], s.state()),
            (&mut kept.states[..], states),
            (&mut kept.norms[..], norms),
        ];
        for_each_shard(s.batch, s.shard(), buffers, |rows, [y, last, kept, kept_norms]| {
            let mut kernel = Kernel::new(s);
            let mut v = vec![0.0; s.chunk() * heads * s.wide];
            let mut read = v.clone();
            for (i, row) in rows.enumerate() {
                let state = &mut last[i * s.state()..][..s.state()];
                for (c, span) in s.spans(s.length(row)) {
                    let chunk = self.chunk(streams, gates, row, &span, &mut v);
                    let kept = match track {
                        true => Some(&mut kept[i * states + c * s.state()..][..s.state()]),
                        false => None,
                    };
                    let read = &mut read[..chunk.frames * heads * s.wide];
                    kernel.forward(&chunk, read, state, kept);
                    let y = &mut y[(i * s.time + span.start) * heads * value..];
                    let y = &mut y[..span.len() * heads * value];
                    let norms = match track && norms > 0 {
                        true => &mut kept_norms[i * norms + span.start * heads..],
                        false => &mut kept_norms[i * norms..],
                    };
                    self.read(y, norms, read, chunk.v, row, &span);
                }
            }
        });
        if track {
            if norms > 0 {
                kept.y.clone_from(&y);
            }
            let _ = self.kept.set(kept);
        }
        (y, last)
    }

    /// A chunk of the streams, with its values copied to `v`.
    fn chunk<'a>(
        &'a self,
        streams: &'a [f32],
        gates: &'a [f32],
        row: usize,
        span: &Range<usize>,
        v: &'a mut [f32],
    ) -> Chunk<'a> {
        let s = &self.sizes;
        let Options { heads, value, v: first, .. } = s.options;
        let (from, to) = (row * s.time + span.start, row * s.time + span.end);
        let streams = &streams[from * s.width..to * s.width];
        let gates = &gates[from * s.gates()..to * s.gates()];
        let frames = v.chunks_exact_mut(heads * s.wide).zip(streams.chunks_exact(s.width));
        for (v, stream) in frames {
            widen(v, &stream[first..first + heads * value], s.wide, value);
        }
        Chunk { sizes: s, frames: span.len(), streams, gates, v: &v[..span.len() * heads * s.wide] }
    }

    /// From what the kernel read to y.
    fn read(
        &self,
        y: &mut [f32],
        norms: &mut [f32],
        read: &[f32],
        v: &[f32],
        row: usize,
        span: &Range<usize>,
    ) {
        let (heads, value) = (self.sizes.options.heads, self.sizes.options.value);
        match &self.readout {
            Readout::Plain => y.copy_from_slice(read),
            Readout::Skip(_) => read_skip(y, read, v, &self.weights, value),
            Readout::Normalised(_) => {
                let m = &self.weights[(row * self.sizes.time + span.start) * heads..];
                read_normalised(y, norms, read, m, value);
            }
        }
    }

    /// Gradients, from those of y and of the last state.
    fn gradients(
        &self,
        streams: &[f32],
        gates: &[f32],
        dy: &[f32],
        d_last: Option<&[f32]>,
    ) -> Option<Gradients> {
        let s = &self.sizes;
        let Options { heads, value, v: first, .. } = s.options;
        let kept = self.kept.get()?;
        let skips = if matches!(self.readout, Readout::Skip(_)) { heads } else { 0 };
        let mut d = Gradients {
            streams: vec![0.0; s.batch * s.time * s.width],
            gates: vec![0.0; s.batch * s.time * s.gates()],
            state: d_last.map_or_else(|| vec![0.0; s.batch * s.state()], <[f32]>::to_vec),
            skip: vec![0.0; s.batch * skips],
        };
        let buffers = [
            (&mut d.streams[..], s.time * s.width),
            (&mut d.gates[..], s.time * s.gates()),
            (&mut d.state[..], s.state()),
            (&mut d.skip[..], skips),
        ];
        for_each_shard(
            s.batch,
            s.shard(),
            buffers,
            |rows, [d_streams, d_gates, d_state, d_skip]| {
                let mut kernel = Kernel::new(s);
                let mut v = vec![0.0; s.chunk() * heads * s.wide];
                let (mut d_read, mut dv) = (v.clone(), v.clone());
                for (i, row) in rows.enumerate() {
                    let d_state = &mut d_state[i * s.state()..][..s.state()];
                    for (c, span) in s.spans(s.length(row)).rev() {
                        let chunk = self.chunk(streams, gates, row, &span, &mut v);
                        let at = row * s.time + span.start;
                        let state = &kept.states[(row * s.chunks() + c) * s.state()..][..s.state()];
                        let dy = &dy[at * heads * value..][..span.len() * heads * value];
                        let d_read = &mut d_read[..span.len() * heads * s.wide];
                        let dv = &mut dv[..span.len() * heads * s.wide];
                        match &self.readout {
                            Readout::Normalised(_) => read_normalised_backward(
                                d_read,
                                dy,
                                &kept.y[at * heads * value..],
                                &kept.norms[at * heads..],
                                &self.weights[at * heads..],
                                value,
                            ),
                            _ => d_read.copy_from_slice(dy),
                        }
                        let local = i * s.time + span.start;
                        let d_streams = &mut d_streams[local * s.width..][..span.len() * s.width];
                        let d_gates = &mut d_gates[local * s.gates()..][..span.len() * s.gates()];
                        kernel.backward(&chunk, state, d_read, d_state, dv, d_streams, d_gates);
                        if skips > 0 {
                            let d_skip = &mut d_skip[i * skips..][..skips];
                            skip_backward(dv, d_skip, dy, chunk.v, &self.weights, value);
                        }
                        let frames = d_streams.chunks_exact_mut(s.width);
                        for (d, dv) in frames.zip(dv.chunks_exact(heads * s.wide)) {
                            let d = d[first..first + heads * value].chunks_exact_mut(value);
                            for (d, dv) in d.zip(dv.chunks_exact(s.wide)) {
                                d.copy_from_slice(&dv[..value]);
                            }
                        }
                    }
                }
            },
        );
        Some(d)
    }
}

struct Gradients {
    streams: Vec<f32>,
    gates: Vec<f32>,
    state: Vec<f32>,
    /// Of the skip, for each row of the batch.
    skip: Vec<f32>,
}

/// The arithmetic of one chunk, with its buffers.
enum Kernel {
    Head(head::Kernel),
    Key(key::Kernel),
}

impl Kernel {
    fn new(sizes: &Sizes) -> Self {
        match sizes.options.decay {
            Decay::Key => Kernel::Key(key::Kernel::new(sizes)),
            _ => Kernel::Head(head::Kernel::new(sizes)),
        }
    }

    /// `read [frames, heads, wide]`; `state` moves on, and `kept` gets what it was.
    fn forward(
        &mut self,
        chunk: &Chunk<'_>,
        read: &mut [f32],
        state: &mut [f32],
        kept: Option<&mut [f32]>,
    ) {
        if let Some(kept) = kept {
            kept.copy_from_slice(state);
        }
        match self {
            Kernel::Head(kernel) => kernel.forward(chunk, read, state),
            Kernel::Key(kernel) => kernel.forward(chunk, read, state),
        }
    }

    /// Gradients of the queries and keys go to `d_streams`, of the gates to `d_gates`, of the values to
    /// `dv`; `d_state` is that of the state after the chunk on entry, of the one before it after.
    #[allow(clippy::too_many_arguments)]
    fn backward(
        &mut self,
        chunk: &Chunk<'_>,
        state: &[f32],
        d_read: &[f32],
        d_state: &mut [f32],
        dv: &mut [f32],
        d_streams: &mut [f32],
        d_gates: &mut [f32],
    ) {
        match self {
            Kernel::Head(k) => {
                k.backward(chunk, state, d_read, d_state, dv, d_streams, d_gates);
            }
            Kernel::Key(k) => {
                k.backward(chunk, state, d_read, d_state, dv, d_streams, d_gates);
            }
        }
    }
}

impl Many for MatrixState {
    fn name(&self) -> &'static str {
        "matrix-state"
    }

    fn forward(&self, inputs: &[&[f32]], track: bool) -> Vec<Numbers> {
        let gates = inputs.get(2).copied().unwrap_or_default();
        let (y, last) = self.run(inputs[0], gates, inputs[1], track);
        let Sizes { batch, time, wide, options, .. } = &self.sizes;
        let Options { heads, key, value, .. } = *options;
        vec![
            (y, Shape::from((*batch, *time, heads * value))),
            (last, Shape::from((*batch, heads, *wide, key))),
        ]
    }

    fn backward(
        &self,
        inputs: &[&[f32]],
        outputs: &[Option<&[f32]>],
        _wanted: &[bool],
    ) -> Vec<Vec<f32>> {
        let gates = inputs.get(2).copied().unwrap_or_default();
        let Options { heads, value, .. } = self.sizes.options;
        let none;
        let dy = match outputs[0] {
            Some(dy) => dy,
            None => {
                none = vec![0.0; self.sizes.batch * self.sizes.time * heads * value];
                &none
            }
        };
        let Some(d) = self.gradients(inputs[0], gates, dy, outputs[1]) else { return vec![] };
        if let Readout::Skip(skip) = &self.readout {
            skip.accumulate(|sum, accumulate| {
                if !accumulate {
                    sum.fill(0.0);
                }
                simd::add_rows(sum, &d.skip);
            });
        }
        vec![d.streams, d.state, d.gates]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_bounded_however_long_the_sequence() {
        let chunk = |chunk, time| {
            let options = Options { chunk, ..Options::side_by_side(1, 2, 2, Decay::Head) };
            Sizes { batch: 1, time, width: 6, wide: 2, options }.chunk()
        };
        assert_eq!([chunk(1 << 16, 1 << 20), chunk(1 << 16, 5), chunk(7, 60)], [256, 5, 7]);
    }
}
