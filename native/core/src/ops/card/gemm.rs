//! Products of rows, by cuBLAS: sums are f32 whatever the operands are rounded to.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::cublas::result::gemm_strided_batched_ex;
use candle_core::cuda_backend::cudarc::cublas::sys::{
    cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType,
};
use candle_core::{DType, Result, Tensor, bail};

use super::launch::{card, place_of, unwritten};
use super::op::{Op, Pass, apply};
use crate::Precision;
use crate::ops::tensor::rows;

/// `x W^T` of `x [.., k]` and `w [n, k]`, `[.., n]`, with operands as exact as [`Precision::current`] says, also in
/// the backward pass.
pub fn linear(x: &Tensor, w: &Tensor) -> crate::Result<Tensor> {
    apply(Linear(Precision::current()), &[x, w])
}

struct Linear(Precision);

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    /// Keeps the operands as they were rounded.
    fn forward(&self, inputs: &[Tensor], track: bool) -> Result<(Tensor, Vec<Tensor>)> {
        let [x, w] = inputs else { bail!("a product has two operands") };
        let (a, b) = (rounded(x, self.0)?, rounded(w, self.0)?);
        let y = nt(&a, &b, x.dtype())?;
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = w.dim(0)?;
        }
        let kept = if track { vec![a, b] } else { vec![] };
        Ok((y.reshape(dims)?, kept))
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
    let (((m, k), n), [t, no]) = ((rows(a.dims()), rows(b.dims()).0), OPS);
    gemm([n, m, k], (b, t, k), (a, no, k), dtype)
}

/// `a b [m, n]` of `a [.., k]`, m rows, and `b [k, n]`.
pub fn nn(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let (((m, k), n), [_, no]) = ((rows(a.dims()), rows(b.dims()).1), OPS);
    gemm([n, m, k], (b, no, n), (a, no, k), dtype)
}

/// `a^T b [m, n]` of `a [.., m]` and `b [.., n]`, k rows each.
pub fn tn(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let (((k, m), n), [t, no]) = ((rows(a.dims()), rows(b.dims()).1), OPS);
    gemm([n, m, k], (b, no, n), (a, t, m), dtype)
}

const OPS: [cublasOperation_t; 2] =
    [cublasOperation_t::CUBLAS_OP_T, cublasOperation_t::CUBLAS_OP_N];

/// A matrix, how it is read, and how far apart its columns are, which cuBLAS has where we have rows.
type Operand<'a> = (&'a Tensor, cublasOperation_t, usize);

/// cuBLAS's product of columns, `[m, n] = a b` over k, which is `[n, m]` of rows.
fn gemm(
    [m, n, k]: [usize; 3],
    (a, a_op, lda): Operand,
    (b, b_op, ldb): Operand,
    dtype: DType,
) -> Result<Tensor> {
    let y = unwritten((n, m), dtype, a)?;
    if m == 0 || n == 0 {
        return Ok(y);
    }
    if k == 0 {
        return y.zeros_like();
    }
    let card = card(a.device())?;
    let (alpha, beta) = (1.0f32, 0.0f32);
    // SAFETY: the matrices have so many rows and columns, and lie on this card, whose stream the handle has.
    unsafe {
        gemm_strided_batched_ex(
            *card.cublas_handle().handle(),
            a_op,
            b_op,
            size(m)?,
            size(n)?,
            size(k)?,
            (&raw const alpha).cast(),
            place_of(a)? as *const _,
            numbers(a.dtype())?,
            size(lda.max(1))?,
            0,
            place_of(b)? as *const _,
            numbers(b.dtype())?,
            size(ldb.max(1))?,
            0,
            (&raw const beta).cast(),
            place_of(&y)? as *mut _,
            numbers(dtype)?,
            size(m)?,
            0,
            1,
            cublasComputeType_t::CUBLAS_COMPUTE_32F,
            cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    }
    .w()?;
    Ok(y)
}

fn size(n: usize) -> Result<i32> {
    n.try_into().map_err(|_| candle_core::Error::Msg(format!("a product of {n} rows or columns")))
}

fn numbers(dtype: DType) -> Result<cudaDataType> {
    match dtype {
        DType::F32 => Ok(cudaDataType::CUDA_R_32F),
        DType::BF16 => Ok(cudaDataType::CUDA_R_16BF),
        DType::F16 => Ok(cudaDataType::CUDA_R_16F),
        other => bail!("no product has numbers of {other:?}"),
    }
}
