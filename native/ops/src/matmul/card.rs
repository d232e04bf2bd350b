//! Products of rows on a card; sums are f32 in every precision.

use candle_core::{DType, Result, Tensor};

use crate::Precision;
use crate::device::launch::unwritten;
use crate::matmul::matrices::{Matrices, product};
use crate::rows::copy;
use crate::tensor::{rows, to_bf16};

/// Rounds an operand to a precision; returns the operand itself in f32.
pub(crate) fn rounded(x: &Tensor, precision: Precision) -> Result<Tensor> {
    match (precision, x.dtype()) {
        (Precision::Bf16, DType::F32) => to_bf16(x),
        (Precision::F16, DType::F32) => x.to_dtype(DType::F16),
        _ => Ok(x.clone()),
    }
}

/// `a b^T [m, n]` of `a [.., k]`, m rows, and `b [n, k]`, in the type `dtype`.
pub(crate) fn nt(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let ((m, k), n) = (rows(a.dims()), rows(b.dims()).0);
    gemm([m, n, k], Matrices::rows(a, k), Matrices::rows(b, k).turned(), (a, dtype))
}

/// `a b [m, n]` of `a [.., k]`, m rows, and `b [k, n]`.
pub(crate) fn nn(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let ((m, k), n) = (rows(a.dims()), rows(b.dims()).1);
    gemm([m, n, k], Matrices::rows(a, k), Matrices::rows(b, n), (a, dtype))
}

/// `a^T b [m, n]` of `a [.., m]` and `b [.., n]`, k rows each.
pub(crate) fn tn(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let ((k, m), n) = (rows(a.dims()), rows(b.dims()).1);
    gemm([m, n, k], Matrices::rows(a, m).turned(), Matrices::rows(b, n), (a, dtype))
}

/// `a b [m, n]` over k, on the device of `beside` and in the type `dtype`.
fn gemm(
    [m, n, k]: [usize; 3],
    a: Matrices,
    b: Matrices,
    (beside, dtype): (&Tensor, DType),
) -> Result<Tensor> {
    let y = unwritten((m, n), dtype, beside)?;
    multiply(&y, a, b, [m, n, k])?;
    Ok(y)
}

/// `y = a b [m, n]` over k.
pub(crate) fn multiply(y: &Tensor, a: Matrices, b: Matrices, [m, n, k]: [usize; 3]) -> Result<()> {
    match k {
        0 => copy(&y.zeros_like()?, y),
        _ => product(Matrices::rows(y, n), a, b, 1, [m, n, k]),
    }
}
