//! The folder of a run.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use sconce_data::Corpus;
use sconce_tensor::{Error, Result, fs};
use serde::Serialize;

use crate::gradients::GradientReport;
use crate::report::RunReport;

/// Maximum size of `run.json` in bytes. Options and Spec take less than 10,000.
pub(super) const MAX_RECORD: u64 = 1 << 20;
/// Maximum size in bytes of `report.json`, which has the history of a run.
pub(super) const MAX_REPORT: u64 = 1 << 26;
/// Maximum size of `gradients.jsonl` in bytes.
const MAX_GRADIENTS: u64 = 1 << 30;

/// The folder of a run.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

/// The kind of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The policy of the best validation.
    Best,
    /// The whole state, from which a run resumes.
    Last,
}

/// The numbered checkpoints that are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keep {
    /// Number of latest states to keep; with 0, existing ones are not removed.
    pub last: usize,
    /// Steps of the best policies.
    pub best: Vec<u64>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Best => "best",
            Kind::Last => "last",
        }
    }
}

impl Folder {
    /// Refers to the folder at `path`, which need not exist.
    pub fn new(path: &Path) -> Self {
        Folder(path.to_path_buf())
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of the checkpoint of a kind.
    pub fn file(&self, kind: Kind) -> PathBuf {
        self.0.join(format!("{}.{EXTENSION}", kind.name()))
    }

    /// Path of the numbered checkpoint of a step.
    pub fn numbered(&self, kind: Kind, step: u64) -> PathBuf {
        self.0.join(format!("{}-{step:08}.{EXTENSION}", kind.name()))
    }

    /// Path of the run's report.
    pub fn report(&self) -> PathBuf {
        self.0.join("report.json")
    }

    /// Path of the run's record, which is written at the start.
    pub fn record(&self) -> PathBuf {
        self.0.join("run.json")
    }

    /// Path of the gradient reports, one on each line.
    pub fn gradients(&self) -> PathBuf {
        self.0.join("gradients.jsonl")
    }

    /// Reads the gradient reports up to the first incomplete line.
    pub fn read_gradients(&self) -> Result<Vec<GradientReport>> {
        let path = self.gradients();
        let text = fs::read(&path, MAX_GRADIENTS)?;
        let lines = text.split(|byte| *byte == b'\n');
        Ok(lines.map_while(|line| serde_json::from_slice(line).ok()).collect())
    }

    /// Appends a gradient report.
    pub fn add_gradients(&self, report: &GradientReport) -> Result<()> {
        let path = self.gradients();
        let mut file = fs::append(&path)?;
        let before = file.metadata().map_err(Error::io(&path))?.len();
        let line = line(report)?;
        if before + line.len() as u64 > MAX_GRADIENTS {
            return Err(Error::out_of_range("bytes", before as f64, 0.0, MAX_GRADIENTS as f64));
        }
        // A failed write leaves no partial line, which the next report would continue, and no empty file.
        file.write_all(&line).map_err(|e| {
            let _ = match before {
                0 => std::fs::remove_file(&path),
                _ => file.set_len(before),
            };
            Error::io(&path)(e)
        })
    }

    /// Removes the reports after `step`, the last step that a killed run saved: later steps run again.
    pub fn cut_gradients(&self, step: u64) -> Result<()> {
        if !self.gradients().exists() {
            return Ok(());
        }
        let mut kept = self.read_gradients()?;
        kept.retain(|report| report.step <= step);
        let lines = kept.iter().map(line).collect::<Result<Vec<_>>>()?;
        fs::write_atomic(&self.gradients(), |file| file.write_all(&lines.concat()))
    }

    /// Creates the folder and takes its lock, so that one run at a time uses the folder.
    pub fn lock(&self) -> Result<File> {
        if Corpus::is_at(&self.0) {
            let what = format!("folder {}", self.0.display());
            return Err(Error::mismatch(what, "another folder for the run", "one of a corpus"));
        }
        std::fs::create_dir_all(&self.0).map_err(Error::io(&self.0))?;
        let lock = fs::lock(&self.0, "lock")?;
        // Removes partial files of a killed run.
        fs::clear_partials(&self.0)?;
        Ok(lock)
    }

    /// Writes the report of the run.
    pub fn write_report(&self, report: &RunReport) -> Result<()> {
        write_json(&self.report(), report)
    }

    /// Lists the folder's other states in the error about the last state.
    pub fn other_states(&self, error: Error) -> Error {
        let Error::Corrupt { what, reason } = error else { return error };
        let steps = self.steps(Kind::Last).unwrap_or_default();
        let mend = match steps.iter().max() {
            Some(step) => format!("copy {} over it", self.numbered(Kind::Last, *step).display()),
            None => self.begin_anew(),
        };
        Error::Corrupt { what, reason: format!("{reason}; {mend}") }
    }

    fn begin_anew(&self) -> String {
        let best = self.file(Kind::Best);
        let kept = match best.exists() {
            true => format!(", the policy of the best validation is {}", best.display()),
            false => String::new(),
        };
        format!("start again in another folder{kept}; keep_last keeps several states")
    }

    /// Removes the numbered checkpoints that are not to be kept.
    pub fn prune(&self, keep: &Keep) -> Result<()> {
        let mut last = self.steps(Kind::Last)?;
        last.sort_unstable_by(|a, b| b.cmp(a));
        let last = last.split_off(keep.last.min(last.len()));
        if keep.last > 0 {
            self.remove(Kind::Last, last)?;
        }
        if !keep.best.is_empty() {
            let best = self.steps(Kind::Best)?.into_iter();
            self.remove(Kind::Best, best.filter(|step| !keep.best.contains(step)))?;
        }
        Ok(())
    }

    fn remove(&self, kind: Kind, steps: impl IntoIterator<Item = u64>) -> Result<()> {
        steps.into_iter().try_for_each(|step| {
            let path = self.numbered(kind, step);
            std::fs::remove_file(&path).map_err(Error::io(&path))
        })
    }

    /// The steps of numbered checkpoints.
    fn steps(&self, kind: Kind) -> Result<Vec<u64>> {
        let entries = std::fs::read_dir(&self.0).map_err(Error::io(&self.0))?;
        let step = |name: &str| -> Option<u64> {
            let rest = name.strip_prefix(kind.name())?.strip_prefix('-')?;
            let step = rest.strip_suffix(EXTENSION)?.strip_suffix('.')?.parse().ok()?;
            // Matches only names that a run writes, not a user's `best-1.safetensors`.
            (self.numbered(kind, step).file_name()? == name).then_some(step)
        };
        let mut steps = vec![];
        for entry in entries {
            let name = entry.map_err(Error::io(&self.0))?.file_name();
            steps.extend(name.to_str().and_then(step));
        }
        Ok(steps)
    }
}

/// Writes data to a file as JSON, as a whole.
pub fn write_json(path: &Path, data: &impl Serialize) -> Result<()> {
    let corrupt = |e| Error::corrupt(path.display().to_string(), e);
    let text = serde_json::to_vec_pretty(data).map_err(corrupt)?;
    fs::write_atomic(path, |file| file.write_all(&text))
}

fn line(report: &GradientReport) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(report).map_err(|e| Error::corrupt("gradients", e))?;
    line.push(b'\n');
    Ok(line)
}

const EXTENSION: &str = "safetensors";
