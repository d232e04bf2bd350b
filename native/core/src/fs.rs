//! Files that are whole or not there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// Ending of files under way. One that is left over belongs to a writer that died.
pub const PARTIAL: &str = "partial";

/// Writes a file beside `path`, syncs it and renames it into place, so that at any moment `path` is
/// the old file or the whole new one, also after a crash. A failure leaves nothing behind; what a
/// killed process leaves is for [`clear_partials`].
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let (mut file, partial) = create_partial(path).map_err(Error::io(path))?;
    let written = write(&mut file).and_then(|()| file.sync_all());
    drop(file);
    let renamed = written.and_then(|()| fs::rename(&partial, path));
    if let Err(source) = renamed {
        // The first failure is the one to report.
        let _ = fs::remove_file(&partial);
        return Err(Error::io(path)(source));
    }
    sync_folder(path)
}

/// Writes bytes as [`write_atomic`] does, to the file that a link leads to.
///
/// # Errors
/// `Mismatch` where something else than a regular file has the name: a rename would take a device's place.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if target.exists() && !target.is_file() {
        let expected = "a regular file or a new name";
        return Err(Error::mismatch(path.display().to_string(), expected, "something else"));
    }
    write_atomic(&target, |file| file.write_all(bytes))
}

/// Gives a whole file a second name, in place of what may have it: a link, or where there are none a
/// copy. Nobody may change the file but by writing it anew, as [`write_atomic`] does.
pub fn link_atomic(from: &Path, to: &Path) -> Result<()> {
    let (file, partial) = create_partial(to).map_err(Error::io(to))?;
    drop(file);
    let linked = fs::remove_file(&partial).and_then(|()| fs::hard_link(from, &partial));
    let there = linked.or_else(|_| copy(from, &partial));
    let renamed = there.and_then(|()| fs::rename(&partial, to));
    // Two names of one file are not renamed into each other: then, too, it is left over.
    let _ = fs::remove_file(&partial);
    renamed.map_err(Error::io(to))?;
    sync_folder(to)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
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

/// Removes what killed writers left in a folder. The caller holds the folder's lock: with another
/// writer at work its file would go too.
pub fn clear_partials(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        if path.extension().is_some_and(|e| e == PARTIAL) {
            fs::remove_file(&path).map_err(Error::io(&path))?;
        }
    }
    Ok(())
}

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A file beside `path` that no other writer uses at this time: process and count. A name that is
/// taken is a dead process's, whose number came round again as it does in containers.
fn create_partial(path: &Path) -> io::Result<(File, PathBuf)> {
    loop {
        let partial = partial_path(path, COUNT.fetch_add(1, Ordering::Relaxed));
        match File::create_new(&partial) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|file| (file, partial)),
        }
    }
}

fn partial_path(path: &Path, n: u64) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
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

    #[test]
    fn bytes_go_to_a_regular_file_alone_also_through_a_link() -> Result<()> {
        let folder = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let (file, link) = (folder.path().join("a"), folder.path().join("link"));
        write_file(&file, b"old")?;
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&file, &link).map_err(Error::io(&link))?;
            write_file(&link, b"new")?;
            assert_eq!(fs::read(&file).map_err(Error::io(&file))?, b"new");
            assert!(link.is_symlink());
            let device = write_file(Path::new("/dev/null"), b"");
            assert_eq!(device.map_err(|e| e.kind()), Err(Kind::Mismatch));
        }
        assert_eq!(write_file(folder.path(), b"").map_err(|e| e.kind()), Err(Kind::Mismatch));
        let nowhere = write_file(&folder.path().join("none/a"), b"");
        assert_eq!(nowhere.map_err(|e| e.kind()), Err(Kind::NotFound));
        Ok(())
    }

    #[test]
    fn a_second_name_keeps_the_file_when_the_first_is_written_anew() -> Result<()> {
        let folder = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        write_atomic(&b, |f| f.write_all(b"in the way"))?;
        write_atomic(&a, |f| f.write_all(b"old"))?;
        link_atomic(&a, &b)?;
        link_atomic(&a, &b)?;
        write_atomic(&a, |f| f.write_all(b"new"))?;
        assert_eq!(fs::read(&b).map_err(Error::io(&b))?, b"old");
        assert_eq!(fs::read_dir(folder.path()).map_err(Error::io(&b))?.count(), 2);
        let missing = link_atomic(&folder.path().join("c"), &b);
        assert_eq!(missing.map_err(|e| e.kind()), Err(Kind::NotFound));
        assert_eq!(fs::read(&b).map_err(Error::io(&b))?, b"old");
        assert_eq!(fs::read_dir(folder.path()).map_err(Error::io(&b))?.count(), 2);
        Ok(())
    }

    #[test]
    fn leftovers_of_a_dead_process_stop_no_write_and_stay_until_they_are_cleared() -> Result<()> {
        let folder = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let path = folder.path().join("a");
        let next = COUNT.load(Ordering::Relaxed);
        let stale: Vec<_> = (next..next + 100).map(|n| partial_path(&path, n)).collect();
        for stale in &stale {
            fs::write(stale, b"half").map_err(Error::io(stale))?;
        }
        write_atomic(&path, |f| f.write_all(b"whole"))?;
        assert!(write_atomic(&path, |_| Err(io::ErrorKind::StorageFull.into())).is_err());
        assert!(stale.iter().all(|stale| stale.exists()));
        clear_partials(folder.path())?;
        assert!(!stale.iter().any(|stale| stale.exists()));
        assert_eq!(fs::read(&path).map_err(Error::io(&path))?, b"whole");
        Ok(())
    }
}
