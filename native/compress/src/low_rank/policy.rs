//! Policies whose matrices are products of two smaller ones.
//!
//! Without a calibration a product is the nearest of its rank to the matrix `W`. With one it is the nearest in the layer's
//! outputs on the calibration's inputs: with `U` the largest principal directions of the outputs, `U (U^T W)`. They are the
//! left singular vectors of `W R`, where `H = R R^T` are the second moments of the inputs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sconce_nn::Policy;
use sconce_nn::policy::stored_bytes;
use sconce_ops::weights::{Factors, Weight};
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Error, Result, memory, pool};
use serde::{Deserialize, Serialize};

use super::{LowRank, Method, Rank, Truncation};
use crate::calibration::Hessians;
use crate::dense::{axpy, dot, factor, wide};
use crate::hessian::Hessian;
use crate::matrix::Matrix;
use crate::policy::{Errors, Names};
use crate::stopped;

/// The products that the matrices of a policy become.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Factoring {
    /// The choice of the rank. With a calibration energy and error are those of the outputs.
    pub rank: Rank,
    /// The matrices.
    pub names: Names,
    /// Part of the mean of a Hessian's diagonal that is added to the diagonal.
    pub damping: f64,
}

/// A matrix of a policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FactoredReport {
    /// The name of the weight.
    pub name: String,
    /// Number of rows.
    pub outputs: usize,
    /// Number of columns.
    pub inputs: usize,
    /// The rank of the product; `None` for a matrix that stays whole, because the product would not be smaller.
    pub rank: Option<usize>,
    /// The relative error of the product, `|w - w'| / |w|` in Frobenius norms.
    pub error: f64,
    /// With a calibration, the relative error of the outputs, and that of the nearest product of this rank to the matrix: the
    /// root of [`Hessian::error`] over that of weights of 0.
    pub output_error: Option<[f64; 2]>,
    /// Bytes in a checkpoint.
    pub bytes: usize,
}

/// Power iterations of the randomised decomposition.
const POWER_ITERATIONS: usize = 2;

/// The policy with its matrices as products of two, and a report of each. Matrices that are left out stay as they are, and
/// so do those whose product has no fewer numbers.
///
/// # Errors
/// `NotFound` for a beginning that no matrix has and for a policy without a matrix of at least 32 inputs, `NonFinite`
/// for a weight that is not finite, `OutOfRange` for a rank, energy, error or damping out of range, and `Cancelled`.
pub fn factored(
    policy: &Policy,
    factoring: &Factoring,
    hessians: &Hessians,
    cancelled: &AtomicBool,
) -> Result<(Policy, Vec<FactoredReport>)> {
    if !(0.0..=1.0).contains(&factoring.damping) {
        return Err(Error::out_of_range("damping", factoring.damping, 0.0, 1.0));
    }
    let change =
        |name: &str, weight: &Weight| factoring.matrix(name, weight, hessians.get(name), cancelled);
    factoring.names.changed(policy, cancelled, change, report)
}

impl Factoring {
    /// The product that replaces a matrix; `None` if it has no fewer numbers.
    fn matrix(
        &self,
        name: &str,
        weight: &Weight,
        hessian: Option<&Arc<Hessian>>,
        cancelled: &AtomicBool,
    ) -> Result<Option<(Weight, Errors)>> {
        let (outputs, inputs) = weight.dims2()?;
        let matrix = Matrix::new(name, outputs, inputs, to_vec(weight)?)?;
        // Inputs that never fire tell nothing.
        let fires = |hessian: &&Arc<Hessian>| hessian.diagonal().any(|v| v > 0.0);
        let hessian = hessian.filter(fires);
        let (rank, left, right) = match hessian {
            None => {
                let LowRank { rank, left, right, .. } =
                    self.truncated(&matrix, self.rank, cancelled)?;
                (rank, left, right)
            }
            Some(hessian) => self.calibrated(&matrix, hessian, cancelled)?,
        };
        if rank * (outputs + inputs) >= outputs * inputs {
            return Ok(None);
        }
        let factors = Factors::new(rank, left, right)?;
        let values = factors.weights();
        let mut errors = (matrix.relative_error(&values), None);
        if let Some(hessian) = hessian {
            let nearest = self.truncated(&matrix, Rank::Rank(rank), cancelled)?;
            let nearest = Factors::new(rank, nearest.left, nearest.right)?.weights();
            let whole = hessian.error(&matrix, &vec![0.0; values.len()])?;
            let relative = |error: f64| if whole > 0.0 { (error / whole).sqrt() } else { 0.0 };
            let [own, other] =
                [&values, &nearest].map(|of| hessian.error(&matrix, of).map(relative));
            errors.1 = Some([own?, other?]);
        }
        Ok(Some((Weight::factored(factors)?.copied_to(weight.device())?, errors)))
    }

    fn truncated(&self, matrix: &Matrix, rank: Rank, cancelled: &AtomicBool) -> Result<LowRank> {
        // A matrix with a side below the rank that is asked for stays whole.
        let most = matrix.rows().min(matrix.cols());
        let rank = match rank {
            Rank::Rank(rank) if rank > 0 => Rank::Rank(rank.min(most)),
            other => other,
        };
        let (power_iterations, seed) = (POWER_ITERATIONS, 0);
        Truncation { rank, method: Method::Auto, power_iterations, seed }.run(matrix, cancelled)
    }

    /// The rank and the factors of the product that changes the outputs least.
    fn calibrated(
        &self,
        matrix: &Matrix,
        hessian: &Hessian,
        cancelled: &AtomicBool,
    ) -> Result<(usize, Vec<f32>, Vec<f32>)> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let bytes = (3 * cols * cols + 2 * rows * cols) * size_of::<f64>();
        memory::room("a decomposition", bytes as u64)?;
        let order: Vec<usize> = (0..cols).collect();
        let root = factor(&hessian.with_all_inputs().damped(self.damping), &order, cancelled)?;
        let weight = wide(matrix.values());
        let mut outputs = memory::repeated(0.0, rows * cols);
        pool::for_each_rows(&mut outputs, cols, 16, |first, part| {
            for (i, row) in part.chunks_exact_mut(cols).enumerate() {
                for (k, w) in weight[(first + i) * cols..][..cols].iter().enumerate() {
                    axpy(&mut row[k..], *w, &root[k * cols + k..(k + 1) * cols]);
                }
            }
        });
        stopped(cancelled)?;
        let outputs = outputs.iter().map(|v| *v as f32).collect();
        let outputs = Matrix::new("outputs of a calibration", rows, cols, outputs)?;
        let LowRank { rank, left, .. } = self.truncated(&outputs, self.rank, cancelled)?;
        // U, column by column. A direction without outputs is 0.
        let mut directions = memory::repeated(0.0, rank * rows);
        for (k, own) in directions.chunks_exact_mut(rows).enumerate() {
            own.iter_mut().enumerate().for_each(|(i, v)| *v = f64::from(left[i * rank + k]));
            let norm = dot(own, own).sqrt();
            own.iter_mut().for_each(|v| *v = if norm > 0.0 { *v / norm } else { 0.0 });
        }
        let mut right = memory::repeated(0.0, rank * cols);
        for (own, direction) in right.chunks_exact_mut(cols).zip(directions.chunks_exact(rows)) {
            let rows = weight.chunks_exact(cols).zip(direction);
            rows.for_each(|(row, u)| axpy(own, *u, row));
        }
        let left = (0..rows).flat_map(|i| directions.iter().skip(i).step_by(rows));
        Ok((rank, left.map(|v| *v as f32).collect(), right.iter().map(|v| *v as f32).collect()))
    }
}

fn report(name: &str, weight: &Weight, (error, output_error): Errors) -> Result<FactoredReport> {
    let (outputs, inputs) = weight.dims2()?;
    let rank = weight.factors().map(|factors| factors.rank());
    let (name, bytes) = (name.to_string(), stored_bytes(name, weight)?);
    Ok(FactoredReport { name, outputs, inputs, rank, error, output_error, bytes })
}
