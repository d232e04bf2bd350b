//! Products of two smaller matrices: truncated singular value decompositions.

mod jacobi;
mod policy;
mod sketch;

use std::sync::atomic::AtomicBool;

use sconce_tensor::{Error, Result, memory};
use serde::{Deserialize, Serialize};

use self::jacobi::Svd;
pub use self::policy::{FactoredReport, Factoring, factored};
use crate::dense::wide;
use crate::matrix::Matrix;

/// The choice of the rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// This rank.
    Rank(usize),
    /// The smallest rank whose squared singular values are at least this part of all squares.
    Energy(f64),
    /// The smallest rank whose error is at most this part of the matrix' Frobenius norm.
    Error(f64),
}

/// The way to the decomposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// `Exact` for a matrix with a small side and for ranks near its full rank, else `Randomised`.
    Auto,
    /// All singular values.
    Exact,
    /// The largest singular values from random combinations of the columns (Halko et al. 2011).
    Randomised,
}

/// Options of the truncation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Truncation {
    /// The choice of the rank.
    pub rank: Rank,
    /// The way to the decomposition.
    pub method: Method,
    /// Power iterations of the randomised method; each brings the result closer to the exact one.
    pub power_iterations: usize,
    /// Seed of the randomised method.
    pub seed: u64,
}

/// A matrix as the product of two.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRank {
    /// The rank: columns of `left` and rows of `right`.
    pub rank: usize,
    /// `U sqrt(S)`, `[rows, rank]`.
    pub left: Vec<f32>,
    /// `sqrt(S) V^T`, `[rank, columns]`.
    pub right: Vec<f32>,
    /// The singular values that were computed, at least `rank`, the largest first.
    pub singular_values: Vec<f32>,
    /// The Frobenius norm of the matrix less the product.
    pub error: f64,
    /// The part of the squared singular values that is kept; 1 for a matrix of zeros.
    pub energy: f64,
}

/// Largest small side of a matrix that is decomposed exactly by `Auto`.
const SMALL: usize = 128;
/// Random combinations beyond the rank (Halko et al. 2011, section 4.2).
const OVERSAMPLE: usize = 10;
/// First rank of a search for an energy or an error.
const FIRST: usize = 32;
/// Most power iterations; the result no longer changes.
const MOST_ITERATIONS: usize = 64;

impl Truncation {
    /// The truncated decomposition of a matrix, which has the least error of all matrices of its rank (Eckart & Young
    /// 1936).
    ///
    /// # Errors
    /// `OutOfRange` for a rank of 0 or above the smaller side, for an energy or error out of range, and for too many
    /// power iterations; `Cancelled` soon after `cancelled` is set.
    pub fn run(self, weight: &Matrix, cancelled: &AtomicBool) -> Result<LowRank> {
        let (rows, cols) = (weight.rows(), weight.cols());
        let most = rows.min(cols);
        self.check(most)?;
        // The matrix in 64 bits, its columns, and two sets of vectors.
        let bytes = (2 * rows * cols + 2 * most * most) * size_of::<f64>();
        memory::room("a decomposition", bytes as u64)?;
        let wide = wide(weight.values());
        let total: f64 = crate::dense::dot(&wide, &wide);
        let mut guess = match self.rank {
            Rank::Rank(rank) => rank,
            _ => FIRST,
        };
        loop {
            let width = guess + OVERSAMPLE;
            let is_exact = match self.method {
                Method::Auto => most <= SMALL || 2 * width > most,
                Method::Exact => true,
                Method::Randomised => false,
            };
            let svd = match is_exact {
                true => Svd::new(&wide, cols, cancelled)?,
                false => sketch::svd(&wide, cols, width.min(most), self, cancelled)?,
            };
            let tails = tails(&svd.values, total, is_exact || width >= most);
            let trusted = if is_exact || width >= most { most } else { guess };
            match self.choose(&tails, total).filter(|rank| *rank <= trusted) {
                Some(rank) => return Ok(svd.truncated(rank, tails[rank], total)),
                None if trusted == most => return Ok(svd.truncated(most, tails[most], total)),
                None => guess *= 2,
            }
        }
    }

    /// The smallest rank that meets the choice.
    fn choose(self, tails: &[f64], total: f64) -> Option<usize> {
        let allowed = match self.rank {
            Rank::Rank(rank) => return Some(rank),
            Rank::Energy(energy) => (1.0 - energy) * total,
            Rank::Error(error) => error * error * total,
        };
        // A product needs a rank, and a matrix of zeros has none.
        (1..tails.len()).find(|rank| tails[*rank] <= allowed)
    }

    fn check(self, most: usize) -> Result<()> {
        let bound = |what: &str, value: f64, min: f64, max: f64| {
            let is_inside = (min..=max).contains(&value);
            if is_inside { Ok(()) } else { Err(Error::out_of_range(what, value, min, max)) }
        };
        let iterations = self.power_iterations as f64;
        bound("power_iterations", iterations, 0.0, MOST_ITERATIONS as f64)?;
        match self.rank {
            Rank::Rank(rank) => bound("rank", rank as f64, 1.0, most as f64),
            Rank::Energy(energy) => bound("energy", energy, 0.0, 1.0),
            Rank::Error(error) => bound("error", error, 0.0, 1.0),
        }
    }
}

/// The sum of the squared singular values after the first k, for each k.
///
/// If all values are known, they are added from the smallest on; otherwise the known ones are subtracted from the total,
/// which loses what is below its rounding error.
fn tails(values: &[f64], total: f64, are_all: bool) -> Vec<f64> {
    let mut tails = vec![0.0; values.len() + 1];
    if are_all {
        for (k, value) in values.iter().enumerate().rev() {
            tails[k] = tails[k + 1] + value * value;
        }
    } else {
        tails[0] = total;
        for (k, value) in values.iter().enumerate() {
            tails[k + 1] = (tails[k] - value * value).max(0.0);
        }
    }
    tails
}

impl Svd {
    fn truncated(&self, rank: usize, tail: f64, total: f64) -> LowRank {
        let roots: Vec<f64> = self.values.iter().take(rank).map(|v| v.sqrt()).collect();
        let rows = self.left.first().map_or(0, Vec::len);
        let left = (0..rows)
            .flat_map(|i| self.left.iter().zip(&roots).map(move |(u, root)| (u[i] * root) as f32));
        let right = self.right.iter().zip(&roots);
        let right = right.flat_map(|(v, root)| v.iter().map(move |v| (v * root) as f32));
        LowRank {
            rank,
            left: left.collect(),
            right: right.collect(),
            singular_values: self.values.iter().map(|v| *v as f32).collect(),
            error: tail.sqrt(),
            energy: if total > 0.0 { 1.0 - tail / total } else { 1.0 },
        }
    }
}
