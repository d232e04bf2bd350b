//! Passes the exact versions of the build to `system.rs`.
#![allow(clippy::disallowed_methods)]

use std::process::Command;
use std::{env, fs};

/// Environment variables of the compilation, each with its package in `Cargo.lock`.
const LOCKED: [(&str, &str); 2] =
    [("SCONCE_TENSORS_VERSION", "candle-core"), ("SCONCE_RUSTLER_VERSION", "rustler")];

fn main() {
    let root = format!("{}/../..", env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let lock = fs::read_to_string(format!("{root}/Cargo.lock")).unwrap_or_default();
    for (variable, package) in LOCKED {
        println!("cargo:rustc-env={variable}={}", version_in(&lock, package).unwrap_or("unknown"));
    }
    println!("cargo:rustc-env=SCONCE_RUSTC_VERSION={}", rustc().unwrap_or("unknown".into()));
    println!("cargo:rustc-env=SCONCE_TARGET={}", env::var("TARGET").unwrap_or_default());
    println!("cargo:rustc-env=SCONCE_PROFILE_BUILT={}", env::var("PROFILE").unwrap_or_default());
    println!("cargo:rerun-if-changed={root}/Cargo.lock");
    println!("cargo:rerun-if-changed=build.rs");
}

fn version_in<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let (_, after) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    after.split('"').next()
}

/// The compiler's version: `1.95.0` from `rustc 1.95.0 (f2d3ce0bd 2026-03-21)`.
fn rustc() -> Option<String> {
    let output = Command::new(env::var("RUSTC").ok()?).arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()?.split(' ').nth(1).map(str::to_owned)
}
