//! Recurrences whose state is a matrix, composed of candle's ops.

use candle_core::Tensor;

use crate::lengths::{Lengths, Rows, blank};
use crate::matmul::composed::product;
use crate::matrix_state::options::{Decay, MlstmGates, Options};
use crate::matrix_state::readout::Readout;
use crate::rotary::Rotary;
use crate::rotary::composed::turn;
use crate::stabiliser::units;
use crate::weights::Weight;
use crate::{Activation, Error, Result, activate};

pub(super) fn matrix_state(
    streams: &Tensor,
    gates: Option<&Tensor>,
    state: &Tensor,
    readout: Readout,
    options: &Options,
) -> Result<(Tensor, Tensor)> {
    let (_, time, _) = streams.dims3()?;
    let lengths = &options.lengths;
    let streams = blank(streams.clone(), lengths)?;
    let (q, k) = (keys(&streams, options.q, options)?, keys(&streams, options.k, options)?);
    let v = values(&streams, options)?;
    let (logs, factors) = clock(&v, gates, options)?;
    let input = match readout.is_normalised() {
        true => Tensor::cat(&[&v, &v.narrow(3, 0, 1)?.ones_like()?], 3)?,
        false => v.clone(),
    };
    let input = (input.broadcast_mul(&factors)? * f64::from(options.scale))?;
    // The time dimension comes first.
    let frames = |x: &Tensor| x.transpose(0, 1)?.contiguous();
    let (q, k, input, fade) = (frames(&q)?, frames(&k)?, frames(&input)?, frames(&logs.exp()?)?);
    let rows = Rows::of(&streams, lengths)?;

    let (mut state, mut reads) = (state.clone(), vec![]);
    for t in 0..time {
        let written = product(&input.get(t)?.unsqueeze(3)?, &k.get(t)?.unsqueeze(2)?)?;
        let mut next = (state.broadcast_mul(&fade.get(t)?.unsqueeze(2)?)? + written)?;
        reads.push(product(&next, &q.get(t)?.unsqueeze(3)?)?.squeeze(3)?);
        if let Some(rotary) = &options.rotary {
            next = turn_back(&next, rotary)?;
        }
        state = rows.step(t, &next, &state)?;
    }
    Ok((results(&Tensor::stack(&reads, 1)?, &streams, &readout, options)?, state))
}

/// From the values read, `[b, t, heads, wide]`, to outputs `[b, t, heads * value]` in frames that exist.
pub(super) fn results(
    read: &Tensor,
    streams: &Tensor,
    readout: &Readout,
    options: &Options,
) -> Result<Tensor> {
    let lengths = &options.lengths;
    let y = match readout {
        Readout::Plain => read.clone(),
        Readout::Skip(skip) => {
            let v = values(&blank(streams.clone(), lengths)?, options)?;
            (read + v.broadcast_mul(&skip.unsqueeze(1)?)?)?
        }
        Readout::Normalised(m) => {
            let norm = read.narrow(3, options.value, 1)?.abs()?;
            let floor = m.detach().neg()?.exp()?.unsqueeze(3)?;
            read.narrow(3, 0, options.value)?.broadcast_div(&norm.maximum(&floor)?)?
        }
    };
    blank(y.flatten_from(2)?, lengths)
}

/// The values of all heads, `[b, t, heads, value]`.
fn values(streams: &Tensor, options: &Options) -> Result<Tensor> {
    let Options { heads, value, v, .. } = *options;
    let (batch, time, _) = streams.dims3()?;
    Ok(streams.narrow(2, v, heads * value)?.reshape((batch, time, heads, value))?)
}

/// The queries or the keys of all heads, from column `first` on, `[b, t, heads, key]`.
fn keys(streams: &Tensor, first: usize, options: &Options) -> Result<Tensor> {
    let Options { heads, heads_per_group: shared, key, .. } = *options;
    let (batch, time, _) = streams.dims3()?;
    let groups = streams.narrow(2, first, heads / shared * key)?;
    let groups = groups.reshape((batch, time, heads / shared, 1, key))?;
    let all = groups.broadcast_as((batch, time, heads / shared, shared, key))?;
    Ok(all.reshape((batch, time, heads, key))?)
}

/// Logarithms of the decays `[b, t, heads, key or 1]`, and input factors `[b, t, heads, 1]`.
fn clock(v: &Tensor, gates: Option<&Tensor>, options: &Options) -> Result<(Tensor, Tensor)> {
    let (batch, time, heads, _) = v.dims4()?;
    let none = v.narrow(3, 0, 1)?.ones_like()?;
    let gates = gates.map(|gates| blank(gates.clone(), &options.lengths)).transpose()?;
    let part = |gates: &Tensor, first, count| {
        gates.narrow(2, first, count)?.reshape((batch, time, heads, ()))
    };
    Ok(match (&options.decay, &gates) {
        (Decay::Constant(logs), _) => {
            let logs = Tensor::from_slice(logs, (1, 1, heads, 1), v.device())?;
            let logs = logs.to_dtype(v.dtype())?;
            (logs.broadcast_as(none.shape())?, none)
        }
        (Decay::Head, Some(gates)) => (part(gates, 0, heads)?, none),
        (Decay::HeadAndInput, Some(gates)) => (part(gates, 0, heads)?, part(gates, heads, heads)?),
        (Decay::Key, Some(gates)) => (part(gates, 0, heads * options.key)?, none),
        (_, None) => return Err(Error::mismatch("gates of a matrix state", "some", "none")),
    })
}

/// A state in the rotation of the next query, `[.., key]`.
fn turn_back(state: &Tensor, rotary: &Rotary) -> Result<Tensor> {
    let half = rotary.dim() / 2;
    let [cos, sin] = rotary.rotation(1);
    let table = |x: &[f32]| Tensor::from_slice(x, half, state.device())?.to_dtype(state.dtype());
    let (a, b) = (state.narrow(3, 0, half)?, state.narrow(3, half, half)?);
    turn(&a, &b, &table(cos)?, &table(sin)?.neg()?)
}

pub(super) fn log_sigmoid(x: &Tensor, scale: f32) -> Result<Tensor> {
    Ok((activate(&x.neg()?, Activation::Softplus)? * f64::from(-scale))?)
}

pub(super) fn ssd_gates(raw: &Tensor, dt_bias: &Weight, a_log: &Weight) -> Result<Tensor> {
    let dt = activate(&raw.broadcast_add(dt_bias)?, Activation::Softplus)?;
    let logs = dt.broadcast_mul(&a_log.exp()?.neg()?)?;
    Ok(Tensor::cat(&[logs, dt], 2)?)
}

pub(super) fn mlstm_gates(raw: &Tensor, first: &Tensor, lengths: &Lengths) -> Result<MlstmGates> {
    let (_, time, width) = raw.dims3()?;
    let raw = blank(raw.clone(), lengths)?;
    let (i, f) = (raw.narrow(2, 0, width / 2)?, raw.narrow(2, width / 2, width / 2)?);
    let log_f = log_sigmoid(&f, 1.0)?;
    let (before, m) = stabilisers(&i.detach(), &log_f.detach(), &first.detach(), lengths)?;
    let log = ((&before - &m)? + log_f)?;
    // Clips positive rounding errors.
    let log = (&log - log.detach().relu()?)?;
    let gates = Tensor::cat(&[log, (i - &m)?.exp()?], 2)?;
    let last = m.narrow(1, time - 1, 1)?.squeeze(1)?;
    Ok(MlstmGates { gates, m, last })
}

/// The stabiliser m before and after each frame, `[b, t, heads]`; past the length of a row m is constant.
fn stabilisers(
    i: &Tensor,
    log_f: &Tensor,
    first: &Tensor,
    lengths: &Lengths,
) -> Result<(Tensor, Tensor)> {
    let (time, rows) = (i.dim(1)?, Rows::of(i, lengths)?);
    let mut all = vec![first.clone()];
    let mut m = first.clone();
    for t in 0..time {
        let at = |x: &Tensor| x.narrow(1, t, 1)?.squeeze(1);
        let least = (&m + at(log_f)?)?.maximum(&at(i)?)?;
        m = rows.step(t, &units(&least)?, &m)?;
        all.push(m.clone());
    }
    let all = Tensor::stack(&all, 1)?;
    Ok((all.narrow(1, 0, time)?, all.narrow(1, 1, time)?))
}
