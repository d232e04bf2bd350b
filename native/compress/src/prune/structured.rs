//! Structured pruning: whole rows or columns are removed, and the matrix shrinks.

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use super::count;
use crate::matrix::Matrix;

/// The parts of a matrix that are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Rows: outputs of the layer. The layers that read them lose the columns of the same indices.
    Rows,
    /// Columns: inputs of the layer.
    Columns,
}

/// A matrix of which whole rows or columns are left.
#[derive(Debug, Clone, PartialEq)]
pub struct Shrunk {
    /// Indices of the rows or columns that are left, ascending.
    pub kept: Vec<usize>,
    /// The smaller matrix.
    pub weight: Matrix,
}

/// Removes the rows or columns with the smallest L2 norms (Li et al. 2017): `sparsity` times their number, rounded half
/// to even. Of equal norms the first are removed.
///
/// # Errors
/// `OutOfRange` unless the sparsity is from 0 to 1 and leaves a row or column.
pub fn structured(weight: &Matrix, sparsity: f64, axis: Axis) -> Result<Shrunk> {
    let mut norms = vec![0.0; if axis == Axis::Rows { weight.rows() } else { weight.cols() }];
    for (i, row) in weight.each_row().enumerate() {
        for (j, w) in row.iter().enumerate() {
            norms[if axis == Axis::Rows { i } else { j }] += f64::from(*w) * f64::from(*w);
        }
    }
    let drop = count(sparsity, norms.len())?;
    if drop == norms.len() {
        let most = 1.0 - 1.0 / norms.len() as f64;
        return Err(Error::out_of_range("sparsity", sparsity, 0.0, most));
    }
    let mut order: Vec<usize> = (0..norms.len()).collect();
    order.sort_by(|a, b| norms[*a].total_cmp(&norms[*b]));
    let mut kept = order.split_off(drop);
    kept.sort_unstable();
    let weight = taken(weight, &kept, axis)?;
    Ok(Shrunk { kept, weight })
}

fn taken(weight: &Matrix, kept: &[usize], axis: Axis) -> Result<Matrix> {
    let (cols, numbers) = (weight.cols(), weight.values());
    let values: Vec<f32> = match axis {
        Axis::Rows => {
            kept.iter().flat_map(|at| &numbers[at * cols..(at + 1) * cols]).copied().collect()
        }
        Axis::Columns => weight.each_row().flat_map(|row| kept.iter().map(|at| row[*at])).collect(),
    };
    match axis {
        Axis::Rows => Matrix::new("weight", kept.len(), cols, values),
        Axis::Columns => Matrix::new("weight", weight.rows(), kept.len(), values),
    }
}
