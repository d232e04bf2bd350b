//! SNES (Wierstra et al. 2014, algorithm 6, with the utilities and rates of table 1).

use super::weighted;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Snes {
    pub(super) mean: Vec<f64>,
    pub(super) sigma: Vec<f64>,
}

impl Snes {
    pub(super) fn new(mean: &[f64], sigma: &[f64]) -> Self {
        Snes { mean: mean.to_vec(), sigma: sigma.to_vec() }
    }

    pub(super) fn candidate(&self, noise: &[f64], row: &mut [f64]) {
        for (((x, mean), sigma), z) in row.iter_mut().zip(&self.mean).zip(&self.sigma).zip(noise) {
            *x = mean + sigma * z;
        }
    }

    pub(super) fn learn(&mut self, noise: &[f64], order: &[usize]) {
        let size = self.mean.len();
        let utilities = utilities(order.len());
        let row = |at: usize| &noise[at * size..][..size];
        let (mut step, mut spread) = (vec![0.0; size], vec![0.0; size]);
        weighted(&mut step, &utilities, order, row);
        let excess: Vec<f64> = noise.iter().map(|z| z * z - 1.0).collect();
        weighted(&mut spread, &utilities, order, |at| &excess[at * size..][..size]);
        let rate = (3.0 + (size as f64).ln()) / (5.0 * (size as f64).sqrt());
        for (((mean, sigma), step), spread) in
            self.mean.iter_mut().zip(&mut self.sigma).zip(step).zip(spread)
        {
            *mean += *sigma * step;
            *sigma *= (rate / 2.0 * spread).exp();
        }
    }
}

/// The utility of each rank. They add up to 0.
fn utilities(population: usize) -> Vec<f64> {
    let count = population as f64;
    let raw = |rank: usize| ((count / 2.0 + 1.0).ln() - (rank as f64).ln()).max(0.0);
    let total: f64 = (1..=population).map(raw).sum();
    (1..=population).map(|rank| raw(rank) / total - 1.0 / count).collect()
}
