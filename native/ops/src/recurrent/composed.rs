//! LSTM, GRU and sLSTM, composed of candle's ops.

use candle_core::Tensor;

use super::state::SlstmState;
use crate::activation::composed::activate;
use crate::dense::composed::linear;
use crate::lengths::{Lengths, Rows, blank};
use crate::matmul::composed::product;
use crate::recurrent::Gates;
use crate::stabiliser::units;
use crate::weights::Weight;
use crate::{Activation, Result, op};

/// Frame t of `x [b, t, c]`, `[b, c]`.
fn frame(x: &Tensor, t: usize) -> candle_core::Result<Tensor> {
    x.narrow(1, t, 1)?.squeeze(1)
}

/// Splits `[b, c]` into N parts `[b, c / N]`.
fn parts<const N: usize>(x: &Tensor) -> Result<[Tensor; N]> {
    op::take(x.chunk(N, 1)?)
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::Sigmoid)
}

pub(crate) fn gru(
    x: &Tensor,
    gates: &Gates,
    h0: &Tensor,
    lengths: Lengths,
) -> Result<(Tensor, Tensor)> {
    let Gates { weight_ih, weight_hh, bias_ih, bias_hh, .. } = gates;
    let projected = linear(x, weight_ih, Some(bias_ih), Activation::None)?;
    let rows = Rows::of(x, &lengths)?;
    let (mut h, mut all) = (h0.clone(), vec![]);
    for t in 0..x.dim(1)? {
        let [xr, xz, xn] = parts(&frame(&projected, t)?)?;
        let [hr, hz, hn] = parts(&linear(&h, weight_hh, Some(bias_hh), Activation::None)?)?;
        let (r, z) = (sigmoid(&(xr + hr)?)?, sigmoid(&(xz + hz)?)?);
        let n = (xn + (r * hn)?)?.tanh()?;
        let new = (&n + (z * (&h - &n)?)?)?;
        h = rows.step(t, &new, &h)?;
        all.push(h.clone());
    }
    Ok((Tensor::stack(&all, 1)?, h))
}

pub(crate) fn lstm(
    x: &Tensor,
    gates: &Gates,
    h0: &Tensor,
    c0: &Tensor,
    lengths: Lengths,
) -> Result<(Tensor, Tensor, Tensor)> {
    let Gates { weight_ih, weight_hh, bias_ih, bias_hh, .. } = gates;
    let projected = linear(x, weight_ih, Some(bias_ih), Activation::None)?;
    let rows = Rows::of(x, &lengths)?;
    let (mut h, mut c, mut all) = (h0.clone(), c0.clone(), vec![]);
    for t in 0..x.dim(1)? {
        let recurrent = linear(&h, weight_hh, Some(bias_hh), Activation::None)?;
        let [i, f, g, o] = parts(&(frame(&projected, t)? + recurrent)?)?;
        let new_c = ((sigmoid(&f)? * &c)? + (sigmoid(&i)? * g.tanh()?)?)?;
        let new_h = (sigmoid(&o)? * new_c.tanh()?)?;
        (h, c) = (rows.step(t, &new_h, &h)?, rows.step(t, &new_c, &c)?);
        all.push(h.clone());
    }
    Ok((Tensor::stack(&all, 1)?, h, c))
}

/// Weights `[4h, w]` of heads of width w as right operands, `[heads, w, 4w]`.
fn blocks(weight: &Weight, heads: usize) -> candle_core::Result<Tensor> {
    let (_, w) = weight.dims2()?;
    weight.reshape((4, heads, w, w))?.permute((1, 3, 0, 2))?.reshape((heads, w, 4 * w))
}

/// `R h [b, 4h]` of `h [b, h]`.
fn recurrence(h: &Tensor, blocks: &Tensor) -> candle_core::Result<Tensor> {
    let ((batch, width), (heads, w, _)) = (h.dims2()?, blocks.dims3()?);
    let h = h.reshape((batch, heads, w))?.transpose(0, 1)?.contiguous()?;
    let gates = product(&h, blocks)?.reshape((heads, batch, 4, w))?;
    gates.permute((1, 2, 0, 3))?.reshape((batch, 4 * width))
}

pub(crate) fn slstm(
    projected: &Tensor,
    weight: &Weight,
    heads: usize,
    state: &SlstmState,
    lengths: Lengths,
) -> Result<(Tensor, SlstmState)> {
    let blocks = blocks(weight, heads)?;
    let rows = Rows::of(projected, &lengths)?;
    let SlstmState { mut h, mut c, mut n, m } = state.clone();
    let (mut m, mut all) = (m.detach(), vec![]);
    let zeros = n.zeros_like()?;
    let nothing = zeros.affine(1.0, f64::NEG_INFINITY)?;
    for t in 0..projected.dim(1)? {
        let [i, f, z, o] = parts(&(frame(projected, t)? + recurrence(&h, &blocks)?)?)?;
        let log = activate(&f.neg()?, Activation::Softplus)?;
        let unseen = n.eq(&zeros)?;
        let least = i.maximum(&(&m - &log)?)?;
        let new_m = units(&unseen.where_cond(&i, &least)?.detach())?;
        let input = (i - &new_m)?.exp()?;
        // Before the first frame there is no state to forget, whatever the change of m.
        let forget = unseen.where_cond(&nothing, &((&m - &new_m)? - log)?)?.exp()?;
        let new_c = ((&forget * &c)? + (&input * z.tanh()?)?)?;
        let new_n = ((forget * &n)? + input)?;
        let new_h = (sigmoid(&o)? * (&new_c / &new_n)?)?;
        h = rows.step(t, &new_h, &h)?;
        c = rows.step(t, &new_c, &c)?;
        n = rows.step(t, &new_n, &n)?;
        m = rows.step(t, &new_m, &m)?;
        all.push(h.clone());
    }
    Ok((blank(Tensor::stack(&all, 1)?, &lengths)?, SlstmState { h, c, n, m }))
}
