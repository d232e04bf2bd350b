//! Sums of vectors.

use sconce_tensor::simd::mul_add;
use sconce_tensor::{Error, Result, dispatch, pool, simd};
use serde::Deserialize;

use crate::tile;
use crate::vectors::{Domain, Vectors, inverse, rows};

/// Numbers that a shard of a single sum adds.
const COLUMNS: usize = 1024;

/// Options of [`Vectors::superpose`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Sum {
    /// Consecutive vectors of a sum; `None` adds all.
    pub group: Option<usize>,
    /// A factor of each vector of a sum.
    pub weights: Option<Vec<f32>>,
    /// Divides each sum by its length.
    pub normalise: bool,
}

dispatch! {
    /// Adds rows of `width` numbers, of which `out` covers some columns from `from` on.
    fn add(vectors: &[f32], weights: Option<&[f32]>, width: usize, from: usize, out: &mut [f32]) {
        for (at, row) in vectors.chunks_exact(width).enumerate() {
            let weight = weights.map_or(1.0, |weights| weights[at]);
            for (sum, v) in out.iter_mut().zip(&row[from..]) {
                *sum = mul_add::<FMA>(weight, *v, *sum);
            }
        }
    }
}

/// Divides rows by their lengths.
pub(crate) fn normalise(numbers: &mut [f32], dimension: usize) -> Result<()> {
    for (at, row) in numbers.chunks_exact_mut(dimension).enumerate() {
        let mut square = 0.0;
        tile::square(row, &mut square);
        if !square.is_finite() {
            let what = format!("the squared length of sum {at}");
            return Err(Error::NonFinite { what, value: f64::from(square) });
        }
        simd::scale_all(row, inverse(square.sqrt()));
    }
    Ok(())
}

impl Sum {
    /// The vectors of a sum of `count` vectors.
    ///
    /// # Errors
    /// As of [`Vectors::superpose`].
    pub(crate) fn group_of(&self, count: usize) -> Result<usize> {
        let group = self.group.unwrap_or(count);
        if group == 0 {
            return Err(Error::out_of_range("group", 0.0, 1.0, count as f64));
        }
        if !count.is_multiple_of(group) {
            let expected = format!("a multiple of the group of {group}");
            return Err(Error::mismatch("count", expected, count));
        }
        if let Some(weights) = &self.weights {
            if weights.len() != group {
                return Err(Error::mismatch("number of weights", group, weights.len()));
            }
            if let Some(at) = weights.iter().position(|weight| !weight.is_finite()) {
                let what = format!("weight {at}");
                return Err(Error::NonFinite { what, value: f64::from(weights[at]) });
            }
        }
        Ok(group)
    }
}

impl Vectors {
    /// The sums of consecutive vectors, in the domain of these. Each sum is similar to all of its vectors.
    ///
    /// # Errors
    /// `OutOfRange` for a group of no vector; `Mismatch` if the count is no multiple of the group, and for another
    /// number of weights; `NonFinite` for weights that are not finite and for sums whose squared length is not;
    /// `OutOfMemory`.
    pub fn superpose(&self, options: &Sum) -> Result<Vectors> {
        let (count, d) = (self.count(), self.dimension());
        let (group, weights) = (options.group_of(count)?, options.weights.as_deref());
        let mut numbers = rows(count / group, d)?;
        let sum_of = |at: usize| &self.numbers()[at * group * d..][..group * d];
        if group == count {
            pool::for_each_rows(&mut numbers, 1, COLUMNS, |from, out| {
                add(sum_of(0), weights, d, from, out);
            });
        } else {
            pool::for_each_rows(&mut numbers, d, 1, |at, out| add(sum_of(at), weights, d, 0, out));
        }
        if options.normalise {
            normalise(&mut numbers, d)?;
        }
        Ok(Vectors::of(d, self.domain(), numbers))
    }

    /// The sums of the vectors at the same index of several batches, in the spectrum if a batch is there. A batch of
    /// one vector is added to each vector of the others.
    ///
    /// # Errors
    /// `NotFound` for no batch; `Mismatch` for other widths, counts, or numbers of weights; `NonFinite` for weights
    /// and sums that are not finite; `OutOfMemory`.
    pub fn superpose_rows(batches: &[&Vectors], options: &Sum) -> Result<Vectors> {
        let first = batches.first().ok_or_else(|| Error::not_found("a batch of vectors"))?;
        if let Some(group) = options.group {
            return Err(Error::mismatch("group", "none, with several batches", group));
        }
        let longest = batches.iter().max_by_key(|batch| batch.count()).unwrap_or(first);
        for batch in batches {
            longest.paired(batch, "batches")?;
        }
        let spectral = batches.iter().any(|batch| batch.domain() == Domain::Spectrum);
        let domain = if spectral { Domain::Spectrum } else { Domain::Time };
        let (count, d) = (longest.count(), first.dimension());
        let weights = options.weights.clone().unwrap_or_else(|| vec![1.0; batches.len()]);
        if weights.len() != batches.len() {
            return Err(Error::mismatch("number of weights", batches.len(), weights.len()));
        }
        if let Some(at) = weights.iter().position(|weight| !weight.is_finite()) {
            let what = format!("weight {at}");
            return Err(Error::NonFinite { what, value: f64::from(weights[at]) });
        }
        let mut numbers = rows(count, d)?;
        for (batch, weight) in batches.iter().zip(weights) {
            batch.with_domain(domain, |batch| {
                pool::for_each_rows(&mut numbers, d, 1, |at, out| {
                    add(batch.shared_row(at), Some(&[weight]), d, 0, out);
                });
                Ok(())
            })?;
        }
        if options.normalise {
            normalise(&mut numbers, d)?;
        }
        Ok(Vectors::of(d, domain, numbers))
    }
}
