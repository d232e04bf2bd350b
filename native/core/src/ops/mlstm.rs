//! The gates of an mLSTM, kept within the range of a float.

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use super::recurrence::{Lengths, check_lengths};
use super::simd::{dispatch, exp, sigmoid};
use super::{elementwise::softplus, tensor};
use crate::{Error, Result};

/// What [`super::matrix_state`] reads.
pub struct Gates {
    /// `[b, t, 2 * heads]`: the logarithms of the decays, then the factors of the inputs.
    pub gates: Tensor,
    /// `m [b, t, heads]`, and after the last frame `[b, heads]`. Neither has a gradient.
    pub m: Tensor,
    pub last: Tensor,
}

/// Exponential input gates and sigmoid forget gates, stabilised (Beck et al. 2024, eq. 15 to 17):
///
/// ```text
/// m_t = max(log f_t + m_{t-1}, i_t)    log f'_t = log f_t + m_{t-1} - m_t    i'_t = e^(i_t - m_t)
/// ```
///
/// with `log f = log sigmoid(f)`. `raw [b, t, 2 * heads]` holds i, then f; `first [b, heads]` is m before.
///
/// m is a choice of units: state and normaliser are kept as `e^-m` of what they are, and no result of
/// the mLSTM depends on it. So no gradient flows through m, and those of i and f are exact.
pub fn mlstm_gates(raw: &Tensor, first: &Tensor, lengths: &Lengths) -> Result<Gates> {
    let (batch, time, width) = raw.dims3()?;
    check_lengths(lengths, batch, time)?;
    let heads = width / 2;
    if first.dims() != [batch, heads] || width != 2 * heads {
        let (expected, got) = (format!("[{batch}, {heads}]"), format!("{:?}", first.dims()));
        return Err(Error::mismatch("stabiliser of an mLSTM", expected, got));
    }
    let raw = raw.contiguous()?;
    let mut last = tensor::to_vec(&first.detach())?;
    let mut m = vec![0.0; batch * time * heads];
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
    let op = MlstmGates {
        first: tensor::to_vec(&first.detach())?,
        m: tensor::to_vec(&m)?,
        time,
        heads,
    };
    let gates = raw.apply_op1(op)?;
    Ok(Gates { gates, m, last: tensor::tensor(last, (batch, heads))? })
}

dispatch! {
    fn stabilise(m: &mut [f32], last: &mut [f32], raw: &[f32]) {
        let (i, f) = raw.split_at(m.len());
        for (((m, last), i), f) in m.iter_mut().zip(last.iter_mut()).zip(i).zip(f) {
            *m = (*last - softplus(-f)).max(*i);
            *last = *m;
        }
    }
}

dispatch! {
    fn frame(gates: &mut [f32], raw: &[f32], before: &[f32], m: &[f32]) {
        let heads = m.len();
        for h in 0..heads {
            gates[h] = (before[h] - softplus(-raw[heads + h]) - m[h]).min(0.0);
            gates[heads + h] = exp(raw[h] - m[h]);
        }
    }
}

dispatch! {
    /// `d f = d log f' sigmoid(-f)`, `d i = d i' i'`
    fn frame_backward(d_raw: &mut [f32], d: &[f32], raw: &[f32], gates: &[f32]) {
        let heads = d.len() / 2;
        for h in 0..heads {
            d_raw[h] = d[heads + h] * gates[heads + h];
            d_raw[heads + h] = d[h] * sigmoid(-raw[heads + h]);
        }
    }
}

struct MlstmGates {
    first: Vec<f32>,
    m: Vec<f32>,
    time: usize,
    heads: usize,
}

impl MlstmGates {
    fn forward(&self, raw: &[f32]) -> Vec<f32> {
        let (heads, mut gates) = (self.heads, vec![0.0; raw.len()]);
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

impl CustomOp1 for MlstmGates {
    fn name(&self) -> &'static str {
        "mlstm-gates"
    }

    fn cpu_fwd(&self, raw: &CpuStorage, rl: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.forward(tensor::slice(raw, rl)?)), rl.shape().clone()))
    }

    fn bwd(&self, raw: &Tensor, gates: &Tensor, d: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let width = 2 * self.heads;
        let mut d_raw = vec![0.0; raw.elem_count()];
        tensor::with(raw, |raw| {
            tensor::with(gates, |gates| {
                tensor::with(d, |d| {
                    let frames = d_raw.chunks_exact_mut(width).zip(d.chunks_exact(width));
                    let given = raw.chunks_exact(width).zip(gates.chunks_exact(width));
                    for ((d_raw, d), (raw, gates)) in frames.zip(given) {
                        frame_backward(d_raw, d, raw, gates);
                    }
                    Ok(())
                })
            })
        })?;
        Ok(Some(tensor::tensor(d_raw, raw.shape())?))
    }
}
