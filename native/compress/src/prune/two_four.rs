//! 2:4 sparsity: of four consecutive inputs two stay (Mishra et al. 2021).

use sconce_ops::weights::two_four::{FOUR, TWO, going};
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

/// Keeps the two largest magnitudes of four consecutive columns; of equal ones the first.
///
/// # Errors
/// `Mismatch` unless four divides the number of columns.
pub fn two_four(weight: &Matrix) -> Result<TwoFour> {
    if !weight.cols().is_multiple_of(FOUR) {
        return Err(Error::mismatch("columns", "a multiple of 4", weight.cols()));
    }
    let numbers = weight.values();
    let mut mask = memory::repeated(1u8, numbers.len());
    let mut values = memory::with_capacity(numbers.len() / TWO);
    let mut index = memory::with_capacity(numbers.len() / TWO);
    for (mask, four) in mask.chunks_exact_mut(FOUR).zip(numbers.chunks_exact(FOUR)) {
        going(four).for_each(|at| mask[at] = 0);
        let kept = (0u8..).zip(four).zip(mask).filter(|(_, kept)| **kept == 1);
        for ((at, number), _) in kept {
            values.push(*number);
            index.push(at);
        }
    }
    Ok(TwoFour { pruned: Pruned::new(weight, mask), values, index })
}
