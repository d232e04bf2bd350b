//! Linear recurrences by channel, composed of candle's ops.
//!
//! This is a parallel scan (Hillis & Steele 1986): stretches of 1, 2, 4, .. frames are joined, for all last frames at
//! once, so that a window of t frames takes log2(t) steps and not t.

use candle_core::Tensor;

use crate::activation::composed::activate;
use crate::lengths::{Lengths, blank};
use crate::linear_recurrence::cells::RgLru;
use crate::{Activation, Result, op};

/// Two values for each channel and frame, `[b, t, ..]`.
pub(crate) type Pair = [Tensor; 2];

/// Combines all frames up to each frame, from the values of single frames. `join(n, early, late)` combines two adjacent
/// stretches; the late one has n frames.
pub(crate) fn prefixes(
    [mut a, mut b]: Pair,
    join: impl Fn(usize, Pair, Pair) -> Result<Pair>,
) -> Result<Pair> {
    let time = a.dim(1)?;
    let mut n = 1;
    while n < time {
        let part = |from, count| -> Result<Pair> {
            Ok([a.narrow(1, from, count)?, b.narrow(1, from, count)?])
        };
        let [first_a, first_b] = part(0, n)?;
        let [rest_a, rest_b] = join(n, part(0, time - n)?, part(n, time - n)?)?;
        a = Tensor::cat(&[first_a, rest_a], 1)?;
        b = Tensor::cat(&[first_b, rest_b], 1)?;
        n *= 2;
    }
    Ok([a, b])
}

/// `h_t = a_t * h_{t-1} + b_t` for `a`, `b [b, t, ..]` and `h0 [b, ..]`.
pub(crate) fn states(a: &Tensor, b: &Tensor, h0: &Tensor) -> Result<Tensor> {
    let time = b.dim(1)?;
    // The first state becomes a frame whose gate is 0.
    let a = a.pad_with_zeros(1, 1, 0)?;
    let b = Tensor::cat(&[&h0.unsqueeze(1)?, b], 1)?;
    let [_, h] = prefixes([a, b], |_, [a0, b0], [a, b]| Ok([(a0 * &a)?, ((a * b0)? + b)?]))?;
    Ok(h.narrow(1, 1, time)?)
}

/// Splits N inputs that lie side by side, each `[b, t, c]`.
fn parts<const N: usize>(x: &Tensor) -> Result<[Tensor; N]> {
    op::take(x.chunk(N, 2)?)
}

pub(crate) fn sigmoid(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::Sigmoid)
}

pub(crate) fn softplus(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::Softplus)
}

/// `1 - e^-x` for `x >= 0`, without cancellation near 0.
fn one_less_exp(x: &Tensor) -> candle_core::Result<Tensor> {
    let t = (x * 0.5)?.tanh()?;
    (&t * 2.0)? / (t + 1.0)?
}

pub(crate) fn linear_recurrence(
    a: &Tensor,
    b: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    blank(states(&a.broadcast_as(b.shape())?, b, h0)?, lengths)
}

pub(crate) fn min_gru(projected: &Tensor, h0: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    let [z, candidate] = parts(projected)?;
    let z = sigmoid(&z)?;
    blank(states(&(1.0 - &z)?, &(z * candidate)?, h0)?, lengths)
}

pub(crate) fn min_lstm(
    projected: &Tensor,
    h0: &Tensor,
    eps: f32,
    lengths: &Lengths,
) -> Result<Tensor> {
    let [f, i, candidate] = parts(projected)?;
    // The logarithms of both gates and of eps, minus the logarithm of the larger gate: the ratio of two closed gates is
    // then finite.
    let (f, i) = (softplus(&f.neg()?)?.neg()?, softplus(&i.neg()?)?.neg()?);
    let most = f.maximum(&i)?.detach();
    let (f, i) = ((f - &most)?.exp()?, (i - &most)?.exp()?);
    let eps = most.affine(-1.0, f64::from(eps).ln())?.exp()?;
    let sum = ((&f + &i)? + eps)?;
    let a = (f / &sum)?;
    let b = ((i / sum)? * candidate)?;
    blank(states(&a, &b, h0)?, lengths)
}

pub(crate) fn rg_lru(
    gates: &Tensor,
    x: &Tensor,
    lambda: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    let [r, i] = parts(gates)?;
    let log_a =
        sigmoid(&r)?.broadcast_mul(&(softplus(&lambda.neg()?)? * -f64::from(RgLru::POWER))?)?;
    // 1 - a^2, plus an offset, because the square root has no finite slope at 0.
    let keep = (one_less_exp(&(&log_a * -2.0)?)? + 1e-36)?.sqrt()?;
    let b = ((keep * sigmoid(&i)?)? * x)?;
    blank(states(&log_a.exp()?, &b, h0)?, lengths)
}

pub(crate) fn hgrn(
    projected: &Tensor,
    bound: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    let [f, i, v] = parts(projected)?;
    let a = sigmoid(&f)?.broadcast_mul(&(1.0 - bound)?)?.broadcast_add(bound)?;
    let b = (sigmoid(&i)? * v.silu()?)?;
    blank(states(&a, &b, h0)?, lengths)
}

pub(crate) fn diagonal_ssm(
    u: &Tensor,
    a_log: &Tensor,
    dt_log: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    let rate = a_log.exp()?;
    let less = one_less_exp(&(&rate * dt_log.exp()?)?)?;
    let a = (1.0 - &less)?.broadcast_as(u.shape())?;
    let b = u.broadcast_mul(&(less / rate)?)?;
    blank(states(&a, &b, h0)?, lengths)
}
