//! A store in a folder.
#![allow(clippy::disallowed_methods)]

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sconce_tensor::fs as files;
use sconce_tensor::{Error, Result};

use super::{Disk, IndexFile, pack_name};

/// Most bytes of an index: some ten million tensors.
const MAX_INDEX: u64 = 1 << 30;
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
    _lock: Option<File>,
}

impl Folder {
    /// Opens a folder for writing, and makes it if it is missing.
    ///
    /// # Errors
    /// `Busy` if another process writes.
    pub fn to_write(path: &Path) -> Result<Folder> {
        let packs = path.join(PACKS);
        fs::create_dir_all(&packs).map_err(Error::io(&packs))?;
        let lock = files::lock(path, LOCK)?;
        files::clear_partials(path)?;
        let open = Mutex::default();
        Ok(Folder { path: path.to_path_buf(), writable: true, open, _lock: Some(lock) })
    }

    /// Opens a folder for reading, beside a process that writes.
    ///
    /// # Errors
    /// `NotFound` for a folder that does not exist.
    pub fn to_read(path: &Path) -> Result<Folder> {
        if !path.join(PACKS).is_dir() {
            return Err(Error::not_found(format!("store {}", path.display())));
        }
        let open = Mutex::default();
        Ok(Folder { path: path.to_path_buf(), writable: false, open, _lock: None })
    }

    fn pack(&self, pack: u32) -> Result<Arc<File>> {
        let mut open = self.opened();
        if let Some(file) = open.get(&pack) {
            return Ok(file.clone());
        }
        let path = self.path.join(pack_name(pack));
        let mut options = OpenOptions::new();
        options.read(true).write(self.writable).create(self.writable);
        let is_new = !path.exists();
        let file = Arc::new(options.open(&path).map_err(Error::io(&path))?);
        if self.writable && is_new {
            sync_folder(&self.path.join(PACKS))?;
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
        self.pack(pack)?.write_all_at(bytes, offset).map_err(Error::io(&path))
    }

    fn read(&self, pack: u32, offset: u64, to: &mut [u8]) -> Result<()> {
        let path = self.path.join(pack_name(pack));
        match self.pack(pack)?.read_exact_at(to, offset) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let end = offset + to.len() as u64;
                Err(Error::corrupt(path.display().to_string(), format!("ends before byte {end}")))
            }
            read => read.map_err(Error::io(&path)),
        }
    }

    fn sync(&self, pack: u32) -> Result<()> {
        let path = self.path.join(pack_name(pack));
        self.pack(pack)?.sync_data().map_err(Error::io(&path))
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
        let removed = fs::remove_file(&path).map_err(Error::io(&path));
        self.opened().remove(&pack);
        removed
    }

    fn retain(&self, packs: &HashSet<u32>) {
        self.opened().retain(|pack, _| packs.contains(pack));
    }

    fn write_index(&self, file: IndexFile, bytes: &[u8]) -> Result<()> {
        files::write_atomic(&self.path.join(file.name()), |to| to.write_all(bytes))
    }

    fn read_index(&self, file: IndexFile) -> Result<Option<Vec<u8>>> {
        let path = self.path.join(file.name());
        match path.exists() {
            true => files::read(&path, MAX_INDEX).map(Some),
            false => Ok(None),
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
