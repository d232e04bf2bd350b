//! All access to users' files: checked opens, and writes that leave a whole file or none.
//!
//! [`open`], [`read`], [`append`] and [`lock`] never wait for the other end of a named pipe, and refuse everything but
//! regular files. Memory is allocated only for bytes of a file whose length has been checked.
#![allow(clippy::disallowed_methods)]

use std::ffi::OsStr;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// A regular file that is open for reading.
#[derive(Debug)]
pub struct Regular {
    path: PathBuf,
    file: File,
    metadata: Metadata,
}

/// Opens a file for reading. Links to regular files are followed.
///
/// # Errors
/// `Mismatch` for a folder, a named pipe, a socket or a device.
pub fn open(path: &Path) -> Result<Regular> {
    let (file, metadata) = open_regular(path, OpenOptions::new().read(true))?;
    Ok(Regular { path: path.to_path_buf(), file, metadata })
}

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// `Corrupt` for a longer file, and the errors of [`open`].
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut file = open(path)?;
    let length = file.length();
    if length > limit {
        let reason =
            format!("{length} bytes, more than the {limit} bytes that such a file may have");
        return Err(Error::corrupt(path.display().to_string(), reason));
    }
    let mut bytes = Vec::new();
    file.read(length, &mut bytes)?;
    Ok(bytes)
}

/// The text of a file of the kernel, as those of /proc, whose length reads as 0. `None` if it cannot be read.
pub fn kernel(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Opens a file for appending, and creates it if it is missing.
pub fn append(path: &Path) -> Result<File> {
    open_regular(path, OpenOptions::new().append(true).create(true)).map(|(file, _)| file)
}

/// Opens an existing file to overwrite parts of it.
pub fn open_to_write(path: &Path) -> Result<File> {
    open_regular(path, OpenOptions::new().write(true)).map(|(file, _)| file)
}

impl Regular {
    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The metadata of the file when it was opened.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The length of the file when it was opened, in bytes.
    pub fn length(&self) -> u64 {
        self.metadata.len()
    }

    /// Appends the next `bytes` bytes of the file to `buffer`. The caller has checked `bytes` against the length.
    ///
    /// # Errors
    /// `Corrupt` if the file is shorter, `OutOfMemory` if `buffer` cannot grow.
    pub fn read(&mut self, bytes: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let what = || self.path.display().to_string();
        let room = usize::try_from(bytes).ok().and_then(|n| buffer.try_reserve_exact(n).ok());
        room.ok_or_else(|| Error::out_of_memory(what(), bytes))?;
        let read = (&self.file).take(bytes).read_to_end(buffer).map_err(Error::io(&self.path))?;
        match read as u64 == bytes {
            true => Ok(()),
            false => {
                let reason = format!("ended after {read} of {bytes} bytes while it was read");
                Err(Error::corrupt(what(), reason))
            }
        }
    }
}

/// Opens a file without waiting, then checks the open handle. Checking the path first would race with a change of the
/// path.
fn open_regular(path: &Path, options: &mut OpenOptions) -> Result<(File, Metadata)> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // On a regular file O_NONBLOCK has no effect. O_NOCTTY keeps a terminal from becoming the controlling one.
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    let file = match options.open(path) {
        Ok(file) => file,
        // For a socket or a pipe without a reader, the system's error does not name the cause.
        Err(error) => match fs::metadata(path) {
            Ok(found) if !found.is_file() => return Err(not_regular(path, found.file_type())),
            _ => return Err(Error::io(path)(error)),
        },
    };
    let metadata = file.metadata().map_err(Error::io(path))?;
    match metadata.is_file() {
        true => Ok((file, metadata)),
        false => Err(not_regular(path, metadata.file_type())),
    }
}

fn not_regular(path: &Path, kind: FileType) -> Error {
    Error::mismatch(path.display().to_string(), "a regular file", kind_name(kind))
}

fn kind_name(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        match kind {
            _ if kind.is_fifo() => return "a named pipe",
            _ if kind.is_socket() => return "a socket",
            _ if kind.is_char_device() || kind.is_block_device() => return "a device",
            _ => {}
        }
    }
    if kind.is_dir() { "a folder" } else { "something else" }
}

/// Extension of files being written; a dead writer leaves one behind.
pub const PARTIAL: &str = "partial";

/// Writes a file beside `path`, syncs it and renames it into place. At any moment, also after a crash, `path` is the
/// old file or the whole new one. On failure nothing is left behind. Leftovers of killed processes are removed by
/// [`clear_partials`] and [`clear_partials_of`].
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let (mut file, partial) = create_partial(path).map_err(Error::io(path))?;
    let written = write(&mut file).and_then(|()| file.sync_all());
    // The lock ends with the last handle, so the handle lives until the rename. Windows cannot rename an open file.
    let locked = cfg!(unix).then_some(file);
    let renamed = written.and_then(|()| fs::rename(&partial, path));
    drop(locked);
    if let Err(source) = renamed {
        // Report the first failure.
        let _ = fs::remove_file(&partial);
        return Err(Error::io(path)(source));
    }
    sync_folder(path)
}

/// Writes bytes as [`write_atomic`] does. Links are followed.
///
/// # Errors
/// `Mismatch` if `path` exists and is not a regular file: a rename would replace a device.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if target.exists() && !target.is_file() {
        let expected = "a regular file or a new name";
        return Err(Error::mismatch(path.display().to_string(), expected, "something else"));
    }
    clear_partials_of(&target);
    write_atomic(&target, |file| file.write_all(bytes))
}

/// Gives a file a second name and replaces any file of that name. The second name is a hard link, or a copy if the file
/// system has no links. Replace the file afterwards, as [`write_atomic`] does; do not modify it in place.
pub fn link_atomic(from: &Path, to: &Path) -> Result<()> {
    let source = open(from)?;
    let (file, partial) = create_partial(to).map_err(Error::io(to))?;
    drop(file);
    let linked = fs::remove_file(&partial)
        .and_then(|()| fs::hard_link(from, &partial))
        .and_then(|()| fs::rename(&partial, to));
    // A rename between two names of one file is a no-op that keeps both names, so the partial one is removed.
    let _ = fs::remove_file(&partial);
    match linked {
        Ok(()) => sync_folder(to),
        // Also copies if another writer of `to` removed the link: without a lock the link looks like a leftover.
        Err(_) => write_atomic(to, |file| {
            io::copy(&mut source.file().take(source.length()), file).map(drop)
        }),
    }
}

/// Locks a folder until the returned file is dropped. The lock of a process that dies is released. A lock held
/// elsewhere is [`Error::Busy`].
pub fn lock(folder: &Path, name: &str) -> Result<File> {
    let path = folder.join(name);
    let options = &mut OpenOptions::new();
    let (file, _) = open_regular(&path, options.create(true).truncate(false).write(true))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            Err(Error::Busy { what: folder.display().to_string() })
        }
        Err(fs::TryLockError::Error(source)) => Err(Error::io(&path)(source)),
    }
}

/// Removes leftovers of killed writers in a folder. The caller holds the folder's lock; without it, the file of a
/// running writer would be removed too.
pub fn clear_partials(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        if path.extension().is_some_and(|e| e == PARTIAL) {
            fs::remove_file(&path).map_err(Error::io(&path))?;
        }
    }
    Ok(())
}

/// Removes leftovers of killed writers of one file, for folders without a lock. A writer holds the lock of its partial
/// file as long as it lives, on any machine. Files that cannot be locked or removed stay; they do not hinder other
/// writers.
pub fn clear_partials_of(path: &Path) {
    let (true, Some(name), Ok(entries)) =
        (cfg!(unix), path.file_name(), fs::read_dir(folder_of(path)))
    else {
        return;
    };
    for entry in entries.flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file
            && is_partial_of(&entry.file_name(), name)
            && let Ok(file) = open_to_write(&entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether `partial` is a result of [`partial_path`] for `name`.
fn is_partial_of(partial: &OsStr, name: &OsStr) -> bool {
    let numbers = |partial: &[u8]| {
        let rest = partial.strip_prefix(name.as_encoded_bytes())?.strip_prefix(b".")?;
        let numbers = rest.strip_suffix(PARTIAL.as_bytes())?.strip_suffix(b".")?;
        let (process, count) = str::from_utf8(numbers).ok()?.split_once('-')?;
        Some(process.parse::<u32>().is_ok() && count.parse::<u64>().is_ok())
    };
    numbers(partial.as_encoded_bytes()).unwrap_or(false)
}

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Creates a partial file beside `path` that no other writer uses. Its name has the process id and a count. A name that
/// exists belongs to a dead process with the same id, as happens in containers.
pub(crate) fn create_partial(path: &Path) -> io::Result<(File, PathBuf)> {
    loop {
        let partial = partial_path(path, COUNT.fetch_add(1, Ordering::Relaxed));
        match File::create_new(&partial) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) if is_claimed(&file) => return Ok((file, partial)),
            // Before the lock was taken, another writer mistook the file for a leftover and removes it.
            Ok(_) => {}
        }
    }
}

/// Locks the partial file of a running writer against [`clear_partials_of`]. On a file system without locks, claiming
/// always succeeds and nothing is cleared.
#[cfg(unix)]
fn is_claimed(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    match file.try_lock() {
        Ok(()) => file.metadata().is_ok_and(|metadata| metadata.nlink() > 0),
        Err(fs::TryLockError::WouldBlock) => false,
        Err(fs::TryLockError::Error(_)) => true,
    }
}

#[cfg(not(unix))]
fn is_claimed(_file: &File) -> bool {
    true
}

fn partial_path(path: &Path, n: u64) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}-{n}.{PARTIAL}", std::process::id()));
    path.with_file_name(name)
}

/// Makes the rename durable. Only Unix can sync a folder.
fn sync_folder(path: &Path) -> Result<()> {
    if cfg!(unix) {
        let folder = folder_of(path);
        File::open(folder).and_then(|f| f.sync_all()).map_err(Error::io(folder))?;
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
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

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() -> Result<()> {
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let at = |name: &str| folder.path().join(name);
        let text = std::ffi::CString::new(at("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a string that ends in a zero and lives through the call.
        assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        fs::write(at("file"), b"text").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("nothing", at("dangling")).unwrap();
        let odd = [
            ("pipe", "a named pipe"),
            ("socket", "a socket"),
            ("folder", "a folder"),
            ("zero", "a device"),
        ];
        for (name, kind) in odd {
            let said = |error: Option<Error>| match error {
                Some(Error::Mismatch { what, got, .. }) => (what, got),
                other => panic!("{name}: {other:?}"),
            };
            let expected = (at(name).display().to_string(), kind.to_string());
            assert_eq!(said(open(&at(name)).err()), expected);
            assert_eq!(said(read(&at(name), 9).err()), expected);
            assert_eq!(said(append(&at(name)).err()), expected);
            assert_eq!(said(lock(folder.path(), name).err()), expected);
        }
        assert_eq!(read(&at("link"), 4)?, b"text");
        assert_eq!(read(&at("dangling"), 4).map_err(|e| e.kind()), Err(Kind::NotFound));
        // An atomic write replaces a pipe of that name.
        write_atomic(&at("pipe"), |file| file.write_all(b"new"))?;
        assert_eq!(read(&at("pipe"), 4)?, b"new");
        Ok(())
    }

    #[test]
    fn a_file_beyond_its_limit_is_refused_by_its_length_alone() -> Result<()> {
        let folder = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let path = folder.path().join("sparse");
        File::create(&path).and_then(|f| f.set_len(9 << 30)).map_err(Error::io(&path))?;
        match read(&path, 1 << 20) {
            Err(Error::Corrupt { reason, .. }) => assert!(reason.contains("9663676416 bytes")),
            other => panic!("{other:?}"),
        }
        let mut file = open(&path)?;
        let mut bytes = vec![];
        file.read(8, &mut bytes)?;
        assert_eq!((bytes, file.length()), (vec![0; 8], 9 << 30));
        let cut = fs::File::options().write(true).open(&path).and_then(|f| f.set_len(10));
        cut.map_err(Error::io(&path))?;
        assert_eq!(file.read(8, &mut vec![]).map_err(|e| e.kind()), Err(Kind::Corrupt));
        Ok(())
    }

    #[test]
    fn bytes_are_written_to_regular_files_only_also_through_a_link() -> Result<()> {
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
    fn a_second_name_keeps_the_old_file_when_the_first_is_replaced() -> Result<()> {
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
    fn leftovers_of_a_dead_process_do_not_block_writes_and_stay_until_cleared() -> Result<()> {
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

    #[cfg(unix)]
    #[test]
    fn the_next_save_clears_leftovers_of_killed_writers_and_nothing_else() -> Result<()> {
        let folder = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let at = |name: &str| folder.path().join(name);
        let names = || {
            let entries = fs::read_dir(folder.path()).unwrap();
            let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
            let mut names: Vec<_> = entries.map(|e| name(e).into_string().unwrap()).collect();
            names.sort();
            names
        };
        let others = ["a.b.1-2.partial", "a.1.partial", "a.1-x.partial", "a.1-2", "ba.1-2.partial"];
        for name in
            others.iter().chain(&["a.1-2.partial", "a.4194304-18446744073709551615.partial"])
        {
            fs::write(at(name), b"half").unwrap();
        }
        fs::create_dir(at("a.3-4.partial")).unwrap();
        std::os::unix::fs::symlink("a.1-2", at("a.5-6.partial")).unwrap();
        let (mut writing, partial) = create_partial(&at("a")).unwrap();
        write_file(&at("a"), b"whole")?;
        let living = partial.file_name().unwrap().to_str().unwrap();
        let mut left = others.to_vec();
        left.extend(["a", "a.3-4.partial", "a.5-6.partial", living]);
        left.sort();
        assert_eq!(names(), left);
        // The partial file of a running writer stays; once the writer is dropped, the file is a leftover.
        writing.write_all(b"half").unwrap();
        clear_partials_of(&at("a"));
        assert_eq!(names(), left);
        drop(writing);
        write_file(&at("a"), b"anew")?;
        left.retain(|name| *name != living);
        assert_eq!(names(), left);
        assert_eq!(read(&at("a"), 4)?, b"anew");
        Ok(())
    }

    /// Four writers write and clear leftovers concurrently.
    #[test]
    fn writers_of_one_file_do_not_remove_each_other_s_partial_files() -> Result<()> {
        let folder = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let (path, first) = (folder.path().join("a"), folder.path().join("first"));
        write_file(&first, b"whole")?;
        let write = |n: usize| match n % 2 {
            0 => write_file(&path, b"whole"),
            _ => {
                clear_partials_of(&path);
                link_atomic(&first, &path)
            }
        };
        std::thread::scope(|scope| {
            let writer = || (0..200).try_for_each(write);
            let writers: Vec<_> = (0..4).map(|_| scope.spawn(writer)).collect();
            writers.into_iter().try_for_each(|writer| writer.join().unwrap())
        })?;
        assert_eq!(read(&path, 5)?, b"whole");
        assert_eq!(fs::read_dir(folder.path()).map_err(Error::io(&path))?.count(), 2);
        Ok(())
    }
}
