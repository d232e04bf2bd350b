//! Training runs and evaluations.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustler::{Env, Reference, ResourceArc, Term};
use sconce_data::Corpus;
use sconce_nn::{Policy, Spec};
use sconce_tensor::device::Caching;
use sconce_tensor::pool::Class;
use sconce_train::eval::evaluate_beside;
use sconce_train::options::{EvaluateOptions, TrainOptions};
use sconce_train::plan::plan;
use sconce_train::range_test::{RangeOptions, range_test};
use sconce_train::report::Event;
use sconce_train::run::{
    Record, Verdict, Watch, read_gradients, read_progress, read_report, read_said, run_watched,
};
use sconce_train::tune::{TuneOptions, tune};
use serde::Serialize;
use serde_json::Value;

use crate::border::{Data, Events, Handle, Task, call, decode, perform};
use crate::policy::PolicyHandle;

/// Sends the events of a run. A failed event is dropped: it must not end the run. A step's event may replace the one
/// before it.
fn tell(events: &Events) -> impl Fn(Event) + '_ {
    |event| {
        let told = match event {
            Event::Step { .. } | Event::Evaluating { .. } => events.progress(Data(event)),
            _ => events.tell(Data(event)),
        };
        drop(told);
    }
}

/// A question of a run. The answer refers to the question by `number`.
#[derive(Serialize)]
struct Asking {
    event: &'static str,
    step: u64,
    number: u64,
}

/// Asks the process of a run what to do after a step.
fn ask(events: &Events, step: u64, deadline: Duration, cancelled: &AtomicBool) -> Option<Verdict> {
    // A question that cannot be sent gets no answer.
    let tell = |number| drop(events.tell(Data(Asking { event: "asking", step, number })));
    let answer = events.questions().ask(deadline, cancelled, tell)?;
    serde_json::from_value(answer).ok()
}

/// Answers a question of a run; false if the question is no longer open.
#[rustler::nif]
fn train_answer<'a>(env: Env<'a>, task: Handle<Task>, number: u64, verdict: Term<'a>) -> Term<'a> {
    call(env, "train", || {
        let verdict: Verdict = decode(verdict)?;
        Ok(Data(task.get()?.answer(number, serde_json::json!(verdict))))
    })
}

/// Lowers the thread's priority if the run is on a CPU. For a run on a card the thread holds locks for which callers
/// wait; there its reading threads lower their own priority.
fn give_way(on_cpu: bool) {
    if on_cpu {
        Class::Background.enter();
    }
}

/// The recorded arguments of the run in a folder: `corpus` (or nil), `spec`, `options`.
#[rustler::nif(schedule = "DirtyIo")]
fn train_record<'a>(env: Env<'a>, out: String) -> Term<'a> {
    call(env, "train", || Record::read(Path::new(&out)).map(Data))
}

/// The arguments in a file of a run: `corpus` and `spec` (or nil), pairs of names and values in `options` and `loss`.
#[rustler::nif(schedule = "DirtyIo")]
fn train_said<'a>(env: Env<'a>, path: String) -> Term<'a> {
    call(env, "options", || read_said(Path::new(&path)).map(Data))
}

/// Starts a run with these options, or resumes one; `options` then override the recorded ones.
#[rustler::nif]
fn train_start<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    corpus: String,
    out: String,
    options: Term<'a>,
    asks: bool,
) -> Term<'a> {
    call(env, "train", || {
        let spec: Spec = decode(spec)?;
        let said: Value = decode(options)?;
        let resume = said.get("resume") == Some(&Value::Bool(true));
        let new = if resume { None } else { Some(decode::<TrainOptions>(options)?) };
        Task::start(env, "train", reference, move |events, cancelled| {
            let (corpus, out) = (Corpus::open(Path::new(&corpus))?, PathBuf::from(out));
            let options = match new {
                Some(options) => options,
                None => Record::read(&out)?.with(said)?,
            };
            give_way(options.is_on_cpu());
            let deadline = Duration::from_millis(options.saving.callback_ms);
            let ask = |step| ask(events, step, deadline, cancelled);
            let tell = tell(events);
            let watch = Watch { events: &tell, ask: if asks { Some(&ask) } else { None } };
            run_watched(&corpus, &spec, &options, &out, watch, cancelled).map(Data)
        })
    })
}

/// The report of a finished run in a folder.
#[rustler::nif(schedule = "DirtyIo")]
fn train_report<'a>(env: Env<'a>, out: String) -> Term<'a> {
    call(env, "report", || read_report(&PathBuf::from(out)).map(Data))
}

/// The last saved state of the run in the folder, without its weights.
#[rustler::nif(schedule = "DirtyIo")]
fn train_progress<'a>(env: Env<'a>, out: String) -> Term<'a> {
    call(env, "progress", || read_progress(&PathBuf::from(out)).map(Data))
}

/// The gradient figures of the run in a folder.
#[rustler::nif(schedule = "DirtyIo")]
fn train_gradients<'a>(env: Env<'a>, out: String) -> Term<'a> {
    call(env, "gradients", || read_gradients(&PathBuf::from(out)).map(Data))
}

/// Acknowledges an event of a task.
#[rustler::nif]
fn task_heard(task: ResourceArc<Task>) -> rustler::Atom {
    task.heard();
    rustler::types::atom::ok()
}

/// Asks a run or an evaluation to end.
#[rustler::nif]
fn train_stop<'a>(env: Env<'a>, task: Handle<Task>) -> Term<'a> {
    perform(env, "train", || {
        task.get()?.cancel();
        Ok(())
    })
}

#[rustler::nif]
fn evaluate_start<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    checkpoint: String,
    corpus: String,
    train: Option<String>,
    options: Term<'a>,
) -> Term<'a> {
    call(env, "evaluate", || {
        let options: EvaluateOptions = decode(options)?;
        Task::start(env, "evaluate", reference, move |events, cancelled: &AtomicBool| {
            give_way(options.is_on_cpu());
            let device = options.open_device()?;
            let _caching = Caching::on(&device);
            let load = |path: &PathBuf| Policy::load(path)?.on(&device);
            let policy = load(&PathBuf::from(checkpoint))?;
            let other = options.reference.as_ref().map(load).transpose()?;
            let corpus = Corpus::open(&PathBuf::from(corpus))?;
            let train = train.map(|dir| Corpus::open(&PathBuf::from(dir))).transpose()?;
            let (other, train) = (other.as_ref(), train.as_ref());
            evaluate_beside(&policy, other, &corpus, train, &options, &tell(events), cancelled)
                .map(Data)
        })
    })
}

#[rustler::nif]
fn plan_start<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    corpus: Option<String>,
    options: Term<'a>,
) -> Term<'a> {
    call(env, "plan", || {
        let (spec, options): (Spec, TrainOptions) = (decode(spec)?, decode(options)?);
        Task::start(env, "plan", reference, move |_events, cancelled| {
            give_way(options.is_on_cpu());
            let corpus = corpus.map(|dir| Corpus::open(&PathBuf::from(dir))).transpose()?;
            plan(&spec, &options, corpus.as_ref(), cancelled).map(Data)
        })
    })
}

#[rustler::nif]
fn tune_start<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    options: Term<'a>,
    tuning: Term<'a>,
) -> Term<'a> {
    call(env, "tune", || {
        let (spec, options): (Spec, TrainOptions) = (decode(spec)?, decode(options)?);
        let tuning: TuneOptions = decode(tuning)?;
        Task::start(env, "tune", reference, move |_events, cancelled| {
            give_way(options.is_on_cpu());
            tune(&spec, &options, &tuning, cancelled).map(Data)
        })
    })
}

#[rustler::nif]
fn range_test_start<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    policy: Term<'a>,
    corpus: String,
    options: Term<'a>,
    range: Term<'a>,
) -> Term<'a> {
    call(env, "find_learning_rate", || {
        let (spec, options): (Spec, TrainOptions) = (decode(spec)?, decode(options)?);
        let range: RangeOptions = decode(range)?;
        let policy = if policy.is_atom() { None } else { Some(Handle::of(policy).get()?) };
        Task::start(env, "find_learning_rate", reference, move |_events, cancelled| {
            give_way(options.is_on_cpu());
            let handle = |of: ResourceArc<PolicyHandle>| of.policy();
            let policy = policy.map(handle).transpose()?;
            let corpus = Corpus::open(&PathBuf::from(corpus))?;
            range_test(&spec, policy.as_deref(), &corpus, &options, &range, cancelled).map(Data)
        })
    })
}
