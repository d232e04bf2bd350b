//! Norms over the features of a frame: over all of them, or over each head.

mod card;
mod composed;
pub mod group_norm;
pub mod head_norm;
pub mod layer_norm;
pub(crate) mod parameters;
mod rms_norm;
pub mod row_norm;
mod scaled;

pub use group_norm::group_norm;
pub use head_norm::head_norm;
pub use parameters::{HeadNorms, Norm};
pub use row_norm::row_norm;

use super::simd::LANES;

/// Sum of `f` over a row, in f64 so that a large mean does not cancel the variance.
#[inline(always)]
fn sum(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    // Several lanes: with a single one each addition would wait for the previous addition.
    let mut sums = [0.0f64; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            sums[i] += f(f64::from(chunk[i]));
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|v| f(f64::from(*v))).sum::<f64>()
}

/// The mean (0 unless `center`) and `1 / sqrt(variance + eps)`.
#[inline(always)]
fn moments(x: &[f32], center: bool, eps: f32) -> (f32, f32) {
    let n = x.len() as f64;
    let mean = if center { sum(x, |v| v) / n } else { 0.0 };
    let variance = sum(x, |v| (v - mean) * (v - mean)) / n;
    (mean as f32, (1.0 / (variance + f64::from(eps)).sqrt()) as f32)
}
