//! The border between the BEAM and Rust: terms in, terms out, resources. It owns no algorithm.
//!
//! Each Elixir noun has one file of the same name; `border` holds the shared parts.

#![warn(unreachable_pub)]

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
mod gpu;
mod league;
mod loader;
mod many;
mod monitor;
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
mod system;
mod trainer;

use std::ffi::{CStr, c_char};

use mimalloc::MiMalloc;
use rustler::{Env, Term};
use sconce_tensor::memory::{self, Counted};

/// The name of this file. `build/library.exs` reads it to refuse a library of another version or another target.
#[used]
static NAME: &str =
    concat!("\0sconce-nif ", env!("CARGO_PKG_VERSION"), " ", env!("SCONCE_TARGET"), "\0");

/// The allocator of all native memory. A training step frees the memory that the next one allocates. This allocator
/// returns freed pages to the system after a second at the earliest; with the C library's allocator the kernel would
/// zero them again at each step. Allocations of a training are counted, see `Sconce.Trainer.plan/2`.
#[global_allocator]
static ALLOCATOR: Counted<MiMalloc> = Counted(MiMalloc);

unsafe extern "C" {
    safe fn mi_collect(force: bool);
    fn mi_stats_get_json(size: usize, buffer: *mut c_char) -> *mut c_char;
}

/// Returns free memory to the system at once. The result is the bytes of address space that the allocator has reserved
/// and can hand out again.
fn release() -> u64 {
    mi_collect(true);
    let mut text = vec![0 as c_char; 64 << 10];
    // SAFETY: the text is truncated to the buffer's length, ends with a zero, and lies in the buffer.
    let text = unsafe {
        let text = mi_stats_get_json(text.len(), text.as_mut_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text))
    };
    let statistics = text.and_then(|text| serde_json::from_slice(text.to_bytes()).ok());
    let statistics: serde_json::Value = statistics.unwrap_or_default();
    let bytes = |name: &str| statistics[name]["current"].as_u64();
    let (reserved, committed) = (bytes("reserved"), bytes("committed"));
    reserved.zip(committed).map_or(0, |(reserved, committed)| reserved.saturating_sub(committed))
}

/// Runs once, when the VM loads the library. False makes the load fail.
fn load(_env: Env, _load_info: Term) -> bool {
    sconce_tensor::pool::keep_libraries_single_threaded();
    memory::set_release(release);
    true
}

rustler::init!("Elixir.Sconce.Native", load = load);
