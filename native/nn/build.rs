//! Passes a digest of the code that packs weights to `checkpoint/packed.rs`: a file with packed weights is for the code
//! that wrote it.
#![allow(clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Files and folders whose code decides where packed weights lie and in which form.
const SOURCES: [&str; 6] =
    ["../realtime/src", "../ops/src", "src/packed", "src/backbone", "src/heads", "src/layer.rs"];

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut hash = FNV_OFFSET;
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        add(&mut hash, &root, Path::new(source))?;
    }
    println!("cargo::rustc-env=SCONCE_PACKED={hash:016x}");
    Ok(())
}

/// Adds the names and the text of all files at `path`, in the order of their names.
fn add(hash: &mut u64, root: &Path, path: &Path) -> io::Result<()> {
    let whole = root.join(path);
    if !whole.is_dir() {
        let name = path.to_string_lossy().replace('\\', "/");
        // The ends of lines depend on how the source was checked out.
        let text = fs::read(whole)?.into_iter().filter(|byte| *byte != b'\r');
        name.bytes()
            .chain(text)
            .for_each(|byte| *hash = (*hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
        return Ok(());
    }
    let mut names =
        fs::read_dir(whole)?.map(|of| Ok(of?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    names.iter().try_for_each(|name| add(hash, root, &path.join(name)))
}

/// FNV-1a of 64 bits.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
