//! The strategy of Salimans et al. 2017: mirrored noise, ranks as fitness, and Adam (Kingma & Ba 2015).

use super::noise::Noise;

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
    pub(super) fn candidate(&self, noise: &Noise<'_>, at: usize, row: &mut [f64]) {
        let sigma = if at.is_multiple_of(2) { self.sigma } else { -self.sigma };
        noise.read(at / 2, 0, row);
        row.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x = mean + sigma * *x);
    }

    pub(super) fn learn(&mut self, noise: &Noise<'_>, order: &[usize], generation: u64) {
        let count = order.len() as f64;
        // Ranks from 1/2 (best) to -1/2, with the sign of the candidate's noise. Both of a pair have the same noise.
        let mut weights = vec![0.0; order.len() / 2];
        for (rank, at) in order.iter().enumerate() {
            let centred = 0.5 - rank as f64 / (count - 1.0);
            weights[at / 2] += if at.is_multiple_of(2) { centred } else { -centred };
        }
        let pairs: Vec<usize> = (0..weights.len()).collect();
        let gradient = noise.sums(&weights, &pairs, |_z| 0.0);
        let corrections = BETAS.map(|beta| 1.0 - beta.powf(generation as f64 + 1.0));
        let [first, second] = &mut self.moments;
        for (((mean, [g, _]), m), v) in self.mean.iter_mut().zip(gradient).zip(first).zip(second) {
            let g = g / (count * self.sigma);
            *m += (1.0 - BETAS[0]) * (g - *m);
            *v += (1.0 - BETAS[1]) * (g * g - *v);
            let root = (*v / corrections[1]).sqrt();
            *mean += self.learning_rate * (*m / corrections[0]) / (root + EPSILON);
        }
    }
}
