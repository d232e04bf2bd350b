//! Measures NEAT on XOR: `neat [GENERATIONS] [THREADS]`.
//!
//! Prints microseconds a generation of 150 genomes on four patterns by stage, and generations a second, for several seeds.
//! Each run is repeated and cut into pieces of a few generations; the fastest repetition of each piece counts, because
//! other programs interrupt long pieces. Then it prints the generations until XOR is solved.

mod xor;

use std::sync::atomic::AtomicBool;

use sconce_evolve::{Fit, Neat};
use sconce_tensor::{Error, Result, pool, simd};

const RUNS: u64 = 7;
const REPEATS: usize = 15;
const PIECE: u64 = 5;
const SEEDS: u64 = 101;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut number = |usual: usize| match args.next() {
        Some(text) => text.parse().map_err(|e| Error::corrupt(format!("the number {text:?}"), e)),
        None => Ok(usual),
    };
    let (generations, threads) = (number(300)?, number(1)?);
    pool::set_threads(threads)?;
    let never = AtomicBool::new(false);
    let patterns = (xor::INPUTS.as_slice(), xor::TARGETS.as_slice());
    println!("{:?}, {} threads, {generations} generations", simd::level(), pool::threads());
    let mut runs = vec![];
    for seed in 0..RUNS {
        let mut pieces: Vec<Fit> = vec![];
        let mut stats = None;
        for _ in 0..REPEATS {
            let mut neat = Neat::new(&xor::options(seed))?;
            for at in 0..(generations as u64).div_ceil(PIECE) as usize {
                let own = neat.fit(patterns, PIECE, f64::INFINITY, &never)?;
                match pieces.get_mut(at) {
                    Some(fastest) if total(&own) >= total(fastest) => {}
                    Some(fastest) => *fastest = own,
                    None => pieces.push(own),
                }
            }
            stats = Some(neat.stats());
        }
        let count: u64 = pieces.iter().map(|piece| piece.generations).sum();
        let mean =
            |seconds: fn(&Fit) -> f64| 1e6 * pieces.iter().map(seconds).sum::<f64>() / count as f64;
        let stages =
            [mean(|fit| fit.evaluation), mean(|fit| fit.variation), mean(|fit| fit.species)];
        println!(
            "seed {seed}: {:.1} us a generation: evaluation {:.1}, variation {:.1}, species {:.1}",
            mean(total),
            stages[0],
            stages[1],
            stages[2]
        );
        if let Some(stats) = stats {
            println!(
                "    {} species, {:.1} connections, {:.1} hidden nodes at the end",
                stats.species.len(),
                stats.connections,
                stats.hidden_nodes
            );
        }
        runs.push(mean(total));
    }
    runs.sort_unstable_by(f64::total_cmp);
    let (best, median) = (runs[0], runs[runs.len() / 2]);
    println!("a generation: best {best:.1} us, median {median:.1} us");
    println!("generations a second: best {:.0}, median {:.0}", 1e6 / best, 1e6 / median);
    let mut solved = vec![];
    for seed in 0..SEEDS {
        let mut neat = Neat::new(&xor::options(seed))?;
        let fit = neat.fit(patterns, 500, xor::SOLVED, &never)?;
        solved.push(if fit.reached { fit.generations } else { u64::MAX });
    }
    solved.sort_unstable();
    let last = solved.len() - 1;
    println!(
        "XOR with a fitness of {}: median {}, p95 {}, last {} generations over {SEEDS} seeds",
        xor::SOLVED,
        solved[last / 2],
        solved[last * 95 / 100],
        solved[last]
    );
    Ok(())
}

fn total(fit: &Fit) -> f64 {
    fit.evaluation + fit.variation + fit.species
}
