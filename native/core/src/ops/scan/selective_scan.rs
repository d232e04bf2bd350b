//! The selective scan S6 (Gu and Dao 2023, eq. 2a and 2b with the selection of alg. 2).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use candle_core::Tensor;

use crate::ops::lengths::{Lengths, check_lengths};
use crate::ops::many::{self, Many, Numbers};
use crate::ops::simd::{
    LANES, add_assign, add_rows, dispatch, exp_with, load, mul_add, sigmoid_with, softplus_with,
    store, sum,
};
use crate::ops::tensor;
use crate::pool::{for_each_shard, sum_shards};
use crate::{Error, Result};

/// Inputs of a scan over `t` frames of `c` channels with `n` numbers of state each.
#[derive(Clone, Copy)]
pub struct Selective<'a> {
    /// `[b, t, c]`
    pub u: &'a Tensor,
    /// Step size `[b, t, c]`, or `[c]` where it is the same in all frames.
    pub dt: &'a Tensor,
    /// Is added to `dt`, `[c]`.
    pub dt_bias: Option<&'a Tensor>,
    /// Whether the step size is the softplus of that.
    pub dt_softplus: bool,
    /// `[c, n]`
    pub a: &'a Tensor,
    /// Whether A is `-exp(a)`.
    pub a_log: bool,
    /// `[b, t, n]`
    pub b: &'a Tensor,
    /// `[b, t, n]`
    pub c: &'a Tensor,
    /// The skip `[c]`.
    pub d: Option<&'a Tensor>,
    /// The gate `[b, t, c]`.
    pub z: Option<&'a Tensor>,
    /// `[b, c, n]`
    pub h: &'a Tensor,
}

/// `y [b, t, c]` and the state `[b, c, n]` after the last frame.
///
/// ```text
/// h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t     y_t = (C_t h_t + D u_t) * silu(z_t)
/// ```
///
/// without the terms whose tensors are not given. Row r has `lengths[r]` frames: later ones give 0
/// and leave the state as it is.
///
/// Forward keeps the state of every eighth frame; backward makes those between again, so that what
/// is kept is an eighth of the states, and nothing is ever divided by a decay.
pub fn selective_scan(inputs: Selective<'_>, lengths: Lengths) -> Result<(Tensor, Tensor)> {
    let Selective { u, dt, dt_bias, dt_softplus, a, a_log, b, c, d, z, h } = inputs;
    let (batch, time, channels) = u.dims3()?;
    let (_, state) = a.dims2()?;
    let op = Scan {
        batch,
        time,
        channels,
        state,
        steady: dt.rank() == 1,
        bias: dt_bias.is_some(),
        softplus: dt_softplus,
        log: a_log,
        skip: d.is_some(),
        gate: z.is_some(),
        lengths,
        kept: OnceLock::new(),
    };
    op.check(&inputs)?;
    let all = [u, dt, a, b, c, h].into_iter().chain(dt_bias).chain(d).chain(z);
    let [y, h] = many::take(many::apply(op, &all.collect::<Vec<_>>())?)?;
    Ok((y, h))
}

/// Inputs u, dt, a, b, c, h and those that are given of dt_bias, d, z.
pub(crate) struct Scan {
    pub(crate) batch: usize,
    pub(crate) time: usize,
    pub(crate) channels: usize,
    pub(crate) state: usize,
    /// One `dt` for all frames.
    pub(crate) steady: bool,
    pub(crate) bias: bool,
    pub(crate) softplus: bool,
    pub(crate) log: bool,
    pub(crate) skip: bool,
    pub(crate) gate: bool,
    pub(crate) lengths: Lengths,
    /// States before every `CHUNK`th frame, `[b, chunk, block, n, LANES]`.
    pub(crate) kept: OnceLock<Vec<f32>>,
}

/// Frames between kept states: so many states and decays of one block stay in the first cache.
const CHUNK: usize = 8;

impl Scan {
    fn check(&self, inputs: &Selective<'_>) -> Result<()> {
        let Selective { u, dt, dt_bias, a, b, c, d, z, h, .. } = *inputs;
        let Scan { batch, time, channels, state, steady, .. } = *self;
        let check = |what: &str, expected: &[usize], got: &Tensor| {
            tensor::check_shape(format_args!("{what} of a selective scan"), expected, got.dims())
        };
        let wide = [batch, time, channels];
        check("dt", if steady { &wide[2..] } else { &wide }, dt)?;
        check("A", &[channels, state], a)?;
        check("B", &[batch, time, state], b)?;
        check("C", &[batch, time, state], c)?;
        check("h", &[batch, channels, state], h)?;
        dt_bias.map_or(Ok(()), |bias| check("dt_bias", &[channels], bias))?;
        d.map_or(Ok(()), |d| check("D", &[channels], d))?;
        z.map_or(Ok(()), |z| check("z", &wide, z))?;
        check_lengths(&self.lengths, batch, time)?;
        if u.elem_count() * state == 0 {
            let shape = format!("{:?} and {state} a channel", u.dims());
            return Err(Error::mismatch("numbers of a selective scan", "at least 1", shape));
        }
        Ok(())
    }

    fn length(&self, row: usize) -> usize {
        self.lengths.as_ref().map_or(self.time, |l| l[row])
    }

    /// Rows of the batch in one shard: at most eight shards, none too small to be handed out.
    fn shard(&self) -> usize {
        const SMALLEST: usize = 1 << 15;
        let row = self.time * self.channels * self.state;
        self.batch.div_ceil(8).max(SMALLEST.div_ceil(row))
    }

    fn chunks(&self) -> usize {
        self.time.div_ceil(CHUNK)
    }

    /// Numbers in a state that is packed in blocks of `LANES` channels.
    fn packed(&self) -> usize {
        self.channels.div_ceil(LANES) * self.state * LANES
    }

    /// `[c, n]` as `[block, n, LANES]`.
    fn pack(&self, from: &[f32]) -> Vec<f32> {
        let n = self.state;
        let mut to = vec![0.0; self.packed()];
        for (block, from) in to.chunks_exact_mut(n * LANES).zip(from.chunks(n * LANES)) {
            for (lane, from) in from.chunks_exact(n).enumerate() {
                for (to, v) in block[lane..].iter_mut().step_by(LANES).zip(from) {
                    *to = *v;
                }
            }
        }
        to
    }

    /// The reverse of `pack`.
    fn unpack(&self, to: &mut [f32], from: &[f32]) {
        let n = self.state;
        for (block, to) in from.chunks_exact(n * LANES).zip(to.chunks_mut(n * LANES)) {
            for (lane, to) in to.chunks_exact_mut(n).enumerate() {
                for (v, to) in block[lane..].iter().step_by(LANES).zip(to) {
                    *to = *v;
                }
            }
        }
    }

    fn inputs<'a>(&self, inputs: &[&'a [f32]]) -> Inputs<'a> {
        let get = |i: usize| inputs.get(i).copied().unwrap_or_default();
        let mut next = 6;
        let mut given = |wanted: bool| {
            next += usize::from(wanted);
            if wanted { get(next - 1) } else { &[] }
        };
        let (dt_bias, d, z) = (given(self.bias), given(self.skip), given(self.gate));
        let (u, dt, a, b, c, h) = (get(0), get(1), get(2), get(3), get(4), get(5));
        Inputs { u, dt, dt_bias, a, b, c, h, d, z }
    }

    fn row<'a>(&self, row: usize, inputs: &Inputs<'a>, a: &'a [f32]) -> Row<'a> {
        let (wide, narrow) = (self.time * self.channels, self.time * self.state);
        let of = |v: &'a [f32], width: usize| v.get(row * width..(row + 1) * width);
        Row {
            u: of(inputs.u, wide).unwrap_or_default(),
            dt: if self.steady { inputs.dt } else { of(inputs.dt, wide).unwrap_or_default() },
            dt_bias: inputs.dt_bias,
            z: of(inputs.z, wide),
            a,
            b: of(inputs.b, narrow).unwrap_or_default(),
            c: of(inputs.c, narrow).unwrap_or_default(),
            d: inputs.d,
            channels: self.channels,
            state: self.state,
            length: self.length(row),
            softplus: self.softplus,
            steady: self.steady,
        }
    }

    /// A as `[c, n]`.
    fn decay_rates<'a>(&self, a: &'a [f32]) -> Cow<'a, [f32]> {
        if !self.log {
            return Cow::Borrowed(a);
        }
        let mut rates = a.to_vec();
        negative_exp(&mut rates);
        Cow::Owned(rates)
    }
}

dispatch! {
    fn negative_exp(a: &mut [f32]) {
        for a in a {
            *a = -exp_with::<FMA>(*a);
        }
    }
}

/// Numbers of all inputs; `dt_bias`, `d` and `z` are empty where they were not given.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    u: &'a [f32],
    dt: &'a [f32],
    dt_bias: &'a [f32],
    a: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    h: &'a [f32],
    d: &'a [f32],
    z: &'a [f32],
}

/// One row of the batch; `a` is as the kernel wants it.
struct Row<'a> {
    u: &'a [f32],
    dt: &'a [f32],
    dt_bias: &'a [f32],
    z: Option<&'a [f32]>,
    a: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    d: &'a [f32],
    channels: usize,
    state: usize,
    length: usize,
    softplus: bool,
    steady: bool,
}

/// What is worked out of a chunk of whole frames before the channels are walked in blocks: in order,
/// so that the next numbers are on their way when they are asked for.
struct Chunk {
    dt: Vec<f32>,
    /// `dt * u`
    du: Vec<f32>,
    /// `C h`
    out: Vec<f32>,
}

impl Chunk {
    fn new(channels: usize) -> Self {
        let zeros = || vec![0.0; CHUNK * channels];
        Chunk { dt: zeros(), du: zeros(), out: zeros() }
    }

    /// Reads frames `span` of numbers.
    #[inline(always)]
    fn read<const FMA: bool>(&mut self, row: &Row<'_>, span: Range<usize>) {
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

/// Adds the skip and puts the gate on, if they are there.
#[inline(always)]
fn finish<const FMA: bool>(y: &mut [f32], out: &[f32], row: &Row<'_>, first: usize) {
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
    /// All frames of one row. `h`, and what is kept, are packed; nothing is kept in an empty slice.
    fn forward(y: &mut [f32], h: &mut [f32], kept: &mut [f32], scratch: &mut Chunk, row: &Row<'_>) {
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
    /// As `forward` for a few frames, with `h` and `row.a` as they are given, `[c, n]`: the vectors
    /// run over the numbers of one channel, and nothing need be packed.
    fn forward_few(y: &mut [f32], h: &mut [f32], scratch: &mut Chunk, row: &Row<'_>) {
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

/// Gradients of one row, and of what all rows share (`a`, packed, `d` and `dt_bias`), to which rows add.
struct Gradients<'a> {
    u: &'a mut [f32],
    dt: &'a mut [f32],
    /// Empty where there is no gate.
    z: &'a mut [f32],
    b: &'a mut [f32],
    c: &'a mut [f32],
    /// Packed: on entry that of the last state, in the end that of the first.
    h: &'a mut [f32],
    a: &'a mut [f32],
    d: &'a mut [f32],
    dt_bias: &'a mut [f32],
}

/// What backward works in: beside a chunk, the gradient of `C h + D u`, decays and states of one
/// block, and gradients of B and C in lanes.
struct Scratch {
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
    fn new(channels: usize, n: usize) -> Self {
        let zeros = |frames: usize| vec![[0.0; LANES]; frames * n];
        Scratch {
            chunk: Chunk::new(channels),
            dy: vec![0.0; CHUNK * channels],
            through: vec![0.0; CHUNK * channels],
            decay: zeros(CHUNK),
            states: zeros(CHUNK + 1),
            db: zeros(CHUNK),
            dc: zeros(CHUNK),
        }
    }
}

dispatch! {
    fn backward(to: &mut Gradients<'_>, scratch: &mut Scratch, dy: &[f32], kept: &[f32], row: &Row<'_>) {
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
                // The states of the chunk once more.
                for k in 0..count {
                    let (dt, du) = (load(dt, k * c + at, width), load(chunk_du, k * c + at, width));
                    let at_t = (first + k) * n..(first + k + 1) * n;
                    let (b, c_t) = (&row.b[at_t.clone()], &row.c[at_t]);
                    let (before, after) = states[k * n..].split_at_mut(n);
                    let mut sum = [0.0; LANES];
                    for (((((decay, before), after), a), b), c) in
                        decay[k * n..].iter_mut().zip(before).zip(after).zip(a).zip(b).zip(c_t)
                    {
                        for i in 0..LANES {
                            decay[i] = exp_with::<FMA>(dt[i] * a[i]);
                            after[i] = mul_add::<FMA>(decay[i], before[i], du[i] * b);
                            sum[i] = mul_add::<FMA>(after[i], *c, sum[i]);
                        }
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
                        // Copies, of which the compiler sees that they do not overlap.
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
                    // In place of `dt * u`, which nobody reads again.
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
    /// Gradients of what each channel reads on its own.
    #[inline(always)]
    fn end<const FMA: bool>(
        &self,
        to: &mut Gradients<'_>,
        dy: &[f32],
        row: &Row<'_>,
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
                // Where dt = ln(1 + e^x), its slope is sigmoid(x).
                for (i, (to, raw)) in d_dt.iter_mut().zip(raw).enumerate() {
                    let bias = if row.dt_bias.is_empty() { 0.0 } else { row.dt_bias[i] };
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

impl Scan {
    /// So few frames are not worth packing, nor is anything kept of them.
    const FEW: usize = 3;

    fn states(&self, y: &mut [f32], last: &mut [f32], kept: &mut [f32], inputs: &Inputs<'_>) {
        let (wide, size) = (self.time * self.channels, self.channels * self.state);
        let few = kept.is_empty() && self.time <= Self::FEW;
        let per_row = kept.len() / self.batch;
        let a = self.decay_rates(inputs.a);
        let packed = if few { vec![] } else { self.pack(&a) };
        let buffers = [(y, wide), (last, size), (kept, per_row)];
        for_each_shard(self.batch, self.shard(), buffers, |rows, [y, last, kept]| {
            let mut scratch = Chunk::new(self.channels);
            for (i, row) in rows.enumerate() {
                let (y, last) = (&mut y[i * wide..][..wide], &mut last[i * size..][..size]);
                let first = &inputs.h[row * size..][..size];
                if few {
                    last.copy_from_slice(first);
                    forward_few(y, last, &mut scratch, &self.row(row, inputs, &a));
                } else {
                    let mut h = self.pack(first);
                    let kept = &mut kept[i * per_row..][..per_row];
                    forward(y, &mut h, kept, &mut scratch, &self.row(row, inputs, &packed));
                    self.unpack(last, &h);
                }
            }
        });
    }
}

impl Many for Scan {
    fn name(&self) -> &'static str {
        "selective-scan"
    }

    fn forward(&self, inputs: &[&[f32]], track: bool) -> Vec<Numbers> {
        let Scan { batch, time, channels, state, .. } = *self;
        let mut y = vec![0.0; batch * time * channels];
        let mut last = vec![0.0; batch * channels * state];
        let mut kept = vec![0.0; if track { batch * self.chunks() * self.packed() } else { 0 }];
        self.states(&mut y, &mut last, &mut kept, &self.inputs(inputs));
        if track {
            let _ = self.kept.set(kept);
        }
        vec![(y, (batch, time, channels).into()), (last, (batch, channels, state).into())]
    }

    fn backward(
        &self,
        inputs: &[&[f32]],
        outputs: &[Option<&[f32]>],
        _wanted: &[bool],
    ) -> Vec<Vec<f32>> {
        let Scan { batch, time, channels, state, .. } = *self;
        let inputs = self.inputs(inputs);
        let kept = self.kept.get().map(Vec::as_slice).unwrap_or_default();
        let (wide, narrow, size) = (time * channels, time * state, channels * state);
        let per_row = self.chunks() * self.packed();
        let silent = vec![0.0; if outputs[0].is_none() { wide } else { 0 }];
        let rates = self.decay_rates(inputs.a);
        let a = self.pack(&rates);

        let zeros = |n: usize| vec![0.0; batch * n];
        let (mut du, mut d_dt, mut dz) =
            (zeros(wide), zeros(wide), zeros(if self.gate { wide } else { 0 }));
        let (mut db, mut dc, mut dh) = (zeros(narrow), zeros(narrow), zeros(size));
        let shard = self.shard();
        let zero = || [self.packed(), channels, channels].map(|n| vec![0.0; n]);
        let buffers = [
            (&mut du[..], wide),
            (&mut d_dt[..], wide),
            (&mut dz[..], if self.gate { wide } else { 0 }),
            (&mut db[..], narrow),
            (&mut dc[..], narrow),
            (&mut dh[..], size),
        ];
        let parts = sum_shards(batch, shard, buffers, zero, |rows, buffers, part| {
            let [du, d_dt, dz, db, dc, dh] = buffers;
            let [da, d_skip, d_bias] = part;
            let mut scratch = Scratch::new(channels, state);
            for (i, row) in rows.enumerate() {
                let mut h = match outputs[1] {
                    Some(dh) => self.pack(&dh[row * size..][..size]),
                    None => vec![0.0; self.packed()],
                };
                let dy = outputs[0].map_or(&silent[..], |dy| &dy[row * wide..][..wide]);
                let mut to = Gradients {
                    u: &mut du[i * wide..][..wide],
                    dt: &mut d_dt[i * wide..][..wide],
                    z: if self.gate { &mut dz[i * wide..][..wide] } else { &mut [] },
                    b: &mut db[i * narrow..][..narrow],
                    c: &mut dc[i * narrow..][..narrow],
                    h: &mut h,
                    a: da,
                    d: d_skip,
                    dt_bias: d_bias,
                };
                let kept = &kept[row * per_row..][..per_row];
                backward(&mut to, &mut scratch, dy, kept, &self.row(row, &inputs, &a));
                self.unpack(&mut dh[i * size..][..size], &h);
            }
        });
        let [mut packed, mut d_skip, mut d_bias] = zero();
        for [a, d, bias] in &parts {
            add_assign(&mut packed, a);
            add_assign(&mut d_skip, d);
            add_assign(&mut d_bias, bias);
        }
        let mut da = vec![0.0; size];
        self.unpack(&mut da, &packed);
        if self.log {
            da.iter_mut().zip(&*rates).for_each(|(da, a)| *da *= a);
        }
        if self.steady {
            let mut sum = vec![0.0; channels];
            add_rows(&mut sum, &d_dt);
            d_dt = sum;
        }
        let mut all = vec![du, d_dt, da, db, dc, dh];
        all.extend(self.bias.then_some(d_bias));
        all.extend(self.skip.then_some(d_skip));
        all.extend(self.gate.then_some(dz));
        all
    }
}
