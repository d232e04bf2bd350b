//! Words in memory, and a file that has them as of the last write.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fs::create_partial;
use crate::{Error, Result};

/// Words of a page, the unit in which changes are written.
const PAGE: usize = 512;

/// A file with the words of a region. The words themselves lie in memory: a write to a mapped file may wait for the disk,
/// and a decision or a training step must not.
#[derive(Debug)]
pub(super) struct Copy {
    file: File,
    path: PathBuf,
    /// The words that the file has.
    written: Vec<u64>,
}

impl Copy {
    /// Makes the file `path`, which only this user can read, and which is whole when it appears.
    pub(super) fn new(path: &Path, words: Vec<u64>) -> Result<Self> {
        let (file, partial) = create_partial(path).map_err(Error::io(path))?;
        let renamed = fill(&file, &words).and_then(|()| fs::rename(&partial, path));
        if let Err(error) = renamed {
            // Report the first failure.
            let _ = fs::remove_file(&partial);
            return Err(Error::io(path)(error));
        }
        Ok(Copy { file, path: path.to_path_buf(), written: words })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the pages that have changed, or all if another program has changed the file's length.
    pub(super) fn write(&mut self, words: &[AtomicU64]) -> Result<()> {
        let length = self.file.metadata().map_err(Error::io(&self.path))?.len();
        let whole = length == (words.len() * size_of::<u64>()) as u64;
        for (i, (page, written)) in
            words.chunks(PAGE).zip(self.written.chunks_mut(PAGE)).enumerate()
        {
            let now: Vec<u64> = page.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            if whole && now == *written {
                continue;
            }
            write_at(&self.file, &bytes(&now), (i * PAGE * size_of::<u64>()) as u64)
                .map_err(Error::io(&self.path))?;
            written.copy_from_slice(&now);
        }
        Ok(())
    }
}

fn fill(mut file: &File, words: &[u64]) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    file.write_all(&bytes(words))
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(not(unix))]
fn write_at(mut file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    use std::io::Seek;
    file.seek(io::SeekFrom::Start(at))?;
    file.write_all(bytes)
}

/// Words as little-endian bytes.
pub(super) fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
