//! Products of rows: sums are f32 whatever the operands are rounded to.

use candle_core::{DType, Result, Tensor, bail};

use super::launch::{output, unwritten};
use super::op::{Op, Pass, apply};
use super::product::{Matrices, product};
use super::rows::copy;
use crate::Precision;
use crate::ops::tensor::rows;

/// `x W^T` of `x [.., k]` and `w [n, k]`, `[.., n]`, with operands as exact as [`Precision::current`] says, also in
/// the backward pass.
pub fn linear(x: &Tensor, w: &Tensor) -> crate::Result<Tensor> {
    apply(Linear(Precision::current()), &[x, w])
}

struct Linear(Precision);

impl Op for Linear {
    /// Keeps the operands as they were rounded.
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, w] = inputs else { bail!("a product has two operands") };
        let ((m, k), n) = (rows(x.dims()), w.dim(0)?);
        let (a, b) = (rounded(x, self.0)?, rounded(w, self.0)?);
        let y = output(with_width(x, w.dim(0)?), x.dtype(), x, track)?;
        multiply(&y, Matrices::rows(&a, k), Matrices::rows(&b, k).turned(), [m, n, k])?;
        Ok((y, if track { vec![a, b] } else { vec![] }))
    }

    fn backward(&self, pass: &Pass) -> Result<Vec<Option<Tensor>>> {
        let ([x, w], [a, b]) = (pass.inputs, pass.kept) else {
            bail!("a product has two operands")
        };
        let dy = rounded(pass.dy, self.0)?;
        let wanted = |i: usize| pass.wanted[i];
        let dx = wanted(0).then(|| nn(&dy, b, x.dtype())?.reshape(x.shape())).transpose()?;
        let dw = wanted(1).then(|| tn(&dy, a, w.dtype())).transpose()?;
        Ok(vec![dx, dw])
    }
}

/// The numbers of an operand as a precision has them; in f32 themselves.
pub fn rounded(x: &Tensor, precision: Precision) -> Result<Tensor> {
    match (precision, x.dtype()) {
        (Precision::Bf16, DType::F32) => x.to_dtype(DType::BF16),
        (Precision::F16, DType::F32) => x.to_dtype(DType::F16),
        _ => Ok(x.clone()),
    }
}

/// `a b^T [m, n]` of `a [.., k]`, m rows, and `b [n, k]`, as numbers of `dtype`.
pub fn nt(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let ((m, k), n) = (rows(a.dims()), rows(b.dims()).0);
    gemm([m, n, k], Matrices::rows(a, k), Matrices::rows(b, k).turned(), (a, dtype))
}

/// `a b [m, n]` of `a [.., k]`, m rows, and `b [k, n]`.
pub fn nn(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let ((m, k), n) = (rows(a.dims()), rows(b.dims()).1);
    gemm([m, n, k], Matrices::rows(a, k), Matrices::rows(b, n), (a, dtype))
}

/// `a^T b [m, n]` of `a [.., m]` and `b [.., n]`, k rows each.
pub fn tn(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let ((k, m), n) = (rows(a.dims()), rows(b.dims()).1);
    gemm([m, n, k], Matrices::rows(a, m).turned(), Matrices::rows(b, n), (a, dtype))
}

/// `a b [m, n]` over k, beside a tensor and of a type.
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
fn multiply(y: &Tensor, a: Matrices, b: Matrices, [m, n, k]: [usize; 3]) -> Result<()> {
    match k {
        0 => copy(&y.zeros_like()?, y),
        _ => product(Matrices::rows(y, n), a, b, 1, [m, n, k]),
    }
}

/// The shape of x with another last dimension.
fn with_width(x: &Tensor, width: usize) -> Vec<usize> {
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = width;
    }
    dims
}
