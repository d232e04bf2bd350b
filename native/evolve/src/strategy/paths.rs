//! The shared part of both CMA-ES: constants, mean, step size and evolution paths (Hansen 2016, arXiv 1604.00772, figure 6
//! and table 1 with positive weights).

/// Constants of a size and a population.
#[derive(Debug, Clone)]
pub(super) struct Constants {
    pub(super) weights: Vec<f64>,
    pub(super) mu_eff: f64,
    c_sigma: f64,
    d_sigma: f64,
    c_c: f64,
    pub(super) c_1: f64,
    pub(super) c_mu: f64,
    /// Mean length of a vector of standard normal numbers.
    chi: f64,
}

impl Constants {
    /// Constants of a full matrix.
    pub(super) fn full(size: usize, population: usize) -> Self {
        let (n, mu) = (size as f64, population / 2);
        let raw = |rank: usize| ((population as f64 + 1.0) / 2.0).ln() - (rank as f64).ln();
        let total: f64 = (1..=mu).map(raw).sum();
        let weights: Vec<f64> = (1..=mu).map(|rank| raw(rank) / total).collect();
        let mu_eff = 1.0 / weights.iter().map(|w| w * w).sum::<f64>();
        let c_sigma = (mu_eff + 2.0) / (n + mu_eff + 5.0);
        let excess = ((mu_eff - 1.0) / (n + 1.0)).sqrt() - 1.0;
        let d_sigma = 1.0 + 2.0 * excess.max(0.0) + c_sigma;
        let c_c = (4.0 + mu_eff / n) / (n + 4.0 + 2.0 * mu_eff / n);
        let c_1 = 2.0 / ((n + 1.3) * (n + 1.3) + mu_eff);
        let raised = 2.0 * (mu_eff - 2.0 + 1.0 / mu_eff) / ((n + 2.0) * (n + 2.0) + mu_eff);
        let c_mu = raised.min(1.0 - c_1);
        let chi = n.sqrt() * (1.0 - 1.0 / (4.0 * n) + 1.0 / (21.0 * n * n));
        Constants { weights, mu_eff, c_sigma, d_sigma, c_c, c_1, c_mu, chi }
    }

    /// Constants of a diagonal, which is learned `(n + 2) / 3` times as fast (Ros & Hansen 2008).
    pub(super) fn separable(size: usize, population: usize) -> Self {
        let full = Constants::full(size, population);
        let faster = (size as f64 + 2.0) / 3.0;
        let c_1 = (full.c_1 * faster).min(1.0);
        Constants { c_1, c_mu: (full.c_mu * faster).min(1.0 - c_1), ..full }
    }
}

/// Mean, step size and paths.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Paths {
    pub(super) mean: Vec<f64>,
    pub(super) sigma: f64,
    pub(super) p_sigma: Vec<f64>,
    pub(super) p_c: Vec<f64>,
}

impl Paths {
    pub(super) fn new(mean: &[f64], sigma: f64) -> Self {
        let zero = vec![0.0; mean.len()];
        Paths { mean: mean.to_vec(), sigma, p_sigma: zero.clone(), p_c: zero }
    }

    /// Moves along a step, given before and after multiplication by the inverse root of the matrix. Returns the share of
    /// the old matrix that stays.
    pub(super) fn follow(
        &mut self,
        constants: &Constants,
        step: &[f64],
        white: &[f64],
        generation: u64,
    ) -> f64 {
        let Constants { mu_eff, c_sigma, d_sigma, c_c, c_1, c_mu, chi, .. } = *constants;
        for (mean, step) in self.mean.iter_mut().zip(step) {
            *mean += self.sigma * step;
        }
        let gain = (c_sigma * (2.0 - c_sigma) * mu_eff).sqrt();
        for (p, white) in self.p_sigma.iter_mut().zip(white) {
            *p = (1.0 - c_sigma) * *p + gain * white;
        }
        let length = self.p_sigma.iter().map(|p| p * p).sum::<f64>().sqrt();
        let age = 1.0 - (1.0 - c_sigma).powf(2.0 * (generation as f64 + 1.0));
        let limit = (1.4 + 2.0 / (self.mean.len() as f64 + 1.0)) * chi;
        let h = if length / age.sqrt() < limit { 1.0 } else { 0.0 };
        self.sigma *= (c_sigma / d_sigma * (length / chi - 1.0)).exp();
        let gain = h * (c_c * (2.0 - c_c) * mu_eff).sqrt();
        for (p, step) in self.p_c.iter_mut().zip(step) {
            *p = (1.0 - c_c) * *p + gain * step;
        }
        1.0 + c_1 * (1.0 - h) * c_c * (2.0 - c_c) - c_1 - c_mu
    }
}
