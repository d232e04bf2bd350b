//! Sums of columns on a card.

use candle_core::{DType, Result, Tensor};
use sconce_cuda::kernels::COLUMNS;

use crate::device::launch::{Launch, suffix, unwritten};
use crate::tensor;

/// Columns and lanes of a block.
const BLOCK: [usize; 3] = [32, 8, 1];
/// The most parts, and the least rows of a part.
const PARTS: usize = 64;
const ROWS: usize = 64;

/// The sums `[n]` of `x [.., n]` over all rows, in f32.
pub(crate) fn column_sums(x: &Tensor) -> Result<Tensor> {
    let (rows, n) = tensor::rows(x.dims());
    let per_part = rows.div_ceil(PARTS).max(ROWS);
    match rows.div_ceil(per_part) {
        0 | 1 => sums(x, rows, n, rows)?.reshape(n),
        _ => sums(&sums(x, rows, n, per_part)?, rows.div_ceil(per_part), n, rows)?.reshape(n),
    }
}

/// Sums `parts [count, ..]` over the parts, in f32, `[..]`.
pub(crate) fn sum_of_parts(parts: &Tensor) -> Result<Tensor> {
    let dims = &parts.dims()[1..];
    column_sums(&parts.reshape((parts.dim(0)?, dims.iter().product::<usize>()))?)?.reshape(dims)
}

fn sums(x: &Tensor, rows: usize, n: usize, per_part: usize) -> Result<Tensor> {
    let parts = rows.div_ceil(per_part.max(1)).max(1);
    let sums = unwritten((parts, n), DType::F32, x)?;
    let launch = Launch::of(COLUMNS, &format!("column_sums_{}", suffix(x)), x)?;
    let launch = launch.tensor(x)?.tensor(&sums)?.long(rows).int(n).int(per_part);
    // SAFETY: the grid is that of columns.cu.
    unsafe { launch.run([n.div_ceil(BLOCK[0]), parts, 1], BLOCK, 0) }?;
    Ok(sums)
}
