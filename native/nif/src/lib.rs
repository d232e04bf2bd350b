//! The border between the BEAM and Rust: terms in, terms out, resources. It owns no algorithm.
//!
//! One file for each Elixir noun, named like it; `border` holds what they share.

mod bench;
mod border;
mod corpus;
mod device;
mod embedding;
mod env;
mod gpu;
mod loader;
mod many;
mod outbox;
mod policy;
mod probe;
mod serving;
mod session;
mod system;
mod trainer;

use mimalloc::MiMalloc;
use rustler::{Env, Term};
use sconce_core::memory::Counted;

/// Of everything native. A training step frees what the next one takes: this allocator gives freed
/// pages back to the system a second later at the earliest, where the C library's has the kernel zero
/// them anew at every step. What a training takes of it is counted, see `Sconce.Trainer.plan/2`.
#[global_allocator]
static ALLOCATOR: Counted<MiMalloc> = Counted(MiMalloc);

/// Runs once, when the VM loads the library. False makes the load fail.
fn load(_env: Env, _load_info: Term) -> bool {
    sconce_core::pool::keep_libraries_single_threaded();
    true
}

rustler::init!("Elixir.Sconce.Native", load = load);
