//! Compiles the kernels with `tools/cuda-kernels` in builds with CUDA.

use std::path::Path;
use std::process::Command;
use std::{env, error};

fn main() -> Result<(), Box<dyn error::Error>> {
    // The table in kernels.rs names the kernels, so a new entry triggers a build.
    println!("cargo::rerun-if-changed=src/kernels.rs");
    println!("cargo::rerun-if-env-changed=NVCC");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let program = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../tools/cuda-kernels");
    let mut command = Command::new(&program);
    command.arg(env::var("OUT_DIR")?);
    if env::var_os("CARGO_FEATURE_FLASH_ATTN").is_some() {
        command.arg("--flash-attention");
    }
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    for source in String::from_utf8(output.stdout)?.lines() {
        println!("cargo::rerun-if-changed={source}");
    }
    Ok(())
}
