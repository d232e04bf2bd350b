//! Runs inputs in child processes, restarts a child that an input killed, and counts the outcomes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;
use std::{fs, thread};

use sconce_tensor::digest::sha256;

use crate::child::INPUT;
use crate::scratch;
use crate::targets::Target;

/// Time without an outcome after which an input counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum inputs kept for the same failure message.
const KEPT_ALIKE: usize = 3;
/// Maximum child processes of one job. If every input breaks the target, further children add nothing.
const MOST_CHILDREN: usize = 200;

/// A range of inputs for one target.
#[derive(Clone)]
pub struct Job {
    /// The target that reads the inputs.
    pub target: &'static Target,
    /// Source of the inputs.
    pub source: Source,
    /// Indices of the inputs. With coverage feedback, `end` is a time in seconds since 1970.
    pub range: Range<u64>,
}

/// Source of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Mutants of the target's seeds.
    Mutants {
        /// Seed of the random choices.
        seed: u64,
    },
    /// Kept inputs that broke a target in an earlier run.
    Kept,
    /// Mutants of inputs that reached new code.
    #[cfg(feature = "coverage")]
    Covered {
        /// Seed of the random choices.
        seed: u64,
    },
}

impl Job {
    /// Encodes the job as arguments of a child, for [`Job::parse`].
    fn arguments(&self) -> Vec<String> {
        let (source, seed) = match self.source {
            Source::Mutants { seed } => ("mutants", seed),
            Source::Kept => ("kept", 0),
            #[cfg(feature = "coverage")]
            Source::Covered { seed } => ("covered", seed),
        };
        let name = self.target.name;
        let Range { start, end } = self.range;
        ["--child", name, source]
            .map(String::from)
            .into_iter()
            .chain([seed, start, end].map(|number| number.to_string()))
            .collect()
    }

    /// Parses the arguments of a child after `--child`; `None` if they are malformed.
    pub fn parse(arguments: &[String]) -> Option<Self> {
        let [name, source, seed, start, end] = arguments else { return None };
        let number = |text: &String| text.parse::<u64>().ok();
        let seed = number(seed)?;
        let source = match source.as_str() {
            "mutants" => Source::Mutants { seed },
            "kept" => Source::Kept,
            #[cfg(feature = "coverage")]
            "covered" => Source::Covered { seed },
            _ => return None,
        };
        Some(Job { target: Target::find(name)?, source, range: number(start)?..number(end)? })
    }
}

/// Outcomes of the inputs of a target.
#[derive(Debug, Default)]
pub struct Tally {
    /// Count of inputs that ran.
    pub inputs: u64,
    /// Count of inputs that were accepted.
    pub accepted: u64,
    /// Counts of refused inputs by kind of error.
    pub refused: BTreeMap<String, u64>,
    /// Peak memory in bytes over all inputs, and the index of the input with the peak.
    pub peak: (usize, u64),
    /// Duration in microseconds and index of the slowest inputs, slowest first.
    pub slowest: Vec<(u128, u64)>,
    /// Inputs that broke the target.
    pub broken: Vec<Broken>,
    /// The last coverage report of a child.
    pub coverage: String,
}

/// An input that broke its target.
#[derive(Debug)]
pub struct Broken {
    /// Index of the input.
    pub index: u64,
    /// The failure in words.
    pub reason: String,
    /// Path of the kept input; `None` if enough similar inputs are kept.
    pub path: Option<PathBuf>,
}

impl Tally {
    fn count(&mut self, index: u64, peak: usize, micros: u128) {
        self.inputs += 1;
        self.peak = self.peak.max((peak, index));
        self.slowest.push((micros, index));
        self.slowest.sort_unstable_by(|a, b| b.cmp(a));
        self.slowest.truncate(3);
    }

    /// A row of the table under [`HEADING`].
    pub fn row(&self, name: &str) -> String {
        let mut row = format!(
            "{name:<11} {:>7} {:>8} {:>6} {:>9.1} ",
            self.inputs,
            self.accepted,
            self.broken.len(),
            self.peak.0 as f64 / 1e6,
        );
        for (micros, index) in &self.slowest {
            let _ = write!(row, " {:.1} ms (#{index})", *micros as f64 / 1e3);
        }
        let refused = self.refused.iter().map(|(kind, count)| format!("{kind} {count}"));
        let _ = write!(row, "\n{:11}  refused: {}", "", refused.collect::<Vec<_>>().join(", "));
        row
    }
}

/// Heading of the table of outcomes.
pub const HEADING: &str = "target       inputs accepted  broke   peak MB  slowest";

/// The folder of inputs that broke a target.
pub fn corpus(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The inputs kept for a target, sorted by path.
pub fn kept(target: &Target) -> Vec<PathBuf> {
    let entries = fs::read_dir(corpus(target)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Runs a job to its end, and restarts children that die. `progress` receives the coverage reports.
pub fn run(program: &Path, mut job: Job, progress: &dyn Fn(&str)) -> Tally {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let root = scratch::folder(&format!("{}-{number}", job.target.name));
    let mut tally = Tally::default();
    for _ in 0..MOST_CHILDREN {
        let Some(mut child) = start(program, &job, &root) else { break };
        let lines = listen(&mut child);
        let ended = follow(&mut tally, &job, &lines, &root, progress);
        if ended.is_hung() {
            let _ = child.kill();
        }
        let status = child.wait().ok();
        let how = match (&ended, status) {
            (Ended::Hung(_), _) => format!("no answer for {} s", PATIENCE.as_secs()),
            (Ended::Silent(_), Some(status)) if status.success() => break,
            (_, status) => {
                format!("the process ended: {}", status.map_or("?".into(), |s| s.to_string()))
            }
        };
        let (Ended::Hung(index) | Ended::Silent(Some(index))) = ended else {
            let reason = format!("between two inputs {how}");
            tally.broken.push(Broken { index: job.range.start, reason, path: None });
            break;
        };
        tally.inputs += 1;
        keep(&mut tally, &job, index, how, &root.join("now").join(INPUT));
        job.range.start = index + 1;
        if job.range.is_empty() {
            break;
        }
    }
    scratch::remove(&root);
    tally
}

/// The end of a child's output.
enum Ended {
    /// The child closed its output, while running this input or between inputs.
    Silent(Option<u64>),
    /// The child gave no answer for [`PATIENCE`].
    Hung(u64),
}

impl Ended {
    fn is_hung(&self) -> bool {
        matches!(self, Ended::Hung(_))
    }
}

fn start(program: &Path, job: &Job, root: &Path) -> Option<Child> {
    let mut command = Command::new(program);
    command.args(job.arguments()).env(scratch::VARIABLE, root);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().map_err(|e| eprintln!("{}: {e}", program.display())).ok()
}

fn listen(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = sync_channel(64);
    let out = child.stdout.take();
    thread::spawn(move || {
        let all = out.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok));
        for line in all {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn follow(
    tally: &mut Tally,
    job: &Job,
    lines: &Receiver<String>,
    root: &Path,
    progress: &dyn Fn(&str),
) -> Ended {
    let mut at = None;
    loop {
        let line = match lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => match at {
                Some(index) => return Ended::Hung(index),
                None => return Ended::Hung(job.range.start),
            },
            Err(RecvTimeoutError::Disconnected) => return Ended::Silent(at),
        };
        let mut words = line.splitn(5, ' ');
        match words.next() {
            Some("begin") => at = words.next().and_then(|index| index.parse().ok()),
            Some("end") => {
                at = None;
                ended(tally, job, words, root);
            }
            Some("cover") => {
                progress(&line);
                tally.coverage = line;
            }
            _ => {}
        }
    }
}

fn ended<'a>(tally: &mut Tally, job: &Job, mut words: impl Iterator<Item = &'a str>, root: &Path) {
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let (index, peak, micros) = (number(), number(), number());
    tally.count(index, peak as usize, micros.into());
    match words.next() {
        Some("accepted") => tally.accepted += 1,
        Some(verdict) => match verdict.strip_prefix("broke ") {
            Some(reason) => {
                let input = root.join("now").join(format!("{index}.bin"));
                keep(tally, job, index, reason.into(), &input);
            }
            None => *tally.refused.entry(verdict.into()).or_default() += 1,
        },
        None => {}
    }
}

/// Counts an input that broke its target, and keeps the input as a test.
fn keep(tally: &mut Tally, job: &Job, index: u64, reason: String, input: &Path) {
    let alike = |broken: &&Broken| digits_off(&broken.reason) == digits_off(&reason);
    let known = tally.broken.iter().filter(alike).count();
    let bytes = fs::read(input).unwrap_or_default();
    let path = (job.source != Source::Kept && known < KEPT_ALIKE).then(|| {
        let name: String = sha256([&bytes]).chars().take(12).collect();
        corpus(job.target).join(format!("broke-{name}.bin"))
    });
    if let Some(path) = &path {
        let _ = path.parent().map(fs::create_dir_all);
        let _ = fs::write(path, &bytes);
    }
    let _ = fs::remove_file(input);
    tally.broken.push(Broken { index, reason, path });
}

/// The text without digits.
fn digits_off(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}
