//! Pruning: weights that become 0, and rows that are removed.

mod policy;
mod second_order;
mod structured;
mod two_four;

use sconce_tensor::{Error, Result, memory};
use serde::{Deserialize, Serialize};

pub use self::policy::{PrunedReport, Pruning, pruned};
pub use self::second_order::SecondOrder;
pub use self::structured::{Axis, Shrunk, structured};
pub use self::two_four::{TwoFour, two_four};
use crate::matrix::Matrix;

/// The numbers among which the smallest are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// All numbers of the matrix.
    Tensor,
    /// Those of a row: each row loses the same number.
    Row,
}

/// The weights of a matrix that stay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Two of four consecutive inputs of each output. All of a last group of one or two inputs stay.
    TwoFour,
    /// All but this part of the weights of each output.
    Sparsity(f64),
}

/// The places of the `drop` smallest scores; of equal scores the last.
fn dropped(scores: &[f64], drop: usize) -> impl Iterator<Item = usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]).then(b.cmp(a)));
    order.into_iter().take(drop)
}

/// A pruned matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Pruned {
    /// 1 where a number is kept, else 0.
    pub mask: Vec<u8>,
    /// The matrix with zeros for the numbers that are not kept.
    pub weight: Vec<f32>,
    /// Kept numbers.
    pub kept: usize,
}

impl Pruned {
    fn new(weight: &Matrix, mask: Vec<u8>) -> Self {
        let pairs = weight.values().iter().zip(&mask);
        let pruned = pairs.map(|(w, kept)| if *kept == 1 { *w } else { 0.0 }).collect();
        Pruned { weight: pruned, kept: mask.iter().filter(|kept| **kept == 1).count(), mask }
    }
}

/// Removes the numbers with the smallest magnitudes (Han et al. 2015): `sparsity` times their number, rounded half to
/// even. Of equal magnitudes the first are removed.
///
/// # Errors
/// `OutOfRange` unless the sparsity is from 0 to 1.
pub fn magnitude(weight: &Matrix, sparsity: f64, share: Share) -> Result<Pruned> {
    let width = match share {
        Share::Tensor => weight.values().len(),
        Share::Row => weight.cols(),
    };
    let drop = count(sparsity, width)?;
    let mut mask = memory::repeated(1u8, weight.values().len());
    for (mask, numbers) in mask.chunks_exact_mut(width).zip(weight.values().chunks_exact(width)) {
        let mut order = memory::with_capacity(width);
        order.extend(0..width);
        let by_magnitude =
            |a: &usize, b: &usize| numbers[*a].abs().total_cmp(&numbers[*b].abs()).then(a.cmp(b));
        if drop < width {
            order.select_nth_unstable_by(drop, by_magnitude);
        }
        order[..drop].iter().for_each(|at| mask[*at] = 0);
    }
    Ok(Pruned::new(weight, mask))
}

/// `sparsity` of `all`, rounded half to even.
fn count(sparsity: f64, all: usize) -> Result<usize> {
    match (0.0..=1.0).contains(&sparsity) {
        true => Ok((sparsity * all as f64).round_ties_even() as usize),
        false => Err(Error::out_of_range("sparsity", sparsity, 0.0, 1.0)),
    }
}

/// The sparsity at a step of gradual pruning (Zhu & Gupta 2017): `to + (from - to) (1 - step / steps)^3`, and `to` from
/// the last step on. `ends` are `from` and `to`.
///
/// # Errors
/// `OutOfRange` unless both are from 0 to 1 and there is a step.
pub fn sparsity_at(step: u64, steps: u64, ends: [f64; 2]) -> Result<f64> {
    if steps == 0 {
        return Err(Error::out_of_range("steps", 0.0, 1.0, f64::MAX));
    }
    for end in ends {
        count(end, 1)?;
    }
    let [from, to] = ends;
    let left = 1.0 - step.min(steps) as f64 / steps as f64;
    Ok(to + (from - to) * left.powi(3))
}
