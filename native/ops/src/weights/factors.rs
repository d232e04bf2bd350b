//! Matrices as products of two smaller ones: `weight = left right`.

use super::MAX_NUMBERS;
use crate::simd::non_finite;
use crate::{Error, Result, memory, pool};

/// Rows that a thread multiplies at once.
const ROWS: usize = 16;

/// A matrix `[outputs, inputs]` as the product of `left [outputs, rank]` and `right [rank, inputs]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Factors {
    rank: usize,
    left: Vec<f32>,
    right: Vec<f32>,
}

impl Factors {
    /// The factors of a matrix, row by row.
    ///
    /// # Errors
    /// `Mismatch` without numbers and for numbers that are no rows of this rank, `NonFinite` for numbers that are not
    /// finite, `OutOfRange` for a rank above a side of the product and for a product of more than [`MAX_NUMBERS`].
    pub fn new(rank: usize, left: Vec<f32>, right: Vec<f32>) -> Result<Self> {
        for (what, numbers) in [("left factor", &left), ("right factor", &right)] {
            if numbers.is_empty() || !numbers.len().is_multiple_of(rank.max(1)) || rank == 0 {
                return Err(Error::mismatch(
                    what,
                    format!("numbers of rank {rank}"),
                    numbers.len(),
                ));
            }
            if let Some(value) = non_finite(numbers) {
                return Err(Error::NonFinite { what: what.into(), value: f64::from(value) });
            }
        }
        let own = Factors { rank, left, right };
        let (outputs, inputs) = (own.outputs(), own.inputs());
        let bound = |what: &str, value: usize, most: usize| match value <= most {
            true => Ok(()),
            false => Err(Error::out_of_range(what, value as f64, 1.0, most as f64)),
        };
        bound("rank of a product", rank, outputs.min(inputs))?;
        bound("numbers of a product", outputs.saturating_mul(inputs), MAX_NUMBERS)?;
        Ok(own)
    }

    /// Columns of the left factor and rows of the right one.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Rows of the matrix.
    pub fn outputs(&self) -> usize {
        self.left.len() / self.rank
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.right.len() / self.rank
    }

    /// `[outputs, rank]`, row by row.
    pub fn left(&self) -> &[f32] {
        &self.left
    }

    /// `[rank, inputs]`, row by row.
    pub fn right(&self) -> &[f32] {
        &self.right
    }

    /// Bytes of both factors.
    pub fn size(&self) -> usize {
        size_of_val(self.left.as_slice()) + size_of_val(self.right.as_slice())
    }

    /// The matrix, row by row.
    pub fn weights(&self) -> Vec<f32> {
        Factors::product(self.rank, &self.left, &self.right)
    }

    /// The product of `left [.., rank]` and `right [rank, ..]`, row by row. Each number is a sum in 64 bits, which is rounded
    /// once.
    pub fn product(rank: usize, left: &[f32], right: &[f32]) -> Vec<f32> {
        let inputs = right.len() / rank;
        let mut weights = memory::repeated(0.0, left.len() / rank * inputs);
        pool::for_each_rows(&mut weights, inputs, ROWS, |first, rows| {
            let mut sums = vec![0.0; inputs];
            let lefts = left.chunks_exact(rank).skip(first);
            for (weights, row) in rows.chunks_exact_mut(inputs).zip(lefts) {
                sums.fill(0.0);
                for (l, right) in row.iter().zip(right.chunks_exact(inputs)) {
                    let pairs = sums.iter_mut().zip(right);
                    pairs.for_each(|(sum, r)| *sum += f64::from(*l) * f64::from(*r));
                }
                weights.iter_mut().zip(&sums).for_each(|(w, sum)| *w = *sum as f32);
            }
        });
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_tensor::Kind;

    #[test]
    fn a_product_has_the_numbers_of_its_factors_and_bad_factors_are_named() {
        let own =
            Factors::new(2, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![1.0, 0.0, 0.5, 2.0]).unwrap();
        assert_eq!((own.outputs(), own.inputs(), own.size()), (3, 2, 40));
        assert_eq!(own.weights(), [2.0, 4.0, 5.0, 8.0, 8.0, 12.0]);
        let kind = |rank, left: &[f32], right: &[f32]| {
            Factors::new(rank, left.to_vec(), right.to_vec()).unwrap_err().kind()
        };
        assert_eq!(kind(0, &[1.0], &[1.0]), Kind::Mismatch);
        assert_eq!(kind(2, &[1.0; 3], &[1.0; 4]), Kind::Mismatch);
        assert_eq!(kind(2, &[1.0; 4], &[]), Kind::Mismatch);
        assert_eq!(kind(1, &[f32::NAN], &[1.0]), Kind::NonFinite);
        assert_eq!(kind(2, &[1.0; 2], &[1.0; 4]), Kind::OutOfRange);
        assert_eq!(kind(1, &[1.0; 1 << 16], &[1.0; 1 << 15]), Kind::OutOfRange);
        let large = Factors::new(1, vec![f32::MAX], vec![f32::MAX]).unwrap();
        let error = crate::weights::Weight::factored(large).unwrap_err();
        assert_eq!(error.kind(), Kind::NonFinite);
    }
}
