//! 2:4 sparsity: of four consecutive inputs two stay (Mishra et al. 2021).

use sconce_tensor::{Error, Result, memory};

use super::Pruned;
use crate::matrix::Matrix;

/// A matrix of which half is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct TwoFour {
    /// Mask and matrix.
    pub pruned: Pruned,
    /// The kept numbers, `[rows, columns / 2]`.
    pub values: Vec<f32>,
    /// The place 0 to 3 of each kept number among its four, `[rows, columns / 2]`.
    pub index: Vec<u8>,
}

/// Inputs of a group.
const FOUR: usize = 4;
/// Inputs that stay.
const TWO: usize = 2;

/// Keeps the two largest magnitudes of four consecutive columns; of equal ones the first.
///
/// # Errors
/// `Mismatch` unless four divides the number of columns.
pub fn two_four(weight: &Matrix) -> Result<TwoFour> {
    if !weight.cols().is_multiple_of(FOUR) {
        return Err(Error::mismatch("columns", "a multiple of 4", weight.cols()));
    }
    let numbers = weight.values();
    let mut mask = memory::repeated(0u8, numbers.len());
    let mut values = memory::with_capacity(numbers.len() / TWO);
    let mut index = memory::with_capacity(numbers.len() / TWO);
    for (mask, four) in mask.chunks_exact_mut(FOUR).zip(numbers.chunks_exact(FOUR)) {
        let mut order = [0u8, 1, 2, 3];
        let magnitude = |at: u8| four[usize::from(at)].abs();
        // The sort is stable, so equal magnitudes stay in the order of their columns.
        order.sort_by(|a, b| magnitude(*b).total_cmp(&magnitude(*a)));
        let mut kept = [order[0], order[1]];
        kept.sort_unstable();
        for at in kept {
            mask[usize::from(at)] = 1;
            values.push(four[usize::from(at)]);
            index.push(at);
        }
    }
    Ok(TwoFour { pruned: Pruned::new(weight, mask), values, index })
}
