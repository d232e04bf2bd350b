//! Singular values by rotations of pairs of columns: the one-sided method of Jacobi (Hestenes 1958).

use std::sync::atomic::{AtomicBool, Ordering};

use sconce_tensor::{Result, memory, pool};

use crate::dense::{dot, orthonormalise, product, rotate, transposed};
use crate::stopped;

/// A singular value decomposition `left diag(values) right^T`, the largest values first.
pub(super) struct Svd {
    /// Left vectors, zero for values that are 0.
    pub(super) left: Vec<Vec<f64>>,
    pub(super) values: Vec<f64>,
    pub(super) right: Vec<Vec<f64>>,
}

/// A column of the matrix that is rotated, and the same combination of the columns of the identity.
struct Column {
    image: Vec<f64>,
    vector: Vec<f64>,
}

/// Largest cosine of two columns that count as orthogonal.
const ORTHOGONAL: f64 = 1e-13;
/// Most sweeps over all pairs. The convergence is quadratic, so ten suffice in practice.
const SWEEPS: usize = 60;
/// Numbers that a shard of parallel work rotates.
const SHARD: usize = 1 << 13;

impl Svd {
    /// The decomposition of a matrix whose rows have `cols` numbers.
    pub(super) fn new(matrix: &[f64], cols: usize, cancelled: &AtomicBool) -> Result<Svd> {
        let rows = matrix.len() / cols;
        if cols > rows {
            let Svd { left, values, right } = Svd::new(&transposed(matrix, cols), rows, cancelled)?;
            return Ok(Svd { left: right, values, right: left });
        }
        let turned = transposed(matrix, cols);
        let columns: Vec<Vec<f64>> = turned.chunks_exact(rows).map(<[f64]>::to_vec).collect();
        if rows < 2 * cols {
            return rotated(columns, cancelled);
        }
        // A tall matrix is Q R, and R is small.
        let mut q = columns;
        orthonormalise(&mut q, cancelled)?;
        let r = product(&turned, &q);
        // `r[k]` holds the products of q_k with all columns: row k of R.
        let r = transposed(&r.concat(), cols);
        let mut small = rotated(r.chunks_exact(cols).map(<[f64]>::to_vec).collect(), cancelled)?;
        for u in &mut small.left {
            let mut whole = vec![0.0; rows];
            u.iter().zip(&q).for_each(|(u, q)| crate::dense::axpy(&mut whole, *u, q));
            *u = whole;
        }
        Ok(small)
    }
}

/// The decomposition of a matrix with these columns, which are at least as long as many.
fn rotated(images: Vec<Vec<f64>>, cancelled: &AtomicBool) -> Result<Svd> {
    let count = images.len();
    memory::granted(count * count * size_of::<f64>());
    let unit = |at: usize| (0..count).map(|i| if i == at { 1.0 } else { 0.0 }).collect();
    let mut columns: Vec<Column> = images
        .into_iter()
        .enumerate()
        .map(|(at, image)| Column { image, vector: unit(at) })
        .collect();
    if count % 2 == 1 {
        // An empty column is orthogonal to all others.
        columns.push(Column { image: vec![], vector: vec![] });
    }
    for _ in 0..SWEEPS {
        if !sweep(&mut columns, cancelled)? {
            break;
        }
    }
    columns.retain(|column| !column.vector.is_empty());
    let mut found: Vec<(f64, Column)> = columns
        .into_iter()
        .map(|column| (dot(&column.image, &column.image).sqrt(), column))
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut svd = Svd { left: vec![], values: vec![], right: vec![] };
    for (value, Column { mut image, vector }) in found {
        let scale = if value > 0.0 { 1.0 / value } else { 0.0 };
        image.iter_mut().for_each(|v| *v *= scale);
        svd.left.push(image);
        svd.values.push(value);
        svd.right.push(vector);
    }
    Ok(svd)
}

/// Rotates each pair once; true if a pair was not orthogonal.
///
/// Pairs of a round share no column, so they are rotated in parallel. Between rounds all columns but the first move by
/// one place, as in a tournament.
fn sweep(columns: &mut [Column], cancelled: &AtomicBool) -> Result<bool> {
    let is_changed = AtomicBool::new(false);
    let half = columns.len() / 2;
    for _ in 1..columns.len() {
        stopped(cancelled)?;
        let length = columns[0].image.len().max(1);
        let (first, second) = columns.split_at_mut(half);
        let mut pairs: Vec<_> = first.iter_mut().zip(second.iter_mut().rev()).collect();
        let shards: Vec<_> = pairs.chunks_mut((SHARD / length).max(1)).collect();
        pool::hand_out(shards, |_, pairs| {
            for (a, b) in pairs {
                if orthogonalise(a, b) {
                    is_changed.store(true, Ordering::Relaxed);
                }
            }
        });
        columns[1..].rotate_right(1);
    }
    Ok(is_changed.into_inner())
}

/// Rotates two columns until they are orthogonal; false if they are.
fn orthogonalise(a: &mut Column, b: &mut Column) -> bool {
    if a.image.is_empty() || b.image.is_empty() {
        return false;
    }
    let (aa, bb, ab) = (dot(&a.image, &a.image), dot(&b.image, &b.image), dot(&a.image, &b.image));
    if ab.abs() <= ORTHOGONAL * (aa * bb).sqrt() || ab == 0.0 {
        return false;
    }
    let zeta = (bb - aa) / (2.0 * ab);
    let tan = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
    let cos = 1.0 / tan.hypot(1.0);
    rotate(&mut a.image, &mut b.image, cos, cos * tan);
    rotate(&mut a.vector, &mut b.vector, cos, cos * tan);
    true
}
