//! Products of a matrix and one or more vectors.
//!
//! `y = W x + b` for one vector reads each weight once, so the product takes as long as reading the weights. Weights
//! are stored in panels of up to 128 outputs, and within a panel input by input, so that the weights of an input that
//! is 0 are skipped. After a relu or in one-hot inputs at least half are skipped. With several vectors, each weight
//! that was read serves up to six vectors.
//!
//! Each output is one sum in the order of the inputs, so it does not depend on the other vectors. Skipping a 0 changes
//! only the sign of a zero. With 8-bit weights four inputs form a group and are skipped together.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod input;
mod int8;
mod portable;
mod written;

use std::mem;
use std::ops::Range;

pub use input::Input;
use input::{Entry, Vectors};
use int8::{Code, Codes};
use sconce_ops::weights::Weight;
use sconce_tensor::Result;
use sconce_tensor::simd::{LANES, Level, level};
use written::{Written, has_vnni};

use crate::arena::Packer;
use crate::format::{Encoding, Packed};

/// Maximum SIMD vectors of sums of a panel.
const VECTORS: usize = 8;
/// Outputs of a full panel.
const PANEL: usize = VECTORS * LANES;
/// Input vectors that share one read of a weight.
const ROWS: usize = 6;
/// Input vectors that share one read of an 8-bit weight: fewer, because each vector has two sums.
const ROWS_OF_INT8: usize = 4;
/// SIMD vectors of weights in a block, which stays in the first-level cache: 32 KB.
const BLOCK: usize = 512;
/// Distance of the prefetch, in inputs.
const AHEAD: usize = 8;

type Vector = [f32; LANES];
/// One panel's sums for one input vector.
type Sums = [Vector; VECTORS];

/// `W: [outputs, inputs]` and `b: [outputs]` in the arena: the bias, the scales, then the panels.
pub struct Matrix {
    inputs: usize,
    outputs: usize,
    encoding: Encoding,
    bias: Range<usize>,
    /// One scale per output for 8-bit weights; empty otherwise.
    scales: Range<usize>,
    panels: Range<usize>,
}

/// Builds one name for concatenated weights: joins by `+` the segments that differ between their names.
fn together(names: &[&str]) -> String {
    let [first, rest @ ..] = names else { return String::new() };
    let parts: Vec<Vec<&str>> = names.iter().map(|name| name.split('.').collect()).collect();
    let is_one = |i: usize| parts.iter().all(|other| other.get(i) == parts[0].get(i));
    if rest.is_empty() || parts.iter().any(|other| other.len() != parts[0].len()) {
        return (*first).to_owned();
    }
    let joined = (0..parts[0].len()).map(|i| match is_one(i) {
        true => parts[0][i].to_owned(),
        false => parts.iter().map(|part| part[i]).collect::<Vec<_>>().join("+"),
    });
    joined.collect::<Vec<_>>().join(".")
}

impl Matrix {
    /// Packs a weight, row by row, and its bias. The report shows `name`.
    pub fn pack(packer: &mut Packer, name: &str, weight: &[f32], bias: &[f32]) -> Self {
        let inputs = weight.len() / bias.len().max(1);
        let (written, error) = Written::chosen(packer.format(), weight, inputs);
        let (name, encoding) = (name.to_owned(), written.encoding());
        packer.packed(Packed { name, outputs: bias.len(), inputs, encoding, error });
        Self::lay(packer, &written, inputs, bias)
    }

    fn lay(packer: &mut Packer, written: &Written, inputs: usize, bias: &[f32]) -> Self {
        let outputs = bias.len();
        packer.holds(inputs);
        packer.holds(outputs);
        packer.check(&written.numbers(inputs));
        Matrix {
            inputs,
            outputs,
            encoding: written.encoding(),
            bias: packer.lay(bias),
            scales: packer.lay(written.scales()),
            panels: packer.lay(&written.words(outputs, inputs)),
        }
    }

    /// Packs a weight and its bias, or a bias of zeros.
    pub fn dense(packer: &mut Packer, weight: &Weight, bias: Option<&Weight>) -> Result<Self> {
        Self::side_by_side(packer, &[(weight, bias)])
    }

    /// Packs weights with the same input, and their biases, as one matrix with concatenated outputs.
    pub fn side_by_side(packer: &mut Packer, parts: &[(&Weight, Option<&Weight>)]) -> Result<Self> {
        let (mut weight, mut bias) = (vec![], vec![]);
        for (of, own) in parts {
            weight.extend(packer.read(of)?);
            match own {
                Some(own) => bias.extend(packer.read(own)?),
                None => bias.resize(bias.len() + of.dim(0)?, 0.0),
            }
        }
        let names: Vec<&str> = parts.iter().map(|(weight, _)| packer.name(weight)).collect();
        Ok(Self::pack(packer, &together(&names), &weight, &bias))
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Copies `x: [rows, inputs]` into `input`.
    pub fn read(&self, input: &mut Input, x: &[f32], rows: usize) {
        input.read(x.chunks_exact(self.inputs).take(rows));
    }

    /// `y = x W^T + b` with `y: [rows, outputs]`.
    pub fn apply(&self, arena: &[f32], x: &mut Input, y: &mut [f32]) {
        self.each(arena, x, y, |sum| sum);
    }

    /// `y = relu(x W^T + b)` with `y: [rows, outputs]`.
    pub fn relu(&self, arena: &[f32], x: &mut Input, y: &mut [f32]) {
        // NaN stays NaN.
        self.each(arena, x, y, |sum| if sum < 0.0 { 0.0 } else { sum });
    }

    #[inline(always)]
    fn each(&self, arena: &[f32], x: &mut Input, y: &mut [f32], f: impl Fn(f32) -> f32) {
        let Input { vectors: x, sums } = x;
        assert_eq!(x.width(), self.inputs, "width of the input");
        x.prepare(self.encoding);
        let sums = &mut sums[..x.rows()];
        let (bias, scales) = (&arena[self.bias.clone()], &arena[self.scales.clone()]);
        let (level, encoding, has_vnni) = (level(), self.encoding, has_vnni());
        let mut rest = &arena[self.panels.clone()];
        for first in (0..self.outputs).step_by(PANEL) {
            let outputs = first..self.outputs.min(first + PANEL);
            let vectors = encoding.vectors(outputs.len());
            let (panel, next) = rest.split_at(encoding.rows(self.inputs) * vectors * LANES);
            rest = next;
            let panel = Panel { encoding, level, has_vnni, vectors, weights: panel };
            let bias = &bias[outputs.clone()];
            match encoding {
                Encoding::F32 | Encoding::Bf16 => panel.sum(sums, x, bias),
                Encoding::Int8 => {
                    panel.sum_codes(sums, x.codes(), (&scales[outputs.clone()], bias))
                }
            }
            for (y, sums) in y.chunks_exact_mut(self.outputs).zip(&*sums) {
                for (y, sum) in y[outputs.clone()].iter_mut().zip(sums.as_flattened()) {
                    *y = f(*sum);
                }
            }
        }
    }
}

/// Weights of up to 128 outputs: `vectors` SIMD vectors of words for each input, or for each group of four inputs if
/// weights have 8 bits.
struct Panel<'a> {
    encoding: Encoding,
    level: Level,
    has_vnni: bool,
    vectors: usize,
    weights: &'a [f32],
}

impl Panel<'_> {
    /// The sums of all input vectors, starting with the bias.
    fn sum(&self, sums: &mut [Sums], x: &Vectors, bias: &[f32]) {
        for sums in &mut *sums {
            sums.as_flattened_mut()[..bias.len()].copy_from_slice(bias);
        }
        self.add(sums, x);
    }

    /// Adds the products of weights and inputs to the sums of all input vectors. For words of two weights, the sums of
    /// the upper halves follow the sums of the lower halves.
    fn add(&self, sums: &mut [Sums], x: &Vectors) {
        match (x.sparse(), sums) {
            (Some(entries), [sums]) => self.add_sparse(sums, entries),
            (_, sums) => self.add_dense(sums, x),
        }
    }

    fn add_sparse(&self, sums: &mut Sums, entries: &[Entry]) {
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
    fn singles<const T: usize>(&self, sums: &mut Sums, entries: &[Entry]) {
        let Some(sums) = sums.first_chunk_mut::<T>() else { return };
        let rows = self.weights.as_chunks::<LANES>().0.as_chunks::<T>().0;
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 {
            // SAFETY: `level` found the features that the kernel needs, and the entries except for the last [`AHEAD`]
            // have indices of inputs.
            return unsafe { avx512::add(sums, rows, entries) };
        }
        portable::add(sums, rows, &entries[..entries.len() - AHEAD]);
    }

    /// [`singles`](Self::singles) for words of two weights.
    fn pairs<const T: usize>(&self, sums: &mut Sums, entries: &[Entry]) {
        let (low, high) = sums.split_at_mut(T);
        let (Some(low), Some(high)) = (low.first_chunk_mut::<T>(), high.first_chunk_mut::<T>())
        else {
            return;
        };
        let rows = self.weights.as_chunks::<LANES>().0.as_chunks::<T>().0;
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 {
            // SAFETY: as in `singles`.
            return unsafe { avx512::add_pairs(low, high, rows, entries) };
        }
        portable::add_pairs(low, high, rows, &entries[..entries.len() - AHEAD]);
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
        for (sums, first) in tiles(sums, ROWS) {
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
    fn sum_codes(&self, sums: &mut [Sums], x: &Codes, of: (&[f32], &[f32])) {
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

/// The rows to read from a panel, in order.
trait Rows: Copy {
    fn len(&self) -> usize;

    /// The input of the `i`-th row.
    fn input(&self, i: usize) -> usize;

    /// Prefetches a part of the next block of weights.
    fn fetch(&self, i: usize);

    /// Returns these rows with the next part to prefetch.
    fn ahead(self) -> Self;
}

/// All rows of a block.
#[derive(Clone, Copy)]
struct All {
    first: usize,
    len: usize,
    next: *const Vector,
}

impl Rows for All {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn input(&self, i: usize) -> usize {
        self.first + i
    }

    #[inline(always)]
    fn fetch(&self, i: usize) {
        fetch(self.next.wrapping_add(i));
    }

    #[inline(always)]
    fn ahead(self) -> Self {
        All { next: self.next.wrapping_add(self.len), ..self }
    }
}

/// The rows of some inputs.
impl Rows for &[u32] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u32]>::len(self)
    }

    #[inline(always)]
    fn input(&self, i: usize) -> usize {
        self[i] as usize
    }

    #[inline(always)]
    fn fetch(&self, _i: usize) {}

    #[inline(always)]
    fn ahead(self) -> Self {
        self
    }
}

/// Prefetches a SIMD vector. The address need not be valid.
#[inline(always)]
fn fetch(vector: *const Vector) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it ignores invalid addresses.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(vector.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = vector;
}

/// Splits sums into shards of at most `most`, as equal as possible. Each has the index of its first input vector.
fn tiles(sums: &mut [Sums], most: usize) -> impl Iterator<Item = (&mut [Sums], usize)> {
    let (rows, parts) = (sums.len(), sums.len().div_ceil(most).max(1));
    let mut rest = sums;
    (0..parts).map(move |part| {
        let (first, end) = (part * rows / parts, (part + 1) * rows / parts);
        let (own, next) = mem::take(&mut rest).split_at_mut(end - first);
        rest = next;
        (own, first)
    })
}

#[cfg(test)]
mod tests {
    use sconce_ops::weights::Weights;
    use sconce_tensor::rng::Rng;

    use super::written::{LEAST_INPUTS, pair};
    use super::*;
    use crate::format::Format;

    const ENCODINGS: [Encoding; 3] = [Encoding::F32, Encoding::Bf16, Encoding::Int8];

    /// The input after int8 rounding; unchanged for other encodings.
    fn seen(encoding: Encoding, x: &[f32]) -> Vec<f32> {
        let scale = x.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 32512.0;
        if encoding != Encoding::Int8 || scale == 0.0 {
            return x.to_vec();
        }
        x.iter().map(|x| (x * (1.0 / scale)).round_ties_even() * scale).collect()
    }

    /// Random values, a third of which are 0.
    fn vector(rng: &Rng, count: usize) -> Vec<f32> {
        let number = |i| if rng.u32(i + 9000).is_multiple_of(3) { 0.0 } else { rng.normal(i) };
        (0..count as u64).map(number).collect()
    }

    fn assert_close(got: &[f32], want: &[f64], about: &str) {
        assert_eq!(got.len(), want.len(), "{about}");
        for (g, w) in got.iter().zip(want) {
            assert!((f64::from(*g) - w).abs() < 1e-5 * w.abs().max(1.0), "{about}: {g} is not {w}");
        }
    }

    /// Computes the product in double precision, `[rows, outputs]`.
    fn product(w: &[f32], x: &[f32], b: &[f32], inputs: usize) -> Vec<f64> {
        let sum = |x: &[f32], i: usize| {
            let terms = w[i * inputs..][..inputs].iter().zip(x);
            f64::from(b[i]) + terms.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>()
        };
        let rows = (0..x.len() / inputs.max(1)).map(|row| &x[row * inputs..][..inputs]);
        rows.flat_map(|x| (0..b.len()).map(move |i| sum(x, i))).collect()
    }

    #[test]
    fn every_shape_agrees_with_double_precision_and_a_single_row_has_the_same_bits() {
        let shapes = [1, 5, 16, 17, 33, 48, 64, 65, 81, 130, 300]
            .into_iter()
            .flat_map(|outputs| [1, 2, 7, 64, 99].map(|inputs| (outputs, inputs)));
        for (outputs, inputs) in shapes {
            for encoding in ENCODINGS {
                let rng = Rng::new(1, "gemv", (outputs * 1000 + inputs) as u64);
                let w: Vec<f32> = (0..(outputs * inputs) as u64).map(|i| rng.normal(i)).collect();
                let rows = 1 + (outputs + inputs) % 14;
                let (mut x, b) = (vector(&rng, inputs * rows), vector(&rng, outputs));
                // In some cases every fourth input is 0 in all vectors.
                if outputs % 2 == 1 {
                    let places = x.iter_mut().enumerate();
                    places.filter(|(i, _)| i % inputs % 4 == 3).for_each(|(_, x)| *x = 0.0);
                }
                let weights = Weights::new();
                let mut packer = Packer::new(&weights, Format::F32);
                let written = Written::new(encoding, &w, inputs);
                let matrix = Matrix::lay(&mut packer, &written, inputs, &b);
                let mut input = Input::new(packer.widest(), rows);
                let (arena, _) = packer.finish().unwrap();
                input.read(x.chunks_exact(inputs));
                let about = format!("{encoding:?}, {rows}, {outputs} of {inputs}");
                let read: Vec<f32> =
                    x.chunks_exact(inputs).flat_map(|x| seen(encoding, x)).collect();
                let want = product(&written.numbers(inputs), &read, &b, inputs);
                let mut y = vec![7.0; outputs * rows];
                matrix.apply(arena.numbers(), &mut input, &mut y);
                assert_close(&y, &want, &about);
                let mut alone = vec![7.0; outputs];
                for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
                    input.read([x]);
                    matrix.apply(arena.numbers(), &mut input, &mut alone);
                    assert_eq!(alone, y, "{about}");
                }
                input.read(x.chunks_exact(inputs));
                matrix.relu(arena.numbers(), &mut input, &mut y);
                let want: Vec<f64> = want.iter().map(|v| v.max(0.0)).collect();
                assert_close(&y, &want, &format!("{about}, relu"));
            }
        }
    }

    #[test]
    fn the_kernels_agree() {
        let rng = Rng::new(2, "gemv", 0);
        let numbers: Vec<f32> = (0..50 * 2 * 3 * LANES as u64).map(|i| rng.normal(i)).collect();
        let numbers = Written::new(Encoding::Bf16, &numbers, 1).numbers(1).into_owned();
        // Words that are valid as two bf16 and as one f32.
        let weights: Vec<f32> = numbers.chunks_exact(2).map(|of| pair(of[0], of[1])).collect();
        let mut input = Input::new(50, ROWS);
        for rows in 1..=ROWS {
            let x = vector(&rng, 50 * rows);
            input.read(x.chunks_exact(50));
            for encoding in [Encoding::F32, Encoding::Bf16] {
                input.vectors.prepare(encoding);
                let made = |level| {
                    let mut sums = [[[0.5; LANES]; VECTORS]; ROWS];
                    let panel =
                        Panel { encoding, level, has_vnni: false, vectors: 3, weights: &weights };
                    panel.add(&mut sums[..rows], &input.vectors);
                    sums
                };
                let portable = made(Level::Portable);
                let want: Vec<f64> =
                    portable.as_flattened().as_flattened().iter().map(|v| f64::from(*v)).collect();
                assert_close(made(level()).as_flattened().as_flattened(), &want, "kernels");
            }
        }
    }

    #[test]
    fn the_kernels_for_8_bits_have_the_same_bits() {
        let rng = Rng::new(3, "gemv", 0);
        let (scales, bias) = (vector(&rng, PANEL), vector(&rng, PANEL));
        for vectors in 1..=VECTORS {
            let words = 0..(13 * vectors * LANES) as u64;
            let weights: Vec<f32> = words.map(|i| f32::from_bits(rng.u32(i))).collect();
            let mut input = Input::new(50, ROWS);
            for rows in 1..=ROWS_OF_INT8 {
                let x = vector(&rng, 50 * rows);
                input.read(x.chunks_exact(50));
                input.vectors.prepare(Encoding::Int8);
                let made = |has_vnni| {
                    let mut sums = [[[0.5; LANES]; VECTORS]; ROWS];
                    let (encoding, level, weights) = (Encoding::Int8, level(), &weights[..]);
                    let panel = Panel { encoding, level, has_vnni, vectors, weights };
                    // One output less than fills the SIMD vectors.
                    let outputs = vectors * LANES - 1;
                    let (scales, bias) = (&scales[..outputs], &bias[..outputs]);
                    panel.sum_codes(&mut sums[..rows], input.vectors.codes(), (scales, bias));
                    sums.iter_mut().for_each(|sums| sums.as_flattened_mut()[outputs..].fill(0.0));
                    sums.map(|sums| sums.map(|sum| sum.map(f32::to_bits)))
                };
                assert_eq!(made(false), made(has_vnni()), "{rows} with {vectors}");
            }
        }
    }

    #[test]
    fn groups_of_zeros_are_skipped_and_a_vector_of_zeros_returns_the_bias() {
        let weights = Weights::new();
        let mut packer = Packer::new(&weights, Format::F32);
        let written = Written::new(Encoding::Int8, &[1.0; 3 * 10], 10);
        let matrix = Matrix::lay(&mut packer, &written, 10, &[1.0, 2.0, 3.0]);
        let mut input = Input::new(packer.widest(), 1);
        let (arena, _) = packer.finish().unwrap();
        for (at, value, count) in [(9, 1.0, 1), (0, 1e-30, 1), (5, 1e-40, 0), (5, 0.0, 0)] {
            let mut x = [0.0; 10];
            x[at] = value;
            input.read([&x[..]]);
            let mut y = [0.0; 3];
            matrix.apply(arena.numbers(), &mut input, &mut y);
            assert_eq!(y, [1.0, 2.0, 3.0].map(|bias| bias + value));
            assert_eq!(input.vectors.codes().groups().len(), count + AHEAD);
        }
    }

    #[test]
    fn int8_is_chosen_for_wide_matrices_within_the_bound() {
        let rng = Rng::new(4, "gemv", 0);
        let numbers: Vec<f32> = (0..64 * 64).map(|i| rng.normal(i)).collect();
        let packed = |bound: f64, inputs: usize| {
            let weights = Weights::new();
            let mut packer = Packer::new(&weights, Format::Int8(bound));
            let outputs = numbers.len() / inputs;
            Matrix::pack(&mut packer, "w", &numbers, &vec![0.0; outputs]);
            let (_, matrices) = packer.finish().unwrap();
            (matrices[0].encoding, matrices[0].error)
        };
        let wide = if has_vnni() { Encoding::Int8 } else { Encoding::Bf16 };
        let (encoding, error) = packed(0.02, 64);
        assert_eq!(encoding, wide);
        // An int8 step is 1/127 of the row's largest magnitude, which is about 2.4 times the row's RMS. The error is
        // uniform over a step. A bf16 step is 1/128 of the power of two below the value.
        let expected = if has_vnni() { 0.003..0.01 } else { 0.0009..0.003 };
        assert!(expected.contains(&error), "{error}");
        assert_eq!(packed(1e-3, 64).0, Encoding::Bf16);
        assert_eq!(packed(1.0, LEAST_INPUTS / 2).0, Encoding::Bf16);
    }

    #[test]
    fn nan_and_infinity_reach_the_output() {
        for encoding in ENCODINGS {
            let weights = Weights::new();
            let mut packer = Packer::new(&weights, Format::F32);
            let written = Written::new(encoding, &[1.0, 0.0, 2.0, 3.0], 2);
            let matrix = Matrix::lay(&mut packer, &written, 2, &[0.0; 2]);
            let (arena, _) = packer.finish().unwrap();
            let mut input = Input::new(2, 2);
            for rows in 1..=2 {
                input.read([[0.0, f32::NAN]; 2][..rows].iter().map(|x| &x[..]));
                let mut y = [0.0; 4];
                matrix.relu(arena.numbers(), &mut input, &mut y);
                assert!(y[..2 * rows].iter().all(|y| y.is_nan()), "{encoding:?}");
                input.read([[1.0, f32::NEG_INFINITY]; 2][..rows].iter().map(|x| &x[..]));
                matrix.apply(arena.numbers(), &mut input, &mut y);
                assert!(y[..2 * rows].iter().all(|y| !y.is_finite()), "{encoding:?}");
            }
        }
    }
}
