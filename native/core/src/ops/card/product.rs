//! Products of matrices whose rows lie apart, such as a frame of each row of a batch. Candle's are of rows without
//! gaps.

use std::ffi::c_int;

use candle_core::cuda::{gemm_reduced_precision_bf16, gemm_reduced_precision_f32};
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::{DType, Result, Tensor, bail};

use super::launch::{card, pointer};

/// Matrices of a contiguous tensor: where the first one begins, how far apart they are, and their rows.
#[derive(Clone, Copy)]
pub struct Matrices<'a> {
    pub of: &'a Tensor,
    pub first: usize,
    pub apart: usize,
    pub row: usize,
    /// They are the transposes of what lies there.
    pub turned: bool,
}

impl<'a> Matrices<'a> {
    /// One matrix, from `first` on.
    pub fn one(of: &'a Tensor, first: usize, row: usize) -> Self {
        Matrices { of, first, apart: 0, row, turned: false }
    }

    pub fn turned(self) -> Self {
        Matrices { turned: !self.turned, ..self }
    }

    /// Where `count` of them begin that are `[rows, columns]`.
    fn begin(&self, count: usize, [rows, columns]: [usize; 2]) -> Result<u64> {
        let [rows, columns] = if self.turned { [columns, rows] } else { [rows, columns] };
        let end = self.first + (count - 1) * self.apart + (rows - 1) * self.row + columns;
        if end > self.of.elem_count() || columns > self.row {
            bail!("{count} matrices [{rows}, {columns}] do not lie in {:?}", self.of.shape());
        }
        Ok(pointer(self.of)? + (self.first * self.of.dtype().size_in_bytes()) as u64)
    }

    fn operation(&self) -> sys::cublasOperation_t {
        match self.turned {
            true => sys::cublasOperation_t::CUBLAS_OP_T,
            false => sys::cublasOperation_t::CUBLAS_OP_N,
        }
    }
}

/// `c = a b` for each of `count` matrices `a [m, k]` and `b [k, n]`, all of f32 or all of bf16; `c` lies as it is.
pub fn product(
    c: Matrices,
    a: Matrices,
    b: Matrices,
    count: usize,
    [m, n, k]: [usize; 3],
) -> Result<()> {
    if [count, m, n, k].contains(&0) || c.turned {
        bail!("no product of {count} matrices [{m}, {k}] and [{k}, {n}]");
    }
    let (of, compute) = match [c, a, b].map(|x| x.of.dtype()) {
        [DType::F32, DType::F32, DType::F32] if gemm_reduced_precision_f32() => (
            sys::cudaDataType_t::CUDA_R_32F,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        ),
        [DType::F32, DType::F32, DType::F32] => {
            (sys::cudaDataType_t::CUDA_R_32F, sys::cublasComputeType_t::CUBLAS_COMPUTE_32F)
        }
        [DType::BF16, DType::BF16, DType::BF16] if gemm_reduced_precision_bf16() => (
            sys::cudaDataType_t::CUDA_R_16BF,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_16BF,
        ),
        [DType::BF16, DType::BF16, DType::BF16] => {
            (sys::cudaDataType_t::CUDA_R_16BF, sys::cublasComputeType_t::CUBLAS_COMPUTE_32F)
        }
        types => bail!("no product of {types:?}"),
    };
    let [to, from_a, from_b] =
        [c.begin(count, [m, n])?, a.begin(count, [m, k])?, b.begin(count, [k, n])?];
    let card = card(c.of.device())?;
    card.cuda_stream().context().bind_to_thread().w()?;
    let int = |n: usize| n as c_int;
    let (one, zero) = (1.0f32, 0.0f32);
    // SAFETY: all lie on the card, for as long as the tensors do; memory that is freed later is freed in the order of
    // the stream, which is the handle's. Of rows what cuBLAS calls columns: c^T = b^T a^T.
    unsafe {
        result::gemm_strided_batched_ex(
            *card.cublas_handle().handle(),
            b.operation(),
            a.operation(),
            int(n),
            int(m),
            int(k),
            (&raw const one).cast(),
            from_b as *const _,
            of,
            int(b.row),
            b.apart as i64,
            from_a as *const _,
            of,
            int(a.row),
            a.apart as i64,
            (&raw const zero).cast(),
            to as *mut _,
            of,
            int(c.row),
            c.apart as i64,
            int(count),
            compute,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
        )
    }
    .w()
}
