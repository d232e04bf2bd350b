//! SNES (Wierstra et al. 2014, algorithm 6, with the utilities and rates of table 1).

use super::noise::Noise;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Snes {
    pub(super) mean: Vec<f64>,
    pub(super) sigma: Vec<f64>,
}

impl Snes {
    pub(super) fn new(mean: &[f64], sigma: &[f64]) -> Self {
        Snes { mean: mean.to_vec(), sigma: sigma.to_vec() }
    }

    pub(super) fn candidate(&self, noise: &Noise<'_>, at: usize, row: &mut [f64]) {
        noise.read(at, 0, row);
        for ((x, mean), sigma) in row.iter_mut().zip(&self.mean).zip(&self.sigma) {
            *x = mean + sigma * *x;
        }
    }

    pub(super) fn learn(&mut self, noise: &Noise<'_>, order: &[usize]) {
        let size = self.mean.len() as f64;
        let sums = noise.sums(&utilities(order.len()), order, |z| z * z - 1.0);
        let rate = (3.0 + size.ln()) / (5.0 * size.sqrt());
        for ((mean, sigma), [step, spread]) in self.mean.iter_mut().zip(&mut self.sigma).zip(sums) {
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
