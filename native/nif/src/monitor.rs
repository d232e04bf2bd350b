//! Metrics and the files that show them: `Sconce.Monitor`.

use std::ops::Deref;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustler::{Encoder, Env, NifTaggedEnum, NifUnitEnum, Resource, ResourceArc, Term};
use sconce_cuda::nvtx;
use sconce_data::live_threads;
use sconce_serve::session;
use sconce_tensor::metrics::{Kind, Metric};
use sconce_tensor::region::{self, Region, State};
use sconce_tensor::trace::{self, Recording, Row, Trace};
use sconce_tensor::{Error, Result};
use serde::Serialize;

use crate::border::{Bytes, Data, Handle, Handled, call, decode, perform, pool};
use crate::session::figures::busiest;

/// A region of metrics: that of this process, or one of its own, whose file it keeps when it ends.
pub(crate) enum RegionHandle {
    Process(&'static Region),
    Own(Box<Region>),
}

#[rustler::resource_impl]
impl Resource for RegionHandle {}

impl Handled for RegionHandle {
    const NOUN: &'static str = "monitor";
}

impl Deref for RegionHandle {
    type Target = Region;

    fn deref(&self) -> &Region {
        match self {
            RegionHandle::Process(region) => region,
            RegionHandle::Own(region) => region,
        }
    }
}

#[derive(NifUnitEnum)]
enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Series,
    Text,
}

impl From<MetricKind> for Kind {
    fn from(kind: MetricKind) -> Kind {
        match kind {
            MetricKind::Counter => Kind::Counter,
            MetricKind::Gauge => Kind::Gauge,
            MetricKind::Histogram => Kind::Histogram,
            MetricKind::Series => Kind::Series,
            MetricKind::Text => Kind::Text,
        }
    }
}

#[derive(NifUnitEnum)]
enum Phase {
    Running,
    Done,
    Failed,
    Stopped,
}

/// A change of a metric, by its number.
#[derive(NifTaggedEnum)]
enum Change {
    /// Adds to a counter.
    Add(usize, u64),
    /// Sets a counter.
    Count(usize, u64),
    /// Sets a gauge; none if it is unknown.
    Set(usize, Option<f64>),
    /// Counts a value in a histogram.
    Record(usize, u64),
    /// Adds a point to a series.
    Push(usize, f64, f64),
    /// Replaces a text.
    Tell(usize, String),
    /// Removes a metric.
    Remove(usize),
}

/// Gives this process' metrics a file, or memory alone without a path. Returns the region and the path of its file.
#[rustler::nif(schedule = "DirtyIo")]
fn monitor_share<'a>(env: Env<'a>, path: Option<String>, meta: Term<'a>) -> Term<'a> {
    call(env, "monitor", || {
        let region = region::share(path.as_deref().map(Path::new), &json(meta)?)?;
        let path = region.path().map(|path| path.display().to_string());
        Ok((ResourceArc::new(RegionHandle::Process(region)), path).encode(env))
    })
}

/// Creates a file of metrics of its own.
#[rustler::nif(schedule = "DirtyIo")]
fn monitor_open<'a>(env: Env<'a>, path: String, meta: Term<'a>, slots: usize) -> Term<'a> {
    call(env, "monitor", || {
        let slots = slots.min(MOST_SLOTS);
        let words = slots + SERIES * Kind::Series.words() + TEXTS * Kind::Text.words();
        let region = Region::new(Some(Path::new(&path)), &json(meta)?, slots, words)?;
        Ok(ResourceArc::new(RegionHandle::Own(Box::new(region))).encode(env))
    })
}

/// Metrics of a file beside that of the process, and the curves and texts among them.
const MOST_SLOTS: usize = 256;
const SERIES: usize = 32;
const TEXTS: usize = 8;

/// The text of a flat map.
fn json(meta: Term) -> Result<String> {
    let meta: serde_json::Map<String, serde_json::Value> = decode(meta)?;
    Ok(serde_json::Value::Object(meta).to_string())
}

/// The number of a metric, which is added unless it exists.
#[rustler::nif]
fn monitor_metric<'a>(
    env: Env<'a>,
    region: Handle<RegionHandle>,
    kind: MetricKind,
    name: &str,
    unit: &str,
    help: &str,
) -> Term<'a> {
    call(env, "monitor", || {
        let i = region.get()?.metric(&Metric { kind: kind.into(), name, unit, help })?;
        Ok(i.encode(env))
    })
}

/// Adds to a counter.
#[rustler::nif]
fn monitor_add(env: Env, region: Handle<RegionHandle>, i: usize, n: u64) -> Term {
    perform(env, "monitor", || region.get()?.add(i, n))
}

/// Counts a value in a histogram.
#[rustler::nif]
fn monitor_record(env: Env, region: Handle<RegionHandle>, i: usize, n: u64) -> Term {
    perform(env, "monitor", || region.get()?.record(i, n))
}

/// Makes changes in their order, and returns the error of the first that fails.
#[rustler::nif]
fn monitor_update<'a>(
    env: Env<'a>,
    region: Handle<RegionHandle>,
    changes: Vec<Change>,
) -> Term<'a> {
    perform(env, "monitor", || {
        let region = region.get()?;
        let made = changes.into_iter().map(|change| make(&region, change));
        made.fold(Ok(()), Result::and)
    })
}

fn make(region: &Region, change: Change) -> Result<()> {
    match change {
        Change::Add(i, n) => region.add(i, n),
        Change::Count(i, n) => region.count(i, n),
        Change::Set(i, value) => region.set(i, value.unwrap_or(f64::NAN)),
        Change::Record(i, n) => region.record(i, n),
        Change::Push(i, x, y) => region.push(i, x, y),
        Change::Tell(i, text) => region.tell(i, &text),
        Change::Remove(i) => {
            region.remove(i);
            Ok(())
        }
    }
}

/// Says that the process lives, and what became of its work, and writes the file.
#[rustler::nif(schedule = "DirtyIo")]
fn monitor_beat(env: Env, region: Handle<RegionHandle>, phase: Phase) -> Term {
    let state = match phase {
        Phase::Running => State::Running,
        Phase::Done => State::Done,
        Phase::Failed => State::Failed,
        Phase::Stopped => State::Stopped,
    };
    perform(env, "monitor", || region.get()?.beat(state))
}

/// Numbers of what is alive in this VM.
#[derive(Serialize)]
struct Alive {
    sessions: usize,
    loader_threads: usize,
    jobs_waiting: usize,
}

#[rustler::nif]
fn monitor_alive(env: Env) -> Term {
    call(env, "monitor", || {
        let (sessions, loader_threads) = (session::live(), live_threads());
        Ok(Data(Alive { sessions, loader_threads, jobs_waiting: pool::waiting() }))
    })
}

/// The sessions that decided most since the last call, at most `most` of them, with their figures.
#[rustler::nif]
fn monitor_sessions(env: Env, most: usize) -> Term {
    call(env, "monitor", || Ok(busiest(most).encode(env)))
}

/// A trace, which ends with its handle if nothing ends it before.
pub(crate) struct TraceHandle(Mutex<Tracing>);

enum Tracing {
    Running(Trace),
    /// Spans that a file shall have.
    Ended(Recording),
    Gone,
}

impl TraceHandle {
    fn lock(&self) -> MutexGuard<'_, Tracing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[rustler::resource_impl]
impl Resource for TraceHandle {}

impl Handled for TraceHandle {
    const NOUN: &'static str = "trace";
}

/// The findings of a trace. Times are nanoseconds.
#[derive(Serialize)]
struct Traced {
    time: u64,
    device_time: u64,
    bytes: u64,
    lost: u64,
    threads: usize,
    nvtx: Option<&'static str>,
    spans: Vec<TracedRow>,
}

#[derive(Serialize)]
struct TracedRow {
    kind: &'static str,
    name: String,
    count: u64,
    time: u64,
    bytes: u64,
}

/// Starts a trace.
#[rustler::nif(schedule = "DirtyIo")]
fn monitor_trace(env: Env) -> Term {
    call(env, "trace", || {
        // Looks for the library now, not within the first span.
        nvtx::found();
        let running = Tracing::Running(trace::start());
        Ok(ResourceArc::new(TraceHandle(Mutex::new(running))))
    })
}

/// Ends a trace, and keeps its spans for a file if there will be one.
#[rustler::nif(schedule = "DirtyIo")]
fn monitor_trace_end(env: Env, handle: Handle<TraceHandle>, keep: bool) -> Term {
    call(env, "trace", || {
        let handle = handle.get()?;
        let mut tracing = handle.lock();
        let recording = match std::mem::replace(&mut *tracing, Tracing::Gone) {
            Tracing::Running(trace) => trace.end(),
            other => {
                *tracing = other;
                return Err(Error::not_found("trace that runs"));
            }
        };
        let found = traced(&recording);
        if keep {
            *tracing = Tracing::Ended(recording);
        }
        Ok(Data(found))
    })
}

/// Writes the spans that [`monitor_trace_end`] has kept, and frees them.
#[rustler::nif(schedule = "DirtyIo")]
fn monitor_trace_write(env: Env, handle: Handle<TraceHandle>, path: String) -> Term {
    perform(env, "trace", || {
        let handle = handle.get()?;
        let mut tracing = handle.lock();
        let Tracing::Ended(recording) = &*tracing else {
            return Err(Error::not_found("trace that has ended"));
        };
        recording.write(Path::new(&path))?;
        *tracing = Tracing::Gone;
        Ok(())
    })
}

fn traced(recording: &Recording) -> Traced {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let row = |Row { kind, name, count, time, bytes }| {
        let (kind, time) = (kind.name(), nanos(time));
        TracedRow { kind, name, count, time, bytes }
    };
    Traced {
        time: nanos(recording.time()),
        device_time: nanos(recording.device_time()),
        bytes: recording.bytes(),
        lost: recording.lost,
        threads: recording.threads.len(),
        nvtx: nvtx::found(),
        spans: recording.rows().into_iter().map(row).collect(),
    }
}

/// The bytes of a region, as its file has them.
#[rustler::nif(schedule = "DirtyCpu")]
fn monitor_read(env: Env, region: Handle<RegionHandle>) -> Term {
    call(env, "monitor", || Ok(Bytes(region.get()?.read())))
}
