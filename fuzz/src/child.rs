//! The child process, which runs the inputs. The child reports the start and the outcome of each input on
//! standard output, so that the parent knows which input killed the child.

use std::fmt::Display;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use sconce_tensor::{Error, Kind};

use crate::runner::{Job, Source};
use crate::targets::{OF_INPUT, Target};
use crate::{memory, scratch};

/// Name of the current input's file in the child's folder.
pub const INPUT: &str = "input.bin";

/// Outcome of one input.
#[derive(Debug)]
pub struct Outcome {
    pub verdict: Verdict,
    pub peak: usize,
    pub micros: u128,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    /// Refused with a typed error: the error's kind and message.
    Refused(&'static str, String),
    Broke(String),
}

/// Message and location of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn said() -> String {
    PANIC.lock().unwrap_or_else(|e| e.into_inner()).clone()
}

/// Runs an input in an empty folder.
fn execute(target: &Target, input: &[u8], dir: &Path) -> Outcome {
    let (before, begin) = (memory::reset(), Instant::now());
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input, dir)));
    let (peak, micros) = (memory::peak(before), begin.elapsed().as_micros());
    let most = target.memory + OF_INPUT * input.len();
    let verdict = match result {
        // A refused allocation unwinds, and Sconce returns it to callers as an error.
        Err(payload) => match Error::of_panic(payload) {
            Error::Panic { .. } => Verdict::Broke(format!("panic: {}", said())),
            error => refused(&error),
        },
        _ if peak > most => Verdict::Broke(format!("took {peak} bytes of {most}")),
        Ok(Ok(())) => Verdict::Accepted,
        Ok(Err(error)) => refused(&error),
    };
    Outcome { verdict, peak, micros }
}

/// Classifies an error. Errors that only a bug can cause count as broken.
fn refused(error: &Error) -> Verdict {
    match error {
        Error::Tensor(_) | Error::Panic { .. } if error.kind() != Kind::OutOfMemory => {
            Verdict::Broke(format!("{}: {error}", error.kind().name()))
        }
        _ => Verdict::Refused(error.kind().name(), error.to_string()),
    }
}

/// Runs all inputs of a job on a thread with the target's stack size.
pub fn run(job: Job) {
    panic::set_hook(Box::new(|info| {
        let text = info.to_string().replace('\n', " ");
        eprintln!("{text}");
        *PANIC.lock().unwrap_or_else(|e| e.into_inner()) = text;
    }));
    let stack = job.target.stack;
    // Instrumented code has larger stack frames, so the stack is larger too.
    let stack = if cfg!(feature = "coverage") { 4 * stack } else { stack };
    // Seeds are made on this thread, because Sconce may build models on threads of any stack size.
    let seeds = (job.target.seeds)();
    let work = thread::Builder::new().stack_size(stack).spawn(move || inputs(&job, &seeds));
    work.map(thread::JoinHandle::join).expect("a thread").expect("no panic");
}

fn inputs(job: &Job, seeds: &[Vec<u8>]) {
    let reader =
        Reader { target: job.target, dir: scratch::folder("input"), root: scratch::folder("now") };
    match job.source {
        Source::Mutants { seed, .. } => {
            for index in job.range.clone() {
                match seeds.get(index as usize) {
                    Some(input) => reader.read_seed(index, input),
                    None => reader.read(index, &job.target.input(seeds, seed, index)),
                };
            }
        }
        Source::Kept => {
            let kept = crate::runner::kept(job.target);
            for (index, path) in kept.iter().enumerate().skip(job.range.start as usize) {
                reader.read(index as u64, &std::fs::read(path).expect("an input"));
            }
        }
        #[cfg(feature = "coverage")]
        Source::Covered { seed } => crate::coverage::explore(job, seed, seeds, &reader),
    }
}

pub struct Reader {
    target: &'static Target,
    /// Folder for the files that an input writes.
    dir: PathBuf,
    root: PathBuf,
}

impl Reader {
    /// Runs an input, and reports the outcome to the parent.
    pub fn read(&self, index: u64, input: &[u8]) -> Outcome {
        self.check(index, input, |verdict| verdict)
    }

    /// Runs an input that must be accepted, and reports the outcome to the parent.
    pub fn read_seed(&self, index: u64, input: &[u8]) -> Outcome {
        self.check(index, input, |verdict| match verdict {
            Verdict::Refused(kind, text) => {
                Verdict::Broke(format!("a seed is refused: {kind}: {text}"))
            }
            verdict => verdict,
        })
    }

    fn check(&self, index: u64, input: &[u8], judge: impl FnOnce(Verdict) -> Verdict) -> Outcome {
        let path = self.root.join(INPUT);
        std::fs::write(&path, input).expect("a folder for the input");
        tell(format_args!("begin {index}"));
        let Outcome { verdict, peak, micros } = execute(self.target, input, &self.dir);
        let verdict = judge(verdict);
        let _ = std::fs::remove_dir_all(&self.dir);
        std::fs::create_dir_all(&self.dir).expect("a folder");
        let told = match &verdict {
            Verdict::Accepted => "accepted",
            Verdict::Refused(kind, _) => kind,
            Verdict::Broke(reason) => {
                let _ = std::fs::rename(&path, self.root.join(format!("{index}.bin")));
                &format!("broke {}", reason.replace('\n', " "))
            }
        };
        tell(format_args!("end {index} {peak} {micros} {told}"));
        Outcome { verdict, peak, micros }
    }
}

pub fn tell(line: impl Display) {
    let mut out = std::io::stdout().lock();
    // A failed write means that the parent has died, so the child exits.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}
