//! Linear recurrences by channel.
//!
//! Nothing walks over the frames here: stretches of 1, 2, 4, .. frames are put together, those that end with any
//! frame at once (Hillis & Steele 1986), so that a window of t frames is log2(t) steps and not t.

use candle_core::Tensor;

use super::dense::affine_to;
use super::elementwise::activate;
use super::frames::{blank, last};
use super::residual::around;
use crate::Result;
use crate::ops::lengths::Lengths;
use crate::ops::linear_recurrence::cells::RgLru;
use crate::ops::{self, Activation, Affine, MambaWeights, Residual, Selective, Wkv, op};

/// Two numbers of each channel and frame, `[b, t, ..]`.
type Pair = [Tensor; 2];

/// What the frames up to each one come to, from what each is alone. `join(n, early, late)` puts together two
/// stretches that touch, the late one of n frames.
fn prefixes(
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

/// `h_t = a_t * h_{t-1} + b_t` of `a`, `b [b, t, ..]` and `h0 [b, ..]`.
fn states(a: &Tensor, b: &Tensor, h0: &Tensor) -> Result<Tensor> {
    let time = b.dim(1)?;
    // The first state is a frame that keeps nothing of those before it.
    let a = a.pad_with_zeros(1, 1, 0)?;
    let b = Tensor::cat(&[&h0.unsqueeze(1)?, b], 1)?;
    let [_, h] = prefixes([a, b], |_, [a0, b0], [a, b]| Ok([(a0 * &a)?, ((a * b0)? + b)?]))?;
    Ok(h.narrow(1, 1, time)?)
}

/// N inputs that lie side by side, each `[b, t, c]`.
fn parts<const N: usize>(x: &Tensor) -> Result<[Tensor; N]> {
    op::take(x.chunk(N, 2)?)
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::Sigmoid)
}

fn softplus(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::Softplus)
}

/// `1 - e^-x` of `x >= 0`, near 0 too.
fn one_less_exp(x: &Tensor) -> candle_core::Result<Tensor> {
    let t = (x * 0.5)?.tanh()?;
    (&t * 2.0)? / (t + 1.0)?
}

pub fn linear_recurrence(a: &Tensor, b: &Tensor, h0: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    blank(states(&a.broadcast_as(b.shape())?, b, h0)?, lengths)
}

pub fn min_gru(projected: &Tensor, h0: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    let [z, candidate] = parts(projected)?;
    let z = sigmoid(&z)?;
    blank(states(&(1.0 - &z)?, &(z * candidate)?, h0)?, lengths)
}

pub fn min_lstm(projected: &Tensor, h0: &Tensor, eps: f32, lengths: &Lengths) -> Result<Tensor> {
    let [f, i, candidate] = parts(projected)?;
    // The logarithms of both gates and of eps, less the larger gate's: two closed gates have a ratio too.
    let (f, i) = (softplus(&f.neg()?)?.neg()?, softplus(&i.neg()?)?.neg()?);
    let most = f.maximum(&i)?.detach();
    let (f, i) = ((f - &most)?.exp()?, (i - &most)?.exp()?);
    let eps = most.affine(-1.0, f64::from(eps).ln())?.exp()?;
    let sum = ((&f + &i)? + eps)?;
    let a = (f / &sum)?;
    let b = ((i / sum)? * candidate)?;
    blank(states(&a, &b, h0)?, lengths)
}

pub fn rg_lru(
    gates: &Tensor,
    x: &Tensor,
    lambda: &Tensor,
    h0: &Tensor,
    lengths: &Lengths,
) -> Result<Tensor> {
    let [r, i] = parts(gates)?;
    let log_a =
        sigmoid(&r)?.broadcast_mul(&(softplus(&lambda.neg()?)? * -f64::from(RgLru::POWER))?)?;
    // 1 - a^2; where it is 0 a square root would have no slope.
    let keep = (one_less_exp(&(&log_a * -2.0)?)? + 1e-36)?.sqrt()?;
    let b = ((keep * sigmoid(&i)?)? * x)?;
    blank(states(&log_a.exp()?, &b, h0)?, lengths)
}

pub fn hgrn(projected: &Tensor, bound: &Tensor, h0: &Tensor, lengths: &Lengths) -> Result<Tensor> {
    let [f, i, v] = parts(projected)?;
    let a = sigmoid(&f)?.broadcast_mul(&(1.0 - bound)?)?.broadcast_add(bound)?;
    let b = (sigmoid(&i)? * v.silu()?)?;
    blank(states(&a, &b, h0)?, lengths)
}

pub fn diagonal_ssm(
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

pub fn selective_scan(inputs: Selective<'_>, lengths: Lengths) -> Result<(Tensor, Tensor)> {
    let Selective { u, dt, dt_bias, dt_softplus, a, a_log, b, c, d, z, h } = inputs;
    let mut dt = dt.broadcast_as(u.shape())?;
    if let Some(bias) = dt_bias {
        dt = dt.broadcast_add(bias)?;
    }
    if dt_softplus {
        dt = softplus(&dt)?;
    }
    let a = if a_log { a.exp()?.neg()? } else { a.clone() };
    let decay = dt.unsqueeze(3)?.broadcast_mul(&a)?.exp()?;
    let input = (dt * u)?.unsqueeze(3)?.broadcast_mul(&b.unsqueeze(2)?)?;
    let states = states(&decay, &input, h)?;
    let mut y = states.broadcast_mul(&c.unsqueeze(2)?)?.sum(3)?;
    if let Some(d) = d {
        y = (y + u.broadcast_mul(d)?)?;
    }
    if let Some(z) = z {
        y = (y * z.silu()?)?;
    }
    let next = last(&states.flatten_from(2)?, &h.flatten_from(1)?, &lengths)?;
    Ok((blank(y, &lengths)?, next.reshape(h.shape())?))
}

pub fn mamba(
    x: &Tensor,
    states: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: Lengths,
) -> Result<(Tensor, [Tensor; 2])> {
    mamba_to(x, states, weights, lengths, None)
}

pub fn mamba_residual(
    x: &Tensor,
    residual: &Residual,
    states: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: Lengths,
) -> Result<(Tensor, [Tensor; 2])> {
    let mut after = states.clone();
    let y = around(x, residual, |x, rest| {
        let y;
        (y, after) = mamba_to(x, states, weights, lengths, rest)?;
        Ok(y)
    })?;
    Ok((y, after))
}

/// `mamba(x) + rest`
fn mamba_to(
    x: &Tensor,
    [conv_state, ssm_state]: &[Tensor; 2],
    weights: &MambaWeights<'_>,
    lengths: Lengths,
    rest: Option<&Tensor>,
) -> Result<(Tensor, [Tensor; 2])> {
    let ((_, rank), (_, n)) = (weights.dt_proj.dims2()?, weights.a_log.dims2()?);
    let product = |x: &Tensor, weight| ops::linear(x, weight, None, Activation::None);
    let inner = weights.in_proj.dim(0)? / 2;
    let [u, z] = ops::linear_parts(x, weights.in_proj, [inner; 2])?;
    let bias = Some(&**weights.conv_bias);
    let (u, conv) = ops::causal_conv(&u, weights.conv, bias, conv_state, true, lengths.clone())?;
    let [dt, b, c] = ops::linear_parts(&u, weights.x_proj, [rank, n, n])?;
    let inputs = Selective {
        u: &u,
        dt: &product(&dt, weights.dt_proj)?,
        dt_bias: Some(weights.dt_bias),
        dt_softplus: true,
        a: weights.a_log,
        a_log: true,
        b: &b,
        c: &c,
        d: Some(weights.d),
        z: Some(&z),
        h: ssm_state,
    };
    let (y, ssm) = ops::selective_scan(inputs, lengths)?;
    let out = Affine { weight: weights.out_proj.clone(), bias: None };
    Ok((affine_to(&y, &out, rest)?, [conv, ssm]))
}

/// Of each stretch of frames the mean and the logarithm of its whole weight: two stretches have the mean of
/// both, by their weights, and the sum of these, once the early one has faded over the late one.
pub fn wkv(inputs: Wkv<'_>, lengths: Lengths) -> Result<[Tensor; 3]> {
    let Wkv { k, v, w, u, mean, weight } = inputs;
    let (time, decay) = (k.dim(1)?, w.exp()?);
    let means = Tensor::cat(&[&mean.unsqueeze(1)?, v], 1)?;
    let weights = Tensor::cat(&[&weight.unsqueeze(1)?, k], 1)?;
    let [means, weights] = prefixes([means, weights], |n, [m0, s0], [m, s]| {
        let ahead = (s0.broadcast_sub(&(&decay * n as f64)?)? - &s)?;
        let mean = (&m + (sigmoid(&ahead)? * (m0 - &m)?)?)?;
        Ok([mean, (s + softplus(&ahead)?)?])
    })?;
    let ahead = (k.broadcast_add(u)? - weights.narrow(1, 0, time)?)?;
    let before = means.narrow(1, 0, time)?;
    let y = (&before + (sigmoid(&ahead)? * (v - &before)?)?)?;
    Ok([
        blank(y, &lengths)?,
        last(&means.narrow(1, 1, time)?, mean, &lengths)?,
        last(&weights.narrow(1, 1, time)?, weight, &lengths)?,
    ])
}

pub fn lower_bound(bounds: &Tensor, layer: usize) -> Result<Tensor> {
    let p = bounds.broadcast_sub(&bounds.max_keepdim(0)?.detach())?.exp()?;
    let p = p.broadcast_div(&p.sum_keepdim(0)?)?;
    let counts = (0..bounds.dim(0)?).map(|j| f32::from((1..=layer).contains(&j)));
    let counts = Tensor::from_iter(counts, bounds.device())?.to_dtype(bounds.dtype())?;
    Ok(p.broadcast_mul(&counts.unsqueeze(1)?)?.sum(0)?)
}
