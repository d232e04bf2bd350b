//! The strategy of Salimans et al. 2017: mirrored noise, ranks as fitness, and Adam (Kingma & Ba 2015).

use super::weighted;

const BETAS: [f64; 2] = [0.9, 0.999];
const EPSILON: f64 = 1e-8;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct OpenAi {
    pub(super) mean: Vec<f64>,
    pub(super) sigma: f64,
    pub(super) learning_rate: f64,
    /// Running means of the gradient and of its square.
    pub(super) moments: [Vec<f64>; 2],
}

impl OpenAi {
    pub(super) fn new(mean: &[f64], sigma: f64, learning_rate: f64) -> Self {
        let zero = vec![0.0; mean.len()];
        OpenAi { mean: mean.to_vec(), sigma, learning_rate, moments: [zero.clone(), zero] }
    }

    /// Candidates `2 i` and `2 i + 1` have the same noise with opposite signs, that of row `i`.
    pub(super) fn candidate(&self, noise: &[f64], at: usize, row: &mut [f64]) {
        let sigma = if at.is_multiple_of(2) { self.sigma } else { -self.sigma };
        let noise = &noise[at / 2 * row.len()..];
        for ((x, mean), z) in row.iter_mut().zip(&self.mean).zip(noise) {
            *x = mean + sigma * z;
        }
    }

    pub(super) fn learn(&mut self, noise: &[f64], order: &[usize], generation: u64) {
        let (size, count) = (self.mean.len(), order.len() as f64);
        // Ranks from 1/2 (best) to -1/2, with the sign of the candidate's noise.
        let weight = |(rank, at): (usize, &usize)| {
            let centred = 0.5 - rank as f64 / (count - 1.0);
            if at.is_multiple_of(2) { centred } else { -centred }
        };
        let weights: Vec<f64> = order.iter().enumerate().map(weight).collect();
        let mut gradient = vec![0.0; size];
        weighted(&mut gradient, &weights, order, |at| &noise[at / 2 * size..][..size]);
        let corrections = BETAS.map(|beta| 1.0 - beta.powf(generation as f64 + 1.0));
        let [first, second] = &mut self.moments;
        for (((mean, g), m), v) in self.mean.iter_mut().zip(gradient).zip(first).zip(second) {
            let g = g / (count * self.sigma);
            *m += (1.0 - BETAS[0]) * (g - *m);
            *v += (1.0 - BETAS[1]) * (g * g - *v);
            let root = (*v / corrections[1]).sqrt();
            *mean += self.learning_rate * (*m / corrections[0]) / (root + EPSILON);
        }
    }
}
