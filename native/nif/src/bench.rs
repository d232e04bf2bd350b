//! Measurements for `mix bench`: no-op controls, the machine's limits, and native timings.

use std::time::Instant;

use rustler::{Atom, Binary, Env, Reference, ResourceArc, Term};
use sconce_env::{EnvOptions, Envs, Stepped};
use sconce_nn::Spec;
use sconce_ops::ceilings;
use sconce_serve::frames::{self, Beyond};
use sconce_tensor::{Error, Result, pool as threads};
use sconce_train::bench::{StepTimes, Steps, forward_times, step_times};
use serde::Serialize;

use crate::border::{Data, Task, call, decode, from_binary, perform, pool};

/// A no-op, to measure the cost of a call.
#[rustler::nif]
fn bench_noop() -> Atom {
    rustler::types::atom::ok()
}

/// A no-op on a dirty scheduler.
#[rustler::nif(schedule = "DirtyCpu")]
fn bench_dirty() -> Atom {
    rustler::types::atom::ok()
}

/// A no-op on a native thread, answered by message.
#[rustler::nif]
fn bench_worker<'a>(env: Env<'a>, reference: Reference<'a>) -> Term<'a> {
    perform(env, "bench", || pool::submit(env, "bench", reference, || Ok(true)))
}

/// Bytes per second that `threads` threads read from a total of `bytes`.
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

/// Floating-point operations per second of `threads` threads.
#[rustler::nif]
fn bench_flops<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    threads: usize,
    seconds: f64,
) -> Term<'a> {
    start(env, reference, move || Ok(Data(ceilings::peak_flops(threads, seconds))))
}

/// Exponentials per second of `threads` threads.
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
    /// Microseconds of each pass that decodes all packed rows.
    read_us: Vec<f64>,
    /// Microseconds of each pass that embeds all rows.
    embed_us: Vec<f64>,
    /// Continuous values of one embedded frame.
    width: usize,
    /// Ids of one embedded frame.
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

/// Microseconds of each step of all environments on one thread, with these inputs `[rows, labels]`.
#[rustler::nif]
fn bench_env<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    options: Term<'a>,
    inputs: Binary<'a>,
    seconds: f64,
) -> Term<'a> {
    call(env, "bench", || {
        let options: EnvOptions = decode(options)?;
        let inputs = from_binary("inputs", &inputs, f32::from_le_bytes)?;
        let work = move || threads::serial(|| env_times(&options, &inputs, seconds));
        task(env, reference, move || work().map(Data))
    })
}

fn env_times(options: &EnvOptions, inputs: &[f32], seconds: f64) -> Result<Vec<f64>> {
    /// Steps that are timed together: a step of one environment is too short for the clock.
    const GROUP: usize = 64;
    let mut envs = Envs::new(options)?;
    let rows = envs.rows();
    let mut observations = vec![0.0; rows * envs.spec().observation_size];
    let (mut rewards, mut terminated, mut truncated) =
        (vec![0.0; rows], vec![0; rows], vec![0; rows]);
    let (mut ended, mut finals) = (vec![], vec![]);
    let (_, us) = timed(seconds, || {
        for _ in 0..GROUP {
            let mut out = Stepped {
                observations: &mut observations,
                rewards: &mut rewards,
                terminated: &mut terminated,
                truncated: &mut truncated,
                ended: &mut ended,
                final_observations: &mut finals,
            };
            envs.step(inputs, &mut out)?;
        }
        Ok(())
    })?;
    match observations.iter().chain(&rewards).find(|number| !number.is_finite()) {
        Some(number) => Err(Error::NonFinite { what: "step".into(), value: f64::from(*number) }),
        None => Ok(us.into_iter().map(|us| us / GROUP as f64).collect()),
    }
}

/// The result of the last call, and the microseconds of each.
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

/// Runs `work` on a thread of its own; a measurement cannot be cancelled.
fn task<T: crate::border::Answer + Send + 'static>(
    env: Env,
    reference: Reference,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<ResourceArc<Task>> {
    Task::start(env, "bench", reference, move |_events, _cancelled| work())
}
