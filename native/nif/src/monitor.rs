//! Metrics and the files that show them: `Sconce.Monitor`.

use std::ops::Deref;
use std::path::Path;

use rustler::{Encoder, Env, NifTaggedEnum, NifUnitEnum, Resource, ResourceArc, Term};
use sconce_tensor::Result;
use sconce_tensor::metrics::{Kind, Metric};
use sconce_tensor::region::{self, Region, State};

use crate::border::{Bytes, Handle, Handled, call, decode, perform};

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

/// The bytes of a region, as its file has them.
#[rustler::nif(schedule = "DirtyCpu")]
fn monitor_read(env: Env, region: Handle<RegionHandle>) -> Term {
    call(env, "monitor", || Ok(Bytes(region.get()?.read())))
}
