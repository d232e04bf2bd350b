//! Causal attention over a window that slides, with the rotation of queries and keys inside.

#[cfg(any(test, feature = "flash-attn"))]
pub(in crate::ops) mod flash;
mod residual;
pub mod softmax;

use std::ops::Range;
use std::sync::{Arc, Mutex};

use candle_core::{Device, Tensor};

use crate::memory;
use crate::ops::columns::{copied, filled, zeroed};
use crate::ops::form::Form;
use crate::ops::lengths::{Lengths, check_lengths};
use crate::ops::matmul::{View, matmul};
use crate::ops::op::{self, Op};
use crate::ops::simd::{LANES, dispatch, dot, exp, mul_add};
use crate::ops::{card, composed, simd, tape, tensor};
use crate::{Error, Result};

pub use residual::{Projections, attention_residual};
pub use softmax::{masked_softmax, softmax};

/// Which numbers of a head are turned as pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// `(i, i + head_dim / 2)`
    Half,
    /// `(2i, 2i + 1)`
    Interleaved,
}

/// The base of the angles in Su et al. 2021.
pub const THETA: f64 = 10_000.0;

/// Sizes of an attention, and its table of rotations: made once, used at every pass.
#[derive(Debug)]
pub struct Window {
    heads: usize,
    head_dim: usize,
    /// Frames that a query sees, its own among them.
    window: usize,
    pairing: Pairing,
    /// Of the angles `position * theta^(-2i / head_dim)`, `[positions, head_dim / 2]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// The same on devices that were asked for it.
    on_devices: Mutex<Vec<[Tensor; 2]>>,
}

/// Queries that share one copy of the keys they see. Positions are counted from the first of these
/// keys, so the table ends at `window + CHUNK` and angles are as small in a long game as in a short.
pub(in crate::ops) const CHUNK: usize = 64;
/// Queries that are worked on at once.
const BLOCK: usize = 16;
/// So few queries are worked on one by one: to lay the keys out for blocks would cost more.
const FEW: usize = 3;
/// Shards of a batch, at most.
const SHARDS: usize = 16;

impl Window {
    /// Shape of the numbers that it keeps.
    pub fn table(head_dim: usize, window: usize) -> [usize; 2] {
        [window.saturating_add(CHUNK), head_dim]
    }

    pub fn new(
        heads: usize,
        head_dim: usize,
        window: usize,
        pairing: Pairing,
        theta: f64,
    ) -> Result<Self> {
        for (name, n) in [("heads", heads), ("window", window)] {
            if n == 0 {
                return Err(Error::mismatch(format!("{name} of an attention"), "at least 1", n));
            }
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(Error::mismatch("head_dim of an attention", "an even number", head_dim));
        }
        let half = head_dim / 2;
        let angles = (0..(window + CHUNK) * half).map(|at| {
            let (position, i) = ((at / half) as f64, (at % half) as f64);
            position * theta.powf(-2.0 * i / head_dim as f64)
        });
        let (cos, sin) = angles.map(|a| (a.cos() as f32, a.sin() as f32)).unzip();
        let on_devices = Mutex::default();
        Ok(Window { heads, head_dim, window, pairing, cos, sin, on_devices })
    }

    /// Width of the queries of all heads side by side; also of the keys, and of the values.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Frames that a query sees, its own among them.
    pub fn frames(&self) -> usize {
        self.window
    }

    /// What scores are multiplied with.
    pub fn scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Cosines and sines of a position, `[head_dim / 2]` each.
    #[inline(always)]
    pub fn rotation(&self, position: usize) -> (&[f32], &[f32]) {
        let half = self.head_dim / 2;
        (&self.cos[position * half..][..half], &self.sin[position * half..][..half])
    }

    pub(in crate::ops) fn heads(&self) -> usize {
        self.heads
    }

    pub(in crate::ops) fn head_dim(&self) -> usize {
        self.head_dim
    }

    pub(in crate::ops) fn pairing(&self) -> Pairing {
        self.pairing
    }

    /// Cosines and sines of all positions, `[positions, head_dim / 2]`, which stay on the device.
    pub(in crate::ops) fn rotations(&self, device: &Device) -> Result<[Tensor; 2]> {
        let mut made = self.on_devices.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(tables) = made.iter().find(|[cos, _]| cos.device().same_device(device)) {
            return Ok(tables.clone());
        }
        let half = self.head_dim / 2;
        let table = |x: &[f32]| Tensor::from_slice(x, (x.len() / half, half), device);
        let tables = [table(&self.cos)?, table(&self.sin)?];
        made.push(tables.clone());
        Ok(tables)
    }

    /// `[b, t]` of queries, keys and values that fit.
    fn check_streams(&self, qkv: &Tensor) -> Result<[usize; 2]> {
        let (batch, time, width) = qkv.dims3()?;
        let expected = [batch, time, 3 * self.width()];
        tensor::check_shape("queries, keys and values", &expected, &[batch, time, width])?;
        Ok([batch, time])
    }

    fn check_cache(&self, cache: &Cache, batch: usize) -> Result<()> {
        let ring = [batch, self.window, self.width()];
        tensor::check_shape("cached keys", &ring, cache.keys.dims())?;
        tensor::check_shape("cached values", &ring, cache.values.dims())?;
        tensor::check_shape("frames seen by a cache", &[batch, 1], cache.seen.dims())
    }

    /// `[b, t]` of what fits together.
    pub(in crate::ops) fn check(
        &self,
        qkv: &Tensor,
        cache: &Cache,
        lengths: &Lengths,
    ) -> Result<[usize; 2]> {
        let [batch, time] = self.check_streams(qkv)?;
        self.check_cache(cache, batch)?;
        check_lengths(lengths, batch, time)?;
        Ok([batch, time])
    }

    fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }
}

/// Keys and values of the last frames, as they were before rotation.
#[derive(Debug, Clone)]
pub struct Cache {
    /// A ring `[b, window, heads * head_dim]`: frame f of a game lies in slot `f % window`.
    pub keys: Tensor,
    pub values: Tensor,
    /// Frames seen, `[b, 1]`: counted up to `window`, and from there on in `window..2 * window`, so that
    /// it never grows and `seen % window` is always the next slot.
    pub seen: Tensor,
}

impl Cache {
    /// The cache of `batch` games that have not begun.
    pub fn empty(window: &Window, batch: usize) -> Result<Self> {
        // One zero that stands for all of them.
        let ring = tensor::zeros(&[1])?.broadcast_as((batch, window.window, window.width()))?;
        Ok(Cache { keys: ring.clone(), values: ring, seen: tensor::zeros(&[batch, 1])? })
    }

    /// Whether this is what [`empty`](Self::empty) gave, on whatever device: a single number that stands for all.
    #[cfg(any(test, feature = "flash-attn"))]
    fn is_blank(&self) -> bool {
        [&self.keys, &self.values].into_iter().all(|ring| ring.stride().iter().all(|&n| n == 0))
    }

    /// Frames that each row has seen.
    fn seen(&self, window: usize) -> Result<Vec<usize>> {
        tensor::to_vec(&self.seen)?.into_iter().map(|seen| frames_seen(seen, window)).collect()
    }
}

/// What a cache says of one row.
///
/// # Errors
/// `OutOfRange` for what no cache of such a window says.
pub fn frames_seen(seen: f32, window: usize) -> Result<usize> {
    match (0.0..2.0 * window as f32).contains(&seen) && seen.fract() == 0.0 {
        true => Ok(seen as usize),
        false => {
            let most = 2 * window - 1;
            Err(Error::out_of_range("frames seen by a cache", seen.into(), 0.0, most as f64))
        }
    }
}

/// Frames seen, as a [`Cache`] counts them, after so many more.
pub fn count_on(seen: usize, frames: usize, window: usize) -> usize {
    match seen + frames {
        n if n < window => n,
        n => window + n % window,
    }
}

/// `softmax(rotate(q) rotate(k)^T / sqrt(head_dim)) v` of each head, and the cache after the sequence
/// (Vaswani et al. 2017, eq. 1; RoPE: Su et al. 2021, eq. 34; the window: Beltagy et al. 2020).
///
/// `qkv [b, t, 3 * heads * head_dim]` holds queries, keys and values, each head after head; the result is
/// `[b, t, heads * head_dim]`. The query of frame t sees the frames s with `0 <= t - s < window`, those
/// in the cache among them.
///
/// Scores exist for a block of queries at a time. What is kept for the backward pass is the logarithm
/// of each softmax's denominator; scores are computed again from it (Dao et al. 2022).
pub fn attention(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
) -> Result<(Tensor, Cache)> {
    match attend(qkv, cache, window, lengths, true)? {
        (y, Some(cache)) => Ok((y, cache)),
        (_, None) => Err(Error::not_found("the cache after a sequence")),
    }
}

/// [`attention()`], and the cache after the sequence where it is to be `cached`.
pub(in crate::ops) fn attend(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
    cached: bool,
) -> Result<(Tensor, Option<Cache>)> {
    match Form::of(qkv) {
        Form::Cpu => {}
        Form::Card if card::has_heads_of(window) => {
            return card::attention(qkv, cache, window, &lengths, cached);
        }
        Form::Card | Form::Composed => {
            return composed::attention::attend(qkv, cache, window, lengths, cached);
        }
    }
    let pass = Arc::new(Pass::of(qkv, cache, window, lengths)?);
    let qkv = tape::contiguous(qkv)?;
    let [keys, values] = pass.rings(cache)?;
    let shape = (pass.batch, pass.time, window.width());
    let op = Attend { pass: pass.clone(), log_sums: vec![] };
    let y = op::apply(op, &[&qkv, &keys, &values], shape)?;
    Ok((y, cached.then(|| append(&pass, &qkv, cache)).transpose()?))
}

/// The cache after the sequence.
fn append(pass: &Arc<Pass>, qkv: &Tensor, cache: &Cache) -> Result<Cache> {
    let append = |ring: &Tensor, part| {
        op::apply(Append { pass: pass.clone(), part }, &[ring, qkv], ring.shape())
    };
    let (keys, values) = (append(&cache.keys, Part::Keys)?, append(&cache.values, Part::Values)?);
    Ok(Cache { keys, values, seen: pass.seen_after()? })
}

/// [`attention()`] of the last query of each row alone, `[b, 1, heads * head_dim]`, and where it is to be
/// `cached` the cache after the sequence. Where a gradient may be asked for it is that of all queries, cut.
pub fn attention_of_last(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    cached: bool,
) -> Result<(Tensor, Option<Cache>)> {
    let form = Form::of(qkv);
    let wants = [qkv, &cache.keys, &cache.values].into_iter().any(tape::wants);
    if form == Form::Card && card::has_heads_of(window) && !wants {
        return card::attention_of_last(qkv, cache, window, cached);
    }
    if form != Form::Cpu || wants {
        let (y, cache) = attend(qkv, cache, window, None, cached)?;
        return Ok((y.narrow(1, y.dim(1)? - 1, 1)?, cache));
    }
    let pass = Arc::new(Pass::of(qkv, cache, window, None)?);
    let qkv = qkv.contiguous()?;
    let [keys, values] = pass.rings(cache)?;
    let y = tensor::with_all(&[qkv.clone(), keys, values], |all| Ok(pass.of_last(all)))?;
    let y = tensor::tensor(y, (pass.batch, 1, window.width()))?;
    Ok((y, cached.then(|| append(&pass, &qkv, cache)).transpose()?))
}

/// The weights that [`attention`] gives to the frames a query sees, `[b, heads, t, window]`: the last
/// index is the age of the frame, 0 the query's own. For looking at; not part of any graph, and slow.
pub fn attention_weights(
    qkv: &Tensor,
    cache: &Cache,
    window: &Arc<Window>,
    lengths: Lengths,
) -> Result<Tensor> {
    if Form::of(qkv) != Form::Cpu {
        return composed::attention::attention_weights(qkv, cache, window, lengths);
    }
    let pass = Pass::of(qkv, cache, window, lengths)?;
    let (t, heads, size) = (pass.time, window.heads, window.window);
    let mut weights = memory::zeros(pass.batch * heads * t * size);
    tensor::with(qkv, |qkv| {
        tensor::with(&cache.keys, |keys| {
            for (at, weights) in weights.chunks_exact_mut(t * size).enumerate() {
                // Values are not looked at.
                let row = pass.row(at / heads, qkv, keys, keys);
                weights_of_head(window, &row, at % heads, weights);
            }
            Ok(())
        })
    })?;
    Ok(tensor::tensor(weights, (pass.batch, heads, t, size))?)
}

/// What one call works on.
struct Pass {
    window: Arc<Window>,
    batch: usize,
    time: usize,
    lengths: Lengths,
    seen: Vec<usize>,
}

impl Pass {
    fn of(qkv: &Tensor, cache: &Cache, window: &Arc<Window>, lengths: Lengths) -> Result<Self> {
        Pass::new(window.check_streams(qkv)?, cache, window, lengths)
    }

    fn new(
        [batch, time]: [usize; 2],
        cache: &Cache,
        window: &Arc<Window>,
        lengths: Lengths,
    ) -> Result<Self> {
        window.check_cache(cache, batch)?;
        check_lengths(&lengths, batch, time)?;
        let seen = cache.seen(window.window)?;
        Ok(Pass { window: window.clone(), batch, time, lengths, seen })
    }

    /// The keys and values of a cache; nothing where no row has seen a frame, of which none is read.
    fn rings(&self, cache: &Cache) -> Result<[Tensor; 2]> {
        let [keys, values] = [&cache.keys, &cache.values];
        if self.seen.iter().any(|seen| *seen > 0) || keys.track_op() || values.track_op() {
            return Ok([keys.contiguous()?, values.contiguous()?]);
        }
        let nothing = tensor::zeros(&[0])?;
        Ok([nothing.clone(), nothing])
    }

    fn frames(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.batch).map(|row| self.frames_of(row))
    }

    fn frames_of(&self, row: usize) -> usize {
        self.lengths.as_ref().map_or(self.time, |lengths| lengths[row])
    }

    /// Frames that each row has seen at the end.
    fn seen_after(&self) -> Result<Tensor> {
        let after = |(seen, frames): (&usize, usize)| count_on(*seen, frames, self.window.window);
        let seen = self.seen.iter().zip(self.frames()).map(|row| after(row) as f32).collect();
        Ok(tensor::tensor(seen, (self.batch, 1))?)
    }

    /// Cached frames of a row that the first query sees.
    fn past_of(&self, row: usize) -> usize {
        self.seen[row].min(self.window.window - 1)
    }

    /// Rows of the batch in one shard.
    fn shard(&self) -> usize {
        self.batch.div_ceil(SHARDS)
    }

    fn row<'a>(&self, row: usize, qkv: &'a [f32], keys: &'a [f32], values: &'a [f32]) -> Row<'a> {
        let d = self.window.width();
        let (of_qkv, of_ring) = (self.time * 3 * d, self.window.window * d);
        Row {
            qkv: &qkv[row * of_qkv..][..of_qkv],
            keys: keys.get(row * of_ring..(row + 1) * of_ring).unwrap_or_default(),
            values: values.get(row * of_ring..(row + 1) * of_ring).unwrap_or_default(),
            seen: self.seen[row],
            past: self.past_of(row),
            frames: self.frames_of(row),
        }
    }
}

/// One row of the batch. Its frames are counted from the oldest cached one that the first query sees.
struct Row<'a> {
    qkv: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    seen: usize,
    past: usize,
    frames: usize,
}

/// Reads a part of memory once, in the order in which it lies: a head's numbers lie hundreds of bytes
/// apart, and no hardware fetches those ahead.
fn fetch(x: &[f32]) {
    let sum = x.iter().step_by(LANES).fold(0, |sum, v| sum ^ v.to_bits());
    std::hint::black_box(sum);
}

/// Where a frame lies: in a slot of the ring, or in the sequence.
enum Place {
    Slot(usize),
    Frame(usize),
}

impl Row<'_> {
    fn chunks(&self, w: &Window) -> impl Iterator<Item = Chunk> {
        (0..self.frames).step_by(CHUNK).map(|begin| Chunk::new(w, self, begin))
    }

    /// Of the frames of a chunk, so that they are near for one head after the other.
    fn fetch(&self, w: &Window, chunk: Chunk) {
        fetch(&self.qkv[3 * chunk.begin * w.width()..3 * chunk.end * w.width()]);
    }

    #[inline(always)]
    fn place(&self, window: usize, frame: usize) -> Place {
        match frame.checked_sub(self.past) {
            Some(frame) => Place::Frame(frame),
            None => Place::Slot((self.seen - self.past + frame) % window),
        }
    }

    #[inline(always)]
    fn key(&self, w: &Window, head: usize, frame: usize) -> &[f32] {
        let d = w.width();
        match self.place(w.window, frame) {
            Place::Slot(slot) => &self.keys[slot * d + head * w.head_dim..][..w.head_dim],
            Place::Frame(t) => &self.qkv[(3 * t + 1) * d + head * w.head_dim..][..w.head_dim],
        }
    }

    #[inline(always)]
    fn value(&self, w: &Window, head: usize, frame: usize) -> &[f32] {
        let d = w.width();
        match self.place(w.window, frame) {
            Place::Slot(slot) => &self.values[slot * d + head * w.head_dim..][..w.head_dim],
            Place::Frame(t) => &self.qkv[(3 * t + 2) * d + head * w.head_dim..][..w.head_dim],
        }
    }

    #[inline(always)]
    fn query(&self, w: &Window, head: usize, t: usize) -> &[f32] {
        &self.qkv[3 * t * w.width() + head * w.head_dim..][..w.head_dim]
    }
}

impl Window {
    /// `out = scale * rotation(position) x`, the pairs always laid out as halves: scores do not depend
    /// on the order of the numbers.
    #[inline(always)]
    fn rotate(&self, out: &mut [f32], x: &[f32], position: usize, scale: f32) {
        let (half, (cos, sin)) = (self.head_dim / 2, self.rotation(position));
        let (first, second) = out[..2 * half].split_at_mut(half);
        let out = first.iter_mut().zip(second).zip(cos.iter().zip(sin));
        match self.pairing {
            Pairing::Half => {
                let (first, second) = x[..2 * half].split_at(half);
                for (((p, q), (cos, sin)), (a, b)) in out.zip(first.iter().zip(second)) {
                    *p = (a * cos - b * sin) * scale;
                    *q = (b * cos + a * sin) * scale;
                }
            }
            Pairing::Interleaved => {
                for (((p, q), (cos, sin)), [a, b]) in out.zip(x.as_chunks::<2>().0) {
                    *p = (a * cos - b * sin) * scale;
                    *q = (b * cos + a * sin) * scale;
                }
            }
        }
    }

    /// `dx += scale * rotation(-position) d`, the gradient of [`Window::rotate`].
    #[inline(always)]
    fn rotate_back(&self, dx: &mut [f32], d: &[f32], position: usize, scale: f32) {
        let (half, (cos, sin)) = (self.head_dim / 2, self.rotation(position));
        let (first, second) = d[..2 * half].split_at(half);
        let d = first.iter().zip(second).zip(cos.iter().zip(sin));
        match self.pairing {
            Pairing::Half => {
                let (first, second) = dx[..2 * half].split_at_mut(half);
                for (((p, q), (cos, sin)), (a, b)) in d.zip(first.iter_mut().zip(second)) {
                    *a += (p * cos + q * sin) * scale;
                    *b += (q * cos - p * sin) * scale;
                }
            }
            Pairing::Interleaved => {
                for (((p, q), (cos, sin)), [a, b]) in d.zip(dx.as_chunks_mut::<2>().0) {
                    *a += (p * cos + q * sin) * scale;
                    *b += (q * cos - p * sin) * scale;
                }
            }
        }
    }
}

/// Memory for the head that is worked on: made once a shard. Rows are padded with zeros.
#[derive(Default)]
struct Scratch {
    /// Rotated keys of a chunk `[keys, padded_dim]`, and turned `[padded_dim, stride]`.
    keys: Vec<f32>,
    keys_turned: Vec<f32>,
    values: Vec<f32>,
    values_turned: Vec<f32>,
    /// Rotated queries of a block `[BLOCK, padded_dim]`.
    queries: Vec<f32>,
    /// Scores of a block, then weights `[BLOCK, stride]`.
    weights: Vec<f32>,
    /// Result of a block `[BLOCK, padded_dim]`.
    mixed: Vec<f32>,
    /// Gradients of the same.
    d_keys: Vec<f32>,
    d_values: Vec<f32>,
    d_queries: Vec<f32>,
    d_mixed: Vec<f32>,
    d_weights: Vec<f32>,
    /// Of a row of turned keys and of scores: an odd number of cache lines, or the rows of one column
    /// would share a few sets of the cache.
    stride: usize,
}

impl Scratch {
    /// `blocks`: for whole blocks, not for single queries. `backward`: with the gradients.
    fn new(w: &Window, frames: usize, past: usize, blocks: bool, backward: bool) -> Self {
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

/// Queries of one chunk and the frames they see.
#[derive(Clone, Copy)]
struct Chunk {
    /// Queries `begin..end` of the sequence.
    begin: usize,
    end: usize,
    /// The first frame that one of them sees, and how many there are.
    first: usize,
    keys: usize,
}

/// Up to `BLOCK` queries of a chunk.
struct Block {
    begin: usize,
    end: usize,
    /// Keys of the chunk that one of the queries sees, in whole vectors.
    keys: Range<usize>,
}

impl Block {
    #[inline(always)]
    fn queries(&self) -> usize {
        self.end - self.begin
    }
}

impl Chunk {
    #[inline(always)]
    fn new(w: &Window, row: &Row<'_>, begin: usize) -> Self {
        let end = (begin + CHUNK).min(row.frames);
        let first = (row.past + begin + 1).saturating_sub(w.window);
        Chunk { begin, end, first, keys: row.past + end - first }
    }

    /// Where query t stands among the keys of the chunk: at its own frame.
    #[inline(always)]
    fn position(&self, row: &Row<'_>, t: usize) -> usize {
        row.past + t - self.first
    }

    /// Keys of the chunk that query t sees.
    #[inline(always)]
    fn seen(&self, w: &Window, row: &Row<'_>, t: usize) -> Range<usize> {
        let own = self.position(row, t);
        (own + 1).saturating_sub(w.window)..own + 1
    }

    #[inline(always)]
    fn block(&self, w: &Window, row: &Row<'_>, begin: usize) -> Block {
        let end = (begin + BLOCK).min(self.end);
        let first = self.seen(w, row, begin).start / LANES * LANES;
        let last = self.seen(w, row, end - 1).end.next_multiple_of(LANES);
        Block { begin, end, keys: first..last }
    }
}

/// Rows of 16 numbers become columns: four rounds of the perfect shuffle.
#[inline(always)]
fn turn_tile(rows: [[f32; LANES]; LANES]) -> [[f32; LANES]; LANES] {
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
fn turn(out: &mut [f32], stride: usize, x: &[f32], rows: usize, d: usize) {
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

/// One number of 16, by halves: one after the other each would wait for the one before.
#[inline(always)]
fn fold(lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| f(lanes[i], lanes[i + 8]));
    let four: [f32; 4] = std::array::from_fn(|i| f(eight[i], eight[i + 4]));
    f(f(four[0], four[2]), f(four[1], four[3]))
}

/// `e^(x - largest)` where it stands, 0 outside of `seen`: their sum, and the largest. `x` is a multiple of 16
/// long.
#[inline(always)]
pub fn exponentials(x: &mut [f32], seen: Range<usize>) -> (f32, f32) {
    // One instruction, which `f32::max` with its care for what is not a number is not.
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

/// Copies keys (rotated) and values of a chunk, and keys once more turned.
#[inline(always)]
fn load(w: &Window, row: &Row<'_>, head: usize, chunk: Chunk, s: &mut Scratch) {
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
fn load_queries(
    w: &Window,
    row: &Row<'_>,
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
    /// The part of a chunk and a head in `y [t, heads * head_dim]`, and in `log_sums [t]` if they are
    /// wanted.
    fn forward_chunk(w: &Window, row: &Row<'_>, chunk: Chunk, head: usize, s: &mut Scratch, y: &mut [f32], log_sums: &mut [f32]) {
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
    /// The same for a few queries, without laying the keys out for blocks of them; `y` is that of these alone.
    fn forward_few(w: &Window, row: &Row<'_>, queries: Range<usize>, head: usize, s: &mut Scratch, y: &mut [f32], log_sums: &mut [f32]) {
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
    /// Weights by age, `[t, window]`.
    fn weights_of_head(w: &Window, row: &Row<'_>, head: usize, weights: &mut [f32]) {
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

/// What a backward pass reads beside the row, of one row of the batch.
struct Given<'a> {
    y: &'a [f32],
    dy: &'a [f32],
    log_sums: &'a [f32],
}

/// Where the gradients of one row go; those of the ring are empty if nobody wants them.
struct Gradients<'a> {
    qkv: &'a mut [f32],
    keys: &'a mut [f32],
    values: &'a mut [f32],
}

/// Adds the gradients of the keys and values of a chunk to where they came from.
#[inline(always)]
fn store(
    w: &Window,
    row: &Row<'_>,
    head: usize,
    chunk: Chunk,
    s: &Scratch,
    out: &mut Gradients<'_>,
) {
    let (d, width, hd) = (w.padded_dim(), w.width(), w.head_dim);
    for j in 0..chunk.keys {
        let (d_key, d_value) = (&s.d_keys[j * d..][..hd], &s.d_values[j * d..][..hd]);
        let at = head * hd;
        let (key, value) = match row.place(w.window, chunk.first + j) {
            Place::Frame(t) => {
                let (key, value) = out.qkv[3 * t * width..][..3 * width].split_at_mut(2 * width);
                (&mut key[width + at..][..hd], &mut value[at..][..hd])
            }
            Place::Slot(_) if out.keys.is_empty() => continue,
            Place::Slot(slot) => {
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
    /// With the weights P computed again: `dV = P^T dY`, `dS = P * (dY V^T - sum of dY * Y)`,
    /// `dQ = dS K`, `dK = dS^T Q`.
    fn backward_chunk(w: &Window, row: &Row<'_>, chunk: Chunk, head: usize, s: &mut Scratch, given: &Given<'_>, out: &mut Gradients<'_>) {
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

impl Pass {
    /// What is mixed, and if `keep` the logarithm of each softmax's denominator, `[b, heads, t]`.
    fn forward(&self, [qkv, keys, values]: [&[f32]; 3], keep: bool) -> [Vec<f32>; 2] {
        let Pass { window: w, batch, time, .. } = self;
        let kept = if keep { w.heads * time } else { 0 };
        let (widths, blocks) = ([time * w.width(), kept], *time > FEW);
        // SAFETY: all parts are zeroed.
        unsafe {
            filled(*batch, self.shard(), widths, |rows, parts| {
                let [y, log_sums] = parts.map(zeroed);
                let past = rows.clone().map(|row| self.past_of(row)).max().unwrap_or(0);
                let mut scratch = Scratch::new(w, *time, past, blocks, false);
                for (i, row) in rows.enumerate() {
                    let row = self.row(row, qkv, keys, values);
                    let y = &mut y[i * time * w.width()..][..time * w.width()];
                    let kept = kept / w.heads;
                    let mut kept_of = log_sums[i * w.heads * kept..].chunks_mut(kept.max(1));
                    let mut kept_of: Vec<&mut [f32]> =
                        (0..w.heads).map(|_| kept_of.next().unwrap_or_default()).collect();
                    if !blocks {
                        for (head, log_sums) in kept_of.iter_mut().enumerate() {
                            forward_few(w, &row, 0..row.frames, head, &mut scratch, y, log_sums);
                        }
                        continue;
                    }
                    for chunk in row.chunks(w) {
                        row.fetch(w, chunk);
                        for (head, log_sums) in kept_of.iter_mut().enumerate() {
                            forward_chunk(w, &row, chunk, head, &mut scratch, y, log_sums);
                        }
                    }
                }
            })
        }
    }

    /// What is mixed for the last query of each row, `[b, heads * head_dim]`.
    fn of_last(&self, all: &[&[f32]]) -> Vec<f32> {
        let (w, &[qkv, keys, values]) = (&*self.window, all) else { return vec![] };
        // SAFETY: the part is zeroed.
        let [y] = unsafe {
            filled(self.batch, self.shard(), [w.width()], |rows, [y]| {
                let mut scratch = Scratch::new(w, self.time, w.window - 1, false, false);
                for (at, y) in rows.zip(zeroed(y).chunks_exact_mut(w.width())) {
                    let row = self.row(at, qkv, keys, values);
                    let last = row.frames.saturating_sub(1)..row.frames;
                    for head in 0..w.heads {
                        forward_few(w, &row, last.clone(), head, &mut scratch, y, &mut []);
                    }
                }
            })
        };
        y
    }

    /// Gradients of qkv, and of cached keys and values if `cached`.
    fn backward(
        &self,
        [qkv, keys, values]: [&[f32]; 3],
        [y, dy, log_sums]: [&[f32]; 3],
        cached: bool,
    ) -> [Vec<f32>; 3] {
        let Pass { window: w, batch, time, .. } = self;
        let (of_y, of_qkv) = (time * w.width(), 3 * time * w.width());
        let of_ring = if cached { w.window * w.width() } else { 0 };
        // SAFETY: all parts are zeroed.
        unsafe {
            filled(*batch, self.shard(), [of_qkv, of_ring, of_ring], |rows, parts| {
                let [qs, ks, vs] = parts.map(zeroed);
                let past = rows.clone().map(|row| self.past_of(row)).max().unwrap_or(0);
                let mut scratch = Scratch::new(w, *time, past, true, true);
                for (i, at) in rows.enumerate() {
                    let row = self.row(at, qkv, keys, values);
                    let mut out = Gradients {
                        qkv: &mut qs[i * of_qkv..][..of_qkv],
                        keys: &mut ks[i * of_ring..][..of_ring],
                        values: &mut vs[i * of_ring..][..of_ring],
                    };
                    let given = Given {
                        y: &y[at * of_y..][..of_y],
                        dy: &dy[at * of_y..][..of_y],
                        log_sums: &log_sums[at * w.heads * time..][..w.heads * time],
                    };
                    for chunk in row.chunks(w) {
                        row.fetch(w, chunk);
                        let span = chunk.begin * w.width()..chunk.end * w.width();
                        fetch(&given.y[span.clone()]);
                        fetch(&given.dy[span]);
                        for head in 0..w.heads {
                            backward_chunk(w, &row, chunk, head, &mut scratch, &given, &mut out);
                        }
                    }
                }
            })
        }
    }
}

/// Frames of one part of queries, keys and values go to a ring.
#[derive(Debug, Clone, Copy)]
enum Part {
    Keys = 1,
    Values = 2,
}

impl Pass {
    /// The frame of a row that ends up in a slot of its ring, if one does.
    fn frame_in(&self, row: usize, slot: usize) -> Option<usize> {
        let (window, frames) = (self.window.window, self.frames_of(row));
        // From the slot to that of the last frame.
        let back = (self.seen[row] + frames + window - 1 - slot) % window;
        frames.checked_sub(1 + back)
    }

    /// A ring with the last frames of a sequence in it; `ring` may hold nothing of rows that have seen
    /// nothing.
    fn append(&self, part: Part, ring: &[f32], qkv: &[f32]) -> Vec<f32> {
        let (d, window) = (self.window.width(), self.window.window);
        // SAFETY: each slot is copied.
        let [next] = unsafe {
            filled(self.batch, 1, [window * d], |rows, [next]| {
                let row = rows.start;
                for (slot, next) in next.chunks_exact_mut(d).enumerate() {
                    match self.frame_in(row, slot) {
                        Some(t) => {
                            let at = (3 * (row * self.time + t) + part as usize) * d;
                            copied(next, &qkv[at..at + d]);
                        }
                        None if ring.is_empty() => {
                            zeroed(next);
                        }
                        None => {
                            copied(next, &ring[(row * window + slot) * d..][..d]);
                        }
                    }
                }
            })
        };
        next
    }

    /// Of the gradient of the ring after the sequence leaves that of the ring before in `d_ring`, and
    /// adds the rest to that of `qkv`.
    fn append_backward(&self, part: Part, d_ring: &mut [f32], d_qkv: &mut [f32]) {
        let (d, window) = (self.window.width(), self.window.window);
        for (at, d_slot) in d_ring.chunks_exact_mut(d).enumerate() {
            let row = at / window;
            if let Some(t) = self.frame_in(row, at % window) {
                let at = (3 * (row * self.time + t) + part as usize) * d;
                simd::add_assign(&mut d_qkv[at..at + d], d_slot);
                d_slot.fill(0.0);
            }
        }
    }
}

struct Attend {
    pass: Arc<Pass>,
    /// Logarithm of each softmax's denominator, `[b, heads, t]`, for the backward pass.
    log_sums: Vec<f32>,
}

impl Op for Attend {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let [y, log_sums] = self.pass.forward([inputs[0], inputs[1], inputs[2]], track);
        self.log_sums = log_sums;
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &op::Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let inputs = [pass.inputs[0], pass.inputs[1], pass.inputs[2]];
        let given = [pass.outputs[0], pass.gradient()?, &self.log_sums];
        let cached = pass.wants(1) || pass.wants(2);
        let all = self.pass.backward(inputs, given, cached);
        Ok(only_wanted(all, pass.wanted))
    }
}

/// Gradients of inputs, empty for an input that wants none.
fn only_wanted<const N: usize>(gradients: [Vec<f32>; N], wanted: &[bool]) -> Vec<Vec<f32>> {
    let all = gradients.into_iter().zip(wanted);
    all.map(|(d, wanted)| if *wanted { d } else { vec![] }).collect()
}

struct Append {
    pass: Arc<Pass>,
    part: Part,
}

impl Op for Append {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        Ok(vec![self.pass.append(self.part, inputs[0], inputs[1])])
    }

    fn backward(&mut self, pass: &op::Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let mut d_ring = memory::copied(pass.gradient()?);
        let mut d_qkv = memory::zeros(pass.inputs[1].len());
        self.pass.append_backward(self.part, &mut d_ring, &mut d_qkv);
        Ok(only_wanted([d_ring, d_qkv], pass.wanted))
    }
}
