//! Matrix products by cuBLAS.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::cublas::result::gemm_strided_batched_ex;
use candle_core::cuda_backend::cudarc::cublas::sys::{
    cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType,
};
use candle_core::{DType, Result, Tensor, bail};

use super::launch::card;
use crate::Precision;
use crate::device::operand::Operand;

impl Operand {
    fn operation(&self) -> cublasOperation_t {
        match self.turned {
            true => cublasOperation_t::CUBLAS_OP_T,
            false => cublasOperation_t::CUBLAS_OP_N,
        }
    }
}

/// `c = a b + beta c` for each of `count` matrices `a: [m, k]`, `b: [k, n]` and `c: [m, n]`, on the card of `beside`.
/// Sums are f32.
///
/// # Safety
/// All operands lie in memory of that card.
pub unsafe fn product(
    beside: &Tensor,
    [c, a, b]: [Operand; 3],
    (count, [m, n, k]): (usize, [usize; 3]),
    beta: f32,
) -> Result<()> {
    let card = card(beside.device())?;
    // cuBLAS uses the current card of the thread.
    card.cuda_stream().context().bind_to_thread().w()?;
    let alpha = 1.0f32;
    // SAFETY: the caller guarantees the operands, and the handle has this card's stream. cuBLAS is column-major and
    // these matrices are row-major: cuBLAS computes c^T = b^T a^T.
    unsafe {
        gemm_strided_batched_ex(
            *card.cublas_handle().handle(),
            b.operation(),
            a.operation(),
            size(n)?,
            size(m)?,
            size(k)?,
            (&raw const alpha).cast(),
            b.place as *const _,
            numbers(b.dtype)?,
            size(b.row)?,
            b.apart as i64,
            a.place as *const _,
            numbers(a.dtype)?,
            size(a.row)?,
            a.apart as i64,
            (&raw const beta).cast(),
            c.place as *mut _,
            numbers(c.dtype)?,
            size(c.row)?,
            c.apart as i64,
            size(count)?,
            compute(),
            cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    }
    .w()
}

/// How f32 operands are multiplied: in the precision of the thread, if tensor cores have it.
fn compute() -> cublasComputeType_t {
    match Precision::current() {
        Precision::Tf32 => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        _ => cublasComputeType_t::CUBLAS_COMPUTE_32F,
    }
}

fn size(n: usize) -> Result<i32> {
    n.try_into().map_err(|_| candle_core::Error::Msg(format!("a product's size {n} exceeds i32")))
}

fn numbers(dtype: DType) -> Result<cudaDataType> {
    match dtype {
        DType::F32 => Ok(cudaDataType::CUDA_R_32F),
        DType::BF16 => Ok(cudaDataType::CUDA_R_16BF),
        DType::F16 => Ok(cudaDataType::CUDA_R_16F),
        other => bail!("a product of {other:?} is not supported"),
    }
}
