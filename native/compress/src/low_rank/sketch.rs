//! The largest singular values from random combinations of the columns (Halko, Martinsson & Tropp 2011, algorithms 4.4
//! and 5.1).

use std::sync::atomic::AtomicBool;

use sconce_tensor::Result;
use sconce_tensor::rng::Rng;

use super::Truncation;
use super::jacobi::Svd;
use crate::dense::{axpy, orthonormalise, product, transposed};

/// The `width` largest singular values of a matrix whose rows have `cols` numbers, as far as the range of `width` random
/// combinations contains them.
pub(super) fn svd(
    matrix: &[f64],
    cols: usize,
    width: usize,
    options: Truncation,
    cancelled: &AtomicBool,
) -> Result<Svd> {
    let (rows, turned) = (matrix.len() / cols, transposed(matrix, cols));
    let rng = Rng::new(options.seed, "low_rank", 0);
    let normal = |at: usize| f64::from(rng.normal(at as u64));
    let random: Vec<Vec<f64>> =
        (0..width).map(|k| (0..cols).map(|i| normal(k * cols + i)).collect()).collect();
    let mut basis = product(matrix, &random);
    orthonormalise(&mut basis, cancelled)?;
    for _ in 0..options.power_iterations {
        // Without orthonormal vectors in between, all would turn to the largest singular vector.
        let mut back = product(&turned, &basis);
        orthonormalise(&mut back, cancelled)?;
        basis = product(matrix, &back);
        orthonormalise(&mut basis, cancelled)?;
    }
    // The rows of B = Q^T W are the columns of W^T Q.
    let small = product(&turned, &basis).concat();
    let mut svd = Svd::new(&small, cols, cancelled)?;
    for u in &mut svd.left {
        let mut whole = vec![0.0; rows];
        u.iter().zip(&basis).for_each(|(u, q)| axpy(&mut whole, *u, q));
        *u = whole;
    }
    Ok(svd)
}
