//! An sLSTM on a card.

use candle_core::{DType, Result, Tensor, bail};

use super::{Frames, all, f32s, first_gradient};
use crate::device::launch::unwritten;
use crate::lengths::Lengths;
use crate::matmul::card::rounded;
use crate::matmul::matrices::{Matrices, product};
use crate::op::card::{Op, Pass, apply_all};
use crate::recurrent::state::SlstmState;
use crate::weights::Weight;

pub(in crate::recurrent) fn slstm(
    projected: &Tensor,
    weight: &Weight,
    heads: usize,
    state: &SlstmState,
    lengths: &Lengths,
) -> crate::Result<(Tensor, SlstmState)> {
    let frames = Frames::of(projected, &state.h, lengths)?;
    let [c0, n0, m0] = f32s([&state.c, &state.n, &state.m])?;
    let op = Slstm { m0: m0.detach(), heads, frames };
    let [y, h, c, n, m] = apply_all(op, &[projected, weight, &state.h, &c0, &n0])?;
    let given = |t: Tensor| t.to_dtype(state.c.dtype());
    Ok((y, SlstmState { h, c: given(c)?, n: given(n)?, m: given(m.detach())? }))
}

/// Inputs are the projected gates, the weight, and the first h, c and n.
struct Slstm {
    frames: Frames,
    heads: usize,
    m0: Tensor,
}

impl Slstm {
    /// Width of a head.
    fn head(&self) -> usize {
        self.frames.width / self.heads
    }

    /// The weight `[4h, w]` with the gates of each head side by side, `[heads, 4w, w]`, as an operand.
    fn blocks(&self, weight: &Tensor) -> Result<Tensor> {
        let w = self.head();
        let weight = rounded(weight, self.frames.precision)?.reshape((4, self.heads, w, w))?;
        weight.transpose(0, 1)?.contiguous()?.reshape((self.heads, 4 * w, w))
    }

    /// The blocks, the gates of each head `[b, heads * 4w]`, and each head's part of `h [b, heads * w]`.
    fn of_heads<'a>(
        &self,
        blocks: &'a Tensor,
        gates: &'a Tensor,
        h: &'a Tensor,
    ) -> [Matrices<'a>; 3] {
        let (width, w) = (self.frames.width, self.head());
        [
            Matrices::new(blocks, [0, 4 * w * w, w]),
            Matrices::new(gates, [0, 4 * w, 4 * width]),
            Matrices::new(h, [0, w, width]),
        ]
    }

    /// `gates = h R^T`.
    fn recur(&self, gates: &Tensor, h: &Tensor, blocks: &Tensor) -> Result<()> {
        let w = self.head();
        let [blocks, gates, h] = self.of_heads(blocks, gates, h);
        product(gates, h, blocks.turned(), self.heads, [self.frames.batch, 4 * w, w])
    }

    /// `dh = gates R`.
    fn back(&self, dh: &Tensor, gates: &Tensor, blocks: &Tensor) -> Result<()> {
        let w = self.head();
        let [blocks, gates, dh] = self.of_heads(blocks, gates, dh);
        product(dh, gates, blocks, self.heads, [self.frames.batch, w, 4 * w])
    }

    /// The gradient of the weight, `[4h, w]`: for each gate and head `d^T h` over all frames of `d [b, t, 4h]` and
    /// `previous [b, t, h]`.
    fn weight_gradient(&self, d: &Tensor, previous: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let (width, w) = (self.frames.width, self.head());
        let d = rounded(d, self.frames.precision)?;
        let d_weight = unwritten(weight.shape(), weight.dtype(), weight)?;
        let previous = Matrices::new(previous, [0, w, width]);
        for gate in 0..4 {
            let to = Matrices::new(&d_weight, [gate * width * w, w * w, w]);
            let d = Matrices::new(&d, [gate * width, w, 4 * width]).turned();
            product(to, d, previous, self.heads, [w, w, self.frames.batch * self.frames.time])?;
        }
        Ok(d_weight)
    }
}

impl Op for Slstm {
    /// The other outputs are the last h, c, n and m.
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, weight, h0, c0, n0] = inputs else { bail!("an sLSTM takes five inputs") };
        let frames = &self.frames;
        let blocks = self.blocks(weight)?;
        let y = frames.output(x, track)?;
        let recurrent = frames.gates(4, DType::F32, x)?;
        // Gates, the slopes of the logarithm of the forget gate, c and n.
        let mut kept = vec![];
        if track {
            for (parts, dtype) in [(4, x.dtype()), (1, x.dtype()), (1, DType::F32), (1, DType::F32)]
            {
                kept.push(frames.sequence(parts, dtype, x)?);
            }
        }
        let (first, operand) =
            (rounded(h0, frames.precision)?, frames.state(frames.operands(x), x)?);
        let state = |dtype| frames.last(dtype, x, track);
        let last = [state(x.dtype())?, state(DType::F32)?, state(DType::F32)?, state(DType::F32)?];
        for t in 0..frames.time {
            let (h, states) = match t {
                0 => (&first, [h0, c0, n0, &self.m0]),
                _ => (&operand, last.each_ref()),
            };
            self.recur(&recurrent, h, &blocks)?;
            let launch = frames.launch("slstm", "forward", x)?;
            let launch = all(all(launch, [x, &recurrent])?, states)?.tensor(&y)?;
            let launch = all(launch, &last)?.tensor(&operand)?;
            let launch = (0..4).try_fold(launch, |launch, i| launch.option(kept.get(i)))?;
            frames.run(launch.int(self.head()), t)?;
        }
        kept.push(blocks);
        Ok((y, last.into_iter().chain(kept).collect()))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, weight, h0, c0, n0], [gates, slopes, cells, norms, blocks]) =
            (pass.inputs, pass.kept)
        else {
            bail!("an sLSTM takes five inputs")
        };
        let frames = &self.frames;
        let of = frames.operands(x);
        let (dx, previous) = (frames.sequence(4, x.dtype(), x)?, frames.sequence(1, of, x)?);
        let recurrent = frames.gates(4, of, x)?;
        let state = || frames.state(DType::F32, x);
        let (through, dh, dc, dn) = (state()?, state()?, state()?, state()?);
        let [dh_last, dc_last, dn_last, _] = pass.d_others else {
            bail!("an sLSTM has four other outputs")
        };
        let dh_last = dh_last.as_ref().map(|dh| dh.to_dtype(DType::F32)).transpose()?;
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
        let d_weight = self.weight_gradient(&dx, &previous, weight)?;
        let dh0 = first_gradient(&dh, &through, h0)?;
        Ok([dx, d_weight, dh0, dc, dn].map(Some).into())
    }
}
