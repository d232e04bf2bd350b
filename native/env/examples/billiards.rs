//! Prints the episodes of three random shots per second of both billiards worlds, on one thread and on all.
//!
//! A step of the published form takes 408 operations a table: 30 for each of 8 balls and 6 for each of 28 pairs. A Zen 3
//! core does 32 a cycle with AVX2 at most (two fused products of 8 numbers), so the limit is 13 cycles: 3.7 ns at 3.4 GHz,
//! 450,000 episodes a second and thread.
//!
//! `cargo run --release -p sconce-env --example billiards [environments [runs]]`

use std::time::Instant;

use sconce_env::{EnvOptions, Envs, Stepped};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Result, pool, simd};

/// Shots of an episode.
const SHOTS: usize = 3;
/// Steps of a shot in the published form.
const STEPS: usize = 200;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<usize>().ok());
    let (count, runs) = (args.next().unwrap_or(4096), args.next().unwrap_or(10));
    println!(
        "{:?}, {count} tables, best of {runs}, episodes of {SHOTS} shots a second",
        simd::level()
    );
    for env in ["billiards_published", "billiards"] {
        let options = EnvOptions { env: env.into(), count, ..EnvOptions::default() };
        let one = pool::serial(|| measure(&options, runs))?;
        let all = measure(&options, runs)?;
        println!("{env:<20} one thread {one:>9.0}, {} threads {all:>9.0}", pool::threads());
        if env == "billiards_published" {
            println!(
                "{:20} {:.1} ns a table-step on one thread",
                "",
                1e9 / one / (SHOTS * STEPS) as f64
            );
        }
    }
    Ok(())
}

/// Episodes per second.
fn measure(options: &EnvOptions, runs: usize) -> Result<f64> {
    let mut envs = Envs::new(options)?;
    let (rows, width) = (envs.rows(), envs.spec().observation_size);
    let (mut observations, mut rewards) = (vec![0.0; rows * width], vec![0.0; rows]);
    let (mut terminated, mut truncated) = (vec![0; rows], vec![0; rows]);
    let (mut ended, mut final_observations) = (vec![], vec![]);
    let mut best = 0.0f64;
    for run in 0..runs as u64 {
        let shots: Vec<Vec<f32>> = (0..SHOTS as u64).map(|shot| random(rows, run, shot)).collect();
        let begun = Instant::now();
        for inputs in &shots {
            envs.step(
                inputs,
                &mut Stepped {
                    observations: &mut observations,
                    rewards: &mut rewards,
                    terminated: &mut terminated,
                    truncated: &mut truncated,
                    ended: &mut ended,
                    final_observations: &mut final_observations,
                },
            )?;
        }
        best = best.max(rows as f64 / begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Random shots of all rows.
fn random(rows: usize, run: u64, shot: u64) -> Vec<f32> {
    let rng = Rng::new(run, "billiards", shot);
    let range = |at: usize| if at % 4 == 1 { (0.0, 1.0) } else { (-1.0, 1.0) };
    let number = |at: usize| {
        let (low, high) = range(at);
        low + (high - low) * rng.uniform(at as u64)
    };
    (0..4 * rows).map(number).collect()
}
