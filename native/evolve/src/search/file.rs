//! The state of a search in a folder: a new state is whole, or the one before stays.
//!
//! Files of a state bear the name of one of two slots. A state goes to the slot that `search.json` does not name, before
//! `search.json` is replaced.

use std::fs::File;
use std::path::{Path, PathBuf};

use sconce_tensor::{Error, Result, fs};
use serde::{Deserialize, Serialize};

use super::Search;
use crate::archive::Archive;
use crate::strategy::Strategy;

const VERSION: u32 = 1;
const INDEX: &str = "search.json";
/// Most bytes of the index.
const MOST: u64 = 1 << 20;
/// Most generations, evaluations and restarts: numbers that JSON keeps exactly.
const MOST_COUNTED: u64 = 1 << 53;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Slot {
    A,
    B,
}

impl Slot {
    fn name(self) -> &'static str {
        match self {
            Slot::A => "a",
            Slot::B => "b",
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Index {
    version: u32,
    slot: Slot,
    generation: u64,
    evaluations: u64,
    best: Option<f64>,
    /// Times that each strategy began anew.
    restarts: Vec<u64>,
    archive: bool,
}

impl Index {
    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(INDEX);
        let what = path.display().to_string();
        let bytes = fs::read(&path, MOST)?;
        let index: Index = serde_json::from_slice(&bytes).map_err(|e| Error::corrupt(&*what, e))?;
        if index.version != VERSION {
            return Err(Error::mismatch(format!("version of {what}"), VERSION, index.version));
        }
        let counts = [index.generation, index.evaluations];
        match counts.iter().chain(&index.restarts).find(|count| **count > MOST_COUNTED) {
            Some(count) => Err(Error::corrupt(what, format!("a count of {count}"))),
            None => Ok(index),
        }
    }
}

fn strategy_of(folder: &Path, slot: Slot, at: usize) -> PathBuf {
    folder.join(format!("strategy-{at}-{}.safetensors", slot.name()))
}

fn archive_of(folder: &Path, slot: Slot) -> PathBuf {
    folder.join(format!("archive-{}.safetensors", slot.name()))
}

impl Search {
    /// Takes the lock of a folder, so that one search at a time uses its state. It is held until the file is dropped.
    ///
    /// # Errors
    /// `Busy` for a folder that another search uses; `Io` and `NotFound` if the system refuses.
    pub fn lock(folder: &Path) -> Result<File> {
        fs::lock(folder, "lock")
    }

    /// [`lock`](Self::lock) of a folder with a state. A folder without one gets no lock.
    ///
    /// # Errors
    /// Those of `lock`; `NotFound` without a state, `Corrupt` and `Mismatch` for an index that cannot be read.
    pub fn lock_saved(folder: &Path) -> Result<File> {
        Index::read(folder)?;
        Search::lock(folder)
    }

    /// Writes the state to a folder.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock); `Mismatch` for a folder with the state of a newer version.
    pub fn save(&self, folder: &Path, archive: Option<&Archive>) -> Result<()> {
        let _lock = Search::lock(folder)?;
        self.write(folder, archive)
    }

    /// Writes the state to a folder whose lock the caller holds.
    pub(super) fn write(&self, folder: &Path, archive: Option<&Archive>) -> Result<()> {
        let slot = match Index::read(folder) {
            Ok(Index { slot: Slot::A, .. }) => Slot::B,
            Ok(Index { slot: Slot::B, .. }) => Slot::A,
            // An index that is not there or damaged names no slot that must stay.
            Err(Error::NotFound { .. } | Error::Corrupt { .. }) => Slot::A,
            Err(error) => return Err(error),
        };
        if let Some(archive) = archive {
            archive.save(&archive_of(folder, slot))?;
        }
        for (at, own) in self.emitters.iter().enumerate() {
            own.strategy.save(&strategy_of(folder, slot, at))?;
        }
        let index = Index {
            version: VERSION,
            slot,
            generation: self.generation,
            evaluations: self.evaluations,
            best: self.best,
            restarts: self.emitters.iter().map(|own| own.restarts).collect(),
            archive: archive.is_some(),
        };
        let path = folder.join(INDEX);
        let text = serde_json::to_string(&index);
        let text = text.map_err(|e| Error::corrupt(path.display().to_string(), e))?;
        fs::write_file(&path, text.as_bytes())
    }

    /// Goes on from the state of a folder. The search must have been made with the options of the one that wrote it. A
    /// caller that reads the archive too holds the [`lock`](Self::lock), so that both are of one state.
    ///
    /// # Errors
    /// `NotFound` without a state, `Corrupt` and `Mismatch` for a state of another search. The search then stays as it
    /// was.
    pub fn resume(&mut self, folder: &Path) -> Result<()> {
        let index = Index::read(folder)?;
        if index.restarts.len() != self.emitters.len() {
            let (own, got) = (self.emitters.len(), index.restarts.len());
            return Err(Error::mismatch("strategies of the saved search", own, got));
        }
        let mut emitters = self.emitters.clone();
        for (at, (own, restarts)) in emitters.iter_mut().zip(&index.restarts).enumerate() {
            let path = strategy_of(folder, index.slot, at);
            let read = Strategy::load(&path)?;
            let of = |own: &Strategy| (own.method(), own.size(), own.population());
            let (wanted, got) = (of(&own.strategy), of(&read));
            if wanted != got {
                let (wanted, got) = (format!("{wanted:?}"), format!("{got:?}"));
                return Err(Error::mismatch(path.display().to_string(), wanted, got));
            }
            (own.strategy, own.restarts) = (read, *restarts);
        }
        self.emitters = emitters;
        self.generation = index.generation;
        self.evaluations = index.evaluations;
        self.best = index.best;
        Ok(())
    }

    /// The archive of a folder; `None` for a search without one.
    ///
    /// # Errors
    /// Those of [`Archive::load`]; `NotFound` without a state.
    pub fn archive(folder: &Path) -> Result<Option<Archive>> {
        let index = Index::read(folder)?;
        index.archive.then(|| Archive::load(&archive_of(folder, index.slot))).transpose()
    }
}
