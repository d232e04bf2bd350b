//! The selective scan S6 (Gu and Dao 2023, eq. 2a and 2b with the selection of alg. 2).

pub(crate) mod card;
mod composed;
mod walk;

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::ops::Range;

use candle_core::Tensor;

use self::walk::{CHUNK, Chunk, Gradients, Scratch, Sequence, backward, forward, forward_few};
use crate::columns::{filled, filled_and_summed};
use crate::form::Form;
use crate::lengths::{Lengths, check_lengths};
use crate::op::{self, Op, Pass};
use crate::simd::{LANES, add_assign, add_rows, dispatch, exp_with};
use crate::uninit::{copied, zeroed};
use crate::{Error, Result, memory, tensor};

/// Inputs of a scan over `t` frames of `c` channels with state size `n` each.
#[derive(Clone, Copy)]
pub struct Selective<'a> {
    /// Input, `[b, t, c]`.
    pub u: &'a Tensor,
    /// Step size `[b, t, c]`, or `[c]` if all frames share one.
    pub dt: &'a Tensor,
    /// The bias of `dt`, `[c]`.
    pub dt_bias: Option<&'a Tensor>,
    /// Whether the step size is the softplus of `dt` plus its bias.
    pub dt_softplus: bool,
    /// A or its logarithm, `[c, n]`; see `a_log`.
    pub a: &'a Tensor,
    /// Whether A is `-exp(a)` instead of `a`.
    pub a_log: bool,
    /// Input weights B, `[b, t, n]`.
    pub b: &'a Tensor,
    /// Output weights C, `[b, t, n]`.
    pub c: &'a Tensor,
    /// The skip D, `[c]`.
    pub d: Option<&'a Tensor>,
    /// The gate `[b, t, c]`.
    pub z: Option<&'a Tensor>,
    /// The state before the first frame, `[b, c, n]`.
    pub h: &'a Tensor,
}

/// `y [b, t, c]` and the state `[b, c, n]` after the last frame.
///
/// ```text
/// h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t     y_t = (C_t h_t + D u_t) * silu(z_t)
/// ```
///
/// Terms whose tensors are not given are omitted. Row r has `lengths[r]` frames: later frames give 0 and leave the
/// state unchanged.
///
/// The forward pass saves the state of every sixteenth frame, and the backward pass recomputes the states in between.
/// This takes a sixteenth of the memory and needs no division by a decay.
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
        kept: vec![],
    };
    op.check(&inputs)?;
    match Form::of(u) {
        Form::Cpu => {}
        Form::Card if state <= card::MOST_STATES => {
            return card::selective_scan(inputs, &op.lengths);
        }
        Form::Card | Form::Composed => return composed::selective_scan(inputs, op.lengths),
    }
    let all = [u, dt, a, b, c, h].into_iter().chain(dt_bias).chain(d).chain(z);
    let shapes = [u.shape().clone(), h.shape().clone()];
    Ok(op::apply_all(op, &all.collect::<Vec<_>>(), shapes)?.into())
}

/// Inputs are u, dt, a, b, c, h, then dt_bias, d and z if given.
pub(crate) struct Scan {
    pub(crate) batch: usize,
    pub(crate) time: usize,
    pub(crate) channels: usize,
    pub(crate) state: usize,
    /// Whether one `dt` applies to all frames.
    pub(crate) steady: bool,
    pub(crate) bias: bool,
    pub(crate) softplus: bool,
    pub(crate) log: bool,
    pub(crate) skip: bool,
    pub(crate) gate: bool,
    pub(crate) lengths: Lengths,
    /// States before every `CHUNK`th frame, `[b, chunk, block, n, LANES]`.
    pub(crate) kept: Vec<f32>,
}

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
            let shape = format!("{:?} and {state} per channel", u.dims());
            return Err(Error::mismatch("numbers of a selective scan", "at least 1", shape));
        }
        Ok(())
    }

    fn length(&self, row: usize) -> usize {
        self.lengths.as_ref().map_or(self.time, |l| l[row])
    }

    /// Rows of the batch in one shard: at most eight shards, each large enough to be worth a thread.
    fn shard(&self) -> usize {
        const SMALLEST: usize = 1 << 15;
        let row = self.time * self.channels * self.state;
        self.batch.div_ceil(8).max(SMALLEST.div_ceil(row))
    }

    fn chunks(&self) -> usize {
        self.time.div_ceil(CHUNK)
    }

    /// Values of a state packed in blocks of `LANES` channels.
    fn packed(&self) -> usize {
        self.channels.div_ceil(LANES) * self.state * LANES
    }

    /// Packs `[c, n]` as `[block, n, LANES]`.
    fn pack(&self, from: &[f32]) -> Vec<f32> {
        let n = self.state;
        let mut to = memory::zeros(self.packed());
        for (block, from) in to.chunks_exact_mut(n * LANES).zip(from.chunks(n * LANES)) {
            for (lane, from) in from.chunks_exact(n).enumerate() {
                for (to, v) in block[lane..].iter_mut().step_by(LANES).zip(from) {
                    *to = *v;
                }
            }
        }
        to
    }

    /// The inverse of `pack`.
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

    fn row<'a>(&self, row: usize, inputs: &Inputs<'a>, a: &'a [f32]) -> Sequence<'a> {
        let (wide, narrow) = (self.time * self.channels, self.time * self.state);
        let of = |v: &'a [f32], width: usize| v.get(row * width..(row + 1) * width);
        Sequence {
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

    /// The matrix A, `[c, n]`.
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

/// Values of all inputs; `dt_bias`, `d` and `z` are empty if not given.
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

impl Scan {
    /// Up to this many frames are computed without packing and without saved states.
    const FEW: usize = 3;

    /// The outputs, the last states and, if `tracked`, the states saved for the backward pass.
    fn states(&self, tracked: bool, inputs: &Inputs<'_>) -> [Vec<f32>; 3] {
        let (wide, size) = (self.time * self.channels, self.channels * self.state);
        let few = !tracked && self.time <= Self::FEW;
        let per_row = if tracked { self.chunks() * self.packed() } else { 0 };
        let a = self.decay_rates(inputs.a);
        let packed = if few { vec![] } else { self.pack(&a) };
        let row = |i: usize, row: usize, scratch: &mut Chunk, all: [&mut [MaybeUninit<f32>]; 3]| {
            let [y, last, kept] = all;
            let (y, first) = (zeroed(&mut y[i * wide..][..wide]), &inputs.h[row * size..][..size]);
            let last = copied(&mut last[i * size..][..size], first);
            let kept = zeroed(&mut kept[i * per_row..][..per_row]);
            if few {
                forward_few(y, last, scratch, &self.row(row, inputs, &a));
            } else {
                let mut h = self.pack(first);
                forward(y, &mut h, kept, scratch, &self.row(row, inputs, &packed));
                self.unpack(last, &h);
            }
        };
        // SAFETY: each row writes all of its own values.
        unsafe {
            filled(self.batch, self.shard(), [wide, size, per_row], |rows, [y, last, kept]| {
                let mut scratch = Chunk::new(self.channels);
                for (i, at) in rows.enumerate() {
                    row(i, at, &mut scratch, [&mut *y, &mut *last, &mut *kept]);
                }
            })
        }
    }
}

/// The contribution of one shard's rows to the gradients of A, D and the bias of dt; `None` for no contribution.
type Sums = Option<[Vec<f32>; 3]>;

impl Op for Scan {
    fn forward(&mut self, inputs: &[&[f32]], track: bool) -> Result<Vec<Vec<f32>>> {
        let [y, last, kept] = self.states(track, &self.inputs(inputs));
        self.kept = kept;
        Ok(vec![y, last])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let Scan { batch, time, channels, state, .. } = *self;
        let inputs = self.inputs(pass.inputs);
        let kept = std::mem::take(&mut self.kept);
        let (wide, narrow, size) = (time * channels, time * state, channels * state);
        let per_row = self.chunks() * self.packed();
        let silent = memory::zeros(if pass.gradients[0].is_none() { wide } else { 0 });
        let rates = self.decay_rates(inputs.a);
        let a = self.pack(&rates);

        let zero = || [self.packed(), channels, channels].map(memory::zeros);
        let gate = if self.gate { wide } else { 0 };
        let widths = [wide, wide, gate, narrow, narrow, size];
        let ([du, mut d_dt, dz, db, dc, dh], parts) = {
            let work = |rows: Range<usize>,
                        mut buffers: [&mut [MaybeUninit<f32>]; 6],
                        part: &mut Sums| {
                let mut scratch = Scratch::new(channels, state);
                let [da, d_skip, d_bias] = part.get_or_insert_with(zero);
                for (i, row) in rows.enumerate() {
                    let mut h = match pass.gradients[1] {
                        Some(dh) => self.pack(&dh[row * size..][..size]),
                        None => memory::zeros(self.packed()),
                    };
                    let dy = pass.gradients[0].map_or(&silent[..], |dy| &dy[row * wide..][..wide]);
                    let mut of = 0;
                    let [u, dt, z, b, c, dh] = buffers.each_mut().map(|buffer| {
                        of += 1;
                        let width = widths[of - 1];
                        zeroed(&mut buffer[i * width..][..width])
                    });
                    let mut to =
                        Gradients { u, dt, z, b, c, h: &mut h, a: da, d: d_skip, dt_bias: d_bias };
                    let kept = &kept[row * per_row..][..per_row];
                    backward(&mut to, &mut scratch, dy, kept, &self.row(row, &inputs, &a));
                    self.unpack(dh, &h);
                }
            };
            // SAFETY: each row writes all of its own values.
            unsafe { filled_and_summed(batch, self.shard(), widths, work) }
        };
        let [mut packed, mut d_skip, mut d_bias] = zero();
        for [a, d, bias] in parts.iter().flatten() {
            add_assign(&mut packed, a);
            add_assign(&mut d_skip, d);
            add_assign(&mut d_bias, bias);
        }
        let mut da = memory::zeros(size);
        self.unpack(&mut da, &packed);
        if self.log {
            da.iter_mut().zip(&*rates).for_each(|(da, a)| *da *= a);
        }
        if self.steady {
            let mut sum = memory::zeros(channels);
            add_rows(&mut sum, &d_dt);
            d_dt = sum;
        }
        let mut all = vec![du, d_dt, da, db, dc, dh];
        all.extend(self.bias.then_some(d_bias));
        all.extend(self.skip.then_some(d_skip));
        all.extend(self.gate.then_some(dz));
        Ok(all)
    }
}
