//! Matrices as products of two smaller ones: `weight = left right`.

use crate::simd::non_finite;
use crate::{Error, Result, memory};

/// A matrix `[outputs, inputs]` as the product of `left [outputs, rank]` and `right [rank, inputs]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Factors {
    rank: usize,
    left: Vec<f32>,
    right: Vec<f32>,
}

impl Factors {
    /// The product of two matrices of numbers, row by row.
    ///
    /// # Errors
    /// `Mismatch` without numbers and for numbers that are no rows of this rank, `NonFinite` for numbers that are not
    /// finite and for a product that is not.
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
        let numbers = own.outputs().saturating_mul(own.inputs());
        memory::room("a product of factors", numbers.saturating_mul(size_of::<f32>()) as u64)?;
        match non_finite(&own.weights()) {
            None => Ok(own),
            Some(value) => {
                let what = "product of factors".into();
                Err(Error::NonFinite { what, value: f64::from(value) })
            }
        }
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
        let mut weights = memory::with_capacity(left.len() / rank * inputs);
        let mut sums = vec![0.0; inputs];
        for row in left.chunks_exact(rank) {
            sums.fill(0.0);
            for (l, right) in row.iter().zip(right.chunks_exact(inputs)) {
                sums.iter_mut()
                    .zip(right)
                    .for_each(|(sum, r)| *sum += f64::from(*l) * f64::from(*r));
            }
            weights.extend(sums.iter().map(|sum| *sum as f32));
        }
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
        assert_eq!(kind(1, &[f32::MAX], &[f32::MAX]), Kind::NonFinite);
    }
}
