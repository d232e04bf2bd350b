//! Runs that learn from play: `Sconce.PPO`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustler::{Env, Reference, ResourceArc, Term};
use sconce_env::Host;
use sconce_nn::Spec;
use sconce_play::options::PpoOptions;
use sconce_play::plan::plan;
use sconce_play::run::{Event, Record, Task as Run, read_report, run};
use sconce_play::tune::{TuneOptions, tune};
use sconce_tensor::pool::Class;
use serde_json::Value;

use crate::border::{Data, Events, Task, call, decode};
use crate::env::Hosting;
use crate::rollout::InboxHandle;

/// Sends the events of a run. A failed event is dropped: it must not end the run. An update's event may replace the one
/// before it.
fn tell(events: &Events) -> impl Fn(Event) + '_ {
    |event| {
        let told = match event {
            Event::Update { .. } => events.progress(Data(event)),
            _ => events.tell(Data(event)),
        };
        drop(told);
    }
}

/// Starts a run with these options, or resumes one; `options` then override the recorded ones.
#[rustler::nif]
fn ppo_start<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    (world, host, inbox): (String, Hosting, Option<ResourceArc<InboxHandle>>),
    spec: Term<'a>,
    out: String,
    options: Term<'a>,
    resume: bool,
) -> Term<'a> {
    call(env, "learn", || {
        let spec: Spec = decode(spec)?;
        let said: Value = decode(options)?;
        let new = if resume { None } else { Some(decode::<PpoOptions>(options)?) };
        Task::start(env, "learn", reference, move |events, cancelled| {
            let out = PathBuf::from(out);
            let options = match new {
                Some(options) => options,
                None => Record::read(&out)?.with(said)?,
            };
            Class::Background.enter();
            let host = host.map(|host| host.host());
            let (host, inbox) = (host.as_ref(), inbox.map(|inbox| inbox.inbox()));
            let task = Run { spec: &spec, env: &world, host, inbox: inbox.as_ref(), resume };
            run(task, &options, &out, &tell(events), cancelled).map(Data)
        })
    })
}

/// Measures memory and time of a run with these options.
#[rustler::nif]
fn ppo_plan_start<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    (world, host): (String, Hosting),
    spec: Term<'a>,
    options: Term<'a>,
) -> Term<'a> {
    call(env, "plan", || {
        let (spec, options): (Spec, PpoOptions) = (decode(spec)?, decode(options)?);
        Task::start(env, "plan", reference, move |_events, cancelled| {
            Class::Background.enter();
            let host = host.map(|host| host.host());
            plan(measured(&spec, &world, host.as_ref()), &options, cancelled).map(Data)
        })
    })
}

/// Searches the number of environments with the most steps a second.
#[rustler::nif]
fn ppo_tune_start<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    (world, host): (String, Hosting),
    spec: Term<'a>,
    options: Term<'a>,
    tuning: Term<'a>,
) -> Term<'a> {
    call(env, "tune", || {
        let (spec, options): (Spec, PpoOptions) = (decode(spec)?, decode(options)?);
        let tuning: TuneOptions = decode(tuning)?;
        Task::start(env, "tune", reference, move |_events, cancelled| {
            Class::Background.enter();
            let host = host.map(|host| host.host());
            tune(measured(&spec, &world, host.as_ref()), &options, &tuning, cancelled).map(Data)
        })
    })
}

/// A run that is measured and writes no file.
fn measured<'a>(spec: &'a Spec, env: &'a str, host: Option<&'a Arc<Host>>) -> Run<'a> {
    Run { spec, env, host, inbox: None, resume: false }
}

/// The recorded arguments of the run in a folder: `env`, `spec`, `options`.
#[rustler::nif(schedule = "DirtyIo")]
fn ppo_record<'a>(env: Env<'a>, out: String) -> Term<'a> {
    call(env, "learn", || Record::read(Path::new(&out)).map(Data))
}

/// The report of a finished run in a folder.
#[rustler::nif(schedule = "DirtyIo")]
fn ppo_report<'a>(env: Env<'a>, out: String) -> Term<'a> {
    call(env, "report", || read_report(Path::new(&out)).map(Data))
}
