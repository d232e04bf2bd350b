//! Prints the steps per second of each world on one thread, with random inputs that are generated before.
//!
//! `cargo run --release -p sconce-env --example steps [world [environments]]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use sconce_env::{EnvOptions, Envs, Stepped, names};
use sconce_game::InputKind;
use sconce_tensor::rng::Rng;
use sconce_tensor::{Result, pool, simd};

/// Sets of inputs that a run cycles through.
const SETS: usize = 16;
/// Time of a measurement; the best of [`RUNS`] counts.
const RUN: Duration = Duration::from_millis(2);
const RUNS: usize = 300;

fn main() -> Result<()> {
    let only = std::env::args().nth(1);
    println!("{:?}, one thread, steps per second in millions", simd::level());
    let count = std::env::args().nth(2).and_then(|count| count.parse().ok());
    let counts = count.map_or(vec![1, 64, 4096], |count| vec![count]);
    print!("{:<26}", "environments");
    counts.iter().for_each(|count| print!("{count:>10}"));
    println!();
    for name in names().into_iter().filter(|name| only.as_deref().is_none_or(|o| o == *name)) {
        print!("{name:<26}");
        for &count in &counts {
            let options = EnvOptions { env: name.into(), count, ..EnvOptions::default() };
            print!("{:>10.2}", pool::serial(|| measure(&options))? / 1e6);
        }
        println!();
    }
    Ok(())
}

/// Environment steps per second.
fn measure(options: &EnvOptions) -> Result<f64> {
    let mut envs = Envs::new(options)?;
    let inputs = random_inputs(&envs);
    let (rows, width) = (envs.rows(), envs.spec().observation_size);
    let (mut observations, mut rewards) = (vec![0.0; rows * width], vec![0.0; rows]);
    let (mut terminated, mut truncated) = (vec![0; rows], vec![0; rows]);
    let (mut ended, mut finals, mut episodes) = (vec![], vec![], vec![]);
    let mut best = 0.0f64;
    for _ in 0..RUNS {
        let (begun, mut steps) = (Instant::now(), 0usize);
        while begun.elapsed() < RUN {
            for inputs in &inputs {
                let mut out = Stepped {
                    observations: &mut observations,
                    rewards: &mut rewards,
                    terminated: &mut terminated,
                    truncated: &mut truncated,
                    ended: &mut ended,
                    final_observations: &mut finals,
                };
                envs.step(inputs, &mut out)?;
                steps += options.count;
            }
            episodes.clear();
            envs.episodes(&mut episodes);
            black_box((&observations, &rewards, &episodes));
        }
        best = best.max(steps as f64 / begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn random_inputs(envs: &Envs) -> Vec<Vec<f32>> {
    let parts = &envs.spec().inputs;
    let set = |set| {
        let rng = Rng::new(set, "steps", 0);
        let part = |at: usize| {
            let u = rng.uniform(at as u64);
            match parts[at % parts.len()].kind {
                InputKind::Choice(n) => (u * n as f32).floor(),
                InputKind::Continuous { min, max, .. } => min + u * (max - min),
                _ => 0.0,
            }
        };
        (0..envs.rows() * parts.len()).map(part).collect()
    };
    (0..SETS as u64).map(set).collect()
}
