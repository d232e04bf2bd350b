//! Normalisations of vectors.

use std::ops::Range;

use sconce_ops::norm::group_norm::{self, GroupNorm};
use sconce_ops::norm::{self, layer_norm};
use sconce_ops::weights::Weight;
use sconce_tensor::Result;
use sconce_tensor::simd::{LANES, dispatch};

use crate::arena::Packer;

/// LayerNorm, `(x - mean) / sqrt(variance + eps) * weight + bias` (Ba et al. 2016, eq. 3 and 4), or, without a bias,
/// RMSNorm, `x / sqrt(mean(x^2) + eps) * weight` (Zhang and Sennrich 2019, eq. 4).
#[derive(Clone)]
pub struct Norm {
    weight: Range<usize>,
    bias: Option<Range<usize>>,
    /// The constant added to the variance.
    eps: f32,
}

impl Norm {
    /// Packs a LayerNorm, or an RMSNorm if there is no bias.
    pub fn new(packer: &mut Packer, norm: &norm::Norm) -> Result<Self> {
        let weight = packer.keep(&norm.weight)?;
        let bias = norm.bias.as_ref().map(|bias| packer.keep(bias)).transpose()?;
        Ok(Norm { weight, bias, eps: norm.eps })
    }

    /// Normalises `rows` vectors: `x` and `y` are `[rows, d]`, with `d` the width of the weight.
    pub fn apply(&self, arena: &[f32], rows: usize, x: &[f32], y: &mut [f32]) {
        let weight = &arena[self.weight.clone()];
        let n = rows * weight.len();
        let (x, y) = (&x[..n], &mut y[..n]);
        match &self.bias {
            Some(bias) => layer_norm::forward(y, x, weight, &arena[bias.clone()], self.eps),
            None => rms(y, x, weight, self.eps),
        }
    }
}

/// Normalises each head separately; the step form of `sconce_ops::group_norm`.
pub struct HeadNorm {
    weight: Range<usize>,
    norm: GroupNorm,
}

impl HeadNorm {
    /// Packs the norm's weight.
    pub fn new(packer: &mut Packer, weight: &Weight, norm: GroupNorm) -> Result<Self> {
        Ok(HeadNorm { weight: packer.keep(weight)?, norm })
    }

    /// Normalises all heads of one vector.
    pub fn apply(&self, arena: &[f32], x: &[f32], y: &mut [f32]) {
        group_norm::forward(y, x, &arena[self.weight.clone()], self.norm);
    }
}

dispatch! {
    fn rms(y: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
        let d = weight.len();
        for (y, x) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
            // Several partial sums: with a single one each addition would wait for the previous addition.
            let mut sums = [0.0f64; LANES];
            let (whole, rest) = x.as_chunks::<LANES>();
            for x in whole {
                for i in 0..LANES {
                    sums[i] += f64::from(x[i]) * f64::from(x[i]);
                }
            }
            for (sum, x) in sums.iter_mut().zip(rest) {
                *sum += f64::from(*x) * f64::from(*x);
            }
            let mean = sums.iter().sum::<f64>() / d as f64;
            let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                *y = x * scale * w;
            }
        }
    }
}
