//! Functions for tests and benchmarks only.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use rustler::{Env, Reference, Resource, ResourceArc, Term};
use sconce_data::live_threads;
use sconce_game::melee;
use sconce_serve::session;
use sconce_tensor::{Error, Kind, Result};

use crate::border::{
    Answer, Bytes, Data, MOST_EVENTS, MOST_PROGRESS, Reply, Task, call, decode, inline, perform,
};
use crate::loader::STREAMS;
use crate::serving::ServingHandle;

/// Converts a term to a value and back.
#[rustler::nif]
fn probe_echo<'a>(env: Env<'a>, term: Term<'a>) -> Term<'a> {
    inline(env, "probe_echo", || decode::<serde_json::Value>(term).map(Data))
}

#[rustler::nif]
#[allow(clippy::panic)]
fn probe_panic<'a>(env: Env<'a>, message: String) -> Term<'a> {
    call(env, "probe_panic", || -> Result<()> { panic!("{message}") })
}

/// Answers from a native thread in the way that `how` names.
#[rustler::nif]
#[allow(clippy::panic)]
fn probe_reply<'a>(env: Env<'a>, reference: Reference<'a>, how: String) -> Term<'a> {
    let reply = Reply::new(env, "probe_reply", reference);
    perform(env, "probe_reply", || match how.as_str() {
        "dismiss" => {
            reply.dismiss();
            Err(Error::Busy { what: "probe".into() })
        }
        "drop" => Ok(()),
        _ => {
            thread::spawn(move || {
                let _ = reply.event(|env| Data("begun").into_term(env));
                match how.as_str() {
                    "run" => reply.run(|| Ok(Data(42))),
                    "bytes" => reply.run(|| Ok(Bytes([1, 2, 3]))),
                    "panic" => reply.run(|| -> Result<()> { panic!("probe") }),
                    "die" => {
                        let _held = reply;
                        panic!("probe")
                    }
                    _ => reply.send::<()>(Err(Error::not_found(how))),
                }
            });
            Ok(())
        }
    })
}

/// Sends `progress` numbers as progress, then `events` numbers as events, then progress again. Answers with the bounds
/// of both. No call waits for the process.
#[rustler::nif]
fn probe_events<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    progress: usize,
    events: usize,
) -> Term<'a> {
    call(env, "probe_events", || {
        Task::start(env, "probe_events", reference, move |told, _cancelled| {
            (0..progress).try_for_each(|i| told.progress(Data(("progress", i))))?;
            (0..events).try_for_each(|i| told.tell(Data(("event", i))))?;
            (0..progress).try_for_each(|i| told.progress(Data(("again", i))))?;
            Ok((MOST_PROGRESS, MOST_EVENTS))
        })
    })
}

/// Delays the next batch of a serving by `sleep_ms`; without a time the batch panics. The panic prints nothing on
/// stderr, because there may be thousands.
#[rustler::nif]
fn probe_batch(env: Env, serving: ResourceArc<ServingHandle>, sleep_ms: Option<u64>) -> Term {
    perform(env, "probe_batch", || {
        serving.0.with_next_batch(move || match sleep_ms {
            Some(ms) => thread::sleep(Duration::from_millis(ms)),
            None => resume_unwind(Box::new("probe")),
        });
        Ok(())
    })
}

/// Holds a batch until the gate is opened or dropped.
struct Gate(Mutex<Option<SyncSender<()>>>);

#[rustler::resource_impl]
impl Resource for Gate {}

/// Holds the next batch of a serving at a gate.
#[rustler::nif]
fn probe_hold(env: Env, serving: ResourceArc<ServingHandle>) -> Term {
    call(env, "probe_hold", || {
        let (gate, wait) = sync_channel::<()>(0);
        serving.0.with_next_batch(move || {
            let _ = wait.recv();
        });
        Ok(ResourceArc::new(Gate(Mutex::new(Some(gate)))))
    })
}

#[rustler::nif]
fn probe_open(env: Env, gate: ResourceArc<Gate>) -> Term {
    perform(env, "probe_open", || {
        gate.0.lock().unwrap_or_else(|e| e.into_inner()).take();
        Ok(())
    })
}

/// Writes replays of each kind into a folder.
#[rustler::nif(schedule = "DirtyIo")]
fn corpus_fixtures(env: Env, dir: String) -> Term {
    perform(env, "fixtures", || sconce_fixtures::write_all(Path::new(&dir)))
}

#[rustler::nif]
fn error_kinds(env: Env) -> Term {
    call(env, "error_kinds", || Ok(Data(Kind::ALL.map(Kind::name))))
}

#[rustler::nif]
fn frame_columns(env: Env) -> Term {
    inline(env, "frame_columns", || {
        Ok(melee::game().raw_columns().into_iter().map(|column| column.name).collect::<Vec<_>>())
    })
}

/// Number of sessions alive in this VM.
#[rustler::nif]
fn session_count() -> usize {
    session::live()
}

/// Returns the counts of open streams and of threads that make batches.
#[rustler::nif]
fn loader_count(env: Env) -> Term {
    call(env, "stream", || Ok((STREAMS.load(Ordering::Acquire), live_threads())))
}
