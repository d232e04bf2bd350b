//! LSTM, GRU and sLSTM: for each frame a product with the recurrent weight, and a kernel of the cell. What can wait
//! until all frames are through, or be done before, is a product over all of them.

use candle_core::{DType, Result, Tensor, bail};
use sconce_cuda::kernels::RECURRENT;

use super::beside::Beside;
use super::columns::column_sums;
use super::launch::{Launch, suffix, unwritten};
use super::lengths_on_card;
use super::op::{Op, Pass, apply};
use super::product::{Matrices, product};
use crate::ops::composed;
use crate::ops::lengths::Lengths;
use crate::ops::recurrent::Gates;
use crate::ops::slstm::SlstmState;
use crate::weights::Weight;

/// Threads of a block, and rows of a grid.
const THREADS: usize = 128;
const ROWS: usize = 65_535;

pub fn lstm(
    x: &Tensor,
    gates: &Gates,
    h0: &Tensor,
    c0: &Tensor,
    lengths: &Lengths,
) -> crate::Result<(Tensor, Tensor, Tensor)> {
    let frames = Frames::of(x, h0, lengths)?;
    let (c, dc) = (frames.state(DType::F32, x)?, Beside::default());
    let op = Lstm { frames, c: c.clone(), dc: dc.clone() };
    let [bias_ih, bias_hh] = f32s([&gates.bias_ih, &gates.bias_hh])?;
    let [c0] = f32s([c0])?;
    let y = apply(op, &[x, &gates.weight_ih, &gates.weight_hh, &bias_ih, &bias_hh, h0, &c0])?;
    let c = dc.output(&y, c)?.to_dtype(x.dtype())?;
    Ok((y.clone(), last(&y)?, c))
}

pub fn gru(
    x: &Tensor,
    gates: &Gates,
    h0: &Tensor,
    lengths: &Lengths,
) -> crate::Result<(Tensor, Tensor)> {
    let op = Gru { frames: Frames::of(x, h0, lengths)? };
    let [bias_ih, bias_hh] = f32s([&gates.bias_ih, &gates.bias_hh])?;
    let y = apply(op, &[x, &gates.weight_ih, &gates.weight_hh, &bias_ih, &bias_hh, h0])?;
    Ok((y.clone(), last(&y)?))
}

pub fn slstm(
    projected: &Tensor,
    weight: &Weight,
    heads: usize,
    state: &SlstmState,
    lengths: &Lengths,
) -> crate::Result<(Tensor, SlstmState)> {
    let frames = Frames::of(projected, &state.h, lengths)?;
    let [c0, n0, m0] = f32s([&state.c, &state.n, &state.m])?;
    let h = frames.state(projected.dtype(), projected)?;
    let new = || frames.state(DType::F32, projected);
    let last = [h, new()?, new()?, new()?];
    let d_last: [Beside; 3] = Default::default();
    let op = Slstm { last: last.clone(), d_last: d_last.clone(), m0: m0.detach(), heads, frames };
    let y = apply(op, &[projected, weight, &state.h, &c0, &n0])?;
    let [h, c, n, m] = last;
    let [dh, dc, dn] = &d_last;
    let given = |t: Tensor| t.to_dtype(projected.dtype());
    let (h, c, n) = (dh.output(&y, h)?, dc.output(&y, c)?, dn.output(&y, n)?);
    Ok((y, SlstmState { h, c: given(c)?, n: given(n)?, m: given(m)? }))
}

fn f32s<const N: usize>(tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    let all: Vec<Tensor> =
        tensors.into_iter().map(|t| t.to_dtype(DType::F32)).collect::<Result<_>>()?;
    match all.try_into() {
        Ok(all) => Ok(all),
        Err(_) => bail!("as many tensors as were given"),
    }
}

/// `[b, h]` of `y [b, t, h]`.
fn last(y: &Tensor) -> Result<Tensor> {
    y.narrow(1, y.dim(1)? - 1, 1)?.squeeze(1)?.contiguous()
}

/// A sequence of states `[b, t, h]`.
struct Frames {
    batch: usize,
    time: usize,
    width: usize,
    lengths: Option<Tensor>,
}

impl Frames {
    /// Of inputs `x [b, t, ..]` and first states `[b, h]`.
    fn of(x: &Tensor, first: &Tensor, lengths: &Lengths) -> crate::Result<Self> {
        let lengths = lengths_on_card(lengths, x)?;
        Ok(Frames { batch: x.dim(0)?, time: x.dim(1)?, width: first.dim(1)?, lengths })
    }

    /// For `[b, t, parts * h]`, beside `x`.
    fn sequence(&self, parts: usize, dtype: DType, x: &Tensor) -> Result<Tensor> {
        unwritten((self.batch, self.time, parts * self.width), dtype, x)
    }

    /// For `[b, h]`, beside `x`.
    fn state(&self, dtype: DType, x: &Tensor) -> Result<Tensor> {
        unwritten((self.batch, self.width), dtype, x)
    }

    /// The states before frame t.
    fn before<'a>(&self, first: &'a Tensor, y: &'a Tensor, t: usize) -> Matrices<'a> {
        match t.checked_sub(1) {
            Some(t) => Matrices::one(y, t * self.width, self.time * self.width),
            None => Matrices::one(first, 0, self.width),
        }
    }

    /// Frame t of gates `[b, t, parts * h]`.
    fn gates<'a>(&self, gates: &'a Tensor, parts: usize, t: usize) -> Matrices<'a> {
        let row = parts * self.width;
        Matrices::one(gates, t * row, self.time * row)
    }

    /// `gates [b, parts * h]` of the states before frame t.
    fn recur(&self, gates: &Tensor, weight: &Tensor, before: Matrices) -> Result<()> {
        let (n, width) = (gates.dim(1)?, self.width);
        let weight = Matrices::one(weight, 0, width).turned();
        product(Matrices::one(gates, 0, n), before, weight, 1, [self.batch, n, width])
    }

    /// What gates give to the states before them, `[b, h]`.
    fn back(&self, dh: &Tensor, gates: Matrices, weight: &Tensor) -> Result<()> {
        let (n, width) = (weight.dim(0)?, self.width);
        let (dh, weight) = (Matrices::one(dh, 0, width), Matrices::one(weight, 0, width));
        product(dh, gates, weight, 1, [self.batch, width, n])
    }

    fn launch(&self, cell: &str, step: &str, x: &Tensor) -> Result<Launch> {
        Launch::of(RECURRENT, &format!("{cell}_{}_{step}", suffix(x)), x)
    }

    /// With what ends the arguments of all.
    fn run(&self, launch: Launch, t: usize) -> Result<()> {
        let threads = self.width.next_multiple_of(32).min(THREADS);
        let launch = launch.option(self.lengths.as_ref())?.int(t).int(self.time);
        let launch = launch.int(self.batch).int(self.width);
        let grid = [self.width.div_ceil(threads), self.batch.min(ROWS), 1];
        // SAFETY: as recurrent.cu says: a thread for each channel, which walks over the rows.
        unsafe { launch.run(grid, [threads, 1, 1], 0) }
    }
}

fn all<'a>(launch: Launch, tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<Launch> {
    tensors.into_iter().try_fold(launch, Launch::tensor)
}

/// Rows `[b * t, c]` of `x [b, t, c]`.
fn rows(x: &Tensor) -> Result<Tensor> {
    let (b, t, c) = x.dims3()?;
    x.reshape((b * t, c))
}

/// `x W^T`, `[b, t, n]`.
fn projected(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (b, t, _) = x.dims3()?;
    composed::product(&rows(x)?, &weight.t()?)?.reshape((b, t, weight.dim(0)?))
}

/// `d^T x` over all frames.
fn weight_gradient(d: &Tensor, x: &Tensor) -> Result<Tensor> {
    composed::product(&rows(d)?.t()?, &rows(x)?)
}

/// The gradient of the first state, of what was carried there in f32 and what came through the weight.
fn first_gradient(carried: &Tensor, through: &Tensor) -> Result<Tensor> {
    (carried + through.to_dtype(DType::F32)?)?.to_dtype(through.dtype())
}

/// Gradients of the inputs that LSTM and GRU share: x, both weights, both biases.
fn layer_gradients(
    pass: &Pass,
    d_projected: &Tensor,
    d_recurrent: &Tensor,
    previous: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let [x, weight_ih, ..] = pass.inputs else { bail!("a layer has an input and weights") };
    let if_wanted =
        |i: usize, gradient: &dyn Fn() -> Result<Tensor>| pass.wanted[i].then(gradient).transpose();
    Ok(vec![
        if_wanted(0, &|| composed::product(&rows(d_projected)?, weight_ih)?.reshape(x.shape()))?,
        if_wanted(1, &|| weight_gradient(d_projected, x))?,
        if_wanted(2, &|| weight_gradient(d_recurrent, previous))?,
        if_wanted(3, &|| column_sums(d_projected))?,
        if_wanted(4, &|| column_sums(d_recurrent))?,
    ])
}

/// Inputs x, both weights, both biases, h0 and c0.
struct Lstm {
    frames: Frames,
    /// Becomes the last c, whose gradient is told.
    c: Tensor,
    dc: Beside,
}

impl Op for Lstm {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, weight_ih, weight_hh, bias_ih, bias_hh, h0, c0] = inputs else {
            bail!("an LSTM has seven inputs")
        };
        let Frames { batch, time, width, .. } = self.frames;
        // Gates take the place of what they are made of.
        let gates = projected(x, weight_ih)?;
        let y = self.frames.sequence(1, x.dtype(), x)?;
        let recurrent = unwritten((batch, 4 * width), x.dtype(), x)?;
        let cells = track.then(|| self.frames.sequence(1, DType::F32, x)).transpose()?;
        for t in 0..time {
            self.frames.recur(&recurrent, weight_hh, self.frames.before(h0, &y, t))?;
            let c = if t == 0 { c0 } else { &self.c };
            let launch = self.frames.launch("lstm", "forward", x)?;
            let launch = all(launch, [&gates, &recurrent, bias_ih, bias_hh, h0, c, &y, &self.c])?;
            let launch = launch.option(track.then_some(&gates))?.option(cells.as_ref())?;
            self.frames.run(launch, t)?;
        }
        Ok((y, [gates].into_iter().chain(cells).collect()))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, _, weight_hh, .., h0, c0], [gates, cells]) = (pass.inputs, pass.kept) else {
            bail!("an LSTM has seven inputs")
        };
        let frames = &self.frames;
        let dgates = frames.sequence(4, x.dtype(), x)?;
        let previous = frames.sequence(1, x.dtype(), x)?;
        let (through, dh) = (frames.state(x.dtype(), x)?, frames.state(DType::F32, x)?);
        let (dc, d_last) = (frames.state(DType::F32, x)?, self.dc.gradient());
        for t in (0..frames.time).rev() {
            let later = t + 1 < frames.time;
            let launch = frames.launch("lstm", "backward", x)?;
            let launch = all(launch, [gates, c0, cells, h0, pass.y, pass.dy])?;
            let launch = launch.option(later.then_some(&through))?.option(later.then_some(&dh))?;
            let launch = launch.option(if later { Some(&dc) } else { d_last.as_ref() })?;
            frames.run(all(launch, [&dh, &dc, &dgates, &previous])?, t)?;
            frames.back(&through, frames.gates(&dgates, 4, t), weight_hh)?;
        }
        let mut gradients = layer_gradients(pass, &dgates, &dgates, &previous)?;
        gradients.extend([Some(first_gradient(&dh, &through)?), Some(dc)]);
        Ok(gradients)
    }
}

/// Inputs x, both weights, both biases and h0.
struct Gru {
    frames: Frames,
}

impl Op for Gru {
    fn name(&self) -> &'static str {
        "gru"
    }

    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, weight_ih, weight_hh, bias_ih, bias_hh, h0] = inputs else {
            bail!("a GRU has six inputs")
        };
        let Frames { batch, time, width, .. } = self.frames;
        let gates = projected(x, weight_ih)?;
        let y = self.frames.sequence(1, x.dtype(), x)?;
        let recurrent = unwritten((batch, 3 * width), x.dtype(), x)?;
        let reset = track.then(|| self.frames.sequence(1, x.dtype(), x)).transpose()?;
        let (first, h) = (h0.to_dtype(DType::F32)?, self.frames.state(DType::F32, x)?);
        for t in 0..time {
            self.frames.recur(&recurrent, weight_hh, self.frames.before(h0, &y, t))?;
            let before = if t == 0 { &first } else { &h };
            let launch = self.frames.launch("gru", "forward", x)?;
            let launch = all(launch, [&gates, &recurrent, bias_ih, bias_hh, before, &y, &h])?;
            let launch = launch.option(track.then_some(&gates))?.option(reset.as_ref())?;
            self.frames.run(launch, t)?;
        }
        Ok((y, [gates].into_iter().chain(reset).collect()))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, _, weight_hh, .., h0], [gates, reset]) = (pass.inputs, pass.kept) else {
            bail!("a GRU has six inputs")
        };
        let frames = &self.frames;
        let d_projected = frames.sequence(3, x.dtype(), x)?;
        let d_recurrent = frames.sequence(3, x.dtype(), x)?;
        let previous = frames.sequence(1, x.dtype(), x)?;
        let (through, dh) = (frames.state(x.dtype(), x)?, frames.state(DType::F32, x)?);
        for t in (0..frames.time).rev() {
            let later = t + 1 < frames.time;
            let launch = frames.launch("gru", "backward", x)?;
            let launch = all(launch, [gates, reset, h0, pass.y, pass.dy])?;
            let launch = launch.option(later.then_some(&through))?.option(later.then_some(&dh))?;
            frames.run(all(launch, [&dh, &d_projected, &d_recurrent, &previous])?, t)?;
            frames.back(&through, frames.gates(&d_recurrent, 3, t), weight_hh)?;
        }
        let mut gradients = layer_gradients(pass, &d_projected, &d_recurrent, &previous)?;
        gradients.push(Some(first_gradient(&dh, &through)?));
        Ok(gradients)
    }
}

/// Inputs of the gates, the weight, and the first h, c and n.
struct Slstm {
    frames: Frames,
    heads: usize,
    m0: Tensor,
    /// Become the last h, c, n and m; the gradients of the first three are told.
    last: [Tensor; 4],
    d_last: [Beside; 3],
}

impl Slstm {
    /// Width of a head.
    fn head(&self) -> usize {
        self.frames.width / self.heads
    }

    /// The weight `[4h, w]` with the gates of a head beside each other, `[heads, 4w, w]`.
    fn blocks(&self, weight: &Tensor) -> Result<Tensor> {
        let w = self.head();
        let weight = weight.reshape((4, self.heads, w, w))?.transpose(0, 1)?.contiguous()?;
        weight.reshape((self.heads, 4 * w, w))
    }

    /// The part of each head in rows `[.., heads * w]` that begin at `first` and are `row` apart.
    fn heads<'a>(of: &'a Tensor, [first, w, row]: [usize; 3]) -> Matrices<'a> {
        Matrices { of, first, apart: w, row, turned: false }
    }

    /// `gates [b, heads * 4w] = h R^T` of `h [b, heads * w]`.
    fn recur(&self, gates: &Tensor, h: &Tensor, blocks: &Tensor) -> Result<()> {
        let (width, w) = (self.frames.width, self.head());
        let block = Matrices { of: blocks, first: 0, apart: 4 * w * w, row: w, turned: true };
        let gates = Self::heads(gates, [0, 4 * w, 4 * width]);
        let h = Self::heads(h, [0, w, width]);
        product(gates, h, block, self.heads, [self.frames.batch, 4 * w, w])
    }

    /// `dh [b, heads * w] = gates R`.
    fn back(&self, dh: &Tensor, gates: &Tensor, blocks: &Tensor) -> Result<()> {
        let (width, w) = (self.frames.width, self.head());
        let block = Matrices { of: blocks, first: 0, apart: 4 * w * w, row: w, turned: false };
        let gates = Self::heads(gates, [0, 4 * w, 4 * width]);
        let dh = Self::heads(dh, [0, w, width]);
        product(dh, gates, block, self.heads, [self.frames.batch, w, 4 * w])
    }

    /// `[4h, w]`: for each gate and head `d^T h` over all frames.
    fn weight_gradient(&self, d: &Tensor, previous: &Tensor) -> Result<Tensor> {
        let (width, w) = (self.frames.width, self.head());
        let dweight = unwritten((4 * width, w), d.dtype(), d)?;
        let previous = Self::heads(previous, [0, w, width]);
        for gate in 0..4 {
            let of = Matrices {
                of: &dweight,
                first: gate * width * w,
                apart: w * w,
                row: w,
                turned: false,
            };
            let d = Self::heads(d, [gate * width, w, 4 * width]).turned();
            product(of, d, previous, self.heads, [w, w, self.frames.batch * self.frames.time])?;
        }
        Ok(dweight)
    }
}

impl Op for Slstm {
    fn name(&self) -> &'static str {
        "slstm"
    }

    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, weight, h0, c0, n0] = inputs else { bail!("an sLSTM has five inputs") };
        let Frames { batch, time, width, .. } = self.frames;
        let blocks = self.blocks(weight)?;
        let y = self.frames.sequence(1, x.dtype(), x)?;
        let recurrent = unwritten((batch, 4 * width), x.dtype(), x)?;
        // Gates, the slopes of their logarithms, c and n.
        let kept = [(4, x.dtype()), (1, x.dtype()), (1, DType::F32), (1, DType::F32)]
            .map(|(parts, dtype)| track.then(|| self.frames.sequence(parts, dtype, x)).transpose());
        let kept = kept.into_iter().collect::<Result<Vec<_>>>()?;
        let first = [h0, c0, n0, &self.m0];
        for t in 0..time {
            let before = if t == 0 { first } else { self.last.each_ref() };
            self.recur(&recurrent, before[0], &blocks)?;
            let launch = self.frames.launch("slstm", "forward", x)?;
            let launch = all(all(launch, [x, &recurrent])?, before)?;
            let launch = all(all(launch, [&y])?, &self.last)?;
            let launch =
                kept.iter().try_fold(launch, |launch, kept| launch.option(kept.as_ref()))?;
            self.frames.run(launch.int(self.head()), t)?;
        }
        Ok((y, kept.into_iter().flatten().chain([blocks]).collect()))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, _, h0, c0, n0], [gates, slopes, cells, norms, blocks]) = (pass.inputs, pass.kept)
        else {
            bail!("an sLSTM has five inputs")
        };
        let frames = &self.frames;
        let (dx, previous) = (frames.sequence(4, x.dtype(), x)?, frames.sequence(1, x.dtype(), x)?);
        let recurrent = unwritten((frames.batch, 4 * frames.width), x.dtype(), x)?;
        let through = frames.state(x.dtype(), x)?;
        let [dh_last, dc_last, dn_last] = self.d_last.each_ref().map(Beside::gradient);
        let state = || frames.state(DType::F32, x);
        let (dh, dc, dn) = (state()?, state()?, state()?);
        for t in (0..frames.time).rev() {
            let later = t + 1 < frames.time;
            let launch = frames.launch("slstm", "backward", x)?;
            let launch = all(launch, [gates, slopes, c0, n0, cells, norms, h0, pass.y, pass.dy])?;
            let launch = launch.option(if later { Some(&through) } else { dh_last.as_ref() })?;
            let launch = launch.option(later.then_some(&dh))?;
            let launch = launch.option(if later { Some(&dc) } else { dc_last.as_ref() })?;
            let launch = launch.option(if later { Some(&dn) } else { dn_last.as_ref() })?;
            let launch = all(launch, [&dh, &dc, &dn, &dx, &recurrent, &previous])?;
            frames.run(launch.int(self.head()), t)?;
            self.back(&through, &recurrent, blocks)?;
        }
        let dweight = self.weight_gradient(&dx, &previous)?;
        let dh0 = first_gradient(&dh, &through)?;
        Ok([dx, dweight, dh0, dc, dn].map(Some).into())
    }
}
