//! Measures an archive: `archive [CANDIDATES] [EVALUATIONS]`.
//!
//! Prints microseconds a candidate where few win, and evaluations a second of MAP-Elites on the arm of ten joints,
//! including variation and archive. Each is the best and the median of seven runs.

mod arm;

use std::hint::black_box;
use std::time::Instant;

use sconce_evolve::{Archive, ArchiveOptions, Batch, SpaceOptions};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result, pool, simd};

const RUNS: usize = 7;
/// Evaluations of a batch of the search, as in the figures of other libraries.
const BATCH: usize = 4096;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut number = |usual: usize| match args.next() {
        Some(text) => text.parse().map_err(|e| Error::corrupt(format!("the number {text:?}"), e)),
        None => Ok(usual),
    };
    let (candidates, evaluations) = (number(10_000)?, number(4_000_000)?);
    println!("{:?}, {} threads", simd::level(), pool::threads());
    for cells in [10, 100] {
        report_additions(cells, candidates)?;
    }
    report_search(evaluations)
}

fn report_additions(side: usize, count: usize) -> Result<()> {
    let size = 10;
    let space = SpaceOptions::Grid { dimensions: vec![side; 2], ranges: vec![(0.0, 1.0); 2] };
    let mut archive = Archive::new(&ArchiveOptions {
        space,
        solution_size: size,
        learning_rate: 1.0,
        threshold_min: None,
        offset: 0.0,
    })?;
    let rng = Rng::new(1, "candidates", 0);
    let numbers = |from: usize, count: usize| (from..from + count).map(|at| rng.uniform(at as u64));
    let solutions: Vec<f32> = numbers(0, size * count).collect();
    let measures: Vec<f64> = numbers(size * count, 2 * count).map(f64::from).collect();
    let objectives: Vec<f64> = numbers((size + 2) * count, count).map(f64::from).collect();
    let batch = Batch { solutions: &solutions, objectives: &objectives, measures: &measures };
    // After these, each further batch loses but for a few.
    for _ in 0..2 {
        archive.add(batch)?;
    }
    let mut scratch = objectives.clone();
    let mut won = 0;
    let mut times: Vec<f64> = Vec::new();
    for run in 0..RUNS {
        // One in a thousand wins.
        for (at, objective) in scratch.iter_mut().enumerate() {
            let wins = at % 1000 == 7 * run;
            *objective = if wins { 2.0 + run as f64 } else { objectives[at] };
        }
        let start = Instant::now();
        let added = archive.add(Batch { objectives: &scratch, ..batch })?;
        times.push(1e6 * start.elapsed().as_secs_f64() / count as f64);
        won += added.status.iter().filter(|status| status.is_added()).count();
        black_box(&added);
    }
    let won = won as f64 / (RUNS * count) as f64;
    // A sequential read of 24 bytes and one read of the threshold from the L2 cache, of 15 cycles.
    println!(
        "{side}x{side}, batch {count}, {size} numbers, {:.2} % win: {} us a candidate (limit about 0.006)",
        100.0 * won,
        figures(&mut times, 4),
    );
    Ok(())
}

fn report_search(evaluations: usize) -> Result<()> {
    let batches = (evaluations / BATCH).max(1);
    let (mut rates, mut filled) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        let mut archive = arm::archive()?;
        let start = Instant::now();
        arm::search(&mut archive, batches as u64, BATCH, run as u64)?;
        rates.push(-((batches * BATCH) as f64) / start.elapsed().as_secs_f64() / 1e6);
        filled.push(archive.stats().elites);
    }
    // Ten sines and cosines and about a hundred operations an arm, in vector code, with nothing else.
    println!(
        "arm, 64x64, batch {BATCH}: {} million evaluations a second (limit about 20 a thread)",
        figures(&mut rates, 2).replace('-', ""),
    );
    filled.sort_unstable();
    let reachable = arm::reachable();
    println!(
        "cells after {} evaluations: least {}, median {} (limit {reachable}, which the disc of reach touches): {:.1} % of these",
        batches * BATCH,
        filled[0],
        filled[RUNS / 2],
        100.0 * filled[RUNS / 2] as f64 / reachable as f64,
    );
    Ok(())
}

/// The best and the median of values of which the least is the best.
fn figures(values: &mut [f64], digits: usize) -> String {
    values.sort_unstable_by(f64::total_cmp);
    format!("best {:.digits$}, median {:.digits$}", values[0], values[values.len() / 2])
}
