//! What is attacked: a table of targets, each with inputs to begin with, a mutator, and what reads an input.

mod checkpoint;
mod corpus;
mod frames;
mod options;
mod replay;
mod run;
mod snapshot;
mod specs;
mod tables;

use std::path::Path;

use sconce_tensor::{Error, Result};

use crate::rng::Rng;

/// Something that reads what others wrote.
pub struct Target {
    pub name: &'static str,
    /// Inputs that are accepted.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Changes an input, mostly along its structure.
    pub mutate: fn(&mut Rng, &mut Vec<u8>),
    /// Reads an input, in a folder of its own. What is accepted is used as well.
    pub run: fn(&[u8], &Path) -> Result<()>,
    /// Bytes of the stack that it is read on.
    pub stack: usize,
    /// Bytes that an input may take beside [`OF_INPUT`] times its own size.
    pub memory: usize,
}

/// What dirty schedulers of the VM have.
const DIRTY: usize = 320 << 10;
/// What rayon's threads have.
const THREAD: usize = 2 << 20;
/// What the issue allows.
const MEMORY: usize = 200 << 20;
/// How many times an input may lie in memory.
pub const OF_INPUT: usize = 16;

pub const ALL: [Target; 11] = [
    Target {
        name: "replay",
        seeds: replay::seeds,
        mutate: replay::mutate,
        run: replay::run,
        stack: THREAD,
        memory: MEMORY,
    },
    Target {
        name: "checkpoint",
        seeds: checkpoint::seeds,
        mutate: checkpoint::mutate,
        run: checkpoint::run,
        stack: DIRTY,
        memory: MEMORY,
    },
    Target {
        name: "run",
        seeds: run::seeds,
        mutate: run::mutate,
        run: run::run,
        stack: THREAD,
        memory: MEMORY,
    },
    Target {
        name: "report",
        seeds: run::report_seeds,
        mutate: crate::json::mutate_text,
        run: run::report,
        stack: DIRTY,
        memory: MEMORY,
    },
    Target {
        name: "gradients",
        seeds: run::gradients_seeds,
        mutate: run::mutate_lines,
        run: run::gradients,
        stack: DIRTY,
        memory: MEMORY,
    },
    Target {
        name: "corpus",
        seeds: corpus::seeds,
        mutate: corpus::mutate,
        run: corpus::run,
        stack: DIRTY,
        memory: MEMORY,
    },
    Target {
        name: "exphil",
        seeds: corpus::exphil_seeds,
        mutate: corpus::mutate_exphil,
        run: corpus::run,
        stack: DIRTY,
        memory: MEMORY,
    },
    Target {
        name: "snapshot",
        seeds: snapshot::seeds,
        mutate: snapshot::mutate,
        run: snapshot::run,
        stack: THREAD,
        memory: MEMORY,
    },
    Target {
        name: "frames",
        seeds: frames::seeds,
        mutate: frames::mutate,
        run: frames::run,
        stack: DIRTY,
        memory: MEMORY,
    },
    Target {
        name: "options",
        seeds: options::seeds,
        mutate: crate::json::mutate_text,
        run: options::run,
        stack: THREAD,
        memory: MEMORY,
    },
    Target {
        name: "tables",
        seeds: tables::seeds,
        mutate: tables::mutate,
        run: tables::run,
        stack: THREAD,
        memory: MEMORY,
    },
];

impl Target {
    pub fn find(name: &str) -> Option<&'static Target> {
        ALL.iter().find(|target| target.name == name)
    }

    /// Input `index` of a seed: the first are the inputs to begin with as they are, all others mutants of them.
    pub fn input(&self, seeds: &[Vec<u8>], seed: u64, index: u64) -> Vec<u8> {
        if let Some(input) = seeds.get(index as usize) {
            return input.clone();
        }
        let mut rng = Rng::new(self.name, seed, index);
        self.mutant(&mut rng, seeds)
    }

    pub fn mutant(&self, rng: &mut Rng, from: &[Vec<u8>]) -> Vec<u8> {
        let mut input = rng.pick(from).clone();
        match rng.below(8) {
            0 => crate::bytes::mutate(rng, &mut input),
            1 => {
                (self.mutate)(rng, &mut input);
                crate::bytes::mutate(rng, &mut input);
            }
            2 => {
                let other = rng.pick(from);
                let (at, begin) = (rng.below(input.len() + 1), rng.below(other.len() + 1));
                input.truncate(at);
                input.extend(&other[begin..]);
            }
            _ => (self.mutate)(rng, &mut input),
        }
        input
    }
}

/// A file of the input's bytes.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<std::path::PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, bytes).map_err(Error::io(&path))?;
    Ok(path)
}
