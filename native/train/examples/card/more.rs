//! Further figures: work with an empty cache of the driver, long windows, inputs of unequal width, and the CPU of the
//! machine beside its card.

use std::time::Instant;

use candle_core::Device;
use sconce_nn::backbone::Context;
use sconce_nn::spec::{AttentionConfig, Backbone};
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Precision, Result, device};
use sconce_train::bench::examples;
use serde_json::{Value, json};

use crate::figures::{Batches, Times, acted, backbones, spec, tell, timed, trained, with_inputs};
use crate::{in_use, stepper};

/// Precisions of products, with their names.
pub const PRECISIONS: [(Precision, &str); 3] =
    [(Precision::F32, "f32"), (Precision::Tf32, "tf32"), (Precision::Bf16, "bf16")];

/// The named backbone, of the sizes of `figures`.
fn backbone(name: &str, times: &Times) -> Result<Spec> {
    let found = backbones(times).into_iter().find(|(own, _)| *own == name);
    found.map(|(_, own)| spec(own)).ok_or_else(|| Error::not_found(format!("a backbone {name}")))
}

/// Milliseconds until a new process has opened the card, has acted once, and has trained once.
pub fn first(small: bool) -> Result<String> {
    let times = Times::of(small);
    for name in ["mlp", "mamba"] {
        let ms = |start: Instant| (start.elapsed().as_secs_f64() * 1e4).round() / 10.0;
        let start = Instant::now();
        let device = device::open(0)?;
        let opened = ms(start);
        let spec = backbone(name, &times)?;
        let policy = Policy::init(&spec, 1)?.on(&device)?;
        let start = Instant::now();
        acted(&policy, 1, &Times { warm_up: 1, frames: 1, ..Times::least() }, 1)?;
        let acted = ms(start);
        let start = Instant::now();
        stepper(&policy, Precision::F32)?.step(&examples(&spec, 8, times.frames, 1), 0, 1e-3)?;
        let told = json!({ "open_ms": opened, "act_ms": acted, "train_ms": ms(start) });
        tell("first", name, 1, "f32", told);
    }
    Ok("the first of everything was timed".into())
}

/// Attention over windows of several lengths: scoring and training, with the memory on the card.
pub fn windows(small: bool) -> Result<String> {
    let (device, times) = (device::open(0)?, Times::of(small));
    let (windows, batch) = if small { ([4, 6, 8], 2) } else { ([60, 120, 180], 64) };
    for window in windows {
        let config = AttentionConfig { window_size: window, ..attention(&times)? };
        let spec = spec(Backbone::SlidingWindow(config));
        for (precision, label) in PRECISIONS {
            let policy = Policy::init(&spec, 1)?.on(&device)?;
            let x = &examples(&spec, batch, window, 1);
            let (state, context) =
                (policy.zero_state(batch)?, Context::default().in_precision(precision));
            let placed = policy.place(&x.frames)?;
            let us = timed(&times, || {
                drop(policy.forward_placed(&placed, None, &state, &context)?);
                Ok(device.synchronize()?)
            })?;
            tell(&format!("score_{window}"), "attention", batch, label, us);

            device::release(0)?;
            let before = in_use(&device)?;
            let stepper = stepper(&policy, precision)?;
            let shape = [batch, window];
            let (us, stepper) = trained(stepper, &spec, shape, &times, Batches::There)?;
            let bytes = in_use(&device)?.saturating_sub(before);
            let told = json!({ "bytes": bytes });
            tell(&format!("train_{window}"), "attention", batch, label, us.with(told));
            drop(stepper);
        }
    }
    Ok("every window was timed".into())
}

fn attention(times: &Times) -> Result<AttentionConfig> {
    match backbone("attention", times)?.backbone {
        Backbone::SlidingWindow(config) => Ok(config),
        other => Err(Error::not_found(format!("attention, not {}", other.name()))),
    }
}

/// Training steps with 428 numbers a frame, and with 432, which tensor cores load in whole units.
pub fn padding(small: bool) -> Result<String> {
    let (device, times) = (device::open(0)?, Times::of(small));
    for inputs in [428, 432] {
        for (precision, label) in PRECISIONS {
            let spec = with_inputs(backbone("mamba", &times)?, inputs);
            let policy = Policy::init(&spec, 1)?.on(&device)?;
            let stepper = stepper(&policy, precision)?;
            let shape = [times.batch, times.frames];
            let (us, _) = trained(stepper, &spec, shape, &times, Batches::There)?;
            tell(&format!("train_of_{inputs}"), "mamba", times.batch, label, us);
        }
    }
    Ok("both widths were timed".into())
}

/// Training steps of small and large batches, on all cores of the CPU and on the card.
pub fn sizes(small: bool) -> Result<String> {
    let times = Times::of(small);
    let batches = if small { vec![2] } else { vec![4, 16, 64, 256] };
    for name in ["mlp", "gru", "mamba", "attention"] {
        let spec = backbone(name, &times)?;
        let window = if name == "mlp" { 1 } else { times.frames };
        for (place, label) in [(Device::Cpu, "cpu"), (device::open(0)?, "card")] {
            let policy = Policy::init(&spec, 1)?.on(&place)?;
            for &batch in &batches {
                let stepper = stepper(&policy, Precision::F32)?;
                let (us, _) = trained(stepper, &spec, [batch, window], &times, Batches::There)?;
                tell(&format!("train_on_{label}"), name, batch, "f32", us);
            }
        }
    }
    Ok("every size was timed".into())
}

/// One warm and one more training step of a backbone, launched one kernel after the other, for a profiler.
pub fn step(arguments: &[String], small: bool) -> Result<String> {
    let (device, times) = (device::open(0)?, Times::of(small));
    let [_, name, precision, ..] = arguments else {
        return Err(Error::not_found("a backbone and a precision"));
    };
    let window = arguments.get(3).and_then(|window| window.parse().ok()).unwrap_or(times.frames);
    let spec = backbone(name, &times)?;
    let precision: Precision = serde_json::from_value(Value::from(precision.as_str()))
        .map_err(|e| Error::corrupt("precision", e))?;
    let x = &examples(&spec, times.batch, if name == "mlp" { 1 } else { window }, 1);
    let policy = Policy::init(&spec, 1)?.on(&device)?;
    let mut stepper = stepper(&policy, precision)?;
    for number in 0..2 {
        stepper.step(x, number, 1e-3)?;
    }
    Ok("two steps were made".into())
}

/// A few frames of a backbone with several games, for a profiler.
pub fn act(arguments: &[String], small: bool) -> Result<String> {
    let (device, times) = (device::open(0)?, Times::of(small));
    let [_, name, games, ..] = arguments else {
        return Err(Error::not_found("a backbone and a number of games"));
    };
    let games = games.parse().map_err(|e| Error::corrupt("games", e))?;
    let policy = Policy::init(&backbone(name, &times)?, 1)?.on(&device)?;
    let count = arguments.get(3).and_then(|count| count.parse().ok()).unwrap_or(1);
    acted(&policy, games, &Times { warm_up: 2, frames: 1, ..Times::least() }, count)?;
    Ok("frames were played".into())
}
