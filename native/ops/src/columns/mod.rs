//! Shards over rows of a batch and blocks of channels, and the outputs that shards fill together.

pub(crate) mod card;

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Mutex;

pub use super::simd::LANES;
use crate::lengths::{Lengths, check_lengths};
pub(crate) use crate::uninit::{copied, copy, zeroed};
use crate::{Result, matmul, memory, pool};

/// The values of one vector.
pub type Lanes = [f32; LANES];

/// The fewest values of a shard: with fewer, another thread costs more than it saves.
const WORTH: usize = 4096;
/// The number of rows from which on the channels need not be split.
const ENOUGH_ROWS: usize = 4;

/// Loads `x[at..at + 16]`; if not `FULL`, with zeros beyond the end. Whole vectors are a separate case so that each
/// load is a single move.
#[inline(always)]
pub fn load<const FULL: bool>(x: &[f32], at: usize) -> Lanes {
    let mut lanes = [0.0; LANES];
    if FULL {
        lanes.copy_from_slice(&x[at..at + LANES]);
    } else {
        lanes.iter_mut().zip(&x[at..]).for_each(|(lane, v)| *lane = *v);
    }
    lanes
}

/// Stores `lanes` to `x[at..at + 16]`; if not `FULL`, up to the end of `x`.
#[inline(always)]
pub fn store<const FULL: bool>(x: &mut [f32], at: usize, lanes: &Lanes) {
    if FULL {
        x[at..at + LANES].copy_from_slice(lanes);
    } else {
        x[at..].iter_mut().zip(lanes).for_each(|(x, v)| *x = *v);
    }
}

/// Stores `lanes` as [`store`] does, into uninitialised memory.
#[inline(always)]
pub fn fill<const FULL: bool>(x: &mut [MaybeUninit<f32>], at: usize, lanes: &Lanes) {
    if FULL {
        x[at..at + LANES].copy_from_slice(&lanes.map(MaybeUninit::new));
    } else {
        copy(&mut x[at..], lanes);
    }
}

/// An uninitialised output `[.., width]` that shards fill side by side.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    numbers: *mut MaybeUninit<f32>,
    len: usize,
    buffer: PhantomData<&'a mut [MaybeUninit<f32>]>,
}

// SAFETY: the only access is `range`, whose caller promises that no two ranges overlap.
unsafe impl Send for Output<'_> {}
// SAFETY: as above.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// The values `begin..begin + len`.
    ///
    /// # Safety
    ///
    /// While the slice lives, no other range that overlaps it may be requested.
    #[inline(always)]
    pub unsafe fn range(self, begin: usize, len: usize) -> &'a mut [MaybeUninit<f32>] {
        assert!(begin <= self.len && len <= self.len - begin);
        // SAFETY: the range is inside the buffer by the assertion, and not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.numbers.add(begin), len) }
    }
}

/// Returns vectors of the given lengths, filled by `work`. Large outputs are not zeroed first.
///
/// # Safety
///
/// `work` must write every value of every output.
pub unsafe fn outputs<const N: usize>(
    lens: [usize; N],
    work: impl FnOnce([Output<'_>; N]),
) -> [Vec<f32>; N] {
    let mut vectors = lens.map(|len| (memory::with_capacity::<f32>(len), len));
    work(vectors.each_mut().map(|(v, len)| {
        let numbers = v.spare_capacity_mut().as_mut_ptr();
        Output { numbers, len: *len, buffer: PhantomData }
    }));
    vectors.map(|(mut v, len)| {
        // SAFETY: the memory is reserved above, and written by the caller's promise.
        unsafe { v.set_len(len) };
        v
    })
}

/// Returns `rows` rows of each of the given widths, filled by `work(rows, parts)` in shards of `per_shard` rows;
/// `parts` are the shard's slices of each output.
///
/// # Safety
///
/// `work` must write every value of every part.
pub unsafe fn filled<const N: usize>(
    rows: usize,
    per_shard: usize,
    widths: [usize; N],
    work: impl Fn(Range<usize>, [&mut [MaybeUninit<f32>]; N]) + Sync + Send,
) -> [Vec<f32>; N] {
    // SAFETY: each value is in the part of one shard, and `work` writes it by the caller's promise.
    unsafe {
        outputs(widths.map(|width| rows * width), |all| {
            pool::for_each(rows.div_ceil(per_shard), |i| {
                let (begin, end) = (i * per_shard, (i * per_shard + per_shard).min(rows));
                let part = |j: usize| all[j].range(begin * widths[j], (end - begin) * widths[j]);
                work(begin..end, std::array::from_fn(part));
            });
        })
    }
}

/// Fills outputs as [`filled`] does; each shard also returns a part of a sum. Returns the parts in the order of the
/// shards.
///
/// # Safety
///
/// The same as for [`filled`].
pub unsafe fn filled_and_summed<const N: usize, P: Default + Send>(
    rows: usize,
    per_shard: usize,
    widths: [usize; N],
    work: impl Fn(Range<usize>, [&mut [MaybeUninit<f32>]; N], &mut P) + Sync + Send,
) -> ([Vec<f32>; N], Vec<P>) {
    let parts = (0..rows.div_ceil(per_shard)).map(|_| Mutex::default());
    let parts: Vec<Mutex<P>> = parts.collect();
    // SAFETY: by the caller's promise.
    let all = unsafe {
        filled(rows, per_shard, widths, |rows, all| {
            let part = &parts[rows.start / per_shard];
            work(rows, all, &mut part.lock().unwrap_or_else(|e| e.into_inner()));
        })
    };
    let inner = |part: Mutex<P>| part.into_inner().unwrap_or_else(|e| e.into_inner());
    (all, parts.into_iter().map(inner).collect())
}

/// Rows of one shard of a product of `rows` rows: 128, or half of `rows` if that is less, so that two threads share the
/// window of one game. Only this function depends on the number of threads, and only where a row is bit-identical in
/// every shard.
pub fn shard_of_rows(rows: usize) -> usize {
    match (33..256).contains(&rows) && pool::threads() > 1 && matmul::rows_are_apart() {
        true => rows.div_ceil(2).next_multiple_of(32).clamp(32, 128),
        false => 128,
    }
}

/// A batch of sequences with `channels` values per frame, split into shards.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Rows b.
    pub batch: usize,
    /// Frames t of each row.
    pub time: usize,
    /// Values of a frame.
    pub channels: usize,
    /// Frames that exist in each row.
    pub lengths: Lengths,
}

impl Grid {
    /// A grid over `[batch, time, channels]`; checks the lengths.
    pub fn new(batch: usize, time: usize, channels: usize, lengths: Lengths) -> Result<Self> {
        check_lengths(&lengths, batch, time)?;
        Ok(Grid { batch, time, channels, lengths })
    }

    /// The number of frames that exist in a row.
    pub fn frames(&self, row: usize) -> usize {
        self.lengths.as_ref().map_or(self.time, |l| l[row])
    }

    /// Calls `work(row, channels)` for every row and block of channels, in shards whose bounds depend on the shape
    /// alone.
    pub fn for_each(&self, work: impl Fn(usize, Range<usize>) + Sync + Send) {
        let row = self.time * self.channels;
        let rows = WORTH.div_ceil(row.max(1));
        let row_shards = self.batch.div_ceil(rows);
        let cuts = match row_shards {
            0..ENOUGH_ROWS => (row / WORTH).clamp(1, ENOUGH_ROWS),
            _ => 1,
        };
        let width = self.channels.div_ceil(cuts).next_multiple_of(LANES);
        let cuts = self.channels.div_ceil(width.max(1));
        pool::for_each(row_shards * cuts, |i| {
            let (first, begin) = (i / cuts * rows, i % cuts * width);
            for row in first..(first + rows).min(self.batch) {
                work(row, begin..(begin + width).min(self.channels));
            }
        });
    }
}
