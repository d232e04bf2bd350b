//! Running mean and variance of vectors.

use sconce_tensor::{Error, Result, simd};
use serde::{Deserialize, Serialize};

/// Added to the variance.
pub(super) const EPSILON: f64 = 1e-8;
/// Bound on a normalised value.
const CLIP: f64 = 10.0;

/// Running mean and population variance of each number of a vector, in f64.
///
/// Batches are merged by the pairwise update of Chan, Golub & LeVeque 1983 (eq. 2.1). The type is its own snapshot: it
/// can be cloned and serialised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normaliser {
    mean: Vec<f64>,
    /// Sums of squared differences from the mean.
    m2: Vec<f64>,
    /// Number of vectors.
    count: f64,
}

impl Normaliser {
    /// Statistics of no vectors of `width` numbers.
    pub fn new(width: usize) -> Self {
        Normaliser { mean: vec![0.0; width], m2: vec![0.0; width], count: 0.0 }
    }

    /// Statistics with mean 0 and variance 1 that count as 0.0001 vectors, as in Gymnasium.
    pub fn with_prior(width: usize) -> Self {
        let count = 1e-4;
        Normaliser { mean: vec![0.0; width], m2: vec![count; width], count }
    }

    /// The means.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The population variances; 1 before the first vector.
    pub fn variance(&self) -> Vec<f64> {
        self.m2.iter().map(|m2| self.variance_of(*m2)).collect()
    }

    /// The number of vectors.
    pub fn count(&self) -> f64 {
        self.count
    }

    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        self.mean.len()
    }

    /// Adds vectors, `rows: [n, width]`.
    ///
    /// # Errors
    /// `Mismatch` for a length that is no multiple of the width, `NonFinite` for a number that is not finite. The
    /// statistics are unchanged after an error.
    pub fn update(&mut self, rows: &[f32]) -> Result<()> {
        self.check_rows(rows)?;
        if let Some(value) = simd::non_finite(rows) {
            return Err(Error::NonFinite { what: "row".into(), value: f64::from(value) });
        }
        if !rows.is_empty() {
            self.merge(&Normaliser::of_batch(rows, self.width()));
        }
        Ok(())
    }

    /// Adds the vectors of other statistics with the same width.
    ///
    /// # Errors
    /// `Mismatch` for another width.
    pub fn add(&mut self, other: &Normaliser) -> Result<()> {
        if other.width() != self.width() || other.m2.len() != self.width() {
            return Err(Error::mismatch("normaliser", self.width(), other.width()));
        }
        if other.count > 0.0 {
            self.merge(other);
        }
        Ok(())
    }

    /// Normalises `rows: [n, width]` in place: `(x - mean) / sqrt(variance + 1e-8)`, clipped to +-10.
    ///
    /// # Errors
    /// `Mismatch` for a length that is no multiple of the width.
    pub fn apply(&self, rows: &mut [f32]) -> Result<()> {
        self.check_rows(rows)?;
        let scale: Vec<f64> = self.variance().iter().map(|v| 1.0 / (v + EPSILON).sqrt()).collect();
        for row in rows.chunks_exact_mut(self.width().max(1)) {
            for ((x, mean), scale) in row.iter_mut().zip(&self.mean).zip(&scale) {
                *x = ((f64::from(*x) - mean) * scale).clamp(-CLIP, CLIP) as f32;
            }
        }
        Ok(())
    }

    /// Checks statistics that come from a file for a width.
    ///
    /// # Errors
    /// `Mismatch` for another width, `Corrupt` for impossible numbers.
    pub fn check(&self, width: usize) -> Result<()> {
        if (self.mean.len(), self.m2.len()) != (width, width) {
            return Err(Error::mismatch("normaliser", width, self.mean.len()));
        }
        let positive = |v: &f64| *v >= 0.0 && v.is_finite();
        let finite = self.mean.iter().all(|v| v.is_finite());
        match finite && self.m2.iter().all(positive) && positive(&self.count) {
            true => Ok(()),
            false => Err(Error::corrupt("normaliser", "a statistic is negative or not finite")),
        }
    }

    fn of_batch(rows: &[f32], width: usize) -> Self {
        let mut batch = Normaliser::new(width);
        batch.count = (rows.len() / width) as f64;
        for row in rows.chunks_exact(width) {
            batch.mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += f64::from(*x));
        }
        batch.mean.iter_mut().for_each(|mean| *mean /= batch.count);
        for row in rows.chunks_exact(width) {
            for ((m2, mean), x) in batch.m2.iter_mut().zip(&batch.mean).zip(row) {
                let delta = f64::from(*x) - mean;
                *m2 += delta * delta;
            }
        }
        batch
    }

    fn merge(&mut self, batch: &Normaliser) {
        let total = self.count + batch.count;
        let (share, weight) = (batch.count / total, self.count * batch.count / total);
        for i in 0..self.mean.len() {
            let delta = batch.mean[i] - self.mean[i];
            self.mean[i] += delta * share;
            self.m2[i] += batch.m2[i] + delta * delta * weight;
        }
        self.count = total;
    }

    fn variance_of(&self, m2: f64) -> f64 {
        if self.count > 0.0 { m2 / self.count } else { 1.0 }
    }

    fn check_rows(&self, rows: &[f32]) -> Result<()> {
        let width = self.width();
        let whole = if width == 0 { rows.is_empty() } else { rows.len().is_multiple_of(width) };
        match whole {
            true => Ok(()),
            false => Err(Error::mismatch("rows", format!("a multiple of {width}"), rows.len())),
        }
    }
}
