//! Stabilisers of exponential gates: multiples of 1/64.

use candle_core::Tensor;

/// The least multiple of 1/64 that is not below x. Differences of such stabilisers are exact, so
/// decays computed from them accumulate no rounding error over hundreds of frames.
#[inline(always)]
pub(crate) fn unit(x: f32) -> f32 {
    (x * 64.0).ceil() / 64.0
}

/// The least multiples of 1/64 that are not below x.
pub(crate) fn units(x: &Tensor) -> candle_core::Result<Tensor> {
    (x * 64.0)?.ceil()? / 64.0
}
