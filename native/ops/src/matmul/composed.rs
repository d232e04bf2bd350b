//! Products composed of candle's ops.

use candle_core::Tensor;

/// `a b [.., n, m]` of `a [.., n, k]` and `b [.., k, m]`, on any device. Composed ops use it for all products.
#[expect(clippy::disallowed_methods, reason = "other products need a CPU or kernels")]
pub(crate) fn product(a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
    a.matmul(b)
}
