//! Sums over the shards of a batch, and their denominators.

use sconce_tensor::{Error, Result};

/// Sums over a shard. Each objective defines their meaning.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sums(pub Vec<f64>);

impl Sums {
    /// Adds the sums of another shard. The order of additions affects rounding.
    pub fn add(&mut self, other: &Sums) {
        self.0.resize(self.0.len().max(other.0.len()), 0.0);
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a += b);
    }
}

/// Denominators of a whole batch, which every shard needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Denominators {
    pub(super) inverse_weight: f64,
    pub(super) inverse_rows: f64,
    /// Further values, whose meaning the objective defines.
    pub(super) own: Vec<f64>,
}

impl Denominators {
    /// Denominators of rows with these weights.
    ///
    /// # Errors
    /// `OutOfRange` for a weight that is negative or not finite, or if all weights are 0.
    pub fn of(weights: &[f32]) -> Result<Self> {
        if let Some(&w) = weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
            return Err(Error::out_of_range("frame weight", w.into(), 0.0, f32::MAX.into()));
        }
        let count = weights.iter().filter(|w| **w != 0.0).count();
        Self::of_rows(count, weights.iter().map(|&w| f64::from(w)).sum())
    }

    /// Denominators of `count` rows of nonzero weight, whose weights add up to `weight`.
    ///
    /// # Errors
    /// `OutOfRange` without a row.
    pub fn of_rows(count: usize, weight: f64) -> Result<Self> {
        match count {
            0 => Err(Error::out_of_range("rows of weight above 0", 0.0, 1.0, f64::INFINITY)),
            _ => Ok(Self {
                inverse_weight: 1.0 / weight,
                inverse_rows: 1.0 / count as f64,
                own: vec![],
            }),
        }
    }

    /// Returns the denominators with an objective's own values.
    #[must_use]
    pub fn with(self, own: Vec<f64>) -> Self {
        Denominators { own, ..self }
    }

    /// Factor that turns a sum over weighted rows into a mean.
    pub fn mean(&self) -> f64 {
        self.inverse_weight
    }

    /// Factor that turns a sum over rows of nonzero weight, each counted once, into a mean.
    pub fn mean_row(&self) -> f64 {
        self.inverse_rows
    }

    /// The objective's own values.
    pub fn own(&self) -> &[f64] {
        &self.own
    }

    /// Returns denominators that multiply the loss of the batch by `share`.
    #[must_use]
    pub fn times(&self, share: f64) -> Self {
        Denominators {
            inverse_weight: share * self.inverse_weight,
            inverse_rows: share * self.inverse_rows,
            own: self.own.clone(),
        }
    }

    /// All values, in the order that the kernels expect.
    pub fn numbers(&self) -> Vec<f64> {
        let numbers = [self.inverse_weight, self.inverse_rows];
        numbers.into_iter().chain(self.own.iter().copied()).collect()
    }
}
