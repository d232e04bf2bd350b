//! Copies into and out of a recorded step, whose buffers have fixed addresses; buffers of games and batches do not.

use candle_core::{DType, Result, Tensor, bail};
use sconce_cuda::kernels::ROWS;

use crate::arrange::card::copy_columns;
use crate::device::launch::{Launch, MOST_ALONG_Y, pointer};

const THREADS: usize = 256;
/// Words of a block, and parts of a launch, as in rows.cu.
const STRETCH: usize = 1024;
const PARTS: usize = 4;

/// Copies the values of a tensor to another tensor of the same size and dtype.
pub fn copy(from: &Tensor, to: &Tensor) -> Result<()> {
    let same = (from.elem_count(), from.dtype()) == (to.elem_count(), to.dtype());
    if !same || !to.is_contiguous() {
        bail!("{from:?} and {to:?} differ in size or type");
    }
    let from = from.contiguous()?;
    if to.dtype().size_in_bytes() == 2 {
        // A tensor of 16-bit values may begin or end within a 32-bit word, which a card cannot read unaligned.
        let column = |t: &Tensor| t.reshape((t.elem_count(), 1));
        return copy_columns((&column(&from)?, 0), (&column(to)?, 0));
    }
    let n = words(to);
    let launch = Launch::of(ROWS, "copy_words", to)?.tensor(&from)?.tensor(to)?;
    // SAFETY: as rows.cu requires, a thread for each word.
    unsafe { launch.long(n).run([n.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }
}

/// Distributes the upload of a step to its buffers, with one launch.
pub struct Intake {
    /// An address and a width for each part of the states, then an address, a first word and a count for each stretch.
    table: Tensor,
    parts: usize,
    rows: usize,
    stretches: usize,
    longest: usize,
}

impl Intake {
    /// The distribution of an upload. Its first words are the addresses of the rows of the states' parts, `[parts,
    /// rows]`, two words each. From word `first` on the upload holds the values of `tensors`, one after the other.
    pub fn new(rows: usize, parts: &[Tensor], tensors: &[&Tensor], first: usize) -> Result<Self> {
        let (mut table, mut longest, mut at) = (vec![], 0, first);
        for part in parts {
            table.extend([pointer(part)? as i64, width(part)? as i64]);
            longest = longest.max(width(part)?);
        }
        for tensor in tensors {
            table.extend([pointer(tensor)? as i64, at as i64, words(tensor) as i64]);
            longest = longest.max(words(tensor));
            at += words(tensor);
        }
        let Some(beside) = tensors.first() else { bail!("a step has no tensors to read") };
        let table = Tensor::from_slice(&table, table.len(), beside.device())?;
        Ok(Intake { table, parts: parts.len(), rows, stretches: tensors.len(), longest })
    }

    /// Copies the words at the address `words` to the buffers. If an `answer` is given, with its number of logits
    /// ([`end_step`]), the value after each row of the answer becomes 0.
    ///
    /// # Safety
    ///
    /// When this runs or is replayed, the words are at `words`, the answer has enough memory, and the rows of the parts
    /// are f32 at their addresses.
    pub unsafe fn take(&self, words: u64, answer: Option<(u64, usize)>) -> Result<()> {
        let (answer, num_logits) = answer.unwrap_or_default();
        let launch = Launch::of(ROWS, "begin_step", &self.table)?.place(words);
        let launch = launch.tensor(&self.table)?.int(self.parts).int(self.rows);
        let launch = launch.place(answer).int(num_logits);
        let jobs = self.parts * self.rows + self.stretches;
        // SAFETY: as rows.cu requires, blocks for stretches of everything that is copied.
        unsafe { launch.run([jobs, stretches(self.longest), 1], [THREADS, 1, 1], 0) }
    }
}

/// Ends a step: copies the rows of f32 `parts [n, ..]` to the addresses in `places`, two words each, and the `logits
/// [n, w]` to an answer `[n, w + 1]`. The value after a row of the answer becomes 1 if the row's parts are not all
/// finite.
///
/// # Safety
///
/// When this runs or is replayed, the addresses are valid and have enough memory.
pub unsafe fn end_step(places: u64, parts: &[Tensor], logits: &Tensor, answer: u64) -> Result<()> {
    let (rows, num_logits) = logits.dims2()?;
    for at in (0..parts.len().max(1)).step_by(PARTS) {
        let some = &parts[at..parts.len().min(at + PARTS)];
        let widths = some.iter().map(width).collect::<Result<Vec<_>>>()?;
        let places = places + (at * size_of::<u64>()) as u64;
        let launch = Launch::of(ROWS, "end_step", logits)?.place(places);
        let launch = (0..PARTS).try_fold(launch, |launch, i| launch.option(some.get(i)))?;
        let width = |i: usize| widths.get(i).copied().unwrap_or(0);
        let launch = (0..PARTS).fold(launch, |launch, i| launch.int(width(i))).int(some.len());
        let launch = launch.tensor(logits)?.place(answer).int(num_logits);
        // The logits are part of the first launch.
        let jobs = some.len() + usize::from(at == 0);
        let longest = widths.iter().copied().fold(num_logits, usize::max);
        // SAFETY: as rows.cu requires, blocks for stretches of everything that is copied.
        unsafe { launch.run([rows, jobs, stretches(longest)], [THREADS, 1, 1], 0) }?;
    }
    Ok(())
}

/// The number of blocks for `words` words. If the grid's limit is lower, each block strides over further words.
fn stretches(words: usize) -> usize {
    words.div_ceil(STRETCH).min(MOST_ALONG_Y)
}

/// The tensor's size in words of 32 bits.
fn words(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes() / 4
}

fn width(rows: &Tensor) -> Result<usize> {
    match rows.dtype() {
        DType::F32 => Ok(rows.elem_count() / rows.dim(0)?.max(1)),
        other => bail!("rows of {other:?} cannot be copied"),
    }
}
