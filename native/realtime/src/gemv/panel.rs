//! Panels of weights of 32, 16 and 8 bits.

use sconce_tensor::simd::{LANES, Level};

#[cfg(target_arch = "x86_64")]
use super::avx512;
#[cfg(target_arch = "x86_64")]
use super::input::Entry;
use super::input::{Entries, Vectors};
use super::int8::{Code, Codes};
use super::rows::{All, Rows};
use super::{AHEAD, BLOCK, ROWS, ROWS_OF_INT8, Sums, Vector, portable, tiles};
use crate::format::Encoding;

/// Weights of up to 128 outputs: `vectors` SIMD vectors of words for each input, or for each group of four inputs if
/// weights have 8 bits.
pub(super) struct Panel<'a> {
    pub(super) encoding: Encoding,
    pub(super) level: Level,
    pub(super) has_vnni: bool,
    pub(super) vectors: usize,
    pub(super) weights: &'a [f32],
}

impl Panel<'_> {
    /// The sums of all input vectors, starting with the bias.
    pub(super) fn sum(&self, sums: &mut [Sums], x: &Vectors, bias: &[f32]) {
        for sums in &mut *sums {
            sums.as_flattened_mut()[..bias.len()].copy_from_slice(bias);
        }
        self.add(sums, x);
    }

    /// Adds the products of weights and inputs to the sums of all input vectors. For words of two weights, the sums of
    /// the upper halves follow the sums of the lower halves.
    pub(super) fn add(&self, sums: &mut [Sums], x: &Vectors) {
        match (x.sparse(), sums) {
            (Some(entries), [sums]) => self.add_sparse(sums, entries),
            (_, sums) => self.add_dense(sums, x),
        }
    }

    fn add_sparse(&self, sums: &mut Sums, entries: Entries) {
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 {
            return self.add_wide(sums, entries.with_ahead());
        }
        let rows = self.weights.as_chunks().0;
        for t in 0..self.vectors {
            let streams = [&rows[t.min(rows.len())..]];
            match self.encoding {
                Encoding::F32 => {
                    let Some(sums) = sums[t..].first_chunk_mut() else { return };
                    portable::add::<1>(sums, streams, self.vectors, entries);
                }
                _ => {
                    let mut own = [[sums[t], sums[self.vectors + t]]];
                    portable::add_pairs::<1>(&mut own, streams, self.vectors, entries);
                    [[sums[t], sums[self.vectors + t]]] = own;
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn add_wide(&self, sums: &mut Sums, entries: &[Entry]) {
        match (self.encoding, self.vectors) {
            (Encoding::F32, 1) => self.singles::<1>(sums, entries),
            (Encoding::F32, 2) => self.singles::<2>(sums, entries),
            (Encoding::F32, 3) => self.singles::<3>(sums, entries),
            (Encoding::F32, 4) => self.singles::<4>(sums, entries),
            (Encoding::F32, 5) => self.singles::<5>(sums, entries),
            (Encoding::F32, 6) => self.singles::<6>(sums, entries),
            (Encoding::F32, 7) => self.singles::<7>(sums, entries),
            (Encoding::F32, _) => self.singles::<8>(sums, entries),
            (_, 1) => self.pairs::<1>(sums, entries),
            (_, 2) => self.pairs::<2>(sums, entries),
            (_, 3) => self.pairs::<3>(sums, entries),
            (_, _) => self.pairs::<4>(sums, entries),
        }
    }

    /// [`add`](Self::add) for one input vector and words of one weight. The last [`AHEAD`] entries are only prefetched.
    #[cfg(target_arch = "x86_64")]
    fn singles<const T: usize>(&self, sums: &mut Sums, entries: &[Entry]) {
        let Some(sums) = sums.first_chunk_mut::<T>() else { return };
        let rows = self.weights.as_chunks::<LANES>().0.as_chunks::<T>().0;
        // SAFETY: `level` found the features that the kernel needs, and the entries except for the last [`AHEAD`] have
        // indices of inputs.
        unsafe { avx512::add(sums, rows, entries) }
    }

    /// [`singles`](Self::singles) for words of two weights.
    #[cfg(target_arch = "x86_64")]
    fn pairs<const T: usize>(&self, sums: &mut Sums, entries: &[Entry]) {
        let (low, high) = sums.split_at_mut(T);
        let (Some(low), Some(high)) = (low.first_chunk_mut::<T>(), high.first_chunk_mut::<T>())
        else {
            return;
        };
        let rows = self.weights.as_chunks::<LANES>().0.as_chunks::<T>().0;
        // SAFETY: as in `singles`.
        unsafe { avx512::add_pairs(low, high, rows, entries) }
    }

    /// [`add`](Self::add) for several input vectors: each block of weights serves all of them while it is in the
    /// first-level cache.
    fn add_dense(&self, sums: &mut [Sums], x: &Vectors) {
        let most = match self.encoding {
            // Bf16 weights are half as large; blocking them gains nothing.
            Encoding::Bf16 => x.width().max(1),
            _ => BLOCK / self.vectors,
        };
        match x.columns() {
            None => (0..x.width()).step_by(most).for_each(|first| {
                let len = most.min(x.width() - first);
                // The next block begins after this one, in this panel or in the next.
                let next = self.weights.as_ptr().cast::<Vector>();
                let next = next.wrapping_add((first + len) * self.vectors);
                self.add_block(sums, x, All { first, len, next });
            }),
            Some(columns) => columns.chunks(most).for_each(|columns| {
                self.add_block(sums, x, columns);
            }),
        }
    }

    fn add_block(&self, sums: &mut [Sums], x: &Vectors, mut rows: impl Rows) {
        let most = match (self.encoding, self.level) {
            // A bf16 has two sums, which need twice the registers.
            (Encoding::Bf16, Level::Portable | Level::Avx2) => ROWS / 2,
            _ => ROWS,
        };
        for (sums, first) in tiles(sums, most) {
            match sums.len() {
                1 => self.tile::<1>(sums, x, first, rows),
                2 => self.tile::<2>(sums, x, first, rows),
                3 => self.tile::<3>(sums, x, first, rows),
                4 => self.tile::<4>(sums, x, first, rows),
                5 => self.tile::<5>(sums, x, first, rows),
                _ => self.tile::<ROWS>(sums, x, first, rows),
            }
            rows = (0..self.vectors.div_ceil(4)).fold(rows, |rows, _| rows.ahead());
        }
    }

    /// Adds the products of these rows to the sums of `R` input vectors from `first` on.
    fn tile<const R: usize>(&self, sums: &mut [Sums], x: &Vectors, first: usize, rows: impl Rows) {
        let Some(sums) = sums.first_chunk_mut::<R>() else { return };
        let x: [&[f32]; R] = std::array::from_fn(|r| x.row(first + r));
        let weights = self.weights.as_chunks::<LANES>().0;
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 {
            // SAFETY: `level` found the features that the kernels need. The rows have indices of inputs, and the panel
            // has `vectors` SIMD vectors for each input.
            return unsafe {
                match self.encoding {
                    Encoding::F32 => avx512::tile(sums, weights, self.vectors, x, rows),
                    _ => avx512::tile_pairs(sums, weights, self.vectors, x, rows),
                }
            };
        }
        match self.encoding {
            Encoding::F32 => portable::tile(sums, weights, self.vectors, &x, rows),
            _ => portable::tile_pairs(sums, weights, self.vectors, &x, rows),
        }
    }

    /// [`sum`](Self::sum) for weights of 8 bits.
    pub(super) fn sum_codes(&self, sums: &mut [Sums], x: &Codes, of: (&[f32], &[f32])) {
        for (sums, first) in tiles(sums, ROWS_OF_INT8) {
            match sums.len() {
                1 => self.codes::<1>(sums, x, first, of),
                2 => self.codes::<2>(sums, x, first, of),
                3 => self.codes::<3>(sums, x, first, of),
                _ => self.codes::<ROWS_OF_INT8>(sums, x, first, of),
            }
        }
    }

    fn codes<const R: usize>(
        &self,
        sums: &mut [Sums],
        x: &Codes,
        first: usize,
        (scales, bias): (&[f32], &[f32]),
    ) {
        let Some(sums) = sums.first_chunk_mut::<R>() else { return };
        let rows: [Code; R] = std::array::from_fn(|r| x.row(first + r));
        let (weights, groups) = (self.weights.as_chunks::<LANES>().0, x.groups());
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 && self.has_vnni {
            // SAFETY: `has_vnni` found the features that the kernel needs, and the groups except for the last [`AHEAD`]
            // are in the panel.
            return unsafe {
                avx512::codes(sums, weights, self.vectors, rows, groups, (scales, bias))
            };
        }
        let groups = &groups[..groups.len() - AHEAD];
        portable::codes(sums, weights, self.vectors, &rows, groups, scales, bias);
    }
}
