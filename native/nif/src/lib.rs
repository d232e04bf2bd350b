//! The border between the BEAM and Rust: terms in, terms out, resources. It owns no algorithm.
//!
//! Each Elixir noun has one file of the same name; `border` holds the shared parts.

#![warn(unreachable_pub)]

mod allocator;
#[cfg(feature = "fixtures")]
mod bench;
mod border;
mod coded;
mod compat;
mod compress;
mod corpus;
mod device;
mod embedding;
mod env;
mod evolve;
mod gpu;
mod hrr;
mod league;
mod loader;
mod many;
mod monitor;
mod net;
mod onnx;
mod outbox;
mod policy;
mod ppo;
#[cfg(feature = "fixtures")]
mod probe;
mod rollout;
mod serving;
mod session;
mod shrink;
mod store;
mod system;
mod trainer;
mod votes;

use rustler::{Env, Term};
use sconce_tensor::memory;

/// The name of this file. `build/library.exs` reads it to refuse a library of another version or another target.
#[used]
static NAME: &str =
    concat!("\0sconce-nif ", env!("CARGO_PKG_VERSION"), " ", env!("SCONCE_TARGET"), "\0");

/// Runs once, when the VM loads the library. False makes the load fail.
fn load(_env: Env, _load_info: Term) -> bool {
    sconce_tensor::pool::keep_libraries_single_threaded();
    memory::set_release(allocator::release);
    true
}

rustler::init!("Elixir.Sconce.Native", load = load);
