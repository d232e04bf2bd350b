//! Words of memory that a file shares with other processes, or that no file has.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use memmap2::{MmapMut, MmapOptions};

use crate::mapped::Writable;
use crate::{Error, Result, fs::create_partial};

/// Mapped words that this process writes. A file that is cut, or whose pages cannot be written, leaves the words as zeros
/// of this process alone.
#[derive(Debug)]
pub(super) struct Words {
    // Dropped before the map.
    _guard: Writable,
    map: MmapMut,
    path: Option<PathBuf>,
}

impl Words {
    /// Maps `words`. They get the file `path`, which only this user can read and which exists from now on.
    pub(super) fn new(path: Option<&Path>, words: &[u64]) -> Result<Self> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let map = match path {
            Some(path) => mapped_file(path, &bytes).map_err(Error::io(path))?,
            None => {
                let map = MmapMut::map_anon(bytes.len().max(1));
                let mut map = map
                    .map_err(|_| Error::out_of_memory("memory for metrics", bytes.len() as u64))?;
                map[..bytes.len()].copy_from_slice(&bytes);
                map
            }
        };
        let _guard = Writable::new(map.as_ptr_range())?;
        Ok(Words { _guard, map, path: path.map(Path::to_path_buf) })
    }

    #[inline]
    pub(super) fn all(&self) -> &[AtomicU64] {
        // SAFETY: the map starts at a page and has whole words of any bits, which this process accesses only as atomics;
        // it lives as long as `self`.
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().cast(), self.map.len() / size_of::<u64>())
        }
    }

    /// The file.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

fn mapped_file(path: &Path, bytes: &[u8]) -> io::Result<MmapMut> {
    let (file, partial) = create_partial(path)?;
    let map = fill(&file, bytes);
    let renamed = map.and_then(|map| fs::rename(&partial, path).map(|()| map));
    renamed.inspect_err(|_| {
        // Report the first failure.
        let _ = fs::remove_file(&partial);
    })
}

fn fill(mut file: &File, bytes: &[u8]) -> io::Result<MmapMut> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    // All blocks exist before the map: a write to a page without one can fail only by a signal.
    file.write_all(bytes)?;
    // SAFETY: this process accesses the map only as atomic words. Other programs may write them, too, and every value is
    // valid; a file that they cut is the matter of `Writable`.
    unsafe { MmapOptions::new().len(bytes.len()).map_mut(file) }
}
