//! CMA-ES with a diagonal matrix (Ros & Hansen 2008).

use super::noise::Noise;
use super::paths::{Constants, Paths};

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

    pub(super) fn candidate(&self, noise: &Noise<'_>, at: usize, row: &mut [f64]) {
        let Paths { mean, sigma, .. } = &self.paths;
        noise.read(at, 0, row);
        for ((x, mean), variance) in row.iter_mut().zip(mean).zip(&self.variances) {
            *x = mean + sigma * (variance.sqrt() * *x);
        }
    }

    pub(super) fn learn(&mut self, noise: &Noise<'_>, order: &[usize], generation: u64) {
        let size = self.variances.len();
        let constants = Constants::separable(size, order.len());
        let sums = noise.sums(&constants.weights, order, |z| z * z);
        let white: Vec<f64> = sums.iter().map(|[z, _]| *z).collect();
        let roots = self.variances.iter().map(|v| v.sqrt());
        let step: Vec<f64> = roots.zip(&white).map(|(root, z)| root * z).collect();
        let kept = self.paths.follow(&constants, &step, &white, generation);
        let Constants { c_1, c_mu, .. } = constants;
        for ((variance, p), [_, square]) in self.variances.iter_mut().zip(&self.paths.p_c).zip(sums)
        {
            *variance = kept * *variance + c_1 * p * p + c_mu * (*variance * square);
        }
        let most = self.variances.iter().copied().fold(0.0, f64::max);
        self.variances.iter_mut().for_each(|variance| *variance = variance.max(LEAST * most));
    }
}
