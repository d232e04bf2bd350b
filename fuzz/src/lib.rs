//! Structure-aware fuzzers for replays, checkpoints, corpora, run folders, snapshots, frames, options and
//! tables.
//!
//! A target's name, a seed and an index determine an input, so every input can be reproduced. An input must
//! be accepted and then work, or be refused with a typed error. Anything else is a failure: a panic, the end
//! of the process, no answer within [`runner::PATIENCE`], or more memory than [`targets::Target::memory`]
//! plus [`targets::OF_INPUT`] times the size of the input. Inputs that failed once stay in `corpus/` as
//! tests.
#![allow(clippy::disallowed_methods, reason = "the fuzzer opens files that it wrote itself")]

mod bundle;
mod bytes;
mod child;
#[cfg(feature = "coverage")]
pub mod coverage;
mod json;
mod memory;
mod replay;
mod rng;
pub mod runner;
mod safetensors;
mod scratch;
pub mod targets;

pub use child::run as child;

#[global_allocator]
static ALLOCATOR: memory::Counted = memory::Counted;
