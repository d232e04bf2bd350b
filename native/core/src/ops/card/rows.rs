//! What a recorded decision reads and writes.

use candle_core::{DType, Result, Tensor, bail};
use sconce_cuda::kernels::ROWS;

use super::launch::Launch;

const THREADS: usize = 256;

/// Copies so many words as `to` has, from word `first` of `words` on.
pub fn copy_words(words: &Tensor, first: usize, to: &Tensor) -> Result<()> {
    let n = to.elem_count() * to.dtype().size_in_bytes() / 4;
    let from = words.narrow(0, first, n)?;
    let launch = Launch::of(ROWS, "copy_words", to)?.tensor(&from)?.tensor(to)?.long(n);
    // SAFETY: as rows.cu says: a thread for each word.
    unsafe { launch.run([n.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }
}

/// Copies the numbers of a tensor over those of another of the same size and type.
pub fn copy(from: &Tensor, to: &Tensor) -> Result<()> {
    let n = to.elem_count() * to.dtype().size_in_bytes() / 4;
    if (from.elem_count(), from.dtype()) != (to.elem_count(), to.dtype()) {
        bail!("{from:?} is not copied over {to:?}");
    }
    let from = from.contiguous()?;
    let launch = Launch::of(ROWS, "copy_words", to)?.tensor(&from)?.tensor(to)?;
    // SAFETY: as rows.cu says: a thread for each word.
    unsafe { launch.long(n).run([n.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }
}

/// Makes of the rows whose places begin at word `first` of `words`, two words each, the rows of `to [n, ..]`.
///
/// # Safety
/// Whoever plays this has such rows there, of f32.
pub unsafe fn gather_rows(words: &Tensor, first: usize, to: &Tensor) -> Result<()> {
    let rows = to.dim(0)?;
    let places = words.narrow(0, first, 2 * rows)?;
    let launch = Launch::of(ROWS, "gather_rows", to)?.tensor(&places)?.tensor(to)?;
    let launch = launch.int(width(to)?);
    // SAFETY: as rows.cu says: a block for each row.
    unsafe { launch.run([rows, 1, 1], [THREADS, 1, 1], 0) }
}

/// Writes the rows of f32 `from [n, ..]` to the place that the two words from `first` on say, and 1 behind a row of
/// `answer` ([`answer_rows`]) for one that is not finite.
///
/// # Safety
/// Whoever plays this has room there.
pub unsafe fn put_rows(words: &Tensor, first: usize, from: &Tensor, answer: &Tensor) -> Result<()> {
    let (rows, stride) = (from.dim(0)?, answer.dim(1)?);
    let place = words.narrow(0, first, 2)?;
    let spoilt = answer.flatten_all()?.narrow(0, stride - 1, answer.elem_count() - stride + 1)?;
    let launch = Launch::of(ROWS, "put_rows", from)?.tensor(&place)?.tensor(from)?;
    let launch = launch.int(width(from)?).tensor(&spoilt)?.int(stride);
    // SAFETY: as rows.cu says: a block for each row.
    unsafe { launch.run([rows, 1, 1], [THREADS, 1, 1], 0) }
}

/// Writes `logits [n, w]` and a 0 behind each row to `answer [n, w + 1]`.
pub fn answer_rows(logits: &Tensor, answer: &Tensor) -> Result<()> {
    let (rows, width) = logits.dims2()?;
    let launch = Launch::of(ROWS, "answer_rows", logits)?.tensor(logits)?.tensor(answer)?;
    // SAFETY: as rows.cu says: a block for each row.
    unsafe { launch.int(width).run([rows, 1, 1], [THREADS, 1, 1], 0) }
}

fn width(rows: &Tensor) -> Result<usize> {
    match rows.dtype() {
        DType::F32 => Ok(rows.elem_count() / rows.dim(0)?.max(1)),
        other => bail!("rows of {other:?} are not moved"),
    }
}
