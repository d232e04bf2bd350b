//! Policies whose matrices are pruned.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sconce_nn::Policy;
use sconce_nn::policy::stored_bytes;
use sconce_ops::weights::Weight;
use sconce_ops::weights::two_four::{FOUR, going};
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use super::second_order::SecondOrder;
use super::{Keep, Share, magnitude};
use crate::calibration::Hessians;
use crate::hessian::Hessian;
use crate::matrix::Matrix;
use crate::policy::{Errors, Names};

/// The weights that the matrices of a policy keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pruning {
    /// The weights that stay.
    pub keep: Keep,
    /// The matrices.
    pub names: Names,
    /// The damping of the second-order rule, for a calibration.
    pub damping: f64,
}

/// A matrix of a policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrunedReport {
    /// The name of the weight.
    pub name: String,
    /// Number of rows.
    pub outputs: usize,
    /// Number of columns.
    pub inputs: usize,
    /// The part of the weights that are 0.
    pub sparsity: f64,
    /// The relative error of the pruning, `|w - w'| / |w|` in Frobenius norms.
    pub error: f64,
    /// With a calibration, the relative error of the outputs, and that of keeping the largest magnitudes: the root of
    /// [`Hessian::error`] over that of weights of 0.
    pub output_error: Option<[f64; 2]>,
    /// Bytes in a checkpoint.
    pub bytes: usize,
}

/// The policy with pruned matrices, and a report of each. Matrices that the pruning leaves out stay as they are. Without a
/// calibration the largest magnitudes stay; with the Hessian of its inputs a matrix is pruned by [`SecondOrder`].
///
/// # Errors
/// `NotFound` for a beginning that no matrix has and for a policy without a matrix of at least 32 inputs, `NonFinite`
/// for a weight that is not finite, `OutOfRange` for a sparsity or damping outside of 0..1, and `Cancelled`.
pub fn pruned(
    policy: &Policy,
    pruning: &Pruning,
    hessians: &Hessians,
    cancelled: &AtomicBool,
) -> Result<(Policy, Vec<PrunedReport>)> {
    let change = |name: &str, weight: &Weight| {
        prune(name, weight, pruning, hessians.get(name), cancelled).map(Some)
    };
    pruning.names.changed(policy, cancelled, change, report)
}

fn prune(
    name: &str,
    weight: &Weight,
    pruning: &Pruning,
    hessian: Option<&Arc<Hessian>>,
    cancelled: &AtomicBool,
) -> Result<(Weight, Errors)> {
    let (outputs, inputs) = weight.dims2()?;
    let matrix = Matrix::new(name, outputs, inputs, to_vec(weight)?)?;
    let largest = pruning.keep.largest(&matrix)?;
    // Inputs that never fire tell nothing.
    let fires = |hessian: &&Arc<Hessian>| hessian.diagonal().any(|v| v > 0.0);
    let (kept, output_error) = match hessian.filter(fires) {
        None => (largest, None),
        Some(hessian) => {
            let rule = SecondOrder { keep: pruning.keep, damping: pruning.damping };
            let own = rule.run(&matrix, &hessian.with_all_inputs(), cancelled)?;
            let whole = hessian.error(&matrix, &vec![0.0; matrix.values().len()])?;
            let relative = |error: f64| if whole > 0.0 { (error / whole).sqrt() } else { 0.0 };
            let errors = [&own, &largest].map(|kept| hessian.error(&matrix, kept).map(relative));
            let [error, of_largest] = errors;
            (own, Some([error?, of_largest?]))
        }
    };
    let error = matrix.relative_error(&kept);
    let own = tensor(kept, (outputs, inputs))?.to_device(weight.device())?;
    Ok((own.into(), (error, output_error)))
}

fn report(name: &str, weight: &Weight, (error, output_error): Errors) -> Result<PrunedReport> {
    let (outputs, inputs) = weight.dims2()?;
    let values = to_vec(weight)?;
    let zeros = values.iter().filter(|w| **w == 0.0).count();
    let bytes = stored_bytes(name, weight)?;
    let sparsity = zeros as f64 / values.len() as f64;
    Ok(PrunedReport { name: name.into(), outputs, inputs, sparsity, error, output_error, bytes })
}

impl Keep {
    /// Refuses a sparsity outside of 0..1.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Keep::Sparsity(sparsity) if !(0.0..=1.0).contains(&sparsity) => {
                Err(Error::out_of_range("sparsity", sparsity, 0.0, 1.0))
            }
            _ => Ok(()),
        }
    }

    /// The matrix with zeros for all but the largest magnitudes.
    fn largest(self, weight: &Matrix) -> Result<Vec<f32>> {
        match self {
            Keep::Sparsity(sparsity) => Ok(magnitude(weight, sparsity, Share::Row)?.weight),
            Keep::TwoFour => {
                let mut values = weight.values().to_vec();
                for group in values.chunks_mut(weight.cols()).flat_map(|row| row.chunks_mut(FOUR)) {
                    going(group).for_each(|at| group[at] = 0.0);
                }
                Ok(values)
            }
        }
    }
}
