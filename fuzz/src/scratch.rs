//! Temporary folders of this process.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable that names a child's folder. The parent removes the folder.
pub const VARIABLE: &str = "SCONCE_FUZZ_SCRATCH";

fn root() -> &'static PathBuf {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        std::env::var_os(VARIABLE).map_or_else(|| base().join(name()), PathBuf::from)
    })
}

fn name() -> String {
    format!("sconce-fuzz-{}", std::process::id())
}

/// The parent of all folders, in memory if the system allows, because thousands of files are written and synced.
fn base() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if shared.is_dir() { shared } else { std::env::temp_dir() }
}

/// Creates an empty folder below the folder of the process.
pub fn folder(name: &str) -> PathBuf {
    let dir = root().join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder for files");
    dir
}

/// Removes a folder, and then the folder of the process if it is empty.
pub fn remove(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir);
    let _ = std::fs::remove_dir(root());
}
