//! What this library was built with and what it found on this machine.

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
    /// Whether it computes on NVIDIA's cards.
    cuda: bool,
    /// Whether it has flash attention for them.
    flash_attn: bool,
    /// Threads that the operating system gives this process.
    threads: usize,
    cpu: CpuFeatures,
}

/// What is used of the CPU.
#[derive(Serialize)]
struct CpuFeatures {
    avx2: bool,
    fma: bool,
    avx512f: bool,
    avx512_bf16: bool,
    avx512_vnni: bool,
    /// There is a matrix unit, and this process may use it.
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

/// `{:ok, nil}`, or `{:ok, %{bytes: bytes, bound: text}}`: the memory that this process can still take.
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
        }))
    })
}

/// Writes a file that is whole or not there.
#[rustler::nif(schedule = "DirtyIo")]
fn file_write<'a>(env: Env<'a>, path: String, bytes: Binary<'a>) -> Term<'a> {
    perform(env, "write", || fs::write_file(Path::new(&path), bytes.as_slice()))
}

/// How threads that train and import give way, from those on that start next.
#[rustler::nif]
fn background_set<'a>(env: Env<'a>, priority: Term<'a>) -> Term<'a> {
    perform(env, "background", || {
        pool::set_background(decode::<Priority>(priority)?);
        Ok(())
    })
}

/// `{:ok, given}` by message: whether this system lets them.
#[rustler::nif]
fn background_given<'a>(env: Env<'a>, reference: Reference<'a>) -> Term<'a> {
    perform(env, "background", || {
        border::pool::submit(env, "background", reference, || Ok(pool::gives_way()))
    })
}
