//! Products composed of candle's ops.

use candle_core::Tensor;

/// `a b [.., n, m]` of `a [.., n, k]` and `b [.., k, m]`: all products of composed ops, on any device.
#[expect(clippy::disallowed_methods, reason = "ours run on a CPU only")]
pub(crate) fn product(a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
    a.matmul(b)
}
