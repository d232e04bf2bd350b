//! A training run, from a corpus to a checkpoint and a report.
//!
//! Every random number is a function of seed and step, so a run that resumes from `last.safetensors` gives the results
//! of the uninterrupted run.

mod ask;
mod due;
mod figures;
mod finish;
mod folder;
mod machine;
mod prepare;
mod progress;
mod resume;
mod room;
mod said;
mod save;
mod saved_progress;
mod saver;
mod state;
mod train;
mod validate;
mod watch;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use folder::MAX_REPORT;
pub use folder::{Folder, Kind, write_json};
use machine::Machine;
pub use resume::Record;
pub use said::{Pairs, Said, read_said};
pub use saved_progress::{SavedProgress, read_progress};
use sconce_data::Corpus;
use sconce_nn::Spec;
use sconce_tensor::{Error, Result, fs};
use state::Run;
pub use watch::{Ask, Verdict, Watch};

use crate::eval::{fits, pool_of};
use crate::gradients::GradientReport;
use crate::options::TrainOptions;
use crate::report::{Event, RunReport};

/// Reads the report in the folder of a run.
pub fn read_report(out: &Path) -> Result<RunReport> {
    let path = Folder::new(out).report();
    let text = fs::read(&path, MAX_REPORT)?;
    let again = "resuming the run (resume: true) writes it again";
    let reason = |e| format!("cut short or damaged ({e}); {again}");
    let report: RunReport = serde_json::from_slice(&text)
        .map_err(|e| Error::corrupt(path.display().to_string(), reason(e)))?;
    report.spec.validate()?;
    Ok(report)
}

/// Reads the gradient reports in the folder of a run.
pub fn read_gradients(out: &Path) -> Result<Vec<GradientReport>> {
    Folder::new(out).read_gradients()
}

/// Trains a policy of `spec` on `corpus`, with all its files in `out`.
///
/// # Errors
/// `Unsaved` with the report, if none of the states could be written. `Cancelled` if `cancel` is set before the first
/// step: nothing was learned.
pub fn run(
    corpus: &Corpus,
    spec: &Spec,
    options: &TrainOptions,
    out: &Path,
    events: &dyn Fn(Event),
    cancel: &AtomicBool,
) -> Result<RunReport> {
    run_watched(corpus, spec, options, out, Watch::of(events), cancel)
}

/// Runs [`run`] with a callback between two steps.
pub fn run_watched(
    corpus: &Corpus,
    spec: &Spec,
    options: &TrainOptions,
    out: &Path,
    watch: Watch<'_>,
    cancel: &AtomicBool,
) -> Result<RunReport> {
    let disk = |file: &mut File, bytes: &[u8]| file.write_all(bytes);
    let machine = Machine { disk: Arc::new(disk), devices: TrainOptions::open_devices };
    run_on(machine, corpus, spec, options, out, watch, cancel)
}

fn run_on(
    machine: Machine,
    corpus: &Corpus,
    spec: &Spec,
    options: &TrainOptions,
    out: &Path,
    watch: Watch<'_>,
    cancel: &AtomicBool,
) -> Result<RunReport> {
    options.validate_for(spec)?;
    spec.validate()?;
    fits(corpus.schema(), spec)?;
    let folder = Folder::new(out);
    // The lock is declared before the run, so that it is dropped after the run, whose drop waits for its last write.
    let _lock = folder.lock()?;
    let _threads = pool_of(options.machine.threads)?;
    let mut run = Run::prepare(machine, corpus, spec, options, folder, watch, cancel)?;
    match run.train() {
        Ok(stopped) => run.finish(stopped),
        Err(error) => {
            // A step fails before it changes a weight, so these are the weights after the last completed step. Errors
            // of this save are dropped: the first error is returned.
            if run.progress.step > 0 && !run.replicas.torn() {
                let _ = run.save(None);
            }
            run.saver.finish(watch.events);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests;
