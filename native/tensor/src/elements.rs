//! Sums, conversions and copies of tensors on a card. Candle's kernels for them are large modules, which the driver
//! compiles for seconds.

use candle_core::{DType, Result, Tensor};
use sconce_cuda::kernels::ELEMENTS;

use crate::device::launch::{Launch, suffix, unwritten};

const THREADS: usize = 256;
/// The most dimensions of a copy.
const DIMS: usize = 4;

/// `x + y` of contiguous tensors of one shape and of one dtype, f32 or bf16.
pub(crate) fn sum(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let sum = unwritten(x.shape(), x.dtype(), x)?;
    let launch = Launch::of(ELEMENTS, &format!("add_{}", suffix(x)), x)?;
    run(launch.tensor(x)?.tensor(y)?.tensor(&sum)?.long(x.elem_count()), &sum)?;
    Ok(sum)
}

/// The contiguous f32 tensor `x` as bf16.
pub(crate) fn to_bf16(x: &Tensor) -> Result<Tensor> {
    let y = unwritten(x.shape(), DType::BF16, x)?;
    let launch = Launch::of(ELEMENTS, "f32_to_bf16", x)?.tensor(x)?.tensor(&y)?;
    run(launch.long(x.elem_count()), &y)?;
    Ok(y)
}

/// The values of `x` in a contiguous layout, in memory of their own. `None` for more than four dimensions, and for
/// numbers that are not of 16 or 32 bits.
pub(crate) fn copy(x: &Tensor) -> Result<Option<Tensor>> {
    let kernel = match x.dtype().size_in_bytes() {
        4 => "copy_strided_32",
        2 => "copy_strided_16",
        _ => return Ok(None),
    };
    let Some(missing) = DIMS.checked_sub(x.rank()) else { return Ok(None) };
    let y = unwritten(x.shape(), x.dtype(), x)?;
    if x.elem_count() == 0 {
        return Ok(Some(y));
    }
    // One value has an address, whatever the strides are.
    let first = (0..x.rank()).try_fold(x.clone(), |first, dim| first.narrow(dim, 0, 1))?;
    let sizes = [1; DIMS].into_iter().take(missing).chain(x.dims().iter().copied());
    let strides = [0; DIMS].into_iter().take(missing).chain(x.stride().iter().copied());
    let launch = Launch::of(ELEMENTS, kernel, x)?.tensor(&first)?.tensor(&y)?;
    let launch = sizes.skip(1).fold(launch.long(x.elem_count()), Launch::int);
    run(strides.fold(launch, Launch::long), &y)?;
    Ok(Some(y))
}

/// Launches a thread for each number of `y`.
fn run(launch: Launch, y: &Tensor) -> Result<()> {
    let blocks = y.elem_count().div_ceil(THREADS);
    // SAFETY: as elements.cu requires, a thread for each number.
    unsafe { launch.run([blocks, 1, 1], [THREADS, 1, 1], 0) }
}
