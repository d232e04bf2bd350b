//! Runs that learn from play: `Sconce.PPO`.

use std::path::{Path, PathBuf};

use rustler::{Env, Reference, ResourceArc, Term};
use sconce_nn::Spec;
use sconce_play::options::PpoOptions;
use sconce_play::run::{Event, Record, Task as Run, read_report, run};
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
