//! Kills a process that writes a store, at random moments, and checks what is there: `kills FOLDER KILLS [SEED]`.
//!
//! The process puts eight tensors in each step, replaces and deletes others, commits, and says so; every 15th step it
//! rewrites packs. After each kill all tensors must be those of the last step that was acknowledged, or all those of the
//! next one; every block must pass its check. The next process goes on from there. Two threads of the process read
//! meanwhile. The program ends with status 1 if anything is missing or damaged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use sconce_store::{Dtype, Store, StoreOptions};
use sconce_tensor::rng::Rng;

/// Milliseconds after the first acknowledgement within which a process is killed.
const WITHIN_MS: u64 = 250;
const NAMES: u64 = 60;

fn options() -> StoreOptions {
    StoreOptions { ram: 1 << 20, compressed: 1 << 18, block: 1 << 14, ..StoreOptions::default() }
}

/// The tensors that a step puts.
fn puts(step: u64) -> impl Iterator<Item = (String, Vec<u8>)> {
    let rng = Rng::new(step, "puts", 0);
    (0..8).map(move |n| {
        let name = format!("t{}", rng.below(3 * n, NAMES));
        let long = rng.below(3 * n + 1, 60_000);
        let content = (0..long).map(|at| (at / 7 * (step + n)) as u8).collect();
        (name, content)
    })
}

fn deleted(step: u64) -> String {
    format!("t{}", Rng::new(step, "deleted", 0).below(0, NAMES))
}

/// The tensors after further steps.
fn advance(all: &mut BTreeMap<String, Vec<u8>>, steps: std::ops::Range<u64>) {
    for step in steps {
        all.extend(puts(step));
        all.remove(&deleted(step));
    }
}

fn found(store: &Store) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| {
        let rows = store.read(&name, None, 0).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, rows.to_vec())
    };
    store.names().into_iter().map(read).collect()
}

fn child(folder: &Path, first: u64) {
    let store = Store::open(folder, options()).unwrap();
    let bytes = Dtype::named("u8").unwrap();
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let store = &store;
            scope.spawn(move || {
                let rng = Rng::new(reader, "reader", first);
                for at in 0.. {
                    let _ = store.read(&format!("t{}", rng.below(at, NAMES)), None, reader);
                }
            });
        }
        for step in first.. {
            for (name, content) in puts(step) {
                store.put(&name, bytes, &[content.len() as u64], &content).unwrap();
            }
            let _ = store.delete(&deleted(step));
            store.commit().unwrap();
            println!("{}", step + 1);
            std::io::stdout().flush().unwrap();
            if step % 15 == 14 {
                store.compact(0.8, &|| false).unwrap();
            }
        }
    });
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let folder = Path::new(&arguments[1]);
    if arguments[2] == "child" {
        child(folder, arguments[3].parse().unwrap());
    }
    let kills: u64 = arguments[2].parse().unwrap();
    let seed = arguments.get(3).map_or(1, |seed| seed.parse().unwrap());
    let rng = Rng::new(seed, "kills", 0);
    let (began, mut step, mut further, mut acknowledged) = (Instant::now(), 0, 0, 0);
    let mut expected = BTreeMap::new();
    for kill in 0..kills {
        let from = step.to_string();
        let mut process = Command::new(&arguments[0])
            .args([&arguments[1], "child", &from])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        // Some processes die before their first commit.
        let reader = std::thread::spawn(move || {
            let mut last = None;
            while let Some(Ok(line)) = lines.next() {
                last = line.parse().ok();
            }
            last
        });
        std::thread::sleep(Duration::from_millis(rng.below(kill, WITHIN_MS)));
        process.kill().unwrap();
        process.wait().unwrap();
        let said: u64 = reader.join().unwrap().unwrap_or(step);
        acknowledged += said - step;
        let store = Store::open(folder, options()).unwrap();
        let damaged = store.verify();
        let found = found(&store);
        advance(&mut expected, step..said);
        let is_said = found == expected;
        if !is_said {
            advance(&mut expected, said..said + 1);
        }
        let is_next = !is_said && found == expected;
        if !damaged.is_empty() || !(is_next || is_said) {
            println!("kill {kill} after step {said}: damaged {damaged:?}, or not its tensors");
            return ExitCode::FAILURE;
        }
        further += u64::from(is_next);
        step = said + u64::from(is_next);
        store.close().unwrap();
    }
    println!(
        "{kills} kills in {:.0} s: {acknowledged} commits acknowledged and all there, {further} more were there \
         without an answer, no block damaged",
        began.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}
