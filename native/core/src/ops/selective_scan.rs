//! The selective scan S6 (Gu and Dao 2023, eq. 2a and 2b with the selection of alg. 2).

use std::sync::{Mutex, OnceLock};

use candle_core::{Shape, Tensor};

use super::many::{self, Many};
use super::recurrence::{Lengths, check_lengths, for_each_shard};
use super::simd::{
    LANES, add_assign, dispatch, exp_with, load, mul_add, sigmoid_with, softplus_with, store, sum,
};
use crate::{Error, Result};

/// Inputs of a scan over `t` frames of `c` channels with `n` numbers of state each.
#[derive(Clone, Copy)]
pub struct Selective<'a> {
    /// `[b, t, c]`
    pub u: &'a Tensor,
    /// Step size `[b, t, c]`, or what softplus makes it of.
    pub dt: &'a Tensor,
    pub dt_softplus: bool,
    /// `[c, n]`
    pub a: &'a Tensor,
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
/// h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t      y_t = (C_t h_t + D u_t) * silu(z_t)
/// ```
///
/// without the terms whose tensors are not given. Row r has `lengths[r]` frames: later ones give 0
/// and leave the state as it is.
///
/// Forward keeps the state of every eighth frame; backward makes those between again, so that what
/// is kept is an eighth of the states, and nothing is ever divided by a decay.
pub fn selective_scan(inputs: Selective<'_>, lengths: Lengths) -> Result<(Tensor, Tensor)> {
    let op = Scan::new(&inputs, lengths)?;
    let Selective { u, dt, a, b, c, d, z, h, .. } = inputs;
    let all: Vec<&Tensor> = [u, dt, a, b, c, h].into_iter().chain(d).chain(z).collect();
    let outputs = many::apply(op, &all)?;
    match <[Tensor; 2]>::try_from(outputs) {
        Ok([y, h]) => Ok((y, h)),
        Err(other) => Err(Error::mismatch("outputs of a scan", 2, other.len())),
    }
}

struct Scan {
    batch: usize,
    time: usize,
    channels: usize,
    state: usize,
    softplus: bool,
    skip: bool,
    gate: bool,
    lengths: Lengths,
    /// States before every `CHUNK`th frame, `[b, chunk, block, n, LANES]`.
    kept: OnceLock<Vec<f32>>,
}

/// Frames between kept states: so many states and decays of one block stay in the first cache.
const CHUNK: usize = 8;

impl Scan {
    fn new(inputs: &Selective<'_>, lengths: Lengths) -> Result<Self> {
        let Selective { u, dt, dt_softplus, a, b, c, d, z, h } = inputs;
        let (batch, time, channels) = u.dims3()?;
        let (_, state) = a.dims2()?;
        let check = |what: &str, expected: &[usize], got: &[usize]| match got == expected {
            true => Ok(()),
            false => Err(Error::mismatch(
                format!("{what} of a selective scan"),
                format!("{expected:?}"),
                format!("{got:?}"),
            )),
        };
        check("dt", &[batch, time, channels], dt.dims())?;
        check("A", &[channels, state], a.dims())?;
        check("B", &[batch, time, state], b.dims())?;
        check("C", &[batch, time, state], c.dims())?;
        check("h", &[batch, channels, state], h.dims())?;
        if let Some(d) = d {
            check("D", &[channels], d.dims())?;
        }
        if let Some(z) = z {
            check("z", &[batch, time, channels], z.dims())?;
        }
        check_lengths(&lengths, batch, time)?;
        if u.elem_count() * state == 0 {
            let shape = format!("{:?} and {state} a channel", u.dims());
            return Err(Error::mismatch("numbers of a selective scan", "at least 1", shape));
        }
        let (softplus, skip, gate) = (*dt_softplus, d.is_some(), z.is_some());
        let kept = OnceLock::new();
        Ok(Scan { batch, time, channels, state, softplus, skip, gate, lengths, kept })
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
        let d = if self.skip { get(6) } else { &[] };
        let z = if self.gate { get(6 + usize::from(self.skip)) } else { &[] };
        Inputs { u: get(0), dt: get(1), a: get(2), b: get(3), c: get(4), h: get(5), d, z }
    }

    fn row<'a>(&self, row: usize, inputs: &Inputs<'a>, a: &'a [f32]) -> Row<'a> {
        let (wide, narrow) = (self.time * self.channels, self.time * self.state);
        let of = |v: &'a [f32], width: usize| v.get(row * width..(row + 1) * width);
        Row {
            u: of(inputs.u, wide).unwrap_or_default(),
            dt: of(inputs.dt, wide).unwrap_or_default(),
            z: of(inputs.z, wide),
            a,
            b: of(inputs.b, narrow).unwrap_or_default(),
            c: of(inputs.c, narrow).unwrap_or_default(),
            d: inputs.d,
            channels: self.channels,
            state: self.state,
            length: self.length(row),
            softplus: self.softplus,
        }
    }
}

/// Numbers of all inputs; `d` and `z` are empty where they were not given.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    u: &'a [f32],
    dt: &'a [f32],
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
    z: Option<&'a [f32]>,
    a: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    d: &'a [f32],
    channels: usize,
    state: usize,
    length: usize,
    softplus: bool,
}

/// What some channels of a frame read.
#[derive(Clone, Copy, Default)]
struct Frame {
    u: [f32; LANES],
    dt: [f32; LANES],
    /// `dt * u`
    du: [f32; LANES],
}

impl Row<'_> {
    #[inline(always)]
    fn frame<const FMA: bool>(&self, t: usize, at: usize, n: usize) -> Frame {
        let u = load(self.u, t * self.channels + at, n);
        let mut dt = load(self.dt, t * self.channels + at, n);
        if self.softplus {
            for dt in &mut dt {
                *dt = softplus_with::<FMA>(*dt);
            }
        }
        let mut du = [0.0; LANES];
        for i in 0..LANES {
            du[i] = dt[i] * u[i];
        }
        Frame { u, dt, du }
    }

    fn skip(&self, at: usize, n: usize) -> [f32; LANES] {
        if self.d.is_empty() { [0.0; LANES] } else { load(self.d, at, n) }
    }
}

dispatch! {
    /// All frames of one row. `h`, and what is kept, are packed; nothing is kept in an empty slice.
    fn forward(y: &mut [f32], h: &mut [f32], kept: &mut [f32], row: &Row<'_>) {
        let (c, n) = (row.channels, row.state);
        let packed = h.len();
        for (block, (h, a)) in
            h.chunks_exact_mut(n * LANES).zip(row.a.chunks_exact(n * LANES)).enumerate()
        {
            let at = block * LANES;
            let width = LANES.min(c - at);
            let skip = row.skip(at, width);
            let (h, a) = (h.as_chunks_mut::<LANES>().0, a.as_chunks::<LANES>().0);
            for t in 0..row.length {
                if t % CHUNK == 0 && !kept.is_empty() {
                    kept[t / CHUNK * packed + block * n * LANES..][..n * LANES]
                        .copy_from_slice(h.as_flattened());
                }
                let Frame { u, dt, du } = row.frame::<FMA>(t, at, width);
                let mut out = [0.0; LANES];
                let (b, c_t) = (&row.b[t * n..][..n], &row.c[t * n..][..n]);
                for (((h, a), b), c) in h.iter_mut().zip(a).zip(b).zip(c_t) {
                    for i in 0..LANES {
                        let decay = exp_with::<FMA>(dt[i] * a[i]);
                        h[i] = mul_add::<FMA>(decay, h[i], du[i] * b);
                        out[i] = mul_add::<FMA>(h[i], *c, out[i]);
                    }
                }
                for i in 0..LANES {
                    out[i] = mul_add::<FMA>(skip[i], u[i], out[i]);
                }
                if let Some(z) = row.z {
                    let z = load(z, t * c + at, width);
                    for i in 0..LANES {
                        out[i] *= z[i] * sigmoid_with::<FMA>(z[i]);
                    }
                }
                store(y, t * c + at, width, out);
            }
        }
    }
}

dispatch! {
    /// As `forward` for a few frames, with `h` and `row.a` as they are given, `[c, n]`: the vectors
    /// run over the numbers of one channel, and nothing need be packed.
    fn forward_few(y: &mut [f32], h: &mut [f32], row: &Row<'_>) {
        let (c, n) = (row.channels, row.state);
        for t in 0..row.length {
            let (b, c_t) = (&row.b[t * n..][..n], &row.c[t * n..][..n]);
            for at in (0..c).step_by(LANES) {
                let width = LANES.min(c - at);
                let Frame { u, dt, du } = row.frame::<FMA>(t, at, width);
                let skip = row.skip(at, width);
                let mut out = [0.0; LANES];
                for lane in 0..width {
                    let channel = (at + lane) * n;
                    let mut partial = [0.0; LANES];
                    for j in (0..n).step_by(LANES) {
                        let count = LANES.min(n - j);
                        let a = load(row.a, channel + j, count);
                        let (b, c) = (load(b, j, count), load(c_t, j, count));
                        let mut now = load(h, channel + j, count);
                        for i in 0..LANES {
                            let decay = exp_with::<FMA>(dt[lane] * a[i]);
                            now[i] = mul_add::<FMA>(decay, now[i], du[lane] * b[i]);
                            partial[i] = mul_add::<FMA>(now[i], c[i], partial[i]);
                        }
                        store(h, channel + j, count, now);
                    }
                    out[lane] = mul_add::<FMA>(skip[lane], u[lane], sum(partial));
                }
                if let Some(z) = row.z {
                    let z = load(z, t * c + at, width);
                    for i in 0..LANES {
                        out[i] *= z[i] * sigmoid_with::<FMA>(z[i]);
                    }
                }
                store(y, t * c + at, width, out);
            }
        }
    }
}

/// Gradients of one row, and of what all rows share (`a`, packed, and `d`), to which rows add.
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
}

/// What backward works in: decays and states of one block over a chunk, gradients of B and C of a
/// chunk in lanes.
struct Scratch {
    decay: Vec<[f32; LANES]>,
    states: Vec<[f32; LANES]>,
    db: Vec<[f32; LANES]>,
    dc: Vec<[f32; LANES]>,
}

impl Scratch {
    fn new(n: usize) -> Self {
        let zeros = |frames: usize| vec![[0.0; LANES]; frames * n];
        Scratch {
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
        let Scratch { decay, states, db, dc } = scratch;
        for chunk in (0..row.length.div_ceil(CHUNK)).rev() {
            let first = chunk * CHUNK;
            let count = CHUNK.min(row.length - first);
            db.fill([0.0; LANES]);
            dc.fill([0.0; LANES]);
            for (block, at) in (0..c).step_by(LANES).enumerate() {
                let width = LANES.min(c - at);
                let span = block * n * LANES..(block + 1) * n * LANES;
                let a = row.a[span.clone()].as_chunks::<LANES>().0;
                let dh = to.h[span.clone()].as_chunks_mut::<LANES>().0;
                let da = to.a[span.clone()].as_chunks_mut::<LANES>().0;
                let skip = row.skip(at, width);
                let mut frames = [Frame::default(); CHUNK];
                let mut outs = [[0.0; LANES]; CHUNK];
                states[..n].as_flattened_mut().copy_from_slice(&kept[chunk * packed..][span]);
                // The states of the chunk once more.
                for k in 0..count {
                    let t = first + k;
                    let frame = row.frame::<FMA>(t, at, width);
                    let (b, c_t) = (&row.b[t * n..][..n], &row.c[t * n..][..n]);
                    let (before, after) = states[k * n..].split_at_mut(n);
                    let mut out = [0.0; LANES];
                    for (((((decay, before), after), a), b), c) in
                        decay[k * n..].iter_mut().zip(before).zip(after).zip(a).zip(b).zip(c_t)
                    {
                        for i in 0..LANES {
                            decay[i] = exp_with::<FMA>(frame.dt[i] * a[i]);
                            after[i] = mul_add::<FMA>(decay[i], before[i], frame.du[i] * b);
                            out[i] = mul_add::<FMA>(after[i], *c, out[i]);
                        }
                    }
                    for i in 0..LANES {
                        out[i] = mul_add::<FMA>(skip[i], frame.u[i], out[i]);
                    }
                    frames[k] = frame;
                    outs[k] = out;
                }
                let mut d_skip = [0.0; LANES];
                for k in (0..count).rev() {
                    let t = first + k;
                    let Frame { u, dt, du } = frames[k];
                    let mut dy = load(dy, t * c + at, width);
                    if let Some(z) = row.z {
                        let (z, mut dz) = (load(z, t * c + at, width), [0.0; LANES]);
                        for i in 0..LANES {
                            let s = sigmoid_with::<FMA>(z[i]);
                            dz[i] = dy[i] * outs[k][i] * s * (1.0 + z[i] * (1.0 - s));
                            dy[i] *= z[i] * s;
                        }
                        store(to.z, t * c + at, width, dz);
                    }
                    let (b, c_t) = (&row.b[t * n..][..n], &row.c[t * n..][..n]);
                    let (mut through_b, mut through_a) = ([0.0; LANES], [0.0; LANES]);
                    for j in 0..n {
                        let (at, after) = (k * n + j, (k + 1) * n + j);
                        for i in 0..LANES {
                            let g = mul_add::<FMA>(c_t[j], dy[i], dh[j][i]);
                            dc[at][i] = mul_add::<FMA>(dy[i], states[after][i], dc[at][i]);
                            db[at][i] = mul_add::<FMA>(g, du[i], db[at][i]);
                            through_b[i] = mul_add::<FMA>(g, b[j], through_b[i]);
                            let g = g * decay[at][i];
                            dh[j][i] = g;
                            let q = g * states[at][i];
                            through_a[i] = mul_add::<FMA>(q, a[j][i], through_a[i]);
                            da[j][i] = mul_add::<FMA>(q, dt[i], da[j][i]);
                        }
                    }
                    let (mut d_u, mut d_dt) = ([0.0; LANES], [0.0; LANES]);
                    for i in 0..LANES {
                        d_skip[i] = mul_add::<FMA>(dy[i], u[i], d_skip[i]);
                        d_u[i] = mul_add::<FMA>(dy[i], skip[i], dt[i] * through_b[i]);
                        d_dt[i] = mul_add::<FMA>(u[i], through_b[i], through_a[i]);
                    }
                    if row.softplus {
                        let raw = load(row.dt, t * c + at, width);
                        for i in 0..LANES {
                            d_dt[i] *= sigmoid_with::<FMA>(raw[i]);
                        }
                    }
                    store(to.u, t * c + at, width, d_u);
                    store(to.dt, t * c + at, width, d_dt);
                }
                let mut sum = load(to.d, at, width);
                for i in 0..LANES {
                    sum[i] += d_skip[i];
                }
                store(to.d, at, width, sum);
            }
            let (to_b, to_c) = (&mut to.b[first * n..][..count * n], &mut to.c[first * n..][..count * n]);
            for (to, lanes) in to_b.iter_mut().zip(db.iter()) {
                *to = sum(*lanes);
            }
            for (to, lanes) in to_c.iter_mut().zip(dc.iter()) {
                *to = sum(*lanes);
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
        let packed = if few { vec![] } else { self.pack(inputs.a) };
        let buffers = [(y, wide), (last, size), (kept, per_row)];
        for_each_shard(self.batch, self.shard(), buffers, |rows, [y, last, kept]| {
            for (i, row) in rows.enumerate() {
                let (y, last) = (&mut y[i * wide..][..wide], &mut last[i * size..][..size]);
                let first = &inputs.h[row * size..][..size];
                if few {
                    last.copy_from_slice(first);
                    forward_few(y, last, &self.row(row, inputs, inputs.a));
                } else {
                    let mut h = self.pack(first);
                    let kept = &mut kept[i * per_row..][..per_row];
                    forward(y, &mut h, kept, &self.row(row, inputs, &packed));
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

    fn forward(&self, inputs: &[&[f32]], track: bool) -> Vec<(Vec<f32>, Shape)> {
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
        let a = self.pack(inputs.a);

        let zeros = |n: usize| vec![0.0; batch * n];
        let (mut du, mut d_dt, mut dz) =
            (zeros(wide), zeros(wide), zeros(if self.gate { wide } else { 0 }));
        let (mut db, mut dc, mut dh) = (zeros(narrow), zeros(narrow), zeros(size));
        let shard = self.shard();
        let parts: Vec<_> = (0..batch.div_ceil(shard))
            .map(|_| Mutex::new((vec![0.0; self.packed()], vec![0.0; channels])))
            .collect();
        let buffers = [
            (&mut du[..], wide),
            (&mut d_dt[..], wide),
            (&mut dz[..], if self.gate { wide } else { 0 }),
            (&mut db[..], narrow),
            (&mut dc[..], narrow),
            (&mut dh[..], size),
        ];
        for_each_shard(batch, shard, buffers, |rows, [du, d_dt, dz, db, dc, dh]| {
            let mut part = parts[rows.start / shard].lock().unwrap_or_else(|e| e.into_inner());
            let (da, d_skip) = &mut *part;
            let mut scratch = Scratch::new(state);
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
                };
                let kept = &kept[row * per_row..][..per_row];
                backward(&mut to, &mut scratch, dy, kept, &self.row(row, &inputs, &a));
                self.unpack(&mut dh[i * size..][..size], &h);
            }
        });
        let (mut packed, mut d_skip) = (vec![0.0; self.packed()], vec![0.0; channels]);
        for part in parts {
            let (a, d) = part.into_inner().unwrap_or_else(|e| e.into_inner());
            add_assign(&mut packed, &a);
            add_assign(&mut d_skip, &d);
        }
        let mut da = vec![0.0; size];
        self.unpack(&mut da, &packed);
        let mut all = vec![du, d_dt, da, db, dc, dh];
        all.extend(self.skip.then_some(d_skip));
        all.extend(self.gate.then_some(dz));
        all
    }
}
