//! Roots of symmetric positive matrices by the one-sided method of Jacobi (Hestenes 1958).

/// Largest cosine of two columns that count as orthogonal.
const ORTHOGONAL: f64 = 1e-15;
/// Most sweeps over all pairs of columns. The convergence is quadratic, so ten suffice in practice.
const SWEEPS: usize = 30;
/// An eigenvalue below this share of the largest one is raised to it, so that the inverse root is finite.
const LEAST: f64 = 1e-28;

/// The symmetric root of a matrix `[size, size]`, and the inverse of the root.
pub(super) fn roots(matrix: &[f64], size: usize) -> (Vec<f64>, Vec<f64>) {
    let (values, vectors) = eigen(matrix, size);
    let most = values.iter().copied().fold(0.0, f64::max);
    let values: Vec<f64> = values.iter().map(|v| v.max(LEAST * most).sqrt()).collect();
    let sum = |of: &dyn Fn(f64) -> f64| {
        let mut sum = vec![0.0; size * size];
        for (value, vector) in values.iter().zip(vectors.chunks_exact(size)) {
            let value = of(*value);
            for (i, row) in sum.chunks_exact_mut(size).enumerate() {
                // The product of the two numbers comes first: it is the same in both triangles.
                row.iter_mut().zip(vector).for_each(|(s, v)| *s += vector[i] * v * value);
            }
        }
        sum
    };
    (sum(&|value| value), sum(&|value| 1.0 / value))
}

/// Eigenvalues and eigenvectors, a row each. The columns of the matrix are rotated until they are orthogonal; they are
/// then the eigenvectors times the eigenvalues.
fn eigen(matrix: &[f64], size: usize) -> (Vec<f64>, Vec<f64>) {
    let mut images = matrix.to_vec();
    let one = |at: usize| if at / size == at % size { 1.0 } else { 0.0 };
    let mut vectors: Vec<f64> = (0..size * size).map(one).collect();
    for _ in 0..SWEEPS {
        let mut is_changed = false;
        for a in 0..size {
            for b in a + 1..size {
                is_changed |= orthogonalise(&mut images, &mut vectors, (a, b), size);
            }
        }
        if !is_changed {
            break;
        }
    }
    let length = |image: &[f64]| dot(image, image).sqrt();
    (images.chunks_exact(size).map(length).collect(), vectors)
}

/// Rotates two columns until they are orthogonal; false if they are.
fn orthogonalise(
    images: &mut [f64],
    vectors: &mut [f64],
    (a, b): (usize, usize),
    size: usize,
) -> bool {
    let (x, y) = pair(images, (a, b), size);
    let (xx, yy, xy) = (dot(x, x), dot(y, y), dot(x, y));
    if xy == 0.0 || xy.abs() <= ORTHOGONAL * (xx * yy).sqrt() {
        return false;
    }
    let zeta = (yy - xx) / (2.0 * xy);
    let tan = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
    let cos = 1.0 / tan.hypot(1.0);
    rotate(x, y, cos, cos * tan);
    let (x, y) = pair(vectors, (a, b), size);
    rotate(x, y, cos, cos * tan);
    true
}

/// Two different rows, the first above the second.
fn pair(rows: &mut [f64], (a, b): (usize, usize), size: usize) -> (&mut [f64], &mut [f64]) {
    let (above, below) = rows.split_at_mut(b * size);
    (&mut above[a * size..(a + 1) * size], &mut below[..size])
}

fn rotate(x: &mut [f64], y: &mut [f64], cos: f64, sin: f64) {
    for (x, y) in x.iter_mut().zip(y) {
        (*x, *y) = (cos * *x - sin * *y, sin * *x + cos * *y);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_tensor::rng::Rng;

    fn product(a: &[f64], b: &[f64], size: usize) -> Vec<f64> {
        let entry = |at: usize| -> f64 {
            (0..size).map(|k| a[at / size * size + k] * b[k * size + at % size]).sum()
        };
        (0..size * size).map(entry).collect()
    }

    #[test]
    fn roots_multiply_to_the_matrix_and_to_the_identity() {
        for size in [1, 2, 5, 24] {
            let rng = Rng::new(size as u64, "test", 0);
            let raw: Vec<f64> = (0..size * size).map(|i| f64::from(rng.normal(i as u64))).collect();
            // A matrix times its transpose, which is positive, with a condition of up to 1e6.
            let at = |i: usize, k: usize| raw[i * size + k] * 10f64.powf(-3.0 * k as f64 / 24.0);
            let entry = |n: usize| (0..size).map(|k| at(n / size, k) * at(n % size, k)).sum();
            let matrix: Vec<f64> = (0..size * size).map(entry).collect();
            let (root, inverse) = roots(&matrix, size);
            let most = matrix.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            for (a, b) in product(&root, &root, size).iter().zip(&matrix) {
                assert!((a - b).abs() < 1e-12 * most, "{size}: {a} {b}");
            }
            for (n, v) in product(&root, &inverse, size).iter().enumerate() {
                let one = if n / size == n % size { 1.0 } else { 0.0 };
                assert!((v - one).abs() < 1e-6, "{size}: {v}");
            }
            assert!((0..size * size).all(|n| root[n] == root[n % size * size + n / size]));
        }
    }
}
