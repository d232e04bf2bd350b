//! The border between the BEAM and Rust: terms in, terms out, resources. It owns no algorithm.
//!
//! One file for each Elixir noun, named like it; `border` holds what they share.

mod border;
mod embedding;
mod probe;
mod system;

use rustler::{Env, Term};

/// Runs once, when the VM loads the library. False makes the load fail.
fn load(_env: Env, _load_info: Term) -> bool {
    system::fix_library_threads();
    true
}

rustler::init!("Elixir.Sconce.Native", load = load);
