//! What shards of a batch take in and give: rows, sums and what they are divided by.

use sconce_tensor::{Error, Result};

/// The loss of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    pub value: f64,
    /// Mean of each head over the rows: with its weights, without frame weights or normaliser.
    pub per_head: Vec<f64>,
    /// Mean entropy in nats, all heads added, a bernoulli head averaged over its bits.
    pub entropy_bonus: f64,
    /// All heads of each row added, before frame weights.
    pub per_sample: Vec<f32>,
}

/// Rows of a batch, or of one shard of it.
///
/// # Shapes
/// `logits [n, num_logits]`, `labels [n, num_labels]`, `weights [n]`. A row of weight 0 is not part
/// of the batch at all: burn-in and padding take no part in any mean, and their labels are not read.
#[derive(Debug, Clone, Copy)]
pub struct LabelledLogits<'a> {
    pub logits: &'a [f32],
    pub labels: &'a [u16],
    pub weights: Option<&'a [f32]>,
}

/// What a shard contributes.
#[derive(Debug, Clone, PartialEq)]
pub struct Sums {
    pub(super) heads: Vec<f64>,
    pub(super) weighted: Vec<f64>,
    pub(super) entropy: f64,
}

impl Sums {
    /// Of `totals [heads, 3]`, each head's loss, weighted loss and entropy.
    pub fn of_totals(totals: &[f64]) -> Self {
        let mut sums = Sums::zero(0);
        for [loss, weighted, entropy] in totals.as_chunks().0 {
            sums.heads.push(*loss);
            sums.weighted.push(*weighted);
            sums.entropy += entropy;
        }
        sums
    }

    pub(super) fn zero(heads: usize) -> Self {
        Sums { heads: vec![0.0; heads], weighted: vec![0.0; heads], entropy: 0.0 }
    }

    /// Adds another shard. The order of additions is part of the result.
    pub fn add(&mut self, other: &Sums) {
        self.heads.iter_mut().zip(&other.heads).for_each(|(a, b)| *a += b);
        self.weighted.iter_mut().zip(&other.weighted).for_each(|(a, b)| *a += b);
        self.entropy += other.entropy;
    }
}

/// What a shard has to know of the whole batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Denominators {
    pub(super) inverse_weight: f64,
    pub(super) inverse_rows: f64,
    pub(super) head_scales: Vec<f64>,
}

impl Denominators {
    pub(super) fn unit(heads: usize) -> Self {
        Denominators { inverse_weight: 1.0, inverse_rows: 1.0, head_scales: vec![1.0; heads] }
    }

    /// What a sum over weighted rows is multiplied by for their mean.
    pub(crate) fn mean(&self) -> f64 {
        self.inverse_weight
    }

    /// Those of a batch whose loss counts for `share`.
    pub fn times(&self, share: f64) -> Self {
        Denominators {
            inverse_weight: share * self.inverse_weight,
            inverse_rows: share * self.inverse_rows,
            head_scales: self.head_scales.clone(),
        }
    }

    /// As `loss.cu` has them.
    pub fn numbers(&self) -> Vec<f64> {
        let numbers = [self.inverse_weight, self.inverse_rows];
        numbers.into_iter().chain(self.head_scales.iter().copied()).collect()
    }
}

/// How many rows count, and their weight.
pub(super) fn weigh(weights: &[f32]) -> Result<(usize, f64)> {
    match weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
        Some(&w) => Err(Error::out_of_range("frame weight", w.into(), 0.0, f32::MAX.into())),
        None => {
            let count = weights.iter().filter(|w| **w != 0.0).count();
            Ok((count, weights.iter().map(|&w| f64::from(w)).sum()))
        }
    }
}
