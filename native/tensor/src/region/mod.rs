//! A table of metrics in memory, and a file with its words, which other processes read.
//!
//! All numbers are 64-bit words, little-endian. `Sconce.Monitor.Snapshot` reads them.
//!
//! | words | content |
//! |---|---|
//! | 0 | `SCONWTCH` |
//! | 1, 2 | version of this format; words of the whole region |
//! | 3, 4, 5 | process id; start of the region, Unix ms; start of the process, clock ticks since boot, 0 if unknown |
//! | 6, 7 | size of the table of metrics; metrics in use |
//! | 8, 9 | heartbeat, Unix ms; [`State`] |
//! | 10, 16.. | bytes of a text, and the text |
//! | 512.. | the table, 32 words a metric: [`Kind`], place and number of its words, lengths of name, unit and help (16 bits each), and these texts |
//! | behind it | the words of the metrics |
//!
//! A counter is a word. A gauge is the bits of an f64, NaN if unknown. A histogram is the sum of its values and the
//! counts of its buckets. A series is a sequence number, odd during a write, the number of points, the stride, and the
//! points, two f64 each. A text is a sequence number, its bytes, and the text.

mod words;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use words::Copy;

use crate::metrics::{self, CATALOGUE, Kind, Metric, WORDS as TOTAL, histogram};
use crate::{Error, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"SCONWTCH");
const VERSION: u64 = 1;
/// Words before the table.
const HEADER: usize = 512;
/// Place of the text in the header.
const META: usize = 16;
/// Words of a metric in the table, and the place of its texts among them.
const ROW: usize = 32;
const TEXTS: usize = 4;

/// Places in the header.
mod at {
    pub(super) const USED: usize = 7;
    pub(super) const HEARTBEAT: usize = 8;
    pub(super) const STATE: usize = 9;
}

/// The state of the work that a region describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// It goes on.
    Running = 0,
    /// It is done.
    Done = 1,
    /// An error ended it.
    Failed = 2,
    /// It was stopped.
    Stopped = 3,
}

/// A metric of the table.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    kind: Kind,
    name: String,
    /// Place and number of its words.
    place: usize,
    words: usize,
    /// Points of a series that were pushed, also those that it does not keep.
    pushed: u64,
    used: bool,
}

/// A table of metrics and their words.
#[derive(Debug)]
pub struct Region {
    words: Box<[AtomicU64]>,
    slots: usize,
    rows: Mutex<Vec<Row>>,
    /// The file, written by [`Region::beat`].
    copy: Mutex<Option<Copy>>,
}

impl Region {
    /// A region for `slots` metrics of together `data` words, with the file `path` or none, and a text about it.
    ///
    /// # Errors
    /// `OutOfRange` for a text of more than 3,968 bytes, `NotFound` without the folder, `Io` for a file that cannot be written.
    pub fn new(path: Option<&Path>, meta: &str, slots: usize, data: usize) -> Result<Self> {
        let most = (HEADER - META) * size_of::<u64>();
        if meta.len() > most {
            return Err(Error::out_of_range(
                "text of a region (bytes)",
                meta.len() as f64,
                0.0,
                most as f64,
            ));
        }
        let total = HEADER + slots * ROW + data;
        let mut words = vec![0; total];
        let now = now();
        let head = [
            MAGIC,
            VERSION,
            total as u64,
            u64::from(std::process::id()),
            now,
            start_ticks(),
            slots as u64,
            0,
            now,
            State::Running as u64,
            meta.len() as u64,
        ];
        words[..head.len()].copy_from_slice(&head);
        words[META..HEADER].copy_from_slice(&packed(meta.as_bytes(), HEADER - META));
        let words = words.into_iter().map(AtomicU64::new).collect();
        let region = Region { words, slots, rows: Mutex::default(), copy: Mutex::default() };
        path.map_or(Ok(()), |path| region.attach(path))?;
        Ok(region)
    }

    /// The file.
    pub fn path(&self) -> Option<PathBuf> {
        self.copy().as_ref().map(|copy| copy.path().to_path_buf())
    }

    /// Gives the region a new file, which is written from now on.
    pub fn attach(&self, path: &Path) -> Result<()> {
        let words = self.numbers();
        *self.copy() = Some(Copy::new(path, words)?);
        Ok(())
    }

    fn copy(&self) -> MutexGuard<'_, Option<Copy>> {
        self.copy.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The first words of the metrics.
    fn first(&self, words: usize) -> Result<&[AtomicU64]> {
        let place = HEADER + self.slots * ROW;
        let first = self.words.get(place..).and_then(|data| data.get(..words));
        first.ok_or_else(|| Error::not_found("words of metrics"))
    }

    /// The number of a metric, which is added unless one of its name exists.
    ///
    /// # Errors
    /// `Mismatch` for a name of another kind, `OutOfRange` for a full table and for texts of more than 224 bytes.
    pub fn metric(&self, metric: &Metric) -> Result<usize> {
        let Metric { kind, name, unit, help } = *metric;
        let mut rows = self.rows();
        if let Some(known) = rows.iter().position(|row| row.used && row.name == name) {
            return match rows.get(known) {
                Some(row) if row.kind == kind => Ok(known),
                other => {
                    let got = format!("{kind:?}").to_lowercase();
                    let expected = other.map_or(String::new(), |row| format!("{:?}", row.kind));
                    Err(Error::mismatch(format!("kind of {name}"), expected.to_lowercase(), got))
                }
            };
        }
        let text: Vec<u8> = [name, unit, help].concat().into_bytes();
        let most = (ROW - TEXTS) * size_of::<u64>();
        if text.len() > most {
            let what = format!("name, unit and help of {name} (bytes)");
            return Err(Error::out_of_range(what, text.len() as f64, 0.0, most as f64));
        }
        let free = rows.iter().position(|row| !row.used && row.kind.words() == kind.words());
        let (i, place) = match free.and_then(|i| Some((i, rows.get(i)?.place))) {
            Some(free) => free,
            None => {
                let begin = HEADER + self.slots * ROW;
                (rows.len(), rows.last().map_or(begin, |row| row.place + row.words))
            }
        };
        let words = kind.words();
        if i >= self.slots || place + words > self.words.len() {
            return Err(Error::out_of_range("metrics", i as f64 + 1.0, 0.0, i as f64));
        }
        let row = Row { kind, name: name.to_owned(), place, words, pushed: 0, used: true };
        for at in place..place + words {
            self.store(at, 0);
        }
        if kind == Kind::Gauge {
            self.store(place, f64::NAN.to_bits());
        }
        let table = HEADER + i * ROW;
        let lengths = name.len() | unit.len() << 16 | help.len() << 32;
        let head = [kind as u64, place as u64, words as u64, lengths as u64];
        // The kind is written last: a reader skips a row without one.
        for (k, word) in packed(&text, ROW - TEXTS).iter().enumerate() {
            self.store(table + TEXTS + k, *word);
        }
        for (k, word) in head.iter().enumerate().rev() {
            self.store(table + k, *word);
        }
        match rows.get_mut(i) {
            Some(free) => *free = row,
            None => rows.push(row),
        }
        self.store(at::USED, rows.len() as u64);
        Ok(i)
    }

    /// Removes a metric; another one may take its number.
    pub fn remove(&self, i: usize) {
        let mut rows = self.rows();
        if let Some(row) = rows.get_mut(i) {
            row.used = false;
            self.store(HEADER + i * ROW, 0);
        }
    }

    fn rows(&self) -> MutexGuard<'_, Vec<Row>> {
        self.rows.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Place and number of words of a metric of this kind.
    fn place(&self, rows: &[Row], i: usize, kind: Kind) -> Result<(usize, usize)> {
        match rows.get(i) {
            Some(row) if row.used && row.kind == kind => Ok((row.place, row.words)),
            Some(row) if row.used => {
                let (expected, got) = (format!("{kind:?}"), format!("{:?}", row.kind));
                Err(Error::mismatch(
                    format!("kind of {}", row.name),
                    expected.to_lowercase(),
                    got.to_lowercase(),
                ))
            }
            _ => Err(Error::not_found(format!("metric {i}"))),
        }
    }

    /// Adds to a counter.
    pub fn add(&self, i: usize, n: u64) -> Result<()> {
        let (place, _) = self.place(&self.rows(), i, Kind::Counter)?;
        if let Some(word) = self.words.get(place) {
            word.fetch_add(n, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sets a counter that another place counts.
    pub fn count(&self, i: usize, n: u64) -> Result<()> {
        let (place, _) = self.place(&self.rows(), i, Kind::Counter)?;
        self.store(place, n);
        Ok(())
    }

    /// Sets a gauge; NaN if it is unknown.
    pub fn set(&self, i: usize, value: f64) -> Result<()> {
        let (place, _) = self.place(&self.rows(), i, Kind::Gauge)?;
        self.store(place, value.to_bits());
        Ok(())
    }

    /// Counts a value in a histogram.
    pub fn record(&self, i: usize, value: u64) -> Result<()> {
        let (place, words) = self.place(&self.rows(), i, Kind::Histogram)?;
        if let Some(words) = self.words.get(place..place + words) {
            histogram::record(words, value);
        }
        Ok(())
    }

    /// Adds a point to a series, whose points are in order of x. A full series keeps every second point.
    pub fn push(&self, i: usize, x: f64, y: f64) -> Result<()> {
        let mut rows = self.rows();
        let (place, words) = self.place(&rows, i, Kind::Series)?;
        let Some(row) = rows.get_mut(i) else { return Ok(()) };
        let (room, pushed) = ((words - 3) / 2, row.pushed);
        row.pushed += 1;
        let word = |k: usize| self.words.get(place + k).map_or(0, |w| w.load(Ordering::Relaxed));
        let (mut points, mut stride) = ((word(1) as usize).min(room), word(2).max(1));
        if pushed % stride != 0 {
            return Ok(());
        }
        self.write(place, || {
            if points == room {
                for k in 0..room / 2 {
                    self.store(place + 3 + 2 * k, word(3 + 4 * k));
                    self.store(place + 4 + 2 * k, word(4 + 4 * k));
                }
                (points, stride) = (room / 2, 2 * stride);
            }
            self.store(place + 3 + 2 * points, x.to_bits());
            self.store(place + 4 + 2 * points, y.to_bits());
            self.store(place + 1, points as u64 + 1);
            self.store(place + 2, stride);
        });
        Ok(())
    }

    /// Replaces a text; what does not fit is cut at a character.
    pub fn tell(&self, i: usize, text: &str) -> Result<()> {
        let rows = self.rows();
        let (place, words) = self.place(&rows, i, Kind::Text)?;
        let text = &text[..text.floor_char_boundary((words - 2) * size_of::<u64>())];
        self.write(place, || {
            self.store(place + 1, text.len() as u64);
            for (k, word) in packed(text.as_bytes(), words - 2).iter().enumerate() {
                self.store(place + 2 + k, *word);
            }
        });
        Ok(())
    }

    /// Writes while the sequence number at `place` is odd.
    fn write(&self, place: usize, write: impl FnOnce()) {
        let Some(sequence) = self.words.get(place) else { return };
        sequence.fetch_or(1, Ordering::Relaxed);
        fence(Ordering::Release);
        write();
        sequence.fetch_add(1, Ordering::Release);
    }

    /// Says that the process lives, and what became of its work, and writes the file.
    ///
    /// # Errors
    /// `Io` for a file that cannot be written, as on a full disk. The next call tries again.
    pub fn beat(&self, state: State) -> Result<()> {
        self.store(at::HEARTBEAT, now());
        self.store(at::STATE, state as u64);
        let mut copy = self.copy();
        // No metric is added, and no text or curve is written, while the file is.
        let _rows = self.rows();
        copy.as_mut().map_or(Ok(()), |copy| copy.write(&self.words))
    }

    /// A copy of all bytes.
    pub fn read(&self) -> Vec<u8> {
        words::bytes(&self.numbers())
    }

    fn numbers(&self) -> Vec<u64> {
        let _rows = self.rows();
        self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.store(value, Ordering::Release);
        }
    }
}

static SHARED: OnceLock<Region> = OnceLock::new();

/// Makes the region of this process, with the file `path`, and moves the catalogue's values there. Updates during the
/// move are lost. A later call returns the same region, and gives it another file.
///
/// # Errors
/// `Io` for a file that cannot be written.
pub fn share(path: Option<&Path>, meta: &str) -> Result<&'static Region> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = MAKING.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(region) = SHARED.get() {
        path.map_or(Ok(()), |path| region.attach(path))?;
        return Ok(region);
    }
    let region = Region::new(path, meta, SLOTS, TOTAL + MORE_WORDS)?;
    CATALOGUE.iter().try_for_each(|metric| region.metric(metric).map(drop))?;
    region.first(TOTAL)?;
    let region = SHARED.get_or_init(|| region);
    metrics::move_to(region.first(TOTAL)?);
    Ok(region)
}

/// Metrics of a process: the catalogue's, and those of servings, sessions, devices and the app.
const SLOTS: usize = 1024;
/// Words for metrics outside the catalogue: sixteen histograms, and a thousand numbers.
const MORE_WORDS: usize = 16 * histogram::WORDS + SLOTS;

/// Bytes as words, filled with zeros.
fn packed(bytes: &[u8], words: usize) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; size_of::<u64>()];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    let mut packed: Vec<u64> = bytes.chunks(size_of::<u64>()).map(word).collect();
    packed.resize(words, 0);
    packed
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The start of this process as Linux counts it: another process with the same id has another one.
fn start_ticks() -> u64 {
    let stat = crate::fs::kernel(Path::new("/proc/self/stat")).unwrap_or_default();
    // The second field is the name of the program, in brackets.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
