//! Functions for tests and benchmarks only.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use rustler::{Binary, Env, Reference, Resource, ResourceArc, Term};
use sconce_data::live_threads;
use sconce_game::melee;
use sconce_serve::session;
use sconce_tensor::device::{self, launch};
use sconce_tensor::pool::threads;
use sconce_tensor::tensor::{bytes, to_vec};
use sconce_tensor::{Device, Error, Kind, Result, Tensor};

use crate::border::{
    Answer, Bytes, Data, MOST_EVENTS, MOST_PROGRESS, Reply, Task, call, decode, from_binary,
    inline, perform, pool,
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

/// Holds work until the gate is opened or dropped.
struct Gate(Mutex<Vec<SyncSender<()>>>);

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
        Ok(ResourceArc::new(Gate(Mutex::new(vec![gate]))))
    })
}

/// Holds the threads on which calls run, so that later calls wait in their queue until the gate is opened.
#[rustler::nif]
fn probe_stall(env: Env) -> Term {
    call(env, "probe_stall", || {
        let held = (0..threads()).map(|_| {
            let (gate, wait) = sync_channel::<()>(0);
            let work = move |_start: Result<()>| {
                let _ = wait.recv();
            };
            pool::shared()?.permit()?.submit(None, work);
            Ok(gate)
        });
        Ok(ResourceArc::new(Gate(Mutex::new(held.collect::<Result<_>>()?))))
    })
}

/// 32-bit floats on a card, in place of memory of another library. As with such a library, writing them is queued in a
/// stream of its own.
struct Block {
    device: Device,
    numbers: Option<Tensor>,
}

/// Number of blocks alive in this VM.
static BLOCKS: AtomicUsize = AtomicUsize::new(0);

#[rustler::resource_impl]
impl Resource for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        device::apart(&self.device, || {
            self.numbers = None;
            // The memory is freed at once. A failure leaves it to the stream's next wait.
            let _ = self.device.synchronize();
        });
        BLOCKS.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Block {
    fn numbers(&self) -> Result<&Tensor> {
        device::attach(&self.device);
        self.numbers.as_ref().ok_or_else(|| Error::not_found("a block"))
    }
}

#[rustler::nif(schedule = "DirtyIo")]
fn probe_block<'a>(env: Env<'a>, device: String, numbers: Binary<'a>) -> Term<'a> {
    call(env, "probe_block", || {
        let device = device::named(&device)?;
        let numbers = from_binary("numbers", &numbers, f32::from_le_bytes)?;
        let numbers =
            device::apart(&device, || Tensor::from_slice(&numbers, numbers.len(), &device))?;
        BLOCKS.fetch_add(1, Ordering::AcqRel);
        Ok(ResourceArc::new(Block { device, numbers: Some(numbers) }))
    })
}

/// Returns the address and the number of bytes of a block, without a wait for its numbers.
#[rustler::nif]
fn probe_block_place(env: Env, block: ResourceArc<Block>) -> Term {
    call(env, "probe_block_place", || {
        let numbers = block.numbers()?;
        Ok((launch::pointer(numbers)?, bytes(numbers)))
    })
}

/// Waits for the numbers of a block and returns them.
#[rustler::nif(schedule = "DirtyIo")]
fn probe_block_read(env: Env, block: ResourceArc<Block>) -> Term {
    call(env, "probe_block_read", || {
        let numbers = device::apart(&block.device, || Ok::<_, Error>(to_vec(block.numbers()?)?))?;
        Ok(Bytes(numbers.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>()))
    })
}

#[rustler::nif]
fn probe_block_count() -> usize {
    BLOCKS.load(Ordering::Acquire)
}

#[rustler::nif]
fn probe_open(env: Env, gate: ResourceArc<Gate>) -> Term {
    perform(env, "probe_open", || {
        gate.0.lock().unwrap_or_else(|e| e.into_inner()).clear();
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
