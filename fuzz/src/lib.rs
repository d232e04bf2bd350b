//! Fuzzers with structure: odd replays, checkpoints, corpora, run folders, snapshots, frames, options and tables.
//!
//! An input is made from a target's name, a seed and an index, so each can be made again. It must be accepted and
//! then usable, or refused with a typed error. Anything else is a failure: a panic, an end of the process, no answer
//! for [`runner::PATIENCE`], or more memory than [`targets::Target::memory`] beside [`targets::OF_INPUT`] times its
//! own size. Inputs that failed once stay in `corpus/` as tests.
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
