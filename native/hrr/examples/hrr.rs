//! Rates of holographic vectors of 8192 numbers on one thread and on two, beside their limits.
//!
//! `cargo run --release -p sconce-hrr --example hrr`

use std::hint::black_box;
use std::time::Instant;

use mimalloc::MiMalloc;
use sconce_hrr::{Codes, Items, Kind, Vectors};
use sconce_tensor::{Result, dispatch, pool};

/// The allocator of the library.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const D: usize = 8192;
/// Short runs: on a shared machine some of them are not interrupted.
const RUNS: usize = 101;

fn main() -> Result<()> {
    println!("best and median of {RUNS} runs, millions a second unless a row says otherwise");
    for threads in [1, 2] {
        pool::set_threads(threads)?;
        println!("\n{threads} thread{}", if threads == 1 { "" } else { "s" });
        read(8 << 20)?;
        read(128 << 20)?;
        bind(64)?;
        for count in [4, 8, 64, 1000] {
            spectral_bind(count)?;
        }
        for items in [64, 256, 1000] {
            similarity(1, items)?;
        }
        similarity(64, 1000)?;
        for (width, rows) in [(4096, 1), (4096, 64)] {
            project(width, rows)?;
        }
        let started = Instant::now();
        black_box(Vectors::atoms(1000, D, 1, Kind::Unitary)?);
        println!("atoms: {:.1} us a unitary atom", started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(())
}

/// Runs `work` for half a millisecond at a time and prints how many units it does.
fn report(name: &str, units: usize, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    work()?;
    let turns = (5e-4 / started.elapsed().as_secs_f64()).clamp(1.0, 1e4) as usize;
    let mut rates = Vec::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        for _ in 0..turns {
            work()?;
        }
        rates.push((turns * units) as f64 / started.elapsed().as_secs_f64() / 1e6);
    }
    rates.sort_unstable_by(f64::total_cmp);
    println!("{name}: {:.3}, median {:.3}", rates[RUNS - 1], rates[RUNS / 2]);
    Ok(())
}

dispatch! {
    fn add(numbers: &[f32], lanes: &mut [f32; 64]) {
        let mut own = *lanes;
        for part in numbers.as_chunks::<64>().0 {
            for i in 0..64 {
                own[i] += part[i];
            }
        }
        *lanes = own;
    }
}

/// The limit of work on many vectors: the rate at which vectors of f32 are read.
fn read(bytes: usize) -> Result<()> {
    let numbers = vec![1.0f32; bytes / 4];
    let shards: Vec<&[f32]> = numbers.chunks(64 * 1024).collect();
    let name = format!("limit: vectors of f32 read from {} MB", bytes >> 20);
    report(&name, numbers.len() / D, || {
        pool::for_each(shards.len(), |shard| {
            let mut lanes = [0.0f32; 64];
            add(shards[shard], &mut lanes);
            black_box(lanes);
        });
        Ok(())
    })
}

fn time(count: usize, seed: u64) -> Result<Vectors> {
    Vectors::new(D, Vectors::atoms(count, D, seed, Kind::Gaussian)?.to_numbers()?)
}

fn bind(count: usize) -> Result<()> {
    let (a, b) = (time(count, 1)?, time(count, 2)?);
    let name = format!("bind {count} in time, result in time");
    report(&name, count, || {
        black_box(a.bind(&b)?.to_numbers()?);
        Ok(())
    })?;
    let name = format!("bind {count} in time, result in the spectrum");
    report(&name, count, || {
        black_box(a.bind(&b)?);
        Ok(())
    })
}

fn spectral_bind(count: usize) -> Result<()> {
    let (a, b) =
        (Vectors::atoms(count, D, 1, Kind::Unitary)?, Vectors::atoms(count, D, 2, Kind::Unitary)?);
    let name = format!("bind {count} in the spectrum ({} KB)", 3 * (a.bytes() >> 10));
    report(&name, count, || {
        black_box(a.bind(&b)?);
        Ok(())
    })?;
    let key = b.take(&[0])?;
    report(&format!("bind {count} to one key"), count, || {
        black_box(a.bind(&key)?);
        Ok(())
    })
}

fn similarity(queries: usize, count: usize) -> Result<()> {
    let (queries, items) = (time(queries, 1)?, time(count, 2)?);
    let codes = Codes::of(&items)?;
    for (name, items, bytes) in [
        ("f32", Items::Numbers(&items), items.bytes()),
        ("int8", Items::Codes(&codes), codes.bytes()),
    ] {
        let name = format!(
            "similarity of {} with {count} of {name} ({} KB)",
            queries.count(),
            bytes >> 10
        );
        report(&name, queries.count() * count, || {
            black_box(queries.similarity(items)?);
            Ok(())
        })?;
    }
    Ok(())
}

fn project(width: usize, rows: usize) -> Result<()> {
    let numbers = vec![0.5f32; width * rows];
    report(&format!("project {rows} of {width}"), rows, || {
        black_box(Vectors::project(&numbers, width, (D, 1), true)?);
        Ok(())
    })
}
