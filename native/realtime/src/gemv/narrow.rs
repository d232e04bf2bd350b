//! Panels of one SIMD vector of words, for CPUs with 16 vector registers.
//!
//! A step reads each weight once, so the memory limits it. CPUs fetch ahead for each of a few places that are read in
//! order: six at once take 0.6 times the time of one (AMD EPYC, AVX2, weights in the third-level cache; 0.65 from
//! memory). So a product with one vector reads as many panels side by side as its sums have registers, and each of these
//! streams is one part of the matrix.

use sconce_tensor::simd::{LANES, Level, level};

use super::input::Entries;
use super::{Vector, portable, write};
use crate::format::Encoding;

/// Most panels that are read side by side.
const STREAMS: usize = 6;

/// The panels of a matrix of f32 or bf16, and its bias.
pub(super) struct Panels<'a> {
    pub(super) encoding: Encoding,
    pub(super) inputs: usize,
    pub(super) weights: &'a [f32],
    pub(super) bias: &'a [f32],
}

impl Panels<'_> {
    /// `y = x W^T + b`, or its relu, of the vector with these entries.
    pub(super) fn multiply<const RELU: bool>(&self, entries: Entries, y: &mut [f32]) {
        let count = y.len().div_ceil(self.encoding.panel());
        let streams = match (self.encoding, level()) {
            (Encoding::F32, Level::Portable) => 3,
            (Encoding::F32, _) => STREAMS,
            (_, Level::Portable) => 1,
            _ => STREAMS / 2,
        };
        let each = count / streams;
        for first in 0..each {
            self.side_by_side::<RELU>(streams, (first, each), entries, y);
        }
        let rest = count - each * streams;
        self.side_by_side::<RELU>(rest, (each * streams, 1), entries, y);
    }

    fn side_by_side<const RELU: bool>(
        &self,
        streams: usize,
        of: (usize, usize),
        entries: Entries,
        y: &mut [f32],
    ) {
        match (self.encoding, streams) {
            (_, 0) => {}
            (Encoding::F32, 1) => self.singles::<1, RELU>(of, entries, y),
            (Encoding::F32, 2) => self.singles::<2, RELU>(of, entries, y),
            (Encoding::F32, 3) => self.singles::<3, RELU>(of, entries, y),
            (Encoding::F32, 4) => self.singles::<4, RELU>(of, entries, y),
            (Encoding::F32, 5) => self.singles::<5, RELU>(of, entries, y),
            (Encoding::F32, _) => self.singles::<STREAMS, RELU>(of, entries, y),
            (_, 1) => self.pairs::<1, RELU>(of, entries, y),
            (_, 2) => self.pairs::<2, RELU>(of, entries, y),
            (_, _) => self.pairs::<{ STREAMS / 2 }, RELU>(of, entries, y),
        }
    }

    /// The panels from the first of `of` on, each this many after the one before.
    fn singles<const S: usize, const RELU: bool>(
        &self,
        of: (usize, usize),
        entries: Entries,
        y: &mut [f32],
    ) {
        let mut sums = [[0.0; LANES]; S];
        self.begin(of, &mut sums);
        portable::add::<S>(&mut sums, self.streams(of), 1, entries);
        self.end::<RELU>(of, &sums, y);
    }

    /// [`singles`](Self::singles) for words of two weights.
    fn pairs<const S: usize, const RELU: bool>(
        &self,
        of: (usize, usize),
        entries: Entries,
        y: &mut [f32],
    ) {
        let mut sums = [[[0.0; LANES]; 2]; S];
        self.begin(of, sums.as_flattened_mut());
        portable::add_pairs::<S>(&mut sums, self.streams(of), 1, entries);
        self.end::<RELU>(of, sums.as_flattened(), y);
    }

    fn streams<const S: usize>(&self, (first, step): (usize, usize)) -> [&[Vector]; S] {
        let weights = self.weights.as_chunks::<LANES>().0;
        std::array::from_fn(|s| &weights[(first + s * step) * self.inputs..][..self.inputs])
    }

    /// Writes the biases of these panels to their sums.
    fn begin(&self, (first, step): (usize, usize), sums: &mut [Vector]) {
        let width = self.encoding.panel();
        for (s, sums) in sums.as_flattened_mut().chunks_exact_mut(width).enumerate() {
            let bias = &self.bias[(first + s * step) * width..];
            let bias = &bias[..bias.len().min(width)];
            sums[..bias.len()].copy_from_slice(bias);
        }
    }

    /// Writes the sums of these panels to their outputs.
    fn end<const RELU: bool>(&self, (first, step): (usize, usize), sums: &[Vector], y: &mut [f32]) {
        let width = self.encoding.panel();
        for (s, sums) in sums.as_flattened().chunks_exact(width).enumerate() {
            let y = &mut y[(first + s * step) * width..];
            let len = y.len().min(width);
            write::<RELU>(&mut y[..len], sums);
        }
    }
}
