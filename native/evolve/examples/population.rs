//! Measures populations: `population [SECONDS]`.
//!
//! Prints forward passes a second of policies with 867 numbers (8-32-16-3, tanh), of one observation for all, and
//! decisions a second of whole episodes. Each is the best and the median of seven runs.

use std::hint::black_box;
use std::time::Instant;

use sconce_env::EnvOptions;
use sconce_evolve::{Crossover, Episodes, Population, PopulationOptions, Storage, Variation};
use sconce_nn::head::HeadKind;
use sconce_nn::spec::{
    Backbone, Embedding, Head, Heads, HeadsKind, MlpActivation, MlpConfig, Spec,
};
use sconce_tensor::{Result, pool, simd};

const RUNS: usize = 7;

fn spec(inputs: usize, classes: usize) -> Spec {
    let mlp = MlpConfig {
        hidden_sizes: vec![32, 16],
        layer_norm: false,
        residual: false,
        activation: MlpActivation::Tanh,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let kind = HeadKind::Categorical(classes);
    let parts = vec![Head { name: "action".into(), kind, hidden_size: 0 }];
    Spec {
        embedding: Embedding::vector(inputs),
        backbone: Backbone::Mlp(mlp),
        heads: Heads { kind: HeadsKind::Independent, parts, stream_size: 128, prior: false },
        critic: None,
    }
}

fn main() -> Result<()> {
    for threads in [1, pool::available().min(2)] {
        pool::set_threads(threads)?;
        println!("{:?}, {threads} threads", simd::level());
        for count in [300, 4800, 100_000] {
            for storage in [Storage::F32, Storage::Bf16, Storage::Int8] {
                forwards(count, storage)?;
            }
        }
        variation()?;
        rollouts()?;
    }
    Ok(())
}

fn population(spec: &Spec, count: usize, storage: Storage) -> Result<Population> {
    Population::new(spec, &PopulationOptions { count, storage, sigma: 0.5, seed: 1 }, None)
}

fn forwards(count: usize, storage: Storage) -> Result<()> {
    let population = population(&spec(8, 3), count, storage)?;
    let seen = [0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -0.8];
    let (passes, bytes) = ((400_000 / count).max(3), storage.bytes(population.network()));
    let rate = measure(passes * count, || {
        for _ in 0..passes {
            black_box(population.forward(black_box(&seen))?);
        }
        Ok(())
    })?;
    println!("forward, {count} of {bytes} bytes, {storage:?}: {rate} million a second");
    Ok(())
}

fn variation() -> Result<()> {
    let mut population = population(&spec(8, 3), 4800, Storage::F32)?;
    let variation = Variation { iso_sigma: 0.01, crossover: Crossover::Line(0.2), bounds: None };
    let mut generation = 0;
    let rate = measure(10 * 4800, || {
        for _ in 0..10 {
            generation += 1;
            population.vary(&variation, None, (1, generation))?;
        }
        Ok(())
    })?;
    println!("variation, 4800 of 867 numbers: {rate} million children a second");
    Ok(())
}

fn rollouts() -> Result<()> {
    let population = population(&spec(4, 2), 4800, Storage::F32)?;
    let env = EnvOptions { env: "cart_pole".into(), ..EnvOptions::default() };
    let options = Episodes { env, episodes: 10, same_starts: false, measures: vec![] };
    let decisions = population.episodes(&options)?.decisions;
    let rate = measure(decisions as usize, || {
        black_box(population.episodes(&options)?);
        Ok(())
    })?;
    println!("cart_pole, 4800 individuals, {decisions} decisions: {rate} million a second");
    Ok(())
}

/// The best and the median rate in millions a second.
fn measure(count: usize, mut work: impl FnMut() -> Result<()>) -> Result<String> {
    let mut rates = vec![];
    for _ in 0..RUNS {
        let start = Instant::now();
        work()?;
        rates.push(count as f64 / start.elapsed().as_secs_f64() / 1e6);
    }
    rates.sort_unstable_by(f64::total_cmp);
    Ok(format!("best {:.2}, median {:.2}", rates[RUNS - 1], rates[RUNS / 2]))
}
