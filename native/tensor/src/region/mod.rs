//! A table of metrics, which another process can read while this one writes.
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

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use words::Words;

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
/// Bytes of the process' line in /proc.
const MAX_STAT: u64 = 64 << 10;

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
    words: Words,
    slots: usize,
    /// The table as this process knows it: other programs could write the shared one.
    rows: Mutex<Vec<Row>>,
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
        Ok(Region { words: Words::new(path, &words)?, slots, rows: Mutex::default() })
    }

    /// The file.
    pub fn path(&self) -> Option<&Path> {
        self.words.path()
    }

    /// The first words of the metrics.
    fn first(&self, words: usize) -> Result<&[AtomicU64]> {
        let place = HEADER + self.slots * ROW;
        let first = self.words.all().get(place..).and_then(|data| data.get(..words));
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
        if i >= self.slots || place + words > self.words.all().len() {
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
        if let Some(word) = self.words.all().get(place) {
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
        if let Some(words) = self.words.all().get(place..place + words) {
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
        let word =
            |k: usize| self.words.all().get(place + k).map_or(0, |w| w.load(Ordering::Relaxed));
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
        let Some(sequence) = self.words.all().get(place) else { return };
        sequence.fetch_or(1, Ordering::Relaxed);
        fence(Ordering::Release);
        write();
        sequence.fetch_add(1, Ordering::Release);
    }

    /// Says that the process lives, and what became of its work.
    pub fn beat(&self, state: State) {
        self.store(at::HEARTBEAT, now());
        self.store(at::STATE, state as u64);
    }

    /// A copy of all bytes.
    pub fn read(&self) -> Vec<u8> {
        fence(Ordering::Acquire);
        self.words
            .all()
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .collect()
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.all().get(at) {
            word.store(value, Ordering::Release);
        }
    }
}

static SHARED: OnceLock<Region> = OnceLock::new();

/// Makes the region of this process, with the file `path`, and moves the catalogue's values there. Updates at this very
/// moment may be lost. Later calls return the same region.
///
/// # Errors
/// `Io` for a file that cannot be written, after which the values stay where they are.
pub fn share(path: Option<&Path>, meta: &str) -> Result<&'static Region> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = MAKING.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(region) = SHARED.get() {
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
    let stat = crate::fs::read(Path::new("/proc/self/stat"), MAX_STAT).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    // The second field is the name of the program, in brackets.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_words(path: &Path) -> Vec<u64> {
        words_of(&crate::fs::read(path, 16 << 20).unwrap())
    }

    fn words_of(bytes: &[u8]) -> Vec<u64> {
        bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// Place of the words of a metric.
    fn data_of(words: &[u64], i: usize) -> usize {
        words[HEADER + i * ROW + 1] as usize
    }

    fn metric(kind: Kind, name: &str) -> Metric<'_> {
        Metric { kind, name, unit: "ns", help: "a test" }
    }

    fn text(words: &[u64], at: usize, bytes: usize) -> String {
        let all: Vec<u8> = words[at..].iter().flat_map(|word| word.to_le_bytes()).collect();
        String::from_utf8(all[..bytes].to_vec()).unwrap()
    }

    #[test]
    fn values_move_into_the_file_and_go_on_there() {
        metrics::METRICS.panics.add(3);
        metrics::METRICS.decision_time.record(std::time::Duration::from_micros(5));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.vm");
        let region = share(Some(&path), "{}").unwrap();
        metrics::METRICS.panics.add(4);
        metrics::METRICS.decision_time.record(std::time::Duration::from_micros(7));
        assert_eq!(metrics::METRICS.panics.get(), 7);
        let words = file_words(&path);
        let place = |name: &str| {
            let i = CATALOGUE.iter().position(|metric| metric.name == name).unwrap();
            data_of(&words, i)
        };
        assert_eq!(words[place("sconce_panics_total")], 7);
        let times = place("sconce_decision_seconds");
        assert_eq!(words[times], 12_000);
        assert_eq!(words[times + 1..times + histogram::WORDS].iter().sum::<u64>(), 2);
        // A second call changes nothing.
        assert!(std::ptr::eq(share(None, "{}").unwrap(), region));
    }

    #[test]
    fn another_reader_of_the_file_finds_each_kind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.run");
        let region = Region::new(Some(&path), "{\"id\": \"ä\"}", 8, 10_000).unwrap();
        let kinds = [Kind::Counter, Kind::Gauge, Kind::Histogram, Kind::Series, Kind::Text];
        let names = ["c", "g{a=\"b\"}", "h", "s", "t"];
        for (i, (kind, name)) in kinds.into_iter().zip(names).enumerate() {
            assert_eq!(region.metric(&metric(kind, name)).unwrap(), i);
            assert_eq!(region.metric(&metric(kind, name)).unwrap(), i, "again");
        }
        assert!(f64::from_bits(file_words(&path)[data_of(&file_words(&path), 1)]).is_nan());
        region.add(0, 2).unwrap();
        region.add(0, 40).unwrap();
        region.set(1, -0.5).unwrap();
        region.record(2, 7).unwrap();
        region.push(3, 1.0, 2.5).unwrap();
        region.tell(4, &"ä".repeat(1000)).unwrap();
        region.beat(State::Failed);

        let words = file_words(&path);
        assert_eq!(words, words_of(&region.read()));
        assert_eq!(words[..3], [MAGIC, VERSION, words.len() as u64]);
        assert_eq!((words[3], words[6], words[7]), (u64::from(std::process::id()), 8, 5));
        assert_eq!((words[9], text(&words, 16, words[10] as usize)), (2, "{\"id\": \"ä\"}".into()));
        let row = HEADER + ROW;
        assert_eq!((words[row], words[row + 2], words[row + 3]), (2, 1, 8 | 2 << 16 | 6 << 32));
        assert_eq!(text(&words, row + 4, 16), "g{a=\"b\"}nsa test");
        let data: Vec<usize> = (0..5).map(|i| data_of(&words, i)).collect();
        assert_eq!((words[data[0]], f64::from_bits(words[data[1]])), (42, -0.5));
        assert_eq!((words[data[2]], words[data[2] + 1 + 7]), (7, 1));
        assert_eq!(words[data[3]..data[3] + 3], [2, 1, 1]);
        assert_eq!(f64::from_bits(words[data[3] + 4]), 2.5);
        assert_eq!((words[data[4]], words[data[4] + 1]), (2, 512));
        assert_eq!(text(&words, data[4] + 2, 512), "ä".repeat(256));
    }

    #[test]
    fn a_long_series_keeps_points_at_equal_distances_from_the_first_on() {
        let region = Region::new(None, "", 1, 1000).unwrap();
        region.metric(&metric(Kind::Series, "s")).unwrap();
        for x in 0..10_000 {
            region.push(0, f64::from(x), f64::from(2 * x)).unwrap();
            let words = words_of(&region.read());
            let place = data_of(&words, 0);
            let (points, stride) = (words[place + 1] as usize, words[place + 2]);
            for k in [0, points / 2, points - 1] {
                let x = k as f64 * stride as f64;
                let at = place + 3 + 2 * k;
                assert_eq!([words[at], words[at + 1]].map(f64::from_bits), [x, 2.0 * x]);
            }
            let last = (points - 1) as u64 * stride;
            assert!(last <= x as u64 && x as u64 - last < stride, "{x}: {points} {stride}");
        }
    }

    #[test]
    fn wrong_calls_are_errors_that_name_the_metric() {
        let region = Region::new(None, "", 2, 4000).unwrap();
        let kind = |name: &str, kind| region.metric(&metric(kind, name)).map_err(|e| e.to_string());
        kind("n", Kind::Counter).unwrap();
        assert_eq!(kind("n", Kind::Gauge).unwrap_err(), "kind of n: expected counter, got gauge");
        assert_eq!(
            region.set(0, 1.0).unwrap_err().to_string(),
            "kind of n: expected gauge, got counter"
        );
        assert!(region.add(1, 1).is_err());
        assert!(kind(&"n".repeat(300), Kind::Gauge).is_err());
        kind("h", Kind::Histogram).unwrap();
        assert!(kind("more", Kind::Gauge).is_err());
        // The place of a removed metric is free for one of its size.
        region.remove(0);
        assert!(region.add(0, 1).is_err());
        assert!(kind("t", Kind::Text).is_err());
        assert_eq!(kind("g", Kind::Gauge).unwrap(), 0);
        region.set(0, 3.0).unwrap();
        assert!(Region::new(None, &"x".repeat(4000), 1, 1).is_err());
        let nowhere = Path::new("/nonexistent/a.run");
        assert_eq!(Region::new(Some(nowhere), "", 1, 1).unwrap_err().kind().name(), "not_found");
    }

    #[test]
    fn a_file_that_is_cut_ends_no_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.run");
        let region = Region::new(Some(&path), "", 8, 10_000).unwrap();
        region.metric(&metric(Kind::Counter, "c")).unwrap();
        region.metric(&metric(Kind::Histogram, "h")).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        for n in 0..100 {
            region.add(0, 1).unwrap();
            region.record(1, n << 40).unwrap();
            region.beat(State::Running);
        }
        assert!(words_of(&region.read()).contains(&100));
        // Others are as they were.
        let path = dir.path().join("b.run");
        let region = Region::new(Some(&path), "", 8, 10_000).unwrap();
        region.metric(&metric(Kind::Counter, "c")).unwrap();
        region.add(0, 5).unwrap();
        assert!(file_words(&path).contains(&5));
    }

    #[test]
    fn only_this_user_can_read_the_file_and_no_part_of_another_is_left() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.run");
        let _region = Region::new(Some(&path), "", 8, 100).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
