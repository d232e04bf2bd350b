//! Imports replays into a corpus on all cores. Each replay is imported once.

use std::any::Any;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use sconce_game::Declaration;
use sconce_tensor::digest::sha256;
use sconce_tensor::pool::{Class, MAX_THREADS};
use sconce_tensor::{Error, Result, fs as files};
use serde::{Deserialize, Serialize};

use crate::column::Column;
use crate::corpus::Corpus;
use crate::corpus::Writer;
use crate::filter::Filter;
use crate::game::{GameInfo, OtherIds};
use crate::journal::{Interrupted, Journal, MAX_DEATHS};
use crate::melee;
use crate::reader::{Opened, Reader};
use crate::refusal::{Reason, Refusal};
use crate::replay::MAX_BYTES;
use crate::schema::Schema;
use crate::tables::{self, Tables};

const MANIFEST_EVERY: Duration = Duration::from_secs(1);

/// Options of an import.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImportOptions {
    /// Skips games with fewer frames.
    pub min_frames: usize,
    /// Skips other games that it does not keep. A game is kept if it keeps the view of one of its players; both views are
    /// imported.
    pub filter: Filter,
    /// Reader threads, at most [`MAX_THREADS`]; 0 uses one per processor.
    pub threads: usize,
    /// Reads replays that an import otherwise skips as [`Reason::Fatal`].
    pub retry: bool,
    /// Compresses the games that it adds.
    pub compress: bool,
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions {
            min_frames: 600,
            filter: Filter::default(),
            threads: 0,
            retry: false,
            compress: false,
        }
    }
}

/// Progress of an import.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    /// Files processed.
    pub done: usize,
    /// Files to process.
    pub total: usize,
    /// Games added.
    pub added: usize,
    /// Files whose game was already in the corpus.
    pub known: usize,
    /// Files skipped.
    pub skipped: usize,
    /// Frames of the games added.
    pub frames: u64,
    /// Seconds since the start of the import.
    pub seconds: f64,
}

/// Result of an import.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ImportReport {
    /// Games added.
    pub added: usize,
    /// Files whose game was already in the corpus.
    pub known: usize,
    /// Complete games whose killed import did not list them in the manifest.
    pub adopted: usize,
    /// Files skipped, with the reasons, sorted by file.
    pub skipped: Vec<Skipped>,
    /// Replays that were being read when an earlier import died.
    pub interrupted: Vec<Interrupted>,
    /// Frames of the games added.
    pub frames: u64,
    /// Bytes of the shards of the games added.
    pub bytes: u64,
    /// Ids in the added games that are missing from the id tables.
    pub other_ids: OtherIds,
    /// Seconds that the import took.
    pub seconds: f64,
}

/// A file that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Path of the file.
    pub file: String,
    /// Category of the reason.
    pub reason: Reason,
    /// Details of the reason.
    pub detail: String,
}

/// Reader of Slippi replays.
struct Replays;

impl Reader for Replays {
    fn what(&self) -> &'static str {
        "replays (.slp)"
    }

    fn reads(&self, path: &Path) -> bool {
        path.extension().is_some_and(|e| e.eq_ignore_ascii_case("slp"))
    }

    fn open(&self, file: &Path) -> std::result::Result<Opened, Refusal> {
        let bytes = load(file)?;
        Ok(Opened { digest: sha256([&bytes]), bytes })
    }

    fn read(
        &self,
        _file: &Path,
        opened: &Opened,
        min_frames: usize,
    ) -> std::result::Result<melee::Game, Refusal> {
        melee::read(&opened.bytes, min_frames)
    }
}

/// Adds CSV or JSON-lines files of a declared game to the corpus in `dir`, one game per file. Progress,
/// cancellation and errors are those of [`import`]. An existing corpus determines the columns beside frames
/// and inputs; for a new corpus, the first file determines them.
pub fn import_tables(
    game: &Declaration,
    paths: &[PathBuf],
    dir: &Path,
    options: &ImportOptions,
    progress: &(dyn Fn(Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<ImportReport> {
    let plain = Tables::new(tables::schema_of(game, None)?);
    let mut skipped = Vec::new();
    let files = find(&plain, paths, &mut skipped)?;
    let there = Corpus::schema_at(dir)?.filter(|schema| schema.game().declaration() == game);
    let schema = match there {
        Some(schema) => schema,
        None => tables::schema_of(game, files.first().map(PathBuf::as_path))?,
    };
    let reader = Tables::new(schema.clone());
    added(&reader, &schema, (files, skipped), dir, options, progress, cancel)
}

/// Adds replays to the corpus in `dir`, which is created if missing. `paths` are replays, or folders that
/// are searched for `.slp` files. `progress` is called from the reader threads.
///
/// Every finished game is kept. A cancelled or killed import loses only the files in flight, and the next
/// import reads those files. A disk error ends the import; an error in a replay skips the replay and is
/// reported. A game that is already in the corpus is read again if the bytes of its shard have changed since
/// the shard was written. If no game can be kept, no corpus is created.
///
/// Replays in flight when an earlier import died are read last, one at a time. Replays that were in flight
/// at two such deaths are skipped, unless [`ImportOptions::retry`] is set.
pub fn import(
    paths: &[PathBuf],
    dir: &Path,
    options: &ImportOptions,
    progress: &(dyn Fn(Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<ImportReport> {
    let mut skipped = Vec::new();
    let files = find(&Replays, paths, &mut skipped)?;
    added(&Replays, &Schema::melee(), (files, skipped), dir, options, progress, cancel)
}

fn added(
    reader: &dyn Reader,
    schema: &Schema,
    (files, skipped): (Vec<PathBuf>, Vec<Skipped>),
    dir: &Path,
    options: &ImportOptions,
    progress: &(dyn Fn(Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<ImportReport> {
    if options.threads > MAX_THREADS {
        let (asked, most) = (options.threads as f64, MAX_THREADS as f64);
        return Err(Error::out_of_range("threads", asked, 0.0, most));
    }
    options.filter.check(schema)?;
    let start = Instant::now();
    let mut writer = Writer::open(dir, schema)?;
    writer.compress = options.compress;
    let found = writer.take_stock()?;
    let threads = pool(options.threads)?;
    let journal = Journal::open(dir, threads.current_num_threads())?;
    let job = Job {
        reader,
        options,
        progress,
        start,
        total: files.len(),
        state: Mutex::new(State::new(&found.games)),
        ledger: Mutex::new(Ledger { games: found.games, written: start, cost: Duration::ZERO }),
        doubtful: found.doubtful,
        writer,
        journal,
    };
    let outcome = threads.install(|| job.run(&files, cancel));
    // Games that were finished before a failure are listed too.
    let listed = job.close();
    outcome?;
    listed?;
    Ok(job.report(found.adopted, skipped))
}

fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    let unavailable = |e: rayon::ThreadPoolBuildError| Error::Unavailable {
        what: "threads".into(),
        reason: e.to_string(),
    };
    let class = Class::current();
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("sconce-import-{i}"))
        .start_handler(move |_| class.enter())
        .build()
        .map_err(unavailable)
}

struct Job<'a> {
    reader: &'a dyn Reader,
    options: &'a ImportOptions,
    progress: &'a (dyn Fn(Progress) + Sync),
    start: Instant,
    total: usize,
    state: Mutex<State>,
    ledger: Mutex<Ledger>,
    /// Digests of games whose shards may be damaged, see [`crate::corpus::Found`].
    doubtful: HashSet<String>,
    writer: Writer,
    journal: Journal,
}

/// Counts and claimed digests. Each thread holds the lock of this state briefly.
struct State {
    /// Games of the corpus before this run.
    known: HashSet<String>,
    /// Digests claimed in this run, with the file that claimed each.
    claimed: HashMap<String, PathBuf>,
    /// Digests of games by the digest of their values.
    contents: HashMap<String, String>,
    /// Replays that may have killed an earlier import. They are read last, one at a time.
    suspects: Vec<PathBuf>,
    /// Digests of the suspects that were read in this run.
    cleared: HashSet<String>,
    done: usize,
    report: ImportReport,
}

/// The games listed so far. They have a separate lock, because a thread holds this lock while it writes the
/// manifest.
struct Ledger {
    games: Vec<GameInfo>,
    written: Instant,
    /// Duration of the last write of the manifest.
    cost: Duration,
}

impl State {
    fn new(games: &[GameInfo]) -> Self {
        let known = games.iter().map(|g| g.digest.clone()).collect();
        let contents = games.iter().map(|game| (game.contents.clone(), game.digest.clone()));
        let (claimed, suspects, cleared) = Default::default();
        let (contents, report) = (contents.collect(), ImportReport::default());
        State { known, claimed, contents, suspects, cleared, done: 0, report }
    }
}

/// Outcome of importing one file.
enum Outcome {
    Added(Box<GameInfo>),
    Known,
    Skipped(Refusal),
    /// The file may have killed an earlier import.
    Suspect,
}

/// Whether other replays are read at the same time.
#[derive(Clone, Copy, PartialEq)]
enum Company {
    Others,
    Alone,
}

impl Job<'_> {
    fn run(&self, files: &[PathBuf], cancel: &AtomicBool) -> Result<()> {
        let one = |file: &PathBuf, company| {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let outcome = self.take(file, company)?;
            self.record(file, outcome)
        };
        // Work is split file by file, because files differ too much in size for larger chunks.
        files.par_iter().with_max_len(1).try_for_each(|file| one(file, Company::Others))?;
        let mut suspects = std::mem::take(&mut lock(&self.state).suspects);
        if suspects.is_empty() {
            return Ok(());
        }
        suspects.sort();
        // The manifest is written first, so that a death from here on leaves a corpus that opens.
        let ledger = lock(&self.ledger);
        if !ledger.games.is_empty() {
            self.writer.write_manifest(&ledger.games)?;
        }
        drop(ledger);
        suspects.iter().try_for_each(|file| one(file, Company::Alone))
    }

    fn take(&self, file: &Path, company: Company) -> Result<Outcome> {
        let opened = match self.reader.open(file) {
            Ok(opened) => opened,
            Err(refusal) => return Ok(Outcome::Skipped(refusal)),
        };
        let digest = opened.digest.clone();
        match self.claim(&digest, file) {
            Some(Outcome::Known) if !self.is_whole(&digest) => {}
            Some(outcome) => return Ok(outcome),
            None => {}
        }
        if let Some(outcome) = self.suspected(&digest, company) {
            return Ok(outcome);
        }
        let reading = self.journal.reading(thread(), file, &digest)?;
        let read = quietly(|| self.reader.read(file, &opened, self.options.min_frames));
        self.clear(&digest);
        let mut game = match read {
            Ok(Ok(game)) => game,
            Ok(Err(refusal)) => return Ok(Outcome::Skipped(refusal)),
            Err(panic) => return Ok(Outcome::Skipped(Refusal::new(Reason::Corrupt, panic))),
        };
        drop(reading);
        if let Some(refusal) = self.options.filter.refuse(&game.info, game.columns.as_slice()) {
            return Ok(Outcome::Skipped(refusal));
        }
        if let Some(outcome) = self.copied(&game, &digest) {
            return Ok(outcome);
        }
        game.info.digest = digest;
        game.info.source =
            file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        self.writer.add(game.info, &game.columns).map(|info| Outcome::Added(Box::new(info)))
    }

    /// Returns the outcome of a replay that earlier imports died on, or `None` to read the replay now.
    fn suspected(&self, digest: &str, company: Company) -> Option<Outcome> {
        let deaths = self.journal.interrupted.get(digest)?.deaths;
        if deaths >= MAX_DEATHS && !self.options.retry {
            let detail = format!("{deaths} imports died while they read it; retry reads it again");
            return Some(Outcome::Skipped(Refusal::new(Reason::Fatal, detail)));
        }
        (company == Company::Others).then_some(Outcome::Suspect)
    }

    fn clear(&self, digest: &str) {
        if self.journal.interrupted.contains_key(digest) {
            lock(&self.state).cleared.insert(digest.to_owned());
        }
    }

    fn is_whole(&self, digest: &str) -> bool {
        !self.doubtful.contains(digest) && self.writer.is_whole(digest)
    }

    /// Claims a digest for this file, unless the digest is in the corpus or claimed by another file.
    fn claim(&self, digest: &str, file: &Path) -> Option<Outcome> {
        let mut state = lock(&self.state);
        if state.known.contains(digest) {
            return Some(Outcome::Known);
        }
        let first = state.claimed.entry(digest.to_owned()).or_insert_with(|| file.to_path_buf());
        (first != file).then(|| {
            let detail = format!("the same as {}", first.display());
            Outcome::Skipped(Refusal::new(Reason::Duplicate, detail))
        })
    }

    /// Skips a game whose values equal those of another one, if the filter asks for unique games.
    fn copied(&self, game: &melee::Game, digest: &str) -> Option<Outcome> {
        if !self.options.filter.unique {
            return None;
        }
        let contents = sha256(game.columns.iter().map(Column::bytes));
        let mut state = lock(&self.state);
        let first = state.contents.entry(contents).or_insert_with(|| digest.to_owned());
        (first != digest).then(|| {
            let detail = "the same values as another game";
            Outcome::Skipped(Refusal::new(Reason::Duplicate, detail))
        })
    }

    fn record(&self, file: &Path, outcome: Outcome) -> Result<()> {
        let added = match &outcome {
            Outcome::Added(game) => Some(GameInfo::clone(game)),
            _ => None,
        };
        let Some(progress) = self.count(file, outcome) else { return Ok(()) };
        if let Some(game) = added {
            self.list(game)?;
        }
        (self.progress)(progress);
        Ok(())
    }

    /// Counts an outcome and returns the progress; `None` for a file that is postponed.
    fn count(&self, file: &Path, outcome: Outcome) -> Option<Progress> {
        let mut state = lock(&self.state);
        if let Outcome::Suspect = outcome {
            state.suspects.push(file.to_path_buf());
            return None;
        }
        state.done += 1;
        let done = state.done;
        let report = &mut state.report;
        match outcome {
            Outcome::Known => report.known += 1,
            Outcome::Skipped(refusal) => report.skipped.push(skip(file, refusal)),
            Outcome::Suspect => {}
            Outcome::Added(game) => {
                report.added += 1;
                report.frames += game.frames as u64;
                report.bytes += game.bytes;
                report.other_ids.add(&game.other_ids);
            }
        }
        Some(Progress {
            done,
            total: self.total,
            added: report.added,
            known: report.known,
            skipped: report.skipped.len(),
            frames: report.frames,
            seconds: self.start.elapsed().as_secs_f64(),
        })
    }

    /// Lists a game, and writes the manifest at most once a second. The interval grows with the duration of
    /// a write, so that a large manifest is not rewritten all the time.
    fn list(&self, game: GameInfo) -> Result<()> {
        let again = lock(&self.state).known.contains(&game.digest);
        let mut ledger = lock(&self.ledger);
        if again {
            ledger.games.retain(|known| known.digest != game.digest);
        }
        ledger.games.push(game);
        if ledger.written.elapsed() < MANIFEST_EVERY.max(ledger.cost * 20) {
            return Ok(());
        }
        let begun = Instant::now();
        self.writer.write_manifest(&ledger.games)?;
        ledger.cost = begun.elapsed();
        ledger.written = Instant::now();
        Ok(())
    }

    /// Writes the final manifest. If there are no games and there was no manifest, the corpus is removed.
    fn close(&self) -> Result<()> {
        let state = lock(&self.state);
        let noted = self
            .journal
            .close(|digest| state.cleared.contains(digest) || state.known.contains(digest));
        let games = &lock(&self.ledger).games;
        self.list_all(games).and(noted)
    }

    fn list_all(&self, games: &[GameInfo]) -> Result<()> {
        if games.is_empty() && self.total > 0 && self.writer.abandon() {
            return Ok(());
        }
        self.writer.write_manifest(games)
    }

    fn report(self, adopted: usize, mut skipped: Vec<Skipped>) -> ImportReport {
        let state = self.state.into_inner().unwrap_or_else(|e| e.into_inner());
        let mut report = state.report;
        skipped.append(&mut report.skipped);
        skipped.sort_by(|a, b| a.file.cmp(&b.file));
        let seconds = self.start.elapsed().as_secs_f64();
        let interrupted = self.journal.interrupted.into_values().collect();
        ImportReport { adopted, skipped, interrupted, seconds, ..report }
    }
}

/// Locks a mutex, poisoned or not. A panic cannot leave the guarded counts inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn skip(file: &Path, refusal: Refusal) -> Skipped {
    let Refusal { reason, detail } = refusal;
    Skipped { file: file.display().to_string(), reason, detail }
}

/// Index of the current thread in the import's thread pool.
fn thread() -> usize {
    rayon::current_thread_index().unwrap_or(0)
}

fn load(file: &Path) -> std::result::Result<Vec<u8>, Refusal> {
    files::read(file, MAX_BYTES).map_err(|error| match error {
        Error::Corrupt { reason, .. } => Refusal::new(Reason::Corrupt, reason),
        Error::Mismatch { got, .. } => {
            Refusal::new(Reason::Unreadable, format!("{got}, not a regular file"))
        }
        Error::Io { source, .. } => Refusal::new(Reason::Unreadable, source),
        other => Refusal::new(Reason::Unreadable, other),
    })
}

/// The files under these paths, without duplicates, sorted by path. A folder without matching files is an
/// error, because it is probably the wrong folder.
fn find(
    reader: &dyn Reader,
    paths: &[PathBuf],
    skipped: &mut Vec<Skipped>,
) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if fs::metadata(path).map_err(Error::io(path))?.is_dir() {
            let before = files.len() + skipped.len();
            search(reader, path, &mut HashSet::new(), &mut files, skipped);
            if files.len() + skipped.len() == before {
                return Err(Error::not_found(format!("{} in {}", reader.what(), path.display())));
            }
        } else {
            files.push(path.clone());
        }
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// Searches a folder. A folder that cannot be listed is reported like an unreadable replay. A folder
/// that several links lead to is searched once, so loops end.
fn search(
    reader: &dyn Reader,
    folder: &Path,
    seen: &mut HashSet<PathBuf>,
    files: &mut Vec<PathBuf>,
    skipped: &mut Vec<Skipped>,
) {
    let listed = fs::canonicalize(folder).and_then(|real| match seen.insert(real) {
        true => fs::read_dir(folder).map(|entries| entries.flatten().collect()),
        false => Ok(vec![]),
    });
    let mut entries = match listed {
        Ok(entries) => entries,
        Err(e) => return skipped.push(skip(folder, Refusal::new(Reason::Unreadable, e))),
    };
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = entry.path();
        if path.is_dir() {
            search(reader, &path, seen, files, skipped);
        } else if reader.reads(&path) {
            files.push(path);
        }
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may panic on a bad file. The panic message is not printed, because the report of the import
/// names the file. Panics outside of this call or on other threads are printed as usual.
fn quietly<T>(work: impl FnOnce() -> T) -> std::result::Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    result.map_err(|payload| message(payload.as_ref()))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "the reader gave up".to_owned());
    // The report shows one line per file.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
