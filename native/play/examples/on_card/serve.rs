//! Decisions of sessions: on all backbones alone and together, on the CPU and on the card; and four threads that serve
//! at once, with one stream or with a stream each, beside a training run or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sconce_nn::Policy;
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, Spec};
use sconce_serve::session::{Call, Mode, Options, Overrides, decide_many};
use sconce_serve::{Format, Model, Session};
use sconce_tensor::{Device, Error, Result, device};
use sconce_train::bench::examples;
use sconce_train::objective::imitation::LossOptions;
use sconce_train::optimiser::OptimiserConfig;
use sconce_train::step::Stepper;
use serde_json::{Value, json};

const INPUT: usize = 288;
/// Sessions of each serving thread.
const TOGETHER: usize = 16;
const SERVINGS: usize = 4;

pub fn all(small: bool) -> Result<()> {
    alone(small)?;
    at_once(small)
}

fn spec(backbone: &str, small: bool) -> Result<Spec> {
    let hidden = if small { 16 } else { 256 };
    let config = match backbone {
        "mlp" => {
            json!({"hidden_sizes": [2 * hidden, 2 * hidden], "layer_norm": true, "residual": false,
            "activation": "relu", "dropout": 0.0, "input_dropout": 0.0})
        }
        "mamba" => {
            json!({"hidden_size": hidden, "num_layers": 2, "state_size": 16, "expand_factor": 2,
            "conv_size": 4, "input_norm": false, "dropout": 0.0, "input_dropout": 0.0})
        }
        "sliding_window" => json!({"hidden_size": hidden, "num_layers": 2, "num_heads": 8,
            "head_dim": hidden / 8, "window_size": 60, "qk_layernorm": false, "input_norm": false,
            "dropout": 0.0, "input_dropout": 0.0}),
        _ => {
            json!({"hidden_size": hidden, "num_layers": 2, "layer_norm": false, "input_norm": false,
            "dropout": 0.0, "input_dropout": 0.0})
        }
    };
    let wrong = |e: serde_json::Error| Error::corrupt("a backbone", e);
    let backbone: Backbone = serde_json::from_value(json!({ backbone: config })).map_err(wrong)?;
    let mut heads = Heads::controller(HeadsKind::Independent);
    heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
    Ok(Spec { embedding: Embedding::vector(INPUT), backbone, heads, critic: None })
}

fn model(backbone: &str, place: &Device, small: bool) -> Result<Arc<Model>> {
    let policy = Policy::init(&spec(backbone, small)?, 1)?.on(place)?;
    Ok(Arc::new(Model::new(Arc::new(policy), Format::Stored)?))
}

fn sessions(model: &Arc<Model>, count: usize) -> Result<Vec<Session>> {
    let options = |seed| Options {
        mode: Mode::Carry,
        window_size: 60,
        sampling: Sampling::default(),
        seed,
        weights: Format::Stored,
        lane: None,
        rollback: 0,
        frame_delay: None,
        project_out: None,
    };
    (0..count as u64).map(|seed| Session::over(model.clone(), options(seed))).collect()
}

/// One decision of each session, together.
fn decided(sessions: &mut [Session], raw: &[f32]) -> Result<()> {
    let overrides = Overrides::default();
    let call =
        |session| Call { session, raw, overrides: &overrides, asked: false, outcome: Ok(()) };
    let mut calls: Vec<Call> = sessions.iter_mut().map(call).collect();
    decide_many(&mut calls);
    for call in calls {
        call.outcome?;
        call.session.commit();
    }
    Ok(())
}

fn raw() -> Vec<f32> {
    (0..INPUT).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// Median microseconds of a decision of one session, and of several together.
fn alone(small: bool) -> Result<()> {
    let raw = raw();
    for backbone in ["mlp", "gru", "mamba", "sliding_window"] {
        for (place, label) in [(Device::Cpu, "cpu"), (device::open(0)?, "card")] {
            let model = model(backbone, &place, small)?;
            for count in if small { vec![2] } else { vec![1, 8, 32, 128, 512] } {
                let mut sessions = sessions(&model, count)?;
                let (least, mut us) = (Duration::from_millis(250), vec![]);
                let mut clock = Instant::now();
                while us.len() < 5 || (!small && clock.elapsed() < least) {
                    let start = Instant::now();
                    decided(&mut sessions, &raw)?;
                    us.push(start.elapsed().as_secs_f64() * 1e6);
                    // The first decisions fill the memories.
                    if us.len() == 1 && clock.elapsed() < least && !small {
                        (0..60).try_for_each(|_| decided(&mut sessions, &raw))?;
                        (us, clock) = (vec![f64::INFINITY], Instant::now());
                    }
                }
                us.sort_by(f64::total_cmp);
                told(&format!("decide_on_{label}"), backbone, count, us[us.len() / 2], json!({}));
            }
        }
    }
    Ok(())
}

fn told(figure: &str, backbone: &str, batch: usize, us: f64, more: Value) {
    let us = (us * 10.0).round() / 10.0;
    let mut line = json!({
        "figure": figure, "backbone": backbone, "batch": batch, "precision": "f32", "us": us,
    });
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    println!("{line}");
}

/// Decisions a second of four serving threads at once.
fn at_once(small: bool) -> Result<()> {
    for streams in [1, SERVINGS] {
        for run in [false, true] {
            let (decisions, steps) = served(streams, run, small)?;
            let per_second = decisions.iter().sum::<f64>();
            let slowest = decisions.iter().copied().fold(f64::INFINITY, f64::min);
            let told_more = json!({
                "streams": streams, "run": run, "decisions_per_second": per_second.round(),
                "slowest_serving": slowest.round(), "run_steps_per_second": steps,
            });
            let us = TOGETHER as f64 * SERVINGS as f64 / per_second * 1e6;
            told(&format!("serve_{streams}_{run}"), "mamba", TOGETHER, us, told_more);
        }
    }
    Ok(())
}

/// Decisions a second of each serving, and training steps a second.
fn served(streams: usize, run: bool, small: bool) -> Result<(Vec<f64>, f64)> {
    let length = Duration::from_millis(if small { 50 } else { 600 });
    let models: Vec<Arc<Model>> =
        (0..streams).map(|_| model("mamba", &device::open(0)?, small)).collect::<Result<_>>()?;
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    let (stop, steps) = (&stop, &steps);
    let counts = thread::scope(|scope| {
        let training = run.then(|| scope.spawn(move || trains(stop, steps, small)));
        let servings: Vec<_> = (0..SERVINGS)
            .map(|number| {
                let model = &models[number % streams];
                scope.spawn(move || serves(model, length))
            })
            .collect();
        let counts: Vec<Result<f64>> = servings
            .into_iter()
            .map(|serving| serving.join().unwrap_or_else(|_| Err(lost())))
            .collect();
        stop.store(true, Ordering::Relaxed);
        let trained = training.map_or(Ok(()), |run| run.join().unwrap_or_else(|_| Err(lost())));
        trained.and(counts.into_iter().collect::<Result<Vec<f64>>>())
    })?;
    Ok((counts, steps.load(Ordering::Relaxed) as f64 / length.as_secs_f64()))
}

fn lost() -> Error {
    Error::not_found("a thread that panicked")
}

fn serves(model: &Arc<Model>, length: Duration) -> Result<f64> {
    let (mut sessions, raw) = (sessions(model, TOGETHER)?, raw());
    for _ in 0..20 {
        decided(&mut sessions, &raw)?;
    }
    let (clock, mut count) = (Instant::now(), 0);
    while clock.elapsed() < length {
        decided(&mut sessions, &raw)?;
        count += TOGETHER;
    }
    Ok(count as f64 / clock.elapsed().as_secs_f64())
}

fn trains(stop: &AtomicBool, steps: &AtomicU64, small: bool) -> Result<()> {
    let spec = spec("mamba", small)?;
    let (batch, window) = if small { (2, 4) } else { (64, 60) };
    let policy = Policy::init(&spec, 2)?.on(&device::open(0)?)?;
    let config = OptimiserConfig::default();
    let mut stepper = Stepper::imitating(&policy, &LossOptions::plain(), config, 1.0, 7)?;
    let (x, zero) = (&examples(&spec, batch, window, 1), policy.zero_state(batch)?);
    for step in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        stepper.begin(x, &zero, step, 1e-3)?;
        if step % 8 == 7 {
            stepper.results()?.into_iter().try_for_each(|result| result.map(drop))?;
        }
        steps.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
