//! Evolution strategies: distributions of solutions that move towards higher fitness.

mod cma;
mod file;
mod noise;
mod open_ai;
mod paths;
mod sep_cma;
mod snes;
mod symmetric;

use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, memory, pool};
use serde::{Deserialize, Serialize};

use crate::{MOST, refused, unbounded};
use cma::Cma;
use noise::Noise;
use open_ai::OpenAi;
use sep_cma::SepCma;
use snes::Snes;

/// Most numbers of a solution, and of a population.
const MOST_NUMBERS: usize = 1 << 28;
/// Most numbers of a solution of [`Method::CmaEs`], whose matrices grow with their square.
const MOST_FULL: usize = 1024;
/// Numbers that a shard of parallel work computes.
const SHARD: usize = 1 << 13;

/// A strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Gradient of a Gaussian's mean from mirrored pairs and ranks, with Adam (Salimans et al. 2017).
    OpenAiEs,
    /// Natural gradient of a Gaussian with a deviation for each number (Wierstra et al. 2014).
    Snes,
    /// CMA-ES with a diagonal matrix (Ros & Hansen 2008).
    SepCmaEs,
    /// Adaptation of the whole covariance matrix (Hansen 2016).
    CmaEs,
}

/// Options of a [`Strategy`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct StrategyOptions {
    /// The strategy.
    pub method: Method,
    /// Candidates of a generation; `None` is `4 + floor(3 ln n)`, made even.
    pub population: Option<usize>,
    /// Standard deviation of the first generation.
    pub sigma: f64,
    /// Step size of Adam; only [`Method::OpenAiEs`] reads it.
    pub learning_rate: f64,
    /// The seed of all noise.
    pub seed: u64,
}

/// The distribution of a strategy.
#[derive(Debug, Clone, PartialEq)]
enum Model {
    OpenAi(OpenAi),
    Snes(Snes),
    Sep(SepCma),
    Full(Cma),
}

/// A strategy in ask-and-tell form. A higher fitness is better.
#[derive(Debug, Clone, PartialEq)]
pub struct Strategy {
    model: Model,
    population: usize,
    seed: u64,
    generation: u64,
    best: Option<(Vec<f64>, f64)>,
}

impl Strategy {
    /// A strategy that begins at a mean.
    ///
    /// # Errors
    /// `OutOfRange` for options out of range, `NonFinite` for a mean that is not finite, `Mismatch` for an odd population
    /// of mirrored pairs, `OutOfMemory` for too large matrices.
    pub fn new(mean: &[f64], options: &StrategyOptions) -> Result<Self> {
        let &StrategyOptions { method, sigma, learning_rate, seed, .. } = options;
        let size = mean.len();
        let most = if method == Method::CmaEs { MOST_FULL } else { MOST_NUMBERS };
        if !(1..=most).contains(&size) {
            return Err(Error::out_of_range("size", size as f64, 1.0, most as f64));
        }
        if let Some((at, value)) = unbounded(mean) {
            return Err(refused(format!("number {at} of the mean"), value));
        }
        for (name, value) in [("sigma", sigma), ("learning_rate", learning_rate)] {
            if !(value > 0.0 && value <= MOST) {
                return Err(Error::out_of_range(name, value, f64::MIN_POSITIVE, MOST));
            }
        }
        let usual = 2 * (4 + (3.0 * (size as f64).ln()) as usize).div_ceil(2);
        let population = options.population.unwrap_or(usual);
        let most = MOST_NUMBERS / size;
        if !(2..=most).contains(&population) {
            return Err(Error::out_of_range("population", population as f64, 2.0, most as f64));
        }
        if method == Method::OpenAiEs && population % 2 == 1 {
            return Err(Error::mismatch("population", "an even number", population));
        }
        let matrices = if method == Method::CmaEs { 3 * size * size } else { 4 * size };
        memory::room("the state of a strategy", (matrices * size_of::<f64>()) as u64)?;
        let model = match method {
            Method::OpenAiEs => Model::OpenAi(OpenAi::new(mean, sigma, learning_rate)),
            Method::Snes => Model::Snes(Snes::new(mean, &vec![sigma; size])),
            Method::SepCmaEs => Model::Sep(SepCma::new(mean, sigma)),
            Method::CmaEs => Model::Full(Cma::new(mean, sigma)),
        };
        Ok(Strategy { model, population, seed, generation: 0, best: None })
    }

    /// The method.
    pub fn method(&self) -> Method {
        match &self.model {
            Model::OpenAi(_) => Method::OpenAiEs,
            Model::Snes(_) => Method::Snes,
            Model::Sep(_) => Method::SepCmaEs,
            Model::Full(_) => Method::CmaEs,
        }
    }

    /// Number of finished generations.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Candidates of a generation.
    pub fn population(&self) -> usize {
        self.population
    }

    /// Numbers of a solution.
    pub fn size(&self) -> usize {
        self.mean().len()
    }

    /// The mean of the distribution.
    pub fn mean(&self) -> &[f64] {
        match &self.model {
            Model::OpenAi(own) => &own.mean,
            Model::Snes(own) => &own.mean,
            Model::Sep(own) => &own.paths.mean,
            Model::Full(own) => &own.paths.mean,
        }
    }

    /// The size of a step: of SNES the geometric mean of all deviations, and of both CMA-ES the factor of the matrix.
    pub fn sigma(&self) -> f64 {
        match &self.model {
            Model::OpenAi(own) => own.sigma,
            Model::Snes(own) => {
                let logs: f64 = own.sigma.iter().map(|v| v.ln()).sum();
                (logs / own.sigma.len() as f64).exp()
            }
            Model::Sep(own) => own.paths.sigma,
            Model::Full(own) => own.paths.sigma,
        }
    }

    /// The best candidate of all generations, and its fitness.
    pub fn best(&self) -> Option<(&[f64], f64)> {
        self.best.as_ref().map(|(candidate, fitness)| (candidate.as_slice(), *fitness))
    }

    /// The covariance matrix without the factor `sigma^2`: `[n, n]` of CMA-ES, its diagonal `[n]` of sep-CMA-ES, and
    /// empty for other methods.
    pub fn covariance(&self) -> &[f64] {
        match &self.model {
            Model::Sep(own) => &own.variances,
            Model::Full(own) => &own.covariance,
            Model::OpenAi(_) | Model::Snes(_) => &[],
        }
    }

    /// The evolution paths of sigma and of the matrix; empty for methods without them.
    pub fn paths(&self) -> [&[f64]; 2] {
        match &self.model {
            Model::Sep(own) => [&own.paths.p_sigma, &own.paths.p_c],
            Model::Full(own) => [&own.paths.p_sigma, &own.paths.p_c],
            Model::OpenAi(_) | Model::Snes(_) => [&[], &[]],
        }
    }

    /// The deviation of each number of SNES; empty for other methods.
    pub fn deviations(&self) -> &[f64] {
        match &self.model {
            Model::Snes(own) => &own.sigma,
            _ => &[],
        }
    }

    /// Replaces the deviations of SNES. `None` unless the method is SNES and their number is right.
    pub fn with_deviations(mut self, sigma: &[f64]) -> Option<Self> {
        match &mut self.model {
            Model::Snes(own) if own.sigma.len() == sigma.len() => {
                own.sigma = sigma.to_vec();
                Some(self)
            }
            _ => None,
        }
    }

    /// The noise of this generation, `[population, n]`. It depends on the seed and the generation.
    fn noise(&self) -> Noise<'static> {
        Noise::drawn(Rng::new(self.seed, "evolve.strategy", self.generation), self.size())
    }

    /// The candidates of this generation, `[population, n]`. Without a [`tell`](Self::tell) between two calls they are
    /// the same.
    pub fn ask(&self) -> Result<Vec<f64>> {
        self.all(&self.noise())
    }

    /// Moves the distribution by the fitness of each candidate of [`ask`](Self::ask), in their order.
    ///
    /// # Errors
    /// `Mismatch` for another number of candidates; `NonFinite` and `OutOfRange` for a fitness that is not finite or
    /// exceeds [`MOST`], and if the distribution diverges. The strategy then stays as it was.
    pub fn tell(&mut self, fitness: &[f64]) -> Result<()> {
        self.check(fitness)?;
        self.follow(&self.noise(), fitness)
    }

    /// The candidates of noise `[population, n]` that the caller has drawn.
    ///
    /// # Errors
    /// `Mismatch` for another number of values.
    pub fn candidates(&self, noise: &[f64]) -> Result<Vec<f64>> {
        self.check_noise(noise)?;
        self.all(&Noise::given(noise, self.size()))
    }

    fn all(&self, noise: &Noise<'_>) -> Result<Vec<f64>> {
        let size = self.size();
        let count = self.population * size;
        memory::room("candidates", (count * size_of::<f64>()) as u64)?;
        let mut all = memory::caught(|| Ok(memory::repeated(0.0, count)))?;
        pool::for_each_rows(&mut all, size, (SHARD / size).max(1), |first, rows| {
            for (i, row) in rows.chunks_exact_mut(size).enumerate() {
                self.candidate(noise, first + i, row);
            }
        });
        Ok(all)
    }

    fn candidate(&self, noise: &Noise<'_>, at: usize, row: &mut [f64]) {
        match &self.model {
            Model::OpenAi(own) => own.candidate(noise, at, row),
            Model::Snes(own) => own.candidate(noise, at, row),
            Model::Sep(own) => own.candidate(noise, at, row),
            Model::Full(own) => own.candidate(noise, at, row),
        }
    }

    /// [`tell`](Self::tell) for the candidates of noise that the caller has drawn.
    pub fn learn(&mut self, noise: &[f64], fitness: &[f64]) -> Result<()> {
        self.check_noise(noise)?;
        self.check(fitness)?;
        self.follow(&Noise::given(noise, self.size()), fitness)
    }

    fn follow(&mut self, noise: &Noise<'_>, fitness: &[f64]) -> Result<()> {
        let order = descending(fitness);
        let mut next = self.model.clone();
        match &mut next {
            Model::OpenAi(own) => own.learn(noise, &order, self.generation),
            Model::Snes(own) => own.learn(noise, &order),
            Model::Sep(own) => own.learn(noise, &order, self.generation),
            Model::Full(own) => own.learn(noise, &order, self.generation),
        }
        let best = self.best_with(noise, fitness, &order);
        let next = Strategy { model: next, best, generation: self.generation + 1, ..*self };
        if let Some((_, value)) = unbounded(next.mean()) {
            return Err(refused("the mean of the strategy".into(), value));
        }
        let sigma = next.sigma();
        if !sigma.is_finite() || sigma > MOST {
            return Err(refused("sigma of the strategy".into(), sigma));
        }
        *self = next;
        Ok(())
    }

    /// The best candidate after this generation. Of equal ones the first stays.
    fn best_with(
        &self,
        noise: &Noise<'_>,
        fitness: &[f64],
        order: &[usize],
    ) -> Option<(Vec<f64>, f64)> {
        let score = fitness[order[0]];
        if self.best.as_ref().is_some_and(|(_, best)| score <= *best) {
            return self.best.clone();
        }
        let mut row = vec![0.0; self.size()];
        self.candidate(noise, order[0], &mut row);
        Some((row, score))
    }

    fn check(&self, fitness: &[f64]) -> Result<()> {
        if fitness.len() != self.population {
            return Err(Error::mismatch("fitness", self.population, fitness.len()));
        }
        match unbounded(fitness) {
            Some((at, value)) => Err(refused(format!("the fitness of candidate {at}"), value)),
            None => Ok(()),
        }
    }

    fn check_noise(&self, noise: &[f64]) -> Result<()> {
        let expected = self.population * self.size();
        match noise.len() == expected {
            true => Ok(()),
            false => Err(Error::mismatch("noise", expected, noise.len())),
        }
    }
}

/// Indices in descending order of fitness; equal ones keep their order.
fn descending(fitness: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..fitness.len()).collect();
    order.sort_by(|a, b| fitness[*b].total_cmp(&fitness[*a]));
    order
}
