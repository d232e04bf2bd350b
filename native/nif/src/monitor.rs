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
enum Counts {
    Counter,
    Gauge,
    Histogram,
    Series,
    Text,
}

impl From<Counts> for Kind {
    fn from(counts: Counts) -> Kind {
        match counts {
            Counts::Counter => Kind::Counter,
            Counts::Gauge => Kind::Gauge,
            Counts::Histogram => Kind::Histogram,
            Counts::Series => Kind::Series,
            Counts::Text => Kind::Text,
        }
    }
}

#[derive(NifUnitEnum)]
enum Became {
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

/// Gives this process' metrics a file, or memory alone without a path, once for the life of the VM.
#[rustler::nif(schedule = "DirtyIo")]
fn monitor_share<'a>(env: Env<'a>, path: Option<String>, meta: Term<'a>) -> Term<'a> {
    call(env, "monitor", || {
        let region = region::share(path.as_deref().map(Path::new), &json(meta)?)?;
        Ok(ResourceArc::new(RegionHandle::Process(region)).encode(env))
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
    kind: Counts,
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

/// Makes changes in their order, up to the first that fails.
#[rustler::nif]
fn monitor_update<'a>(
    env: Env<'a>,
    region: Handle<RegionHandle>,
    changes: Vec<Change>,
) -> Term<'a> {
    perform(env, "monitor", || {
        let region = region.get()?;
        changes.into_iter().try_for_each(|change| make(&region, change))
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

/// Says that the process lives, and what became of its work.
#[rustler::nif]
fn monitor_beat(env: Env, region: Handle<RegionHandle>, became: Became) -> Term {
    let state = match became {
        Became::Running => State::Running,
        Became::Done => State::Done,
        Became::Failed => State::Failed,
        Became::Stopped => State::Stopped,
    };
    perform(env, "monitor", || {
        region.get()?.beat(state);
        Ok(())
    })
}

/// The bytes of a region, as its file has them.
#[rustler::nif(schedule = "DirtyCpu")]
fn monitor_read(env: Env, region: Handle<RegionHandle>) -> Term {
    call(env, "monitor", || Ok(Bytes(region.get()?.read())))
}
