//! Projections by signed Hadamard transforms (structured orthogonal random features, Yu et al. 2016).

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, dispatch, simd};

use crate::superposition;
use crate::vectors::{Domain, FEW, Vectors, check_dimension, computed};

/// Numbers that are transformed in registers; the least dimension.
const WIDTH: usize = 8;
/// Sign flips, each followed by a transform.
const ROUNDS: usize = 3;
/// Blocks of Philox that are computed together.
const BLOCKS: usize = 8;

type Lanes = [f32; WIDTH];

/// Adds and subtracts lanes at a distance of `S`.
#[inline(always)]
fn within<const S: usize>(v: Lanes) -> Lanes {
    std::array::from_fn(|i| if i & S == 0 { v[i] + v[i + S] } else { v[i - S] - v[i] })
}

/// Flips signs, a bit for each lane, and transforms the lanes of a vector.
#[inline(always)]
fn alone(v: Lanes, signs: u8) -> Lanes {
    let flipped: Lanes =
        std::array::from_fn(|i| f32::from_bits(v[i].to_bits() ^ ((u32::from(signs) >> i) << 31)));
    within::<4>(within::<2>(within::<1>(flipped)))
}

/// The transform of `R` vectors.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // one lane of two vectors at a time
fn across<const R: usize>(mut v: [Lanes; R]) -> [Lanes; R] {
    let mut distance = 1;
    while distance < R {
        for at in 0..R {
            if at & distance == 0 {
                for lane in 0..WIDTH {
                    let (a, b) = (v[at][lane], v[at + distance][lane]);
                    (v[at][lane], v[at + distance][lane]) = (a + b, a - b);
                }
            }
        }
        distance *= 2;
    }
    v
}

/// The stages of the transform at the distances `stride`, `2 stride`, .. below `R stride`, where a stride is counted
/// in vectors.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // one number of all parts at a time
fn pass<const R: usize>(row: &mut [Lanes], stride: usize) {
    for block in row.chunks_exact_mut(R * stride) {
        // A loop over numbers compiles to vector code, and slices of one known length need no checks of bounds in it.
        let numbers = WIDTH * stride;
        let mut parts = block.as_flattened_mut().chunks_exact_mut(numbers);
        let parts: [&mut [f32]; R] =
            std::array::from_fn(|_| &mut parts.next().unwrap_or_default()[..numbers]);
        for at in 0..numbers {
            let mut v: [f32; R] = std::array::from_fn(|r| parts[r][at]);
            let mut distance = 1;
            while distance < R {
                for r in 0..R {
                    if r & distance == 0 {
                        let (a, b) = (v[r], v[r + distance]);
                        (v[r], v[r + distance]) = (a + b, a - b);
                    }
                }
                distance *= 2;
            }
            for r in 0..R {
                parts[r][at] = v[r];
            }
        }
    }
}

dispatch! {
    /// Flips signs, a bit for each number, and transforms without a scale.
    fn transform(signs: &[u8], row: &mut [f32]) {
        let (row, _) = row.as_chunks_mut::<WIDTH>();
        let (blocks, rest) = row.as_chunks_mut::<8>();
        let (sign_blocks, sign_rest) = signs.as_chunks::<8>();
        for (block, signs) in blocks.iter_mut().zip(sign_blocks) {
            *block = across(std::array::from_fn(|at| alone(block[at], signs[at])));
        }
        for (v, signs) in rest.iter_mut().zip(sign_rest) {
            *v = alone(*v, *signs);
        }
        // Whole blocks have the stages below a distance of eight vectors.
        let mut stride = if rest.is_empty() { 8 } else { 1 };
        while stride < row.len() {
            match row.len() / stride {
                2 => pass::<2>(row, stride),
                4 => pass::<4>(row, stride),
                _ => pass::<8>(row, stride),
            }
            stride *= 8;
        }
    }
}

/// Random bits, `count` bytes.
fn signs(rng: &Rng, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + 16 * BLOCKS);
    let mut block = 0;
    while bytes.len() < count {
        let words = rng.blocks::<BLOCKS>(block);
        bytes.extend(words.as_flattened().iter().flat_map(|word| word.to_le_bytes()));
        block += BLOCKS as u64;
    }
    bytes.truncate(count);
    bytes
}

impl Vectors {
    /// Rows of `width` numbers as vectors of `dimension` numbers, in time. Up to `dimension` numbers, distances and
    /// angles stay the same; wider rows are cut into parts whose projections are added, which keeps them in
    /// expectation. The projection depends on the dimension, the seed and the part alone: rows of different widths
    /// that differ by trailing zeros have the same projection.
    ///
    /// # Errors
    /// `OutOfRange` for a width of 0 or a dimension that is too small or too large; `Mismatch` for a dimension that
    /// is no power of two and for numbers that are no rows; `NonFinite` for the first row with a number that is not
    /// finite.
    pub fn project(
        numbers: &[f32],
        width: usize,
        (dimension, seed): (usize, u64),
        normalise: bool,
    ) -> Result<Vectors> {
        check_dimension(dimension)?;
        if !dimension.is_power_of_two() {
            return Err(Error::mismatch("dimension", "a power of two", dimension));
        }
        if width == 0 {
            return Err(Error::out_of_range("width", 0.0, 1.0, f64::from(u32::MAX)));
        }
        if !numbers.len().is_multiple_of(width) {
            return Err(Error::mismatch("numbers", format!("rows of {width}"), numbers.len()));
        }
        if let Some(at) = numbers.iter().position(|v| !v.is_finite()) {
            let what = format!("number {} of row {}", at % width, at / width);
            return Err(Error::NonFinite { what, value: f64::from(numbers[at]) });
        }
        let parts = width.div_ceil(dimension);
        let all: Vec<Vec<u8>> = (0..parts * ROUNDS)
            .map(|at| signs(&Rng::new(seed, "hrr.project", at as u64), dimension / 8))
            .collect();
        let scale = (dimension as f64).powf(-0.5 * ROUNDS as f64) as f32;
        let part = Vec::new;
        let count = numbers.len() / width;
        let mut out = computed(count, dimension, FEW, part, |part, at, out| {
            let row = &numbers[at * width..][..width];
            let (head, tail) = row.split_at(width.min(dimension));
            let (first, others) = all.split_at(ROUNDS);
            // The rest of the row is zeros.
            out[..head.len()].copy_from_slice(head);
            first.iter().for_each(|signs| transform(signs, out));
            for (own, signs) in tail.chunks(dimension).zip(others.chunks(ROUNDS)) {
                part.clear();
                part.extend_from_slice(own);
                part.resize(dimension, 0.0);
                signs.iter().for_each(|signs| transform(signs, part));
                simd::add_assign(out, part);
            }
            simd::scale_all(out, scale);
        })?;
        if normalise {
            superposition::normalise(&mut out, dimension)?;
        }
        Ok(Vectors::of(dimension, Domain::Time, out))
    }
}
