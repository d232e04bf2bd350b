//! Strategies that search an archive.

use std::cmp::Ordering;
use std::ops::Range;

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};
use serde::Deserialize;

use super::Source;
use crate::archive::{Added, Archive, Status};
use crate::strategy::{Method, Strategy, StrategyOptions};

/// Most emitters of a search.
const MOST: usize = 1024;
/// The step size below which a strategy begins anew.
const LEAST_SIGMA: f64 = 1e-12;

/// Options of emitters.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct EmitterOptions {
    /// Number of emitters.
    pub count: usize,
    /// Their strategy.
    pub method: Method,
    /// Standard deviation of their first generation.
    pub sigma: f64,
    /// The order of candidates.
    pub ranking: Ranking,
}

/// The order of candidates for a strategy, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranking {
    /// Candidates of new cells, then those that improved an elite, then others; by improvement among equal ones (CMA-ME).
    TwoStage,
    /// By improvement over the threshold of the cell (CMA-MAE).
    Improvement,
}

/// A strategy, and the number of times that it began anew.
#[derive(Debug, Clone)]
pub(super) struct Emitter {
    pub(super) strategy: Strategy,
    pub(super) restarts: u64,
}

impl Emitter {
    /// The emitters of a source; none for children of elites.
    pub(super) fn all(source: &Source, size: usize, batch: usize, seed: u64) -> Result<Vec<Self>> {
        let zeros = vec![0.0; size];
        match source {
            Source::Elites { .. } => Ok(vec![]),
            Source::Strategy(options) => {
                Ok(vec![Emitter { strategy: Strategy::new(&zeros, options)?, restarts: 0 }])
            }
            Source::Emitters(options) => {
                if !(1..=MOST).contains(&options.count) {
                    let (count, most) = (options.count as f64, MOST as f64);
                    return Err(Error::out_of_range("emitters (count)", count, 1.0, most));
                }
                if !batch.is_multiple_of(options.count) {
                    let expected = format!("a multiple of {} emitters", options.count);
                    return Err(Error::mismatch("batch", expected, batch));
                }
                let part = batch / options.count;
                let of = |at| {
                    let own = options.strategy(part, (seed, 0, at));
                    Ok(Emitter { strategy: Strategy::new(&zeros, &own)?, restarts: 0 })
                };
                (0..options.count as u64).map(of).collect()
            }
        }
    }

    /// Tells the strategy the order of its candidates `part`. If none was stored, or if the strategy has converged or
    /// diverged, it begins anew at a random elite.
    pub(super) fn rank(
        &mut self,
        options: &EmitterOptions,
        added: &Added,
        part: Range<usize>,
        archive: &Archive,
        (seed, generation, emitter): (u64, u64, u64),
    ) -> Result<()> {
        let (status, gains) = (&added.status[part.clone()], &added.improvements[part]);
        let told = self.strategy.tell(&ranks(options.ranking, status, gains));
        let is_stuck = !status.iter().any(|own| own.is_added());
        if told.is_ok() && !is_stuck && self.strategy.sigma() > LEAST_SIGMA {
            return Ok(());
        }
        self.restarts += 1;
        let stream = (seed, generation + 1, emitter);
        let own = options.strategy(self.strategy.population(), stream);
        // An archive without an elite, whose thresholds no candidate has exceeded, leaves the strategy at 0.
        let mean = match archive.sample(1, own.seed) {
            Ok(at) => {
                let size = archive.solution_size();
                archive.elites().solutions[at[0] * size..][..size].to_vec()
            }
            Err(_) => vec![0.0; archive.solution_size()],
        };
        let mean: Vec<f64> = mean.iter().map(|v| f64::from(*v)).collect();
        self.strategy = Strategy::new(&mean, &own)?;
        Ok(())
    }
}

impl EmitterOptions {
    /// The options of the strategy that an emitter begins after a generation.
    fn strategy(
        &self,
        population: usize,
        (seed, generation, emitter): (u64, u64, u64),
    ) -> StrategyOptions {
        let words = Rng::new(seed, "evolve.emitter", generation).block(emitter);
        StrategyOptions {
            method: self.method,
            population: Some(population),
            sigma: self.sigma,
            learning_rate: 0.01,
            seed: u64::from(words[0]) << 32 | u64::from(words[1]),
        }
    }
}

/// A fitness for each candidate that has their order; of equal candidates the first one is better.
fn ranks(ranking: Ranking, status: &[Status], gains: &[f64]) -> Vec<f64> {
    let before = |a: &usize, b: &usize| -> Ordering {
        let stage = match ranking {
            Ranking::TwoStage => (status[*b] as u8).cmp(&(status[*a] as u8)),
            Ranking::Improvement => Ordering::Equal,
        };
        stage.then(gains[*b].total_cmp(&gains[*a]))
    };
    let mut order: Vec<usize> = (0..status.len()).collect();
    order.sort_by(before);
    let mut fitness = vec![0.0; order.len()];
    for (rank, at) in order.iter().enumerate() {
        fitness[*at] = (order.len() - rank) as f64;
    }
    fitness
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_cells_come_before_better_elites_and_both_before_others() {
        let status = [Status::NotAdded, Status::Improved, Status::New, Status::New];
        let gains = [9.0, 5.0, -2.0, 1.0];
        assert_eq!(ranks(Ranking::TwoStage, &status, &gains), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(ranks(Ranking::Improvement, &status, &gains), [4.0, 3.0, 1.0, 2.0]);
    }
}
