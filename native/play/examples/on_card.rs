//! Steps a second on the first card, of environments alone and of learning from play: a JSON line for each figure.
//! `on_card serve` measures decisions instead. `bin/card` runs both. `--small` only shows that it runs.

#[path = "on_card/serve.rs"]
mod serve;

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;
use sconce_env::{CardEnvs, CardStep, EnvOptions};
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, Spec};
use sconce_play::options::PpoOptions;
use sconce_play::run::{Task, run};
use sconce_tensor::{DType, Device, Error, Result, Tensor, device};
use serde_json::{Value, json};

/// Worlds whose steps are timed, and the numbers of environments.
const WORLDS: [&str; 4] = ["cart_pole", "pendulum", "acrobot", "duel"];
const COUNTS: [usize; 3] = [4096, 65_536, 1_048_576];
/// Steps between two waits for the card.
const STEPS: usize = 64;

/// The allocator of the library.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<()> {
    let small = std::env::args().any(|argument| argument == "--small");
    if std::env::args().any(|argument| argument == "serve") {
        serve::all(small)?;
        println!("every figure was taken");
        return Ok(());
    }
    let card = device::open(0)?;
    for name in WORLDS {
        for count in if small { vec![40] } else { COUNTS.to_vec() } {
            let options = EnvOptions { env: name.into(), count, ..EnvOptions::default() };
            let us = stepped(&options, &card, small)?;
            tell("env", name, count, us / STEPS as f64, count as f64 * STEPS as f64 / us * 1e6);
        }
    }
    for (name, count) in [("cart_pole", 4096), ("cart_pole", 32_768), ("pendulum", 4096)] {
        let count = if small { 40 } else { count };
        let (us, per_second) = learned(name, count, small)?;
        tell("ppo", name, count, us, per_second);
    }
    println!("every figure was taken");
    Ok(())
}

fn tell(figure: &str, env: &str, count: usize, us: f64, per_second: f64) {
    let (us, per_second) = ((us * 10.0).round() / 10.0, per_second.round());
    let line = json!({
        "figure": figure, "backbone": env, "batch": count, "precision": "f32", "us": us,
        "steps_per_second": per_second,
    });
    println!("{line}");
}

/// Median time of [`STEPS`] steps in microseconds, with the same inputs in each step.
fn stepped(options: &EnvOptions, card: &Device, small: bool) -> Result<f64> {
    let mut envs = CardEnvs::new(options, card)?;
    let (rows, count, width) = (envs.rows(), envs.count(), envs.spec().observation_size);
    let inputs: Vec<f32> = (0..rows * envs.spec().labels()).map(|i| (i % 2) as f32).collect();
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, card);
    let inputs = Tensor::from_vec(inputs, (rows, envs.spec().labels()), card)?;
    let seen: Vec<Tensor> =
        (0..3).map(|_| zeros(&[rows, width], DType::F32)).collect::<std::result::Result<_, _>>()?;
    let (rewards, ends) = (zeros(&[rows], DType::F32)?, zeros(&[rows], DType::U32)?);
    let (lengths, returns) = (zeros(&[count, 1], DType::U32)?, zeros(&[count, 1], DType::F32)?);
    let (mut us, clock) = (vec![], Instant::now());
    while us.len() < 5 || (!small && clock.elapsed() < Duration::from_secs(1)) {
        let start = Instant::now();
        for i in 0..STEPS {
            envs.step(&CardStep {
                inputs: &inputs,
                before: &seen[i % 2],
                after: &seen[(i + 1) % 2],
                finals: &seen[2],
                rewards: &rewards,
                ends: &ends,
                lengths: &lengths,
                returns: &returns,
                at: 0,
            })?;
        }
        // Waits for the steps.
        card.synchronize()?;
        us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    us.sort_by(f64::total_cmp);
    Ok(us[us.len() / 2])
}

/// Median time of an update in microseconds, and steps a second, of a policy of 64 x 64 and a critic of that size.
fn learned(env: &str, count: usize, small: bool) -> Result<(f64, f64)> {
    let (steps, updates) = if small { (8, 3) } else { (64, 30) };
    let given = json!({
        "environments": count, "rollout_steps": steps, "minibatches": 8, "epochs": 4, "device": "cuda:0",
        "steps": count * steps * updates,
    });
    let wrong = |e: serde_json::Error| Error::corrupt("options", e);
    let options: PpoOptions = serde_json::from_value(given).map_err(wrong)?;
    let mlp: Value = json!({"mlp": {
        "hidden_sizes": [64, 64], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh",
    }});
    let backbone: Backbone = serde_json::from_value(mlp).map_err(wrong)?;
    let world = sconce_env::spec(&options.env(env))?;
    let mut heads = Heads::of_parts(&world.inputs, HeadsKind::Independent);
    heads.parts.push(Head { name: "value".into(), kind: HeadKind::Value(1), hidden_size: 0 });
    heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
    let embedding = Embedding::vector(world.observation_size);
    let spec = Spec { embedding, critic: Some(backbone.clone()), backbone, heads };
    let out = std::env::temp_dir().join(format!("sconce-on-card-{}-{env}", std::process::id()));
    let task = Task { spec: &spec, env, host: None, inbox: None, resume: false };
    let report = run(task, &options, &out, &|_| {}, &AtomicBool::new(false));
    // The folder of a run that failed is removed too.
    let _ = std::fs::remove_dir_all(&out);
    let mut per_second: Vec<f64> =
        report?.history.iter().skip(1).map(|point| point.steps_per_second).collect();
    per_second.sort_by(f64::total_cmp);
    let median = per_second[per_second.len() / 2];
    let rows = (count * world.seats * steps) as f64;
    Ok((rows / median * 1e6, median))
}
