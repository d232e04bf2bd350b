//! What a recorded decision reads and writes.

use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Result, Tensor, bail};
use sconce_cuda::kernels::ROWS;

use super::launch::Launch;

const THREADS: usize = 256;

/// Writes words of the host over those of `to`, u32 and contiguous on a card.
pub fn upload(to: &Tensor, words: &[u32]) -> Result<()> {
    struct Upload<'a>(&'a [u32]);
    impl InplaceOp1 for Upload<'_> {
        fn name(&self) -> &'static str {
            "upload"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            bail!("this op runs on a card only")
        }

        fn cuda_fwd(&self, to: &mut CudaStorage, layout: &Layout) -> Result<()> {
            let card = to.device.clone();
            let Some((first, _)) = layout.contiguous_offsets() else {
                bail!("words go to a place without gaps")
            };
            let mut to = to.as_cuda_slice_mut::<u32>()?.slice_mut(first..first + self.0.len());
            card.memcpy_htod(self.0, &mut to)
        }
    }
    if to.elem_count() < words.len() {
        bail!("{} words have no room in {}", words.len(), to.elem_count());
    }
    to.inplace_op1(&Upload(words))
}

/// Copies so many words as `to` has, from word `first` of `words` on.
pub fn copy_words(words: &Tensor, first: usize, to: &Tensor) -> Result<()> {
    let n = to.elem_count() * to.dtype().size_in_bytes() / 4;
    let from = words.narrow(0, first, n)?;
    let launch = Launch::of(ROWS, "copy_words", to)?.tensor(&from)?.tensor(to)?.long(n);
    // SAFETY: as rows.cu says: a thread for each word.
    unsafe { launch.run([n.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }
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
