//! The table of targets. A target has seeds, a mutator, and a function that runs an input.

mod checkpoint;
mod corpus;
mod evolve;
mod frames;
mod net;
mod options;
mod policy;
mod replay;
mod run;
mod search;
mod snapshot;
mod specs;
mod store;
mod tables;

use std::path::Path;

use sconce_tensor::{Error, Result};

use crate::rng::Rng;

/// A target: a reader of untrusted data.
pub struct Target {
    /// Name of the target on the command line and in `corpus/`.
    pub name: &'static str,
    /// Makes the seeds: valid inputs, which run first.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Changes an input, mostly within its structure.
    pub mutate: fn(&mut Rng, &mut Vec<u8>),
    /// Reads an input in an empty folder. If the input is accepted, uses the result.
    pub run: fn(&[u8], &Path) -> Result<()>,
    /// Bytes of the stack on which the target runs.
    pub stack: usize,
    /// Bytes that the target may allocate beyond [`OF_INPUT`] times the size of the input.
    pub memory: usize,
}

/// Stack bytes of the VM's dirty schedulers.
const DIRTY: usize = 320 << 10;
/// Stack bytes of rayon's threads.
const THREAD: usize = 2 << 20;
/// The usual limit of [`Target::memory`], in bytes.
const MEMORY: usize = 200 << 20;
/// Bytes that a target may allocate per byte of input.
pub const OF_INPUT: usize = 16;

/// All targets.
pub const ALL: [Target; 16] = [
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
        run: corpus::run_exphil,
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
        name: "store",
        seeds: store::seeds,
        mutate: store::mutate,
        run: store::run,
        stack: THREAD,
        memory: MEMORY,
    },
    Target {
        name: "net",
        seeds: net::seeds,
        mutate: net::mutate,
        run: net::run,
        stack: DIRTY,
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
    Target {
        name: "policy",
        seeds: policy::seeds,
        mutate: policy::mutate,
        run: policy::run,
        stack: DIRTY,
        memory: MEMORY,
    },
    Target {
        name: "evolve",
        seeds: evolve::seeds,
        mutate: evolve::mutate,
        run: evolve::run,
        stack: THREAD,
        // A file of few elites may have all cells that an archive can have.
        memory: 2 << 30,
    },
    Target {
        name: "search",
        seeds: search::seeds,
        mutate: search::mutate,
        run: search::run,
        stack: THREAD,
        memory: MEMORY,
    },
];

impl Target {
    /// The target of this name.
    pub fn find(name: &str) -> Option<&'static Target> {
        ALL.iter().find(|target| target.name == name)
    }

    /// Input `index` for a random seed. The first inputs are `seeds`; all others are mutants of `seeds`.
    pub fn input(&self, seeds: &[Vec<u8>], seed: u64, index: u64) -> Vec<u8> {
        if let Some(input) = seeds.get(index as usize) {
            return input.clone();
        }
        let mut rng = Rng::new(self.name, seed, index);
        self.mutant(&mut rng, seeds)
    }

    /// Mutates a random input of `from`.
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

/// Writes the input to a file.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<std::path::PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, bytes).map_err(Error::io(&path))?;
    Ok(path)
}
