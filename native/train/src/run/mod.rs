//! A training run, from a corpus to a checkpoint and a report.
//!
//! Everything random is a function of seed and step, so a run that goes on from `last.safetensors`
//! does what the uninterrupted one would have done.

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

use folder::{Folder, MAX_REPORT};
use machine::Machine;
pub use resume::Record;
pub use said::{Pairs, Said, read_said};
use sconce_data::Corpus;
use sconce_nn::Spec;
use sconce_tensor::{Error, Result, fs};
use state::Run;
pub use watch::{Ask, Verdict, Watch};

use crate::eval::{fits, pool_of};
use crate::gradients::GradientReport;
use crate::options::TrainOptions;
use crate::report::{Event, RunReport};

/// The report that a run left in its folder.
pub fn read_report(out: &Path) -> Result<RunReport> {
    let path = Folder::new(out).report();
    let text = fs::read(&path, MAX_REPORT)?;
    let again = "going on with the run (resume: true) writes it anew";
    let reason = |e| format!("cut short or damaged ({e}); {again}");
    let report: RunReport = serde_json::from_slice(&text)
        .map_err(|e| Error::corrupt(path.display().to_string(), reason(e)))?;
    report.spec.validate()?;
    Ok(report)
}

/// What the gradients looked like whenever a run was asked to look, from its folder.
pub fn read_gradients(out: &Path) -> Result<Vec<GradientReport>> {
    Folder::new(out).read_gradients()
}

/// Trains a policy of `spec` on `corpus`, with all its files in `out`.
///
/// # Errors
/// `Unsaved` with the report where states were to be written and none was. `Cancelled` where `cancel` is set before
/// the first step: nothing was learned.
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

/// [`run`], which asks between two steps what it is to do.
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
    // Dropped after the run, which waits for its last write.
    let _lock = folder.lock()?;
    let _threads = pool_of(options.machine.threads)?;
    let mut run = Run::prepare(machine, corpus, spec, options, folder, watch, cancel)?;
    match run.train() {
        Ok(stopped) => run.finish(stopped),
        Err(error) => {
            // A step fails before it changes a weight: these are the weights of the last whole one.
            // The first error is the one to tell.
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
