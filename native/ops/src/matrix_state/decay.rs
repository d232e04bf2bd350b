//! Gates of a matrix state: from a layer's projections to the inputs of [`matrix_state`](super::matrix_state()).

use candle_core::Tensor;

use super::composed;
use super::options::MlstmGates;
use crate::form::Form;
use crate::lengths::{Lengths, check_lengths};
use crate::op::{self, Op, Pass};
use crate::simd::{add_rows, dispatch, exp, sigmoid, softplus};
use crate::stabiliser::unit;
use crate::weights::Weight;
use crate::{Result, memory, pool, tape, tensor};

/// Values of one shard.
const SHARD: usize = 1 << 14;

/// `scale log sigmoid(x)`: the logarithm of a gate `sigmoid(x)^scale` (Yang et al. 2023, section 4.4).
pub fn log_sigmoid(x: &Tensor, scale: f32) -> Result<Tensor> {
    if Form::of(x) != Form::Cpu {
        return composed::log_sigmoid(x, scale);
    }
    op::apply(LogSigmoid { scale }, &[x], x.shape())
}

struct LogSigmoid {
    scale: f32,
}

dispatch! {
    fn log_sigmoids(y: &mut [f32], x: &[f32], scale: f32) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = -scale * softplus(-x);
        }
    }
}

dispatch! {
    fn log_sigmoids_backward(d: &mut [f32], x: &[f32], scale: f32) {
        for (d, x) in d.iter_mut().zip(x) {
            *d *= scale * sigmoid(-x);
        }
    }
}

impl Op for LogSigmoid {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let x = inputs[0];
        let mut y = memory::zeros(x.len());
        pool::for_each_rows(&mut y, 1, SHARD, |first, y| {
            log_sigmoids(y, &x[first..first + y.len()], self.scale);
        });
        Ok(vec![y])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (x, mut d) = (pass.inputs[0], memory::copied(pass.gradient()?));
        pool::for_each_rows(&mut d, 1, SHARD, |first, d| {
            log_sigmoids_backward(d, &x[first..first + d.len()], self.scale);
        });
        Ok(vec![d])
    }
}

/// The gates of Mamba-2 (Dao & Gu 2024, section 7.1), `[b, t, 2 * heads]`: the logarithms `dt A`, then the factors dt,
/// with `dt = softplus(raw + dt_bias)` and `A = -e^a_log`; `raw [b, t, heads]`, `dt_bias` and `a_log [heads]`.
pub fn ssd_gates(raw: &Tensor, dt_bias: &Weight, a_log: &Weight) -> Result<Tensor> {
    let (batch, time, heads) = raw.dims3()?;
    for weight in [dt_bias, a_log] {
        tensor::check_shape("weights of Mamba-2's gates", &[heads], weight.dims())?;
    }
    if Form::of(raw) != Form::Cpu {
        return composed::ssd_gates(raw, dt_bias, a_log);
    }
    let mut a = tensor::to_vec(a_log)?;
    a.iter_mut().for_each(|a| *a = -a.exp());
    let bias = tensor::to_vec(dt_bias)?;
    let op = SsdGates { dt_bias: dt_bias.clone(), a_log: a_log.clone(), bias, a };
    op::apply(op, &[raw, dt_bias, a_log], (batch, time, 2 * heads))
}

struct SsdGates {
    dt_bias: Weight,
    a_log: Weight,
    bias: Vec<f32>,
    a: Vec<f32>,
}

dispatch! {
    /// The gates of some frames (see [`ssd_gates`]); `a` is `-e^a_log`.
    pub fn ssd_frames(gates: &mut [f32], raw: &[f32], bias: &[f32], a: &[f32]) {
        let heads = a.len();
        for (gates, raw) in gates.chunks_exact_mut(2 * heads).zip(raw.chunks_exact(heads)) {
            let (logs, dts) = gates.split_at_mut(heads);
            for h in 0..heads {
                dts[h] = softplus(raw[h] + bias[h]);
                logs[h] = dts[h] * a[h];
            }
        }
    }
}

dispatch! {
    /// Writes `d_raw`, and the gradient of `a_log` for each frame.
    fn ssd_frames_backward(d_raw: &mut [f32], d_a: &mut [f32], d: &[f32], raw: &[f32], gates: &[f32], bias: &[f32], a: &[f32]) {
        let heads = a.len();
        let frames = d_raw.chunks_exact_mut(heads).zip(d_a.chunks_exact_mut(heads)).zip(raw.chunks_exact(heads));
        let given = d.chunks_exact(2 * heads).zip(gates.chunks_exact(2 * heads));
        for (((d_raw, d_a), raw), (d, gates)) in frames.zip(given) {
            let ((d_logs, d_dts), logs) = (d.split_at(heads), &gates[..heads]);
            for h in 0..heads {
                d_raw[h] = (d_dts[h] + d_logs[h] * a[h]) * sigmoid(raw[h] + bias[h]);
                // The derivative of a = -e^a_log is a itself.
                d_a[h] = d_logs[h] * logs[h];
            }
        }
    }
}

impl Op for SsdGates {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        let mut gates = memory::zeros(2 * inputs[0].len());
        ssd_frames(&mut gates, inputs[0], &self.bias, &self.a);
        Ok(vec![gates])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (raw, gates, d) = (pass.inputs[0], pass.outputs[0], pass.gradient()?);
        let [mut d_raw, mut d_a] = [(); 2].map(|()| memory::zeros(raw.len()));
        ssd_frames_backward(&mut d_raw, &mut d_a, d, raw, gates, &self.bias, &self.a);
        for (weight, d) in [(&self.dt_bias, &d_raw), (&self.a_log, &d_a)] {
            weight.accumulate(|sum, accumulate| {
                if !accumulate {
                    sum.fill(0.0);
                }
                add_rows(sum, d);
            });
        }
        Ok(vec![d_raw, vec![], vec![]])
    }
}

/// Exponential input gates and sigmoid forget gates, stabilised (Beck et al. 2024, eq. 15 to 17):
///
/// ```text
/// m_t >= max(log f_t + m_{t-1}, i_t)    log f'_t = log f_t + m_{t-1} - m_t    i'_t = e^(i_t - m_t)
/// ```
///
/// Here `log f = log sigmoid(f)`, and m is the least multiple of 1/64 that satisfies the bound. `raw [b, t, 2 * heads]`
/// holds i, then f; `first [b, heads]` is m before the first frame.
///
/// The stabiliser m only scales the stored values: state and normaliser are stored times `e^-m`, and no output of the
/// mLSTM depends on m. So no gradient flows through m, and the gradients of i and f are exact.
pub fn mlstm_gates(raw: &Tensor, first: &Tensor, lengths: &Lengths) -> Result<MlstmGates> {
    let (batch, time, width) = raw.dims3()?;
    check_lengths(lengths, batch, time)?;
    let heads = width / 2;
    tensor::check_shape("gates of an mLSTM", &[batch, time, 2 * heads], raw.dims())?;
    tensor::check_shape("stabiliser of an mLSTM", &[batch, heads], first.dims())?;
    if Form::of(raw) != Form::Cpu {
        return composed::mlstm_gates(raw, first, lengths);
    }
    let raw = tape::contiguous(raw)?;
    let mut last = tensor::to_vec(&first.detach())?;
    let mut m = memory::zeros(batch * time * heads);
    tensor::with(&raw.detach(), |raw| {
        for b in 0..batch {
            let length = lengths.as_ref().map_or(time, |l| l[b]);
            let last = &mut last[b * heads..][..heads];
            for t in b * time..b * time + length {
                stabilise(&mut m[t * heads..][..heads], last, &raw[t * width..][..width]);
            }
        }
        Ok(())
    })?;
    let m = tensor::tensor(m, (batch, time, heads))?;
    let op =
        Stabilised { first: tensor::to_vec(&first.detach())?, m: tensor::to_vec(&m)?, time, heads };
    let gates = op::apply(op, &[&raw], raw.shape())?;
    Ok(MlstmGates { gates, m, last: tensor::tensor(last, (batch, heads))? })
}

/// The stabiliser m of one head after a frame.
#[inline(always)]
pub fn stabiliser(i: f32, f: f32, before: f32) -> f32 {
    unit((before - softplus(-f)).max(i))
}

/// `log f'` and `i'` of one head, from m before and after the frame.
#[inline(always)]
pub fn stabilised(i: f32, f: f32, before: f32, m: f32) -> (f32, f32) {
    let log = (before - m) - softplus(-f);
    // NaN stays NaN; `f32::min` would turn it into 0.
    (if log > 0.0 { 0.0 } else { log }, exp(i - m))
}

dispatch! {
    fn stabilise(m: &mut [f32], last: &mut [f32], raw: &[f32]) {
        let (i, f) = raw.split_at(m.len());
        for (((m, last), i), f) in m.iter_mut().zip(last.iter_mut()).zip(i).zip(f) {
            *m = stabiliser(*i, *f, *last);
            *last = *m;
        }
    }
}

dispatch! {
    fn frame(gates: &mut [f32], raw: &[f32], before: &[f32], m: &[f32]) {
        let heads = m.len();
        for h in 0..heads {
            let (i, f) = (raw[h], raw[heads + h]);
            (gates[h], gates[heads + h]) = stabilised(i, f, before[h], m[h]);
        }
    }
}

dispatch! {
    /// `d f = d log f' sigmoid(-f)`, `d i = d i' i'`.
    fn frame_backward(d_raw: &mut [f32], d: &[f32], raw: &[f32], gates: &[f32]) {
        let heads = d.len() / 2;
        for h in 0..heads {
            d_raw[h] = d[heads + h] * gates[heads + h];
            d_raw[heads + h] = d[h] * sigmoid(-raw[heads + h]);
        }
    }
}

struct Stabilised {
    first: Vec<f32>,
    m: Vec<f32>,
    time: usize,
    heads: usize,
}

impl Stabilised {
    fn gates(&self, raw: &[f32]) -> Vec<f32> {
        let (heads, mut gates) = (self.heads, memory::zeros(raw.len()));
        let frames = gates.chunks_exact_mut(2 * heads).zip(raw.chunks_exact(2 * heads));
        for (t, (gates, raw)) in frames.enumerate() {
            let before = match t % self.time {
                0 => &self.first[t / self.time * heads..][..heads],
                _ => &self.m[(t - 1) * heads..][..heads],
            };
            frame(gates, raw, before, &self.m[t * heads..][..heads]);
        }
        gates
    }
}

impl Op for Stabilised {
    fn forward(&mut self, inputs: &[&[f32]], _track: bool) -> Result<Vec<Vec<f32>>> {
        Ok(vec![self.gates(inputs[0])])
    }

    fn backward(&mut self, pass: &Pass<'_>) -> Result<Vec<Vec<f32>>> {
        let (raw, gates, d) = (pass.inputs[0], pass.outputs[0], pass.gradient()?);
        let (width, mut d_raw) = (2 * self.heads, memory::zeros(raw.len()));
        let frames = d_raw.chunks_exact_mut(width).zip(d.chunks_exact(width));
        let given = raw.chunks_exact(width).zip(gates.chunks_exact(width));
        for ((d_raw, d), (raw, gates)) in frames.zip(given) {
            frame_backward(d_raw, d, raw, gates);
        }
        Ok(vec![d_raw])
    }
}
