//! The search for the driver's library.
//!
//! 1. An opened library stays open and is reused.
//! 2. A missing library is searched for again by each call, which takes about 20 us: a driver that is installed or
//!    mounted later is found.
//! 3. A library that refuses to initialise is tried again after [`RETRY`]: failing may take long, because the library
//!    tries to load kernel modules.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::{Cause, Driver, Error, Result};

/// The time for which a refusal is cached.
pub const RETRY: Duration = Duration::from_secs(1);

const LIBRARY: &str = "libnvidia-ml.so.1";

/// Driver folders that the dynamic loader may not search: in containers with a mounted host driver, WSL, NixOS and
/// driver containers.
const FOLDERS: [&str; 6] = [
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib64/nvidia",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
];

/// The open libraries of this process by requested path. The path `None` means a search of the system.
pub struct Drivers {
    retry: Duration,
    opened: Vec<(Option<PathBuf>, Driver)>,
    refused: Vec<Refusal>,
}

struct Refusal {
    path: Option<PathBuf>,
    at: Instant,
    error: Error,
}

impl Drivers {
    /// Starts without open libraries. `retry` is the time for which a refusal is cached.
    pub const fn new(retry: Duration) -> Self {
        Drivers { retry, opened: vec![], refused: vec![] }
    }

    /// The driver's library, opened on first use. `path` is a file or its folder; if given, no other place is searched.
    pub fn driver(&mut self, path: Option<&Path>) -> Result<&Driver> {
        let known = self.opened.iter().position(|(of, _)| of.as_deref() == path);
        let at = match known {
            Some(at) => at,
            None => {
                let driver = self.open(path)?;
                self.opened.push((path.map(Path::to_path_buf), driver));
                self.opened.len() - 1
            }
        };
        Ok(&self.opened[at].1)
    }

    fn open(&mut self, path: Option<&Path>) -> Result<Driver> {
        let retry = self.retry;
        self.refused.retain(|refusal| refusal.at.elapsed() < retry);
        if let Some(refusal) = self.refused.iter().find(|refusal| refusal.path.as_deref() == path) {
            return Err(refusal.error.clone());
        }
        open_first(&candidates(path)).inspect_err(|error| {
            if error.cause != Cause::NoLibrary {
                let path = path.map(Path::to_path_buf);
                self.refused.push(Refusal { path, at: Instant::now(), error: error.clone() });
            }
        })
    }
}

/// The files to try, starting with the dynamic loader's own search.
fn candidates(path: Option<&Path>) -> Vec<PathBuf> {
    match path {
        Some(folder) if folder.is_dir() => vec![folder.join(LIBRARY)],
        Some(file) => vec![file.to_path_buf()],
        None => {
            let beside = FOLDERS.iter().map(|folder| Path::new(folder).join(LIBRARY));
            let there = beside.filter(|file| file.exists());
            std::iter::once(PathBuf::from(LIBRARY)).chain(there).collect()
        }
    }
}

/// Opens the first library that initialises. A container image may hold a library of another version than the driver of
/// its host, so a refusal does not end the search. The error of a refusal takes precedence over a missing file.
fn open_first(files: &[PathBuf]) -> Result<Driver> {
    let mut failure: Option<Error> = None;
    for file in files {
        match open_file(file) {
            Ok(driver) => return Ok(driver),
            Err(error) => {
                if failure.as_ref().is_none_or(|first| first.cause == Cause::NoLibrary) {
                    failure = Some(error);
                }
            }
        }
    }
    Err(failure.unwrap_or_else(|| Error::new("NVML", Cause::NoLibrary, "no file to open")))
}

fn open_file(file: &Path) -> Result<Driver> {
    match Nvml::builder().lib_path(file.as_os_str()).init() {
        Ok(nvml) => Ok(Driver::new(nvml, file)),
        // Loading succeeds; the first function call finds the symbol missing.
        Err(NvmlError::FailedToLoadSymbol(reason)) => {
            Err(Error::new("NVML", Cause::NotNvml, reason))
        }
        Err(NvmlError::LibloadingError(error)) => Err(Error::new("NVML", Cause::NoLibrary, error)),
        Err(error) => Err(Error::nvml(format!("NVML ({})", file.display()))(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// Compiles a library whose initialisation returns `code`.
    fn library(folder: &Path, code: i32) -> PathBuf {
        let (source, file) = (folder.join("nvml.c"), folder.join(format!("{code}.so")));
        let text = format!(
            "int nvmlInit_v2(void) {{ return {code}; }}\n\
             int nvmlShutdown(void) {{ return 0; }}\n\
             int nvmlDeviceGetCount_v2(unsigned *n) {{ *n = 3; return 0; }}\n"
        );
        fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&source);
        assert!(compiler.status().unwrap().success());
        file
    }

    #[test]
    fn the_first_library_that_initialises_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.so");
        let files = [missing, library(folder.path(), 18), library(folder.path(), 0)];
        assert_eq!(open_first(&files).unwrap().count().unwrap(), 3);
    }

    #[test]
    fn the_first_refusal_takes_precedence_over_a_missing_file() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.so");
        let files = [missing.clone(), library(folder.path(), 18), library(folder.path(), 9)];
        assert_eq!(open_first(&files).err().unwrap().cause, Cause::VersionMismatch);
        assert_eq!(open_first(&[missing]).err().unwrap().cause, Cause::NoLibrary);
    }

    #[test]
    fn the_loader_s_search_comes_first_and_a_given_path_is_the_only_candidate() {
        assert_eq!(candidates(None)[0], Path::new(LIBRARY));
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(candidates(Some(folder.path())), [folder.path().join(LIBRARY)]);
        let file = Path::new("/opt/libnvidia-ml.so.580");
        assert_eq!(candidates(Some(file)), [file]);
    }
}
