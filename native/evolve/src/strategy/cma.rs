//! CMA-ES with a full matrix (Hansen 2016, arXiv 1604.00772).

use sconce_tensor::pool;

use super::SHARD;
use super::noise::Noise;
use super::paths::{Constants, Paths};
use super::symmetric::roots;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cma {
    pub(super) paths: Paths,
    /// `[n, n]`, symmetric.
    pub(super) covariance: Vec<f64>,
    /// The symmetric root of the covariance and its inverse, as of generation `decomposed`.
    pub(super) root: Vec<f64>,
    pub(super) inverse: Vec<f64>,
    pub(super) decomposed: u64,
}

impl Cma {
    pub(super) fn new(mean: &[f64], sigma: f64) -> Self {
        let size = mean.len();
        let one = |at: usize| if at / size == at % size { 1.0 } else { 0.0 };
        let identity: Vec<f64> = (0..size * size).map(one).collect();
        Cma {
            paths: Paths::new(mean, sigma),
            covariance: identity.clone(),
            root: identity.clone(),
            inverse: identity,
            decomposed: 0,
        }
    }

    pub(super) fn candidate(&self, noise: &Noise<'_>, at: usize, row: &mut [f64]) {
        let mut own = vec![0.0; row.len()];
        noise.read(at, 0, &mut own);
        multiply(&self.root, &own, row);
        for (x, mean) in row.iter_mut().zip(&self.paths.mean) {
            *x = mean + self.paths.sigma * *x;
        }
    }

    pub(super) fn learn(&mut self, noise: &Noise<'_>, order: &[usize], generation: u64) {
        let size = self.paths.mean.len();
        let constants = Constants::full(size, order.len());
        let best = order.iter().take(constants.weights.len());
        let mut steps = vec![0.0; constants.weights.len() * size];
        let (mut step, mut white) = (vec![0.0; size], vec![0.0; size]);
        for (own, at) in steps.chunks_exact_mut(size).zip(best) {
            noise.read(*at, 0, &mut white);
            multiply(&self.root, &white, own);
        }
        for (weight, own) in constants.weights.iter().zip(steps.chunks_exact(size)) {
            step.iter_mut().zip(own).for_each(|(sum, v)| *sum += weight * v);
        }
        multiply(&self.inverse, &step, &mut white);
        let kept = self.paths.follow(&constants, &step, &white, generation);
        self.update(&constants, &steps, kept);
        // A matrix changes little within this number of generations (Hansen 2016, B.2).
        let age = (generation + 1 - self.decomposed) as f64;
        if age * (constants.c_1 + constants.c_mu) * size as f64 * 10.0 >= 1.0 {
            (self.root, self.inverse) = roots(&self.covariance, size);
            self.decomposed = generation + 1;
        }
    }

    /// Adds the products of the path and of the weighted steps. The lower triangle is computed and mirrored, so that the
    /// matrix stays symmetric.
    fn update(&mut self, constants: &Constants, steps: &[f64], kept: f64) {
        let (size, p) = (self.paths.mean.len(), &self.paths.p_c);
        pool::for_each_rows(&mut self.covariance, size, (SHARD / size).max(1), |first, rows| {
            for (at, row) in rows.chunks_exact_mut(size).enumerate() {
                let (i, row) = (first + at, &mut row[..first + at + 1]);
                row.iter_mut().zip(p).for_each(|(c, v)| *c = kept * *c + constants.c_1 * p[i] * v);
                for (weight, step) in constants.weights.iter().zip(steps.chunks_exact(size)) {
                    let factor = constants.c_mu * weight * step[i];
                    row.iter_mut().zip(step).for_each(|(c, v)| *c += factor * v);
                }
            }
        });
        for i in 0..size {
            for j in 0..i {
                self.covariance[j * size + i] = self.covariance[i * size + j];
            }
        }
    }
}

/// The product of a symmetric matrix and a vector.
fn multiply(matrix: &[f64], vector: &[f64], out: &mut [f64]) {
    for (out, row) in out.iter_mut().zip(matrix.chunks_exact(vector.len())) {
        *out = row.iter().zip(vector).map(|(a, b)| a * b).sum();
    }
}
