//! The noise of a generation, which is drawn anew wherever it is read: it takes no memory.

use sconce_tensor::pool;
use sconce_tensor::rng::Rng;

use crate::noise::Normals;

/// Numbers of a stream. A row has as many streams as it needs, so that threads may share it.
const PART: usize = 1 << 10;

/// Standard normal numbers `[rows, size]`.
pub(super) struct Noise<'a> {
    size: usize,
    source: Source<'a>,
}

enum Source<'a> {
    Drawn(Rng),
    Given(&'a [f64]),
}

impl<'a> Noise<'a> {
    /// Numbers that depend on the stream, the row and the place in it.
    pub(super) fn drawn(rng: Rng, size: usize) -> Self {
        Noise { size, source: Source::Drawn(rng) }
    }

    /// Numbers of a caller.
    pub(super) fn given(numbers: &'a [f64], size: usize) -> Self {
        Noise { size, source: Source::Given(numbers) }
    }

    /// Writes numbers of a row, from a multiple of [`PART`] on.
    pub(super) fn read(&self, row: usize, first: usize, out: &mut [f64]) {
        match &self.source {
            Source::Given(numbers) => {
                out.copy_from_slice(&numbers[row * self.size + first..][..out.len()]);
            }
            Source::Drawn(rng) => {
                let stream = row * self.size.div_ceil(PART) + first / PART;
                let mut narrow = [0.0; PART];
                for (at, out) in out.chunks_mut(PART).enumerate() {
                    let narrow = &mut narrow[..out.len()];
                    Normals::new(rng, (stream + at) as u64).fill(narrow);
                    out.iter_mut().zip(narrow).for_each(|(wide, v)| *wide = f64::from(*v));
                }
            }
        }
    }

    /// Sums `weights[r] z` and `weights[r] of(z)` over the numbers z of `rows[r]`, in the order of ranks r.
    pub(super) fn sums(
        &self,
        weights: &[f64],
        rows: &[usize],
        of: impl Fn(f64) -> f64 + Sync,
    ) -> Vec<[f64; 2]> {
        let mut all = vec![[0.0; 2]; self.size];
        pool::for_each_rows(&mut all, 1, PART, |first, all| {
            let (mut part, mut sums) = ([0.0; PART], [[0.0; PART]; 2]);
            let part = &mut part[..all.len()];
            let [plain, other] = &mut sums;
            for (weight, row) in weights.iter().zip(rows) {
                self.read(*row, first, part);
                for ((plain, other), z) in plain.iter_mut().zip(other.iter_mut()).zip(&*part) {
                    *plain += weight * z;
                    *other += weight * of(*z);
                }
            }
            for ((all, plain), other) in all.iter_mut().zip(plain).zip(other) {
                *all = [*plain, *other];
            }
        });
        all
    }
}
