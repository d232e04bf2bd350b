//! Linear algebra in 64 bits. Sums have a fixed order on every CPU and for any number of threads.

use std::sync::atomic::AtomicBool;

use sconce_tensor::simd::dispatch;
use sconce_tensor::{Error, Result, memory, pool};

use crate::stopped;

/// Partial sums of a reduction.
const LANES: usize = 16;

dispatch! {
    fn dot_into(sum: &mut f64, a: &[f64], b: &[f64]) {
        let mut lanes = [0.0; LANES];
        let ([a, a_rest], [b, b_rest]) = (halves(a), halves(b));
        for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
            for i in 0..LANES {
                lanes[i] += a[i] * b[i];
            }
        }
        for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
            lanes[i] += a * b;
        }
        *sum = lanes.iter().sum();
    }
}

/// The longest part that is a multiple of the lanes, and the rest.
#[inline(always)]
fn halves(x: &[f64]) -> [&[f64]; 2] {
    let (head, rest) = x.split_at(x.len() / LANES * LANES);
    [head, rest]
}

dispatch! {
    fn axpy_into(y: &mut [f64], a: f64, x: &[f64]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += a * x;
        }
    }
}

dispatch! {
    fn rotate_into(x: &mut [f64], y: &mut [f64], cos: f64, sin: f64) {
        for (x, y) in x.iter_mut().zip(y) {
            (*x, *y) = (cos * *x - sin * *y, sin * *x + cos * *y);
        }
    }
}

/// The inner product of vectors of equal lengths.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sum = 0.0;
    dot_into(&mut sum, a, b);
    sum
}

/// `y += a x`.
pub(crate) fn axpy(y: &mut [f64], a: f64, x: &[f64]) {
    if a != 0.0 {
        axpy_into(y, a, x);
    }
}

/// Turns two vectors in their plane: `(x, y) = (cos x - sin y, sin x + cos y)`.
pub(crate) fn rotate(x: &mut [f64], y: &mut [f64], cos: f64, sin: f64) {
    rotate_into(x, y, cos, sin);
}

/// The numbers in 64 bits.
pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    let mut all = memory::with_capacity(x.len());
    all.extend(x.iter().map(|v| f64::from(*v)));
    all
}

/// The matrix with its rows as columns.
pub(crate) fn transposed(x: &[f64], cols: usize) -> Vec<f64> {
    let rows = x.len() / cols.max(1);
    let mut turned = memory::repeated(0.0, x.len());
    for (i, row) in x.chunks_exact(cols.max(1)).enumerate() {
        for (j, v) in row.iter().enumerate() {
            turned[j * rows + i] = *v;
        }
    }
    turned
}

/// Vectors `a x` for each `x`, of a matrix `a` with rows as long as `x`.
pub(crate) fn product(a: &[f64], xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (Some(width), count) = (xs.first().map(Vec::len), xs.len()) else { return vec![] };
    let rows = a.len() / width.max(1);
    let mut y = memory::repeated(0.0, rows * count);
    pool::for_each_rows(&mut y, count, 16, |first, part| {
        for (i, row) in part.chunks_exact_mut(count).enumerate() {
            let a = &a[(first + i) * width..][..width];
            row.iter_mut().zip(xs).for_each(|(y, x)| *y = dot(a, x));
        }
    });
    transposed(&y, count).chunks_exact(rows.max(1)).map(<[f64]>::to_vec).collect()
}

/// Makes vectors orthonormal by Gram and Schmidt's process, applied twice. A vector that depends on those before it
/// becomes zero.
///
/// # Errors
/// `Cancelled` soon after `cancelled` is set.
pub(crate) fn orthonormalise(vectors: &mut [Vec<f64>], cancelled: &AtomicBool) -> Result<()> {
    /// Below this part of its length a vector is the rounding error of a dependent one.
    const DEPENDENT: f64 = 1e-12;
    for at in 0..vectors.len() {
        let (done, rest) = vectors.split_at_mut(at);
        stopped(cancelled)?;
        let Some(x) = rest.first_mut() else { return Ok(()) };
        let before = dot(x, x).sqrt();
        for _ in 0..2 {
            for q in done.iter() {
                let along = dot(q, x);
                axpy(x, -along, q);
            }
        }
        let after = dot(x, x).sqrt();
        let scale = if after > DEPENDENT * before { 1.0 / after } else { 0.0 };
        x.iter_mut().for_each(|v| *v *= scale);
    }
    Ok(())
}

/// The upper triangular U with `U^T U = H^-1`, row by row, of a symmetric positive definite `h [n, n]`: the inverse of its
/// [`factor`].
///
/// # Errors
/// Those of [`factor`].
pub(crate) fn inverse_factor(
    h: &[f64],
    names: &[usize],
    cancelled: &AtomicBool,
) -> Result<Vec<f64>> {
    inverse_of_upper(&factor(h, names, cancelled)?, names.len(), cancelled)
}

/// The upper triangular R with `H = R R^T`, row by row, of a symmetric positive definite `h [n, n]`, from its last column
/// on. Below the diagonal are other numbers.
///
/// # Errors
/// `Mismatch` if a pivot is not above the rounding errors of its column; it names the column by `names`. `Cancelled` soon
/// after `cancelled` is set.
pub(crate) fn factor(h: &[f64], names: &[usize], cancelled: &AtomicBool) -> Result<Vec<f64>> {
    let n = names.len();
    let mut r = memory::copied(h);
    for j in (0..n).rev() {
        stopped(cancelled)?;
        let (above, from) = r.split_at_mut(j * n);
        let row = &mut from[..n];
        let pivot = row[j] - dot(&row[j + 1..], &row[j + 1..]);
        // What a singular matrix leaves of a column is noise of either sign.
        let noise = n as f64 * f64::EPSILON * h[j * (n + 1)];
        if !(pivot > noise && pivot.is_finite()) {
            let expected = "a positive definite matrix after the damping";
            return Err(Error::mismatch(
                "hessian",
                expected,
                format!("a pivot of {pivot:e} in column {}", names[j]),
            ));
        }
        row[j] = pivot.sqrt();
        let row = &*row;
        pool::for_each_rows(above, n, 64, |_, rows| {
            for other in rows.chunks_exact_mut(n) {
                other[j] = (other[j] - dot(&other[j + 1..], &row[j + 1..])) / row[j];
            }
        });
    }
    Ok(r)
}

/// The inverse of an upper triangular matrix whose lower part is ignored.
fn inverse_of_upper(r: &[f64], n: usize, cancelled: &AtomicBool) -> Result<Vec<f64>> {
    let mut u = memory::repeated(0.0, n * n);
    for i in (0..n).rev() {
        stopped(cancelled)?;
        let (rows, below) = u.split_at_mut((i + 1) * n);
        let row = &mut rows[i * n..];
        row[i] = 1.0;
        for k in i + 1..n {
            axpy(&mut row[k..], -r[i * n + k], &below[(k - i - 1) * n..][k..n]);
        }
        let pivot = r[i * n + i];
        row[i..].iter_mut().for_each(|v| *v /= pivot);
    }
    Ok(u)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_tensor::rng::Rng;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn noise(count: usize, seed: u64) -> Vec<f64> {
        let rng = Rng::new(seed, "noise", 0);
        (0..count as u64).map(|i| f64::from(rng.normal(i))).collect()
    }

    #[test]
    fn the_factor_of_the_inverse_undoes_the_matrix() {
        let n = 150;
        let x = noise(2 * n * n, 1);
        let columns: Vec<Vec<f64>> = x.chunks_exact(n).map(<[f64]>::to_vec).collect();
        let gram = product(&transposed(&x, n), &columns_of(&x, n));
        let h: Vec<f64> = gram.concat();
        assert_eq!(columns.len(), 2 * n);
        let u = inverse_factor(&h, &(0..n).collect::<Vec<_>>(), &NEVER).unwrap();
        // U H U^T is the identity, because H^-1 = U^T U.
        for i in 0..n {
            assert!(u[i * n..i * n + i].iter().all(|v| *v == 0.0));
            let row = &u[i * n..(i + 1) * n];
            let image = product(&h, &[row.to_vec()]).remove(0);
            for j in 0..n {
                let want = if i == j { 1.0 } else { 0.0 };
                assert!((dot(&u[j * n..(j + 1) * n], &image) - want).abs() < 1e-9, "{i} {j}");
            }
        }
    }

    fn columns_of(x: &[f64], cols: usize) -> Vec<Vec<f64>> {
        transposed(x, cols).chunks_exact(x.len() / cols).map(<[f64]>::to_vec).collect()
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_is_named_with_its_column() {
        let text = inverse_factor(&[1.0, 2.0, 2.0, 1.0], &[7, 9], &NEVER).unwrap_err().to_string();
        assert!(text.contains("hessian") && text.contains("column 7"), "{text}");
        // The second column is the first one, up to rounding errors of either sign.
        for sign in [1.0, -1.0] {
            let double = [1.0, 1.0, 1.0, 1.0 + sign * f64::EPSILON];
            assert!(inverse_factor(&double, &[0, 1], &NEVER).is_err());
        }
        let cancelled = AtomicBool::new(true);
        let stopped = inverse_factor(&[1.0], &[0], &cancelled).unwrap_err();
        assert!(matches!(stopped, Error::Cancelled), "{stopped}");
    }

    #[test]
    fn dependent_vectors_become_zero_and_others_orthonormal() {
        let x = noise(30, 2);
        let double: Vec<f64> = x.iter().map(|v| 2.0 * v).collect();
        let mut all = vec![x, double, noise(30, 3), vec![0.0; 30]];
        orthonormalise(&mut all, &NEVER).unwrap();
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate() {
                let want = if i == j && i % 2 == 0 { 1.0 } else { 0.0 };
                assert!((dot(a, b) - want).abs() < 1e-14, "{i} {j}");
            }
        }
    }
}
