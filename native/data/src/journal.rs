//! The journal of replays that an import is reading. From the journal, the next import learns which replays
//! were in flight when an import died.
//!
//! Each thread has a line of fixed width. The line is overwritten before a replay is read and blanked
//! afterwards, in one write each. A write survives the death of the process, because the kernel's page cache
//! holds the written bytes. A death leaves the lines of all replays in flight, and any of them may be the cause. The
//! next import reads these replays last and one at a time, so that a second death has one cause. A replay that
//! was in flight at [`MAX_DEATHS`] deaths is skipped from then on, and stays in the journal until it is read
//! again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sconce_tensor::fs::{open_to_write, read, write_atomic};
use sconce_tensor::pool::MAX_THREADS;
use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// Name of the journal in the folder of a corpus.
pub(crate) const JOURNAL: &str = "journal";
/// Deaths after which a replay is skipped.
pub(crate) const MAX_DEATHS: u32 = 2;
/// Bytes of a line, including the newline.
const LINE: usize = 512;
/// Maximum bytes of a file name in a line; a longer name is truncated.
const MAX_NAME: usize = 256;
/// Maximum replays in the journal.
const MAX_SUSPECTS: usize = 1024;
/// Maximum bytes of a journal: one line for each suspect and each thread.
const MAX_BYTES: u64 = ((MAX_SUSPECTS + MAX_THREADS) * LINE) as u64;

/// A replay that was being read when an import died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupted {
    /// Name of the file.
    pub file: String,
    /// SHA-256 of the file.
    pub digest: String,
    /// Count of imports that died while they read the file.
    pub deaths: u32,
}

/// The journal of one import. The import holds the lock of the corpus.
pub(crate) struct Journal {
    path: PathBuf,
    file: Mutex<File>,
    /// Count of lines of suspects, which come before the lines of the threads.
    suspects: usize,
    /// The suspects of earlier imports, by digest.
    pub interrupted: BTreeMap<String, Interrupted>,
}

impl Journal {
    /// Reads the suspects that earlier imports left, and creates a line for each of `threads`.
    pub(crate) fn open(corpus: &Path, threads: usize) -> Result<Self> {
        let path = corpus.join(JOURNAL);
        let interrupted = interrupted(&path)?;
        let suspects = interrupted.len();
        let lines = interrupted.values().map(line).chain((0..threads).map(|_| blank()));
        let text: Vec<u8> = lines.flatten().collect();
        write_atomic(&path, |file| file.write_all(&text))?;
        let file = Mutex::new(open_to_write(&path)?);
        Ok(Journal { path, file, suspects, interrupted })
    }

    /// Records that a thread reads a replay, until the returned guard is dropped.
    pub(crate) fn reading(&self, thread: usize, file: &Path, digest: &str) -> Result<Reading<'_>> {
        let deaths = self.interrupted.get(digest).map_or(0, |found| found.deaths);
        let entry = Interrupted { file: name(file), digest: digest.to_owned(), deaths: deaths + 1 };
        let reading = Reading { journal: self, thread };
        self.write(thread, &line(&entry)).map_err(Error::io(&self.path))?;
        Ok(reading)
    }

    fn write(&self, thread: usize, line: &[u8]) -> io::Result<()> {
        let at = (self.suspects + thread) * LINE;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(at as u64))?;
        file.write_all(line)
    }

    /// Ends the journal of an import that did not die. Suspects that it did not read are kept; an empty
    /// journal is removed.
    pub(crate) fn close(&self, read: impl Fn(&str) -> bool) -> Result<()> {
        let kept = self.interrupted.values().filter(|suspect| !read(&suspect.digest));
        let text: Vec<u8> = kept.flat_map(line).collect();
        match text.is_empty() {
            true => std::fs::remove_file(&self.path).map_err(Error::io(&self.path)),
            false => write_atomic(&self.path, |file| file.write_all(&text)),
        }
    }
}

/// A replay that is being read.
pub(crate) struct Reading<'a> {
    journal: &'a Journal,
    thread: usize,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        // If this write fails, a later death also makes this replay a suspect, which costs one more read of it.
        let _ = self.journal.write(self.thread, &blank());
    }
}

/// The replays in a journal. Lines that this version cannot parse are ignored.
fn interrupted(path: &Path) -> Result<BTreeMap<String, Interrupted>> {
    let text = match read(path, MAX_BYTES) {
        Ok(text) => text,
        Err(Error::NotFound { .. } | Error::Corrupt { .. }) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut found: BTreeMap<String, Interrupted> = BTreeMap::new();
    for line in text.chunks_exact(LINE) {
        let Ok(entry) = serde_json::from_slice::<Interrupted>(line) else { continue };
        let full = found.len() >= MAX_SUSPECTS && !found.contains_key(&entry.digest);
        if full || crate::shard::check_digest(String::new(), &entry.digest).is_err() {
            continue;
        }
        let known = found.entry(entry.digest.clone()).or_insert_with(|| entry.clone());
        known.deaths = known.deaths.max(entry.deaths);
    }
    Ok(found)
}

/// A line of spaces.
fn blank() -> Vec<u8> {
    let mut line = vec![b' '; LINE];
    line[LINE - 1] = b'\n';
    line
}

/// The line of a replay. If the entry is too long, the file name is dropped.
fn line(entry: &Interrupted) -> Vec<u8> {
    let whole = serde_json::to_vec(entry).ok().filter(|text| text.len() < LINE);
    let nameless = || Interrupted { file: String::new(), ..entry.clone() };
    let text = whole.or_else(|| serde_json::to_vec(&nameless()).ok()).unwrap_or_default();
    let mut line = blank();
    line.iter_mut().zip(text.iter().take(LINE - 1)).for_each(|(to, from)| *to = *from);
    line
}

fn name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.char_indices().take_while(|(at, _)| *at < MAX_NAME).map(|(_, c)| c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGESTS: [&str; 3] = [
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc",
    ];

    fn deaths(journal: &Journal) -> Vec<(String, u32)> {
        journal.interrupted.values().map(|i| (i.file.clone(), i.deaths)).collect()
    }

    #[test]
    fn replays_in_flight_at_a_death_are_known_to_the_next_import() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Journal::open(dir.path(), 2).unwrap();
        let journal = open();
        let slow = journal.reading(0, Path::new("x/a.slp"), DIGESTS[0]).unwrap();
        drop(journal.reading(1, Path::new("b.slp"), DIGESTS[1]).unwrap());
        let other = journal.reading(1, Path::new(&"c".repeat(999)), DIGESTS[2]).unwrap();
        // Forgotten guards leave their lines in the journal, as the death of a process does.
        std::mem::forget((slow, other));
        let journal = open();
        let long = "c".repeat(MAX_NAME);
        assert_eq!(deaths(&journal), [("a.slp".to_string(), 1), (long.clone(), 1)]);
        std::mem::forget(journal.reading(1, Path::new("a.slp"), DIGESTS[0]).unwrap());
        let journal = open();
        assert_eq!(deaths(&journal), [("a.slp".to_string(), 2), (long, 1)]);
        // The second replay has been read, so only the first is kept.
        journal.close(|digest| digest == DIGESTS[2]).unwrap();
        assert_eq!(deaths(&open()), [("a.slp".to_string(), 2)]);
        open().close(|_| true).unwrap();
        assert!(!dir.path().join(JOURNAL).exists());
    }

    #[test]
    fn a_damaged_journal_blames_no_replay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(JOURNAL);
        for text in [&b"{"[..], &[b'['; 4 * LINE], &[0xFF; 2 * LINE], b"\n"] {
            std::fs::write(&path, text).unwrap();
            let journal = Journal::open(dir.path(), 1).unwrap();
            assert!(journal.interrupted.is_empty());
            journal.close(|_| true).unwrap();
        }
    }
}
