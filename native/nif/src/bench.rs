//! Measurements for `mix bench`: no-op controls, what the machine could do, and what is timed on the
//! native side.

use std::time::Instant;

use rustler::{Atom, Binary, Env, Reference, ResourceArc, Term};
use sconce_nn::Spec;
use sconce_ops::ceilings;
use sconce_serve::frames::{self, Beyond};
use sconce_tensor::{Error, Result};
use sconce_train::bench::{StepTimes, Steps, forward_times, step_times};
use serde::Serialize;

use crate::border::{Data, Task, call, decode, from_binary, perform, pool};

/// What a call costs that does nothing.
#[rustler::nif]
fn bench_noop() -> Atom {
    rustler::types::atom::ok()
}

/// The same on a dirty scheduler.
#[rustler::nif(schedule = "DirtyCpu")]
fn bench_dirty() -> Atom {
    rustler::types::atom::ok()
}

/// The same on a thread of ours, answered by message.
#[rustler::nif]
fn bench_worker<'a>(env: Env<'a>, reference: Reference<'a>) -> Term<'a> {
    perform(env, "bench", || pool::submit(env, "bench", reference, || Ok(true)))
}

/// Bytes a second that `threads` threads read from `bytes` in all.
#[rustler::nif]
fn bench_bandwidth<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    bytes: usize,
    threads: usize,
    seconds: f64,
) -> Term<'a> {
    start(env, reference, move || Ok(Data(ceilings::read_bandwidth(bytes, threads, seconds))))
}

/// Floating-point operations a second of `threads` threads.
#[rustler::nif]
fn bench_flops<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    threads: usize,
    seconds: f64,
) -> Term<'a> {
    start(env, reference, move || Ok(Data(ceilings::peak_flops(threads, seconds))))
}

/// Exponentials a second of `threads` threads.
#[rustler::nif]
fn bench_exponentials<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    threads: usize,
    seconds: f64,
) -> Term<'a> {
    start(env, reference, move || Ok(Data(ceilings::peak_exponentials(threads, seconds))))
}

#[rustler::nif]
fn bench_train<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    steps: Term<'a>,
) -> Term<'a> {
    times(env, reference, spec, steps, step_times)
}

#[rustler::nif]
fn bench_forward<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    steps: Term<'a>,
) -> Term<'a> {
    times(env, reference, spec, steps, forward_times)
}

fn times<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    steps: Term<'a>,
    measure: fn(&Spec, &Steps) -> Result<StepTimes>,
) -> Term<'a> {
    call(env, "bench", || {
        let (spec, steps): (Spec, Steps) = (decode(spec)?, decode(steps)?);
        task(env, reference, move || measure(&spec, &steps).map(Data))
    })
}

#[derive(Serialize)]
struct FrameTimes {
    /// Microseconds of reading all packed rows into numbers, of each pass.
    read_us: Vec<f64>,
    /// Of embedding them.
    embed_us: Vec<f64>,
    /// Numbers and ids of one frame that came out.
    width: usize,
    ids: usize,
}

/// Reads and embeds packed rows, `[rows, raw_width]`, as a session does.
#[rustler::nif]
fn bench_frames<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    spec: Term<'a>,
    rows: Binary<'a>,
    seconds: f64,
) -> Term<'a> {
    call(env, "bench", || {
        let spec: Spec = decode(spec)?;
        let bytes = rows.as_slice().to_vec();
        task(env, reference, move || frame_times(&spec, &bytes, seconds).map(Data))
    })
}

fn frame_times(spec: &Spec, bytes: &[u8], seconds: f64) -> Result<FrameTimes> {
    spec.validate()?;
    let width = spec.embedding.raw_width();
    let read = || from_binary("frames", bytes, f32::from_le_bytes);
    let (raw, read_us) = timed(seconds / 2.0, read)?;
    let rows = raw.len() / width;
    let (frames, embed_us) =
        timed(seconds / 2.0, || frames::embed(spec, &raw, 1, rows, Beyond::default()))?;
    match frames.continuous.iter().find(|number| !number.is_finite()) {
        Some(number) => {
            Err(Error::NonFinite { what: "embedding".into(), value: f64::from(*number) })
        }
        None => Ok(FrameTimes {
            read_us,
            embed_us,
            width: frames.continuous.len() / rows.max(1),
            ids: frames.ids.len() / rows.max(1),
        }),
    }
}

/// What the last call gave, and the microseconds of each.
fn timed<T>(seconds: f64, mut work: impl FnMut() -> Result<T>) -> Result<(T, Vec<f64>)> {
    const FEWEST: usize = 5;
    let mut last = work()?;
    let mut us = Vec::new();
    let clock = Instant::now();
    while us.len() < FEWEST || clock.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        last = work()?;
        us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok((last, us))
}

fn start<'a, T: crate::border::Answer + Send + 'static>(
    env: Env<'a>,
    reference: Reference<'a>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Term<'a> {
    call(env, "bench", || task(env, reference, work))
}

/// On a thread of its own; nothing ends a measurement early.
fn task<T: crate::border::Answer + Send + 'static>(
    env: Env,
    reference: Reference,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<ResourceArc<Task>> {
    Task::start(env, "bench", reference, move |_events, _cancelled| work())
}
