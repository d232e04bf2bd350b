//! RWKV's average composed of candle's ops.

use candle_core::Tensor;

use crate::frames::composed::last;
use crate::lengths::{Lengths, blank};
use crate::linear_recurrence::composed::{prefixes, sigmoid, softplus};
use crate::{Result, Wkv};

/// A parallel scan over stretches of frames. Each stretch has a mean and the logarithm of its total weight. Two
/// stretches combine by decaying the early one over the late one, then taking the weighted mean and the sum of weights.
pub(super) fn wkv(inputs: Wkv<'_>, lengths: Lengths) -> Result<[Tensor; 3]> {
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
