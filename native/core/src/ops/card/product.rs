//! Products of matrices that lie apart, such as a frame of each row of a batch, or the heads of a layer: with numbers
//! between their rows, and into memory that is there.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::cublas::result::gemm_strided_batched_ex;
use candle_core::cuda_backend::cudarc::cublas::sys::{
    cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType,
};
use candle_core::{DType, Result, Tensor, bail};

use super::launch::{card, pointer};

/// Matrices of a contiguous tensor: where the first one begins, and how far apart they are, and their rows.
#[derive(Clone, Copy)]
pub struct Matrices<'a> {
    of: &'a Tensor,
    first: usize,
    apart: usize,
    row: usize,
    turned: bool,
}

impl<'a> Matrices<'a> {
    pub fn new(of: &'a Tensor, [first, apart, row]: [usize; 3]) -> Self {
        Matrices { of, first, apart, row, turned: false }
    }

    /// A single matrix of rows without gaps, `[.., row]`.
    pub fn rows(of: &'a Tensor, row: usize) -> Self {
        Matrices::new(of, [0, 0, row])
    }

    /// The transposes of what lies there.
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

    fn operation(&self) -> cublasOperation_t {
        match self.turned {
            true => cublasOperation_t::CUBLAS_OP_T,
            false => cublasOperation_t::CUBLAS_OP_N,
        }
    }
}

/// Writes `a b` to c, for each of `count` matrices `a [m, k]` and `b [k, n]`, which are of one type; sums are f32.
pub fn product(
    c: Matrices,
    a: Matrices,
    b: Matrices,
    count: usize,
    sizes: [usize; 3],
) -> Result<()> {
    multiply(c, a, b, (count, sizes), 0.0)
}

/// `c + a b` for c, of one matrix each.
pub fn add_product(c: Matrices, a: Matrices, b: Matrices, sizes: [usize; 3]) -> Result<()> {
    multiply(c, a, b, (1, sizes), 1.0)
}

fn multiply(
    c: Matrices,
    a: Matrices,
    b: Matrices,
    (count, [m, n, k]): (usize, [usize; 3]),
    beta: f32,
) -> Result<()> {
    if [count, m, n].contains(&0) {
        return Ok(());
    }
    if k == 0 || c.turned || a.of.dtype() != b.of.dtype() {
        bail!("no product of matrices [{m}, {k}] and [{k}, {n}]");
    }
    let [to, left, right] =
        [c.begin(count, [m, n])?, a.begin(count, [m, k])?, b.begin(count, [k, n])?];
    let card = card(c.of.device())?;
    // It works on the card of the thread.
    card.cuda_stream().context().bind_to_thread().w()?;
    let alpha = 1.0f32;
    // SAFETY: all lie within their tensors, on this card, whose stream the handle has. cuBLAS has columns where we have
    // rows: to it this is c^T = b^T a^T.
    unsafe {
        gemm_strided_batched_ex(
            *card.cublas_handle().handle(),
            b.operation(),
            a.operation(),
            size(n)?,
            size(m)?,
            size(k)?,
            (&raw const alpha).cast(),
            right as *const _,
            numbers(b.of.dtype())?,
            size(b.row)?,
            b.apart as i64,
            left as *const _,
            numbers(a.of.dtype())?,
            size(a.row)?,
            a.apart as i64,
            (&raw const beta).cast(),
            to as *mut _,
            numbers(c.of.dtype())?,
            size(c.row)?,
            c.apart as i64,
            size(count)?,
            cublasComputeType_t::CUBLAS_COMPUTE_32F,
            cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    }
    .w()
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
