//! The build of this library, and the machine that it runs on.

use std::path::Path;

use rustler::{Binary, Env, Reference, Term};
use sconce_tensor::fs;
use sconce_tensor::pool::{self, Priority};
#[cfg(target_arch = "x86_64")]
use sconce_tensor::simd::{Level, level};
use serde::Serialize;

use crate::border::{self, Data, call, decode, perform};

#[derive(Serialize)]
struct NativeInfo {
    version: &'static str,
    candle: &'static str,
    rustler: &'static str,
    rustc: &'static str,
    target: &'static str,
    profile: &'static str,
    /// Whether the build supports NVIDIA's cards.
    cuda: bool,
    /// Whether the build has flash attention for NVIDIA's cards.
    flash_attn: bool,
    /// Number of threads that the operating system grants this process.
    threads: usize,
    cpu: CpuFeatures,
    /// The CPU and the layout of packed weights that can be mapped.
    packed: String,
}

/// The CPU's instruction sets that Sconce uses.
#[derive(Serialize)]
struct CpuFeatures {
    avx2: bool,
    fma: bool,
    avx512f: bool,
    avx512_bf16: bool,
    avx512_vnni: bool,
    /// Whether the CPU has a matrix unit and this process may use it.
    amx_bf16: bool,
    neon: bool,
}

impl CpuFeatures {
    #[cfg(target_arch = "x86_64")]
    fn detect() -> Self {
        let wide = level() == Level::Avx512;
        Self {
            avx2: level() >= Level::Avx2,
            fma: level() >= Level::Avx2,
            avx512f: wide,
            avx512_bf16: wide && is_x86_feature_detected!("avx512bf16"),
            avx512_vnni: wide && is_x86_feature_detected!("avx512vnni"),
            amx_bf16: sconce_ops::matmul::has_unit(),
            neon: false,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detect() -> Self {
        #[cfg(target_arch = "aarch64")]
        let neon = std::arch::is_aarch64_feature_detected!("neon");
        #[cfg(not(target_arch = "aarch64"))]
        let neon = false;
        Self {
            avx2: false,
            fma: false,
            avx512f: false,
            avx512_bf16: false,
            avx512_vnni: false,
            amx_bf16: false,
            neon,
        }
    }
}

/// The memory that this process can still allocate: `{:ok, %{bytes: bytes, bound: text}}`, or `{:ok, nil}` if unknown.
#[rustler::nif(schedule = "DirtyIo")]
fn memory_available(env: Env) -> Term {
    call(env, "memory_available", || Ok(Data(sconce_tensor::memory::available())))
}

#[rustler::nif]
fn native_info(env: Env) -> Term {
    call(env, "native_info", || {
        Ok(Data(NativeInfo {
            version: env!("CARGO_PKG_VERSION"),
            candle: env!("SCONCE_TENSORS_VERSION"),
            rustler: env!("SCONCE_RUSTLER_VERSION"),
            rustc: env!("SCONCE_RUSTC_VERSION"),
            target: env!("SCONCE_TARGET"),
            profile: env!("SCONCE_PROFILE_BUILT"),
            cuda: sconce_tensor::device::CUDA,
            flash_attn: cfg!(feature = "flash-attn"),
            threads: pool::available(),
            cpu: CpuFeatures::detect(),
            packed: sconce_nn::checkpoint::packed::here(),
        }))
    })
}

/// Writes a file atomically: on failure no part of it is written.
#[rustler::nif(schedule = "DirtyIo")]
fn file_write<'a>(env: Env<'a>, path: String, bytes: Binary<'a>) -> Term<'a> {
    perform(env, "write", || fs::write_file(Path::new(&path), bytes.as_slice()))
}

/// Sets the priority of threads that train and import, for threads that start later.
#[rustler::nif]
fn background_set<'a>(env: Env<'a>, priority: Term<'a>) -> Term<'a> {
    perform(env, "background", || {
        pool::set_background(decode::<Priority>(priority)?);
        Ok(())
    })
}

/// Sends `{:ok, given}` by message: whether this system allows the lower priority.
#[rustler::nif]
fn background_given<'a>(env: Env<'a>, reference: Reference<'a>) -> Term<'a> {
    perform(env, "background", || {
        border::pool::submit(env, "background", reference, || Ok(pool::gives_way()))
    })
}
