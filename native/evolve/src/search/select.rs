//! The choice of parents among the elites.

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, memory};
use serde::Deserialize;

use crate::archive::Archive;
use crate::stop::Stop;

/// Most elites of a tournament.
const MOST: usize = 1024;

/// The choice of a parent. Novelty is a part of the choice and never of an objective that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// Every elite with the same probability.
    Uniform,
    /// The best of some random elites.
    Tournament {
        /// Number of these elites.
        size: usize,
        /// Share of novelty in 0..=1 against the objective. Both count by their rank among all elites. With 1 it is
        /// novelty search (Lehman & Stanley 2011).
        novelty: f64,
        /// Elites to which novelty is the mean distance.
        nearest: usize,
    },
}

impl Selection {
    /// Returns an error for options out of range.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub(super) fn check(&self) -> Result<()> {
        let Selection::Tournament { size, novelty, .. } = *self else { return Ok(()) };
        if !(1..=MOST).contains(&size) {
            return Err(Error::out_of_range("tournament size", size as f64, 1.0, MOST as f64));
        }
        match (0.0..=1.0).contains(&novelty) {
            true => Ok(()),
            false => Err(Error::out_of_range("novelty", novelty, 0.0, 1.0)),
        }
    }

    /// Pairs of elites `[count, 2]`; `None` for a uniform choice.
    ///
    /// # Errors
    /// `OutOfRange` for options, `NotFound` for an empty archive, `Cancelled`.
    pub(super) fn pairs(
        &self,
        archive: &Archive,
        count: usize,
        (seed, generation): (u64, u64),
        stop: Stop<'_>,
    ) -> Result<Option<Vec<u32>>> {
        self.check()?;
        let Selection::Tournament { size, novelty, nearest } = *self else { return Ok(None) };
        let elites = archive.filled()?;
        let mut scores = vec![0.0; elites];
        let parts = [(1.0 - novelty, None), (novelty, Some(nearest))];
        for (share, nearest) in parts.into_iter().filter(|(share, _)| *share > 0.0) {
            let own = match nearest {
                None => archive.elites().objectives.clone(),
                // An elite is its own nearest neighbour.
                Some(nearest) => {
                    archive.novelty_until(&archive.elites().measures, nearest + 1, stop)?
                }
            };
            scores.iter_mut().zip(ranks(&own)).for_each(|(sum, rank)| *sum += share * rank);
        }
        let rng = Rng::new(seed, "evolve.tournament", generation);
        memory::room("pairs of parents", count.saturating_mul(8) as u64)?;
        let winner = |at: usize| -> u32 {
            let drawn =
                (0..size).map(|i| rng.below((at * size + i) as u64, elites as u64) as usize);
            // Of equal elites the first one that was drawn wins.
            let best =
                drawn.reduce(|best, own| if scores[own] > scores[best] { own } else { best });
            best.unwrap_or(0) as u32
        };
        Ok(Some((0..2 * count).map(winner).collect()))
    }
}

/// The ranks of values, from 0 for the lowest to 1. Equal values have the rank of the first of them.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let most = values.len().saturating_sub(1).max(1) as f64;
    let mut rank = 0;
    for (place, at) in order.iter().enumerate() {
        if place > 0 && values[*at] > values[order[place - 1]] {
            rank = place;
        }
        ranks[*at] = rank as f64 / most;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_equal_ranks() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0, 2.0]), [0.5, 0.0, 0.5, 1.0, 0.25]);
        assert_eq!(ranks(&[3.0]), [0.0]);
    }
}
