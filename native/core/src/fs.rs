//! Files that are whole or not there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// Ending of files under way. One that is left over belongs to a writer that died.
pub const PARTIAL: &str = "partial";

/// Writes a file beside `path`, syncs it and renames it into place, so that at any moment `path` is
/// the old file or the whole new one, also after a crash. A failure leaves nothing behind.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let partial = partial_path(path);
    let written = File::create_new(&partial).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&partial, path));
    if let Err(source) = renamed {
        // The first failure is the one to report.
        let _ = fs::remove_file(&partial);
        return Err(Error::io(path)(source));
    }
    sync_folder(path)
}

/// Takes the lock of a folder, which lasts until the returned file is dropped; a process that dies
/// gives it back. Somebody else's lock is [`Error::Busy`].
pub fn lock(folder: &Path, name: &str) -> Result<File> {
    let path = folder.join(name);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(Error::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            Err(Error::Busy { what: folder.display().to_string() })
        }
        Err(fs::TryLockError::Error(source)) => Err(Error::io(&path)(source)),
    }
}

/// A name that no other writer uses at this time: process and count.
fn partial_path(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{n}.{PARTIAL}", std::process::id()));
    path.with_file_name(name)
}

/// Makes the rename itself last. Only Unix can sync a folder.
fn sync_folder(path: &Path) -> Result<()> {
    if cfg!(unix) {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(folder).and_then(|f| f.sync_all()).map_err(Error::io(folder))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::Kind;

    #[test]
    fn a_write_that_fails_leaves_the_old_file_and_nothing_else() -> Result<()> {
        let folder = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let path = folder.path().join("a");
        write_atomic(&path, |f| f.write_all(b"old"))?;
        let failed = write_atomic(&path, |f| {
            f.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.map_err(|e| e.kind()), Err(Kind::Io));
        assert_eq!(fs::read(&path).map_err(Error::io(&path))?, b"old");
        assert_eq!(fs::read_dir(folder.path()).map_err(Error::io(&path))?.count(), 1);
        write_atomic(&path, |f| f.write_all(b"new"))?;
        assert_eq!(fs::read(&path).map_err(Error::io(&path))?, b"new");
        Ok(())
    }
}
