//! The border between the BEAM and Rust: terms in, terms out, resources. It owns no algorithm.
//!
//! One file for each Elixir noun, named like it; `border` holds what they share.

mod bench;
mod border;
mod corpus;
mod embedding;
mod env;
mod memory;
mod policy;
mod probe;
mod session;
mod system;
mod trainer;

use rustler::{Env, Term};

/// Runs once, when the VM loads the library. False makes the load fail.
fn load(_env: Env, _load_info: Term) -> bool {
    memory::keep_for_the_next_step();
    sconce_core::pool::keep_libraries_single_threaded();
    true
}

rustler::init!("Elixir.Sconce.Native", load = load);
