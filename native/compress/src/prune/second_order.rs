//! Calibrated pruning: SparseGPT (Frantar & Alistarh 2023).

use std::sync::atomic::AtomicBool;

use sconce_tensor::{Error, Result, memory, pool};
use serde::{Deserialize, Serialize};

use super::{Keep, count};
use crate::dense::{axpy, inverse_factor};
use crate::hessian::Hessian;
use crate::matrix::Matrix;
use crate::stopped;

/// Pruning by second-order information: the removed weights are those whose removal costs least after the other weights of
/// their row have made up for it (Hassibi & Stork 1993), and these do make up for it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SecondOrder {
    /// The weights that stay.
    pub keep: Keep,
    /// This part of the mean of the Hessian's diagonal is added to the diagonal.
    pub damping: f64,
}

/// Columns of a block: with a sparsity, each block of a row loses the same part of its weights.
const BLOCK: usize = 128;
/// Rows of a shard of parallel work.
const ROWS: usize = 8;

impl SecondOrder {
    /// Prunes column by column. The weights of a group (of four columns for 2:4, otherwise of a block) that go are
    /// chosen when its first column is reached: those with the smallest `w^2 / [H^-1]_jj`, where `H^-1` is the inverse
    /// of the Hessian of the columns from `j` on. Each removal is compensated by the columns that follow.
    ///
    /// # Errors
    /// `OutOfRange` for a sparsity or damping outside of 0..1; `Mismatch` for a Hessian of another width, or that is not
    /// positive definite with the damping; `Cancelled` soon after `cancelled` is set.
    pub fn run(
        self,
        weight: &Matrix,
        hessian: &Hessian,
        cancelled: &AtomicBool,
    ) -> Result<Vec<f32>> {
        let (rows, cols) = (weight.rows(), weight.cols());
        self.keep.check()?;
        if hessian.size() != cols {
            let expected = format!("inputs of width {cols}");
            return Err(Error::mismatch("calibration", expected, hessian.size()));
        }
        if !(0.0..=1.0).contains(&self.damping) {
            return Err(Error::out_of_range("damping", self.damping, 0.0, 1.0));
        }
        // The damped Hessian, its factor, the inverse of that, and the weights.
        let bytes = (3 * cols * cols + 2 * rows * cols) * size_of::<f64>();
        memory::room("pruning", bytes as u64)?;
        let order: Vec<usize> = (0..cols).collect();
        let factor = inverse_factor(&hessian.damped(self.damping), &order, cancelled)?;
        let mut values: Vec<f64> = memory::with_capacity(rows * cols);
        values.extend(weight.values().iter().map(|w| f64::from(*w)));
        let shards: Vec<_> = values.chunks_mut(ROWS * cols).collect();
        pool::hand_out(shards, |_, rows| {
            // The result is dropped after a cancellation.
            if stopped(cancelled).is_ok() {
                rows.chunks_exact_mut(cols).for_each(|row| self.row(row, &factor));
            }
        });
        stopped(cancelled)?;
        let mut pruned = memory::with_capacity(rows * cols);
        pruned.extend(values.iter().map(|w| *w as f32));
        Ok(pruned)
    }

    fn row(self, row: &mut [f64], factor: &[f64]) {
        let cols = row.len();
        let width = if self.keep == Keep::TwoFour { 4 } else { BLOCK };
        for begin in (0..cols).step_by(width) {
            let end = (begin + width).min(cols);
            let scores: Vec<f64> =
                (begin..end).map(|j| (row[j] / factor[j * (cols + 1)]).powi(2)).collect();
            let drop = self.drop(begin, end);
            let mut gone = vec![false; end - begin];
            super::dropped(&scores, drop).for_each(|at| gone[at] = true);
            for j in (begin..end).filter(|j| gone[j - begin]) {
                let error = row[j] / factor[j * (cols + 1)];
                row[j] = 0.0;
                let (_, later) = row.split_at_mut(j + 1);
                axpy(later, -error, &factor[j * cols + j + 1..(j + 1) * cols]);
            }
        }
    }

    /// Removed weights of a group. With a sparsity, the blocks up to one have lost that part of their weights, rounded.
    fn drop(self, begin: usize, end: usize) -> usize {
        match self.keep {
            Keep::TwoFour => (end - begin).saturating_sub(2),
            Keep::Sparsity(sparsity) => {
                let until = |at: usize| count(sparsity, at).unwrap_or(0);
                until(end) - until(begin)
            }
        }
    }
}
