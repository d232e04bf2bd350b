//! Random orthogonal matrices.

use crate::memory;
use crate::rng::Rng;

/// Least ratio of a vector's length after its projections are removed to its length before. A vector below it lies in
/// the span of the others up to rounding errors, and is drawn again.
const INDEPENDENT: f64 = 1e-8;

/// A random matrix `[rows, columns]` whose rows, or columns if there are fewer, are orthogonal and of length `gain`
/// (Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear networks").
///
/// It is the Q of the QR decomposition of a Gaussian matrix, in f64. Q is unique, and uniform over all orthogonal
/// matrices, if the diagonal of R is positive (Mezzadri 2007); Gram-Schmidt gives that sign without a correction. Each
/// vector is orthogonalised twice, which suffices for full precision (Giraud et al. 2005). Takes time in the order of
/// `rows * columns * min(rows, columns)`.
pub(super) fn orthogonal(rng: &Rng, [rows, columns]: [usize; 2], gain: f32) -> Vec<f32> {
    let basis = orthonormal(rng, rows.min(columns), rows.max(columns));
    let is_wide = rows <= columns;
    let number = |i: usize| match is_wide {
        true => basis[i / columns][i % columns],
        false => basis[i % columns][i / columns],
    };
    let mut numbers = memory::with_capacity(rows * columns);
    numbers.extend((0..rows * columns).map(|i| (f64::from(gain) * number(i)) as f32));
    numbers
}

/// `count` orthonormal vectors of width `width`, which is at least `count`.
fn orthonormal(rng: &Rng, count: usize, width: usize) -> Vec<Vec<f64>> {
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(count);
    let mut next = 0;
    while basis.len() < count {
        let mut vector: Vec<f64> =
            (next..next + width as u64).map(|i| f64::from(rng.normal(i))).collect();
        next += width as u64;
        let before = dot(&vector, &vector).sqrt();
        for _ in 0..2 {
            basis.iter().for_each(|other| remove(&mut vector, other));
        }
        let length = dot(&vector, &vector).sqrt();
        if length > INDEPENDENT * before {
            vector.iter_mut().for_each(|v| *v /= length);
            basis.push(vector);
        }
    }
    basis
}

/// Removes from `vector` its projection on the unit vector `other`.
fn remove(vector: &mut [f64], other: &[f64]) {
    let part = dot(vector, other);
    vector.iter_mut().zip(other).for_each(|(v, o)| *v -= part * o);
}

/// The dot product, summed in eight lanes, which compile to vector code.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, shape: [usize; 2], gain: f32) -> Vec<f32> {
        orthogonal(&Rng::new(seed, "test", 0), shape, gain)
    }

    #[test]
    fn the_fewer_of_rows_and_columns_are_orthogonal_and_as_long_as_the_gain() {
        for [rows, columns] in [[1, 1], [1, 9], [9, 1], [7, 12], [33, 33], [70, 20]] {
            for gain in [0.01, 1.0, std::f32::consts::SQRT_2] {
                let w = drawn(3, [rows, columns], gain);
                let of = |i: usize, k: usize| match rows <= columns {
                    true => w[i * columns + k],
                    false => w[k * columns + i],
                };
                for (i, j) in (0..rows.min(columns)).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                    let terms = (0..rows.max(columns)).map(|k| of(i, k) * of(j, k));
                    let want = if i == j { gain * gain } else { 0.0 };
                    let got: f32 = terms.sum();
                    assert!((got - want).abs() < 1e-5, "{rows} x {columns}, {i} {j}: {got}");
                }
            }
        }
    }

    #[test]
    fn a_matrix_depends_on_its_seed_alone() {
        assert_eq!(drawn(1, [6, 5], 1.0), drawn(1, [6, 5], 1.0));
        assert_ne!(drawn(1, [6, 5], 1.0), drawn(2, [6, 5], 1.0));
    }
}
