//! A store in a folder.
#![allow(clippy::disallowed_methods)]

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sconce_tensor::fs as files;
use sconce_tensor::{Error, Result};

use super::index::MAX_INDEX;
use super::{Disk, IndexFile, pack_name};

/// Packs that are held open.
const MOST_OPEN: usize = 128;
/// The folder of the packs.
const PACKS: &str = "packs";
/// The file whose lock the writer holds.
pub(crate) const LOCK: &str = "lock";

/// The files of a store.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    writable: bool,
    open: Mutex<HashMap<u32, Arc<File>>>,
    /// Held until the store is closed.
    lock: Mutex<Option<File>>,
}

impl Folder {
    /// Opens a folder for writing, and makes it if it is missing.
    ///
    /// # Errors
    /// `Busy` if another process writes.
    pub fn to_write(path: &Path) -> Result<Folder> {
        let packs = path.join(PACKS);
        let is_new = !packs.exists();
        fs::create_dir_all(&packs).map_err(Error::io(&packs))?;
        if is_new {
            sync_folder(path)?;
            path.parent().filter(|parent| parent.is_dir()).map_or(Ok(()), sync_folder)?;
        }
        let lock = files::lock(path, LOCK)?;
        files::clear_partials(path)?;
        let (open, lock) = (Mutex::default(), Mutex::new(Some(lock)));
        Ok(Folder { path: path.to_path_buf(), writable: true, open, lock })
    }

    /// Opens a folder for reading, beside a process that writes.
    ///
    /// # Errors
    /// `NotFound` for a folder that does not exist.
    pub fn to_read(path: &Path) -> Result<Folder> {
        if !path.join(PACKS).is_dir() {
            return Err(Error::not_found(format!("store {}", path.display())));
        }
        let (open, lock) = (Mutex::default(), Mutex::new(None));
        Ok(Folder { path: path.to_path_buf(), writable: false, open, lock })
    }

    /// The file of a pack; one that is missing is made if `create` says so.
    fn pack(&self, pack: u32, create: bool) -> Result<Arc<File>> {
        let mut open = self.opened();
        if let Some(file) = open.get(&pack) {
            return Ok(file.clone());
        }
        let path = self.path.join(pack_name(pack));
        let mut options = OpenOptions::new();
        options.read(true).write(self.writable).create(create);
        let is_new = !path.exists();
        let file = Arc::new(options.open(&path).map_err(Error::io(&path))?);
        if create && is_new {
            sync_folder(&self.path.join(PACKS))?;
        }
        if open.len() >= MOST_OPEN {
            open.clear();
        }
        open.insert(pack, file.clone());
        Ok(file)
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<u32, Arc<File>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io(path))
}

impl Disk for Folder {
    fn write(&self, pack: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(pack_name(pack));
        self.pack(pack, true)?.write_all_at(bytes, offset).map_err(Error::io(&path))
    }

    fn read(&self, pack: u32, offset: u64, to: &mut [u8]) -> Result<()> {
        let path = self.path.join(pack_name(pack));
        let file = match self.pack(pack, false) {
            // For a reader it may be a pack that the process that writes has rewritten.
            Err(Error::NotFound { .. }) if self.writable => {
                return Err(Error::corrupt(path.display().to_string(), "the file is missing"));
            }
            file => file?,
        };
        match file.read_exact_at(to, offset) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let end = offset + to.len() as u64;
                Err(Error::corrupt(path.display().to_string(), format!("ends before byte {end}")))
            }
            read => read.map_err(Error::io(&path)),
        }
    }

    #[cfg(target_os = "linux")]
    fn read_now(&self, pack: u32, offset: u64, to: &mut [u8]) -> bool {
        use std::os::fd::AsRawFd;
        // Opening a file may wait, also for another thread that opens one under the lock.
        let Ok(open) = self.open.try_lock() else { return false };
        let Some(file) = open.get(&pack).cloned() else { return false };
        drop(open);
        let Ok(offset) = libc::off_t::try_from(offset) else { return false };
        let part = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        // SAFETY: the call writes at most `to.len()` bytes into `to`; `part` and `file` outlive it.
        let read = unsafe {
            libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset, libc::RWF_NOWAIT)
        };
        usize::try_from(read).is_ok_and(|read| read == to.len())
    }

    fn sync(&self, pack: u32) -> Result<()> {
        let path = self.path.join(pack_name(pack));
        self.pack(pack, false)?.sync_data().map_err(Error::io(&path))
    }

    fn packs(&self) -> Result<Vec<u32>> {
        let folder = self.path.join(PACKS);
        let entries = fs::read_dir(&folder).map_err(Error::io(&folder))?;
        let number = |entry: fs::DirEntry| {
            let name = entry.file_name();
            name.to_str()?.strip_suffix(".pack")?.parse().ok()
        };
        Ok(entries.flatten().filter_map(number).collect())
    }

    fn remove(&self, pack: u32) -> Result<()> {
        let path = self.path.join(pack_name(pack));
        let removed = fs::remove_file(&path);
        self.opened().remove(&pack);
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(Error::io(&path)),
        }
    }

    fn shorten(&self, pack: u32, end: u64) -> Result<()> {
        let path = self.path.join(pack_name(pack));
        let file = self.pack(pack, false)?;
        let shorten = || -> io::Result<()> {
            match file.metadata()?.len() > end {
                true => file.set_len(end),
                false => Ok(()),
            }
        };
        shorten().map_err(Error::io(&path))
    }

    fn release(&self) {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn retain(&self, packs: &HashSet<u32>) {
        self.opened().retain(|pack, _| packs.contains(pack));
    }

    fn write_index(&self, file: IndexFile, bytes: &[u8]) -> Result<()> {
        files::write_atomic(&self.path.join(file.name()), |to| to.write_all(bytes))
    }

    fn read_index(&self, file: IndexFile) -> Result<Option<Vec<u8>>> {
        read(&self.path.join(file.name()))
    }

    fn write_log(&self, file: IndexFile, offset: u64, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(file.log_name());
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        let log = options.write(true).create(true).truncate(false).open(&path);
        let write = |log: File| {
            log.write_all_at(bytes, offset)?;
            log.sync_data()
        };
        log.and_then(write).map_err(Error::io(&path))?;
        if is_new { sync_folder(&self.path) } else { Ok(()) }
    }

    fn clear_log(&self, file: IndexFile) -> Result<()> {
        let path = self.path.join(file.log_name());
        match OpenOptions::new().write(true).open(&path).and_then(|log| log.set_len(0)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            cleared => cleared.map_err(Error::io(&path)),
        }
    }

    fn read_log(&self, file: IndexFile) -> Result<Option<Vec<u8>>> {
        read(&self.path.join(file.log_name()))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// The bytes of a file. `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path)(error)),
        Ok(_) => files::read(path, MAX_INDEX).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_never_waits_gives_up_while_another_thread_opens_a_pack() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::to_write(path.path()).unwrap();
        folder.write(0, 0, &[7; 100]).unwrap();
        let opening = folder.opened();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(folder.read_now(0, 0, &mut [0; 100])));
            assert_eq!(receiver.recv_timeout(std::time::Duration::from_secs(60)), Ok(false));
            drop(opening);
        });
    }
}
