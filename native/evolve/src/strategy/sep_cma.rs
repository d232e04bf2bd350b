//! CMA-ES with a diagonal matrix (Ros & Hansen 2008).

use super::paths::{Constants, Paths};
use super::weighted;

/// A variance below this share of the largest one is raised to it, so that roots stay above 0.
const LEAST: f64 = 1e-28;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct SepCma {
    pub(super) paths: Paths,
    pub(super) variances: Vec<f64>,
}

impl SepCma {
    pub(super) fn new(mean: &[f64], sigma: f64) -> Self {
        SepCma { paths: Paths::new(mean, sigma), variances: vec![1.0; mean.len()] }
    }

    pub(super) fn candidate(&self, noise: &[f64], row: &mut [f64]) {
        let Paths { mean, sigma, .. } = &self.paths;
        for (((x, mean), variance), z) in row.iter_mut().zip(mean).zip(&self.variances).zip(noise) {
            *x = mean + sigma * (variance.sqrt() * z);
        }
    }

    pub(super) fn learn(&mut self, noise: &[f64], order: &[usize], generation: u64) {
        let size = self.variances.len();
        let constants = Constants::separable(size, order.len());
        let (mut white, mut squares) = (vec![0.0; size], vec![0.0; size]);
        weighted(&mut white, &constants.weights, order, |at| &noise[at * size..][..size]);
        let own: Vec<f64> = noise.iter().map(|z| z * z).collect();
        weighted(&mut squares, &constants.weights, order, |at| &own[at * size..][..size]);
        let roots = self.variances.iter().map(|v| v.sqrt());
        let step: Vec<f64> = roots.zip(&white).map(|(root, z)| root * z).collect();
        let kept = self.paths.follow(&constants, &step, &white, generation);
        let Constants { c_1, c_mu, .. } = constants;
        for ((variance, p), square) in self.variances.iter_mut().zip(&self.paths.p_c).zip(squares) {
            *variance = kept * *variance + c_1 * p * p + c_mu * (*variance * square);
        }
        let most = self.variances.iter().copied().fold(0.0, f64::max);
        self.variances.iter_mut().for_each(|variance| *variance = variance.max(LEAST * most));
    }
}
