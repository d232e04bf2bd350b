//! Strategies as files.

use std::path::Path;

use sconce_tensor::Result;
use serde::{Deserialize, Serialize};

use super::cma::Cma;
use super::open_ai::OpenAi;
use super::paths::Paths;
use super::sep_cma::SepCma;
use super::snes::Snes;
use super::{Method, Model, Strategy, StrategyOptions};
use crate::saved::{self, Numbers, Opened, Tensors};
use crate::unbounded;

const KIND: &str = "strategy";
/// The version of the manifest.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Manifest {
    kind: String,
    version: u32,
    method: Method,
    population: usize,
    seed: u64,
    generation: u64,
    sigma: f64,
    learning_rate: f64,
    best: Option<f64>,
    decomposed: u64,
}

impl Strategy {
    /// Writes the strategy to a file: the whole new file, or the old one stays.
    ///
    /// # Errors
    /// `Io` and `NotFound` if the system refuses.
    pub fn save(&self, path: &Path) -> Result<()> {
        let size = self.size();
        fn row(values: &[f64]) -> Numbers<'_> {
            Numbers::f64(&[values.len()], values)
        }
        let matrix = |values| Numbers::f64(&[size, size], values);
        let mut tensors = Tensors::from([("mean", row(self.mean()))]);
        if let Some((candidate, _)) = &self.best {
            tensors.insert("best", row(candidate));
        }
        let [p_sigma, p_c] = self.paths();
        if !p_sigma.is_empty() {
            tensors.extend([("p_sigma", row(p_sigma)), ("p_c", row(p_c))]);
        }
        let (mut learning_rate, mut decomposed) = (1.0, 0);
        match &self.model {
            Model::OpenAi(own) => {
                learning_rate = own.learning_rate;
                let [first, second] = &own.moments;
                tensors.extend([("first_moment", row(first)), ("second_moment", row(second))]);
            }
            Model::Snes(own) => drop(tensors.insert("deviations", row(&own.sigma))),
            Model::Sep(own) => drop(tensors.insert("variances", row(&own.variances))),
            Model::Full(own) => {
                decomposed = own.decomposed;
                tensors.extend([
                    ("covariance", matrix(own.covariance.as_slice())),
                    ("root", matrix(own.root.as_slice())),
                    ("inverse", matrix(own.inverse.as_slice())),
                ]);
            }
        }
        let manifest = Manifest {
            kind: KIND.into(),
            version: VERSION,
            method: self.method(),
            population: self.population,
            seed: self.seed,
            generation: self.generation,
            sigma: self.sigma(),
            learning_rate,
            best: self.best.as_ref().map(|(_, fitness)| *fitness),
            decomposed,
        };
        saved::save(path, &manifest, &tensors)
    }

    /// Reads the strategy of a file, equal to the bit.
    ///
    /// # Errors
    /// `Corrupt` for a file that is cut, changed or has invalid content, `Mismatch` for another kind of file or another
    /// version, `NotFound` and `Io` if it cannot be read.
    pub fn load(path: &Path) -> Result<Strategy> {
        let (manifest, opened): (Manifest, Opened) = saved::load(path, KIND, VERSION)?;
        let size = opened.shape("mean")?.first().copied().unwrap_or(0);
        let read = |name: &str, shape: &[usize]| {
            let numbers = opened.f64(name, shape)?;
            match unbounded(&numbers) {
                None => Ok(numbers),
                Some((at, value)) => Err(opened.corrupt(format!("{name}[{at}] is {value}"))),
            }
        };
        let row = |name: &str| read(name, &[size]);
        let least = |name: &str, least: f64| match row(name)? {
            numbers if numbers.iter().all(|v| *v >= least) => Ok(numbers),
            _ => Err(opened.corrupt(format!("{name} has a number below {least:e}"))),
        };
        let matrix = |name: &str| read(name, &[size, size]);
        let mean = row("mean")?;
        let Manifest { method, population, sigma, learning_rate, seed, .. } = manifest;
        let options =
            StrategyOptions { method, population: Some(population), sigma, learning_rate, seed };
        // Checks the sizes and the options before the state is read.
        let mut strategy = Strategy::new(&mean, &options).map_err(|e| opened.corrupt(e))?;
        let paths = || -> Result<Paths> {
            Ok(Paths { mean: mean.clone(), sigma, p_sigma: row("p_sigma")?, p_c: row("p_c")? })
        };
        strategy.model = match method {
            Method::OpenAiEs => Model::OpenAi(OpenAi {
                moments: [row("first_moment")?, least("second_moment", 0.0)?],
                ..OpenAi::new(&mean, sigma, learning_rate)
            }),
            Method::Snes => Model::Snes(Snes::new(&mean, &least("deviations", 0.0)?)),
            Method::SepCmaEs => Model::Sep(SepCma {
                paths: paths()?,
                variances: least("variances", f64::MIN_POSITIVE)?,
            }),
            Method::CmaEs => Model::Full(Cma {
                paths: paths()?,
                covariance: matrix("covariance")?,
                root: matrix("root")?,
                inverse: matrix("inverse")?,
                decomposed: manifest.decomposed.min(manifest.generation),
            }),
        };
        strategy.generation = manifest.generation;
        strategy.best = match manifest.best {
            Some(fitness) => Some((row("best")?, fitness)),
            None => None,
        };
        Ok(strategy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_tensor::Kind;

    #[test]
    fn a_signed_file_with_an_invalid_state_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("strategy.safetensors");
        let kind = |change: &dyn Fn(&mut Model), method| {
            let options = StrategyOptions {
                method,
                population: None,
                sigma: 1.0,
                learning_rate: 0.1,
                seed: 0,
            };
            let mut own = Strategy::new(&[0.0; 3], &options).unwrap();
            change(&mut own.model);
            own.save(&path).unwrap();
            Strategy::load(&path).map(drop).map_err(|e| e.kind())
        };
        for value in [-1.0, f64::NAN, 1e200] {
            let sep = kind(
                &|model| match model {
                    Model::Sep(own) => own.variances[1] = value,
                    _ => panic!("another model"),
                },
                Method::SepCmaEs,
            );
            let adam = kind(
                &|model| match model {
                    Model::OpenAi(own) => own.moments[1][2] = value,
                    _ => panic!("another model"),
                },
                Method::OpenAiEs,
            );
            let snes = kind(
                &|model| match model {
                    Model::Snes(own) => own.sigma[0] = value,
                    _ => panic!("another model"),
                },
                Method::Snes,
            );
            assert_eq!([sep, adam, snes], [Err(Kind::Corrupt); 3], "{value}");
        }
        for method in [Method::Snes, Method::SepCmaEs, Method::CmaEs, Method::OpenAiEs] {
            assert_eq!(kind(&|_model| (), method), Ok(()));
        }
    }
}
