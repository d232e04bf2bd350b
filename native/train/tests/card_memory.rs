//! Training on a card with too little memory, where `SCONCE_TEST_CARD` is set.
//!
//! Memory in use is counted for the whole process, so one test runs at a time.

#![cfg(feature = "cuda")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Tensor};
use sconce_data::{Batch, Corpus, Schema, VectorGame};
use sconce_nn::heads::NONE;
use sconce_nn::policy::Frames;
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, MlpConfig};
use sconce_nn::{Policy, Spec};
use sconce_tensor::device::{self, Budget};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Kind, tensor};
use sconce_train::eval::evaluate;
use sconce_train::objective::imitation::LossOptions;
use sconce_train::optimiser::{Kind as Rule, OptimiserConfig};
use sconce_train::options::{
    DataOptions, EvaluateOptions, MachineOptions, Mode, ScheduleOptions, TrainOptions,
};
use sconce_train::report::Event;
use sconce_train::run::run;
use sconce_train::step::{Stepper, Task};
use serde_json::{Value, json};

/// Bytes: a few times the memory of a step.
const BUDGET: u64 = 16 << 20;

/// A card with a budget for one test at a time, if there is a card.
fn alone(budget: u64) -> Option<(MutexGuard<'static, ()>, Device)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    std::env::var_os("SCONCE_TEST_CARD")?;
    Some((alone, limited(Some(budget))))
}

/// Leaves a card, and waits until it is closed.
fn left(device: Device) {
    let (last, gone) = std::sync::mpsc::sync_channel::<()>(0);
    device::leave(device, last);
    assert!(gone.recv().is_err());
}

fn limited(bytes: Option<u64>) -> Device {
    device::allow(Budget { bytes, ..Budget::default() });
    let device = device::open(0).unwrap();
    assert_eq!(device::memory(0).unwrap().budget, bytes);
    device
}

fn spec() -> Spec {
    let mlp = MlpConfig {
        hidden_sizes: vec![64, 64],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let to = Head { name: "to".into(), kind: HeadKind::Categorical(3), hidden_size: 8 };
    let kind = HeadsKind::Independent;
    let heads = Heads { kind, parts: vec![to], stream_size: 8, prior: false };
    Spec { embedding: Embedding::vector(2), backbone: Backbone::Mlp(mlp), heads, critic: None }
}

const BATCH: usize = 8;
const TIME: usize = 32;

fn frames() -> (Frames, Vec<f32>) {
    let (rows, rng) = (BATCH * TIME, Rng::new(3, "frames", 0));
    let frames = Frames {
        batch: BATCH,
        time: TIME,
        continuous: (0..2 * rows as u64).map(|i| rng.uniform(i) - 0.5).collect(),
        ids: vec![],
        previous: vec![NONE; rows],
    };
    (frames, (0..rows).map(|i| (i % 3) as f32).collect())
}

/// Takes all free memory of a card.
fn ballast(device: &Device) -> Vec<Tensor> {
    let (mut taken, mut bytes) = (vec![], BUDGET as usize);
    while bytes >= 256 {
        match Tensor::zeros(bytes, DType::U8, device) {
            Ok(tensor) => taken.push(tensor),
            Err(_) => bytes /= 2,
        }
    }
    taken
}

fn numbers(stepper: &Stepper) -> Vec<Vec<f32>> {
    let weights = stepper.policy().weights().values().map(|w| tensor::to_vec(w).unwrap());
    let moments = stepper.optimiser().state().unwrap().into_iter().map(|(_, v)| v.into_owned());
    weights.chain(moments).collect()
}

fn assert_full<T>(result: sconce_tensor::Result<T>) {
    match result.map(drop).unwrap_err() {
        Error::CardFull { what, memory, .. } => {
            assert_eq!((what.as_str(), memory.budget), ("cuda:0", Some(BUDGET)));
            assert!(memory.kept.weights > 0, "{memory:?}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_step_without_memory_changes_nothing_wherever_it_fails() {
    let Some((_alone, device)) = alone(BUDGET) else { return };
    let (frames, labels) = frames();
    let weights = vec![1.0; labels.len()];
    let x = &Batch { frames, labels, weights, ..Batch::default() };
    let policy = Policy::init(&spec(), 1).unwrap();
    for rule in [Rule::AdamW, Rule::Lamb, Rule::Sgd] {
        let policy = policy.copy_on(&device).unwrap();
        let config = OptimiserConfig::new(rule);
        let stepper =
            || Stepper::imitating(&policy, &LossOptions::plain(), config, 1.0, 7).unwrap();
        let stepper = || stepper().averaging(Some(0.9));
        let (mut plain, mut short) = (stepper(), stepper());
        let state = plain.policy().zero_state(BATCH).unwrap();
        for step in 0..3 {
            plain.step_from(x, &state, step, 1e-2).unwrap();

            // Forward and backward.
            let full = ballast(&device);
            assert_full(short.learn(Task::new(x, &state, step)));
            drop(full);
            // The update; in the first step it creates the moments.
            short.learn(Task::new(x, &state, step)).unwrap();
            let (before, updates) = (numbers(&short), short.optimiser().updates());
            let full = ballast(&device);
            let updated = short.update(1e-2);
            drop(full);
            match updated {
                // With kernels, once the moments exist.
                Ok(_) => assert!(rule == Rule::AdamW && step > 0),
                full => {
                    assert_full(full);
                    let unchanged = (numbers(&short), short.optimiser().updates());
                    assert_eq!(unchanged, (before, updates));
                    short.learn(Task::new(x, &state, step)).unwrap();
                    short.update(1e-2).unwrap();
                }
            }
            assert!(numbers(&short) == numbers(&plain), "{rule:?}, step {step}");
        }
        let memory = device::memory(0).unwrap();
        let kept: usize = numbers(&plain).iter().map(|v| 4 * v.len()).sum();
        // The weights of the policy itself count too.
        let weights = 4 * policy.num_weights() as u64;
        assert_eq!(memory.kept.weights, 3 * weights);
        assert_eq!(memory.kept.optimiser, 2 * (kept as u64 - weights));
    }
    left(device);
}

/// Another thread that synchronises the context invalidates a recording.
#[test]
fn a_step_that_cannot_be_recorded_is_launched_and_so_are_later_steps() {
    let Some((_alone, device)) = alone(BUDGET) else { return };
    let (frames, labels) = frames();
    let weights = vec![1.0; labels.len()];
    let x = &Batch { frames, labels, weights, ..Batch::default() };
    let policy = Policy::init(&spec(), 1).unwrap().copy_on(&device).unwrap();
    let config = OptimiserConfig::new(Rule::AdamW);
    let stepper = || Stepper::imitating(&policy, &LossOptions::plain(), config, 1.0, 7).unwrap();
    let mut plain = stepper();
    let state = plain.policy().zero_state(BATCH).unwrap();
    plain.step_from(x, &state, 0, 1e-2).unwrap();

    let (before, over) = (device::refusals().len(), AtomicBool::new(false));
    let context = device.as_cuda_device().unwrap().cuda_stream().context().clone();
    let begin = || {
        let mut other = stepper();
        assert!(other.records(x) && other.begin(x, &state, 0, 1e-2).unwrap().is_none());
        (device::refusals().len() > before).then_some(other)
    };
    let other = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = context.synchronize();
            }
        });
        // A recording may end before the other thread synchronises.
        let other = (0..1000).find_map(|_| begin());
        over.store(true, Ordering::Relaxed);
        other
    });
    let mut other = other.expect("a step that was not recorded");
    let stepped = other.results().unwrap().remove(0).unwrap();
    assert!(stepped.learned && numbers(&other) == numbers(&plain));
    assert!(!other.records(x));
    for stepper in [&mut plain, &mut other] {
        stepper.step_from(x, &state, 1, 1e-2).unwrap();
    }
    assert!(numbers(&other) == numbers(&plain));
    drop((plain, other, state, policy));
    left(device);
}

/// Options of a run of a few steps.
fn options() -> TrainOptions {
    TrainOptions {
        data: DataOptions {
            batch_size: BATCH,
            window_size: TIME,
            stride: 16,
            val_split: 0.0,
            ..DataOptions::default()
        },
        schedule: ScheduleOptions { steps: Some(4), ..ScheduleOptions::default() },
        machine: MachineOptions { device: "cuda:0".into(), ..MachineOptions::default() },
        ..TrainOptions::default()
    }
}

fn corpus(dir: &Path) -> Corpus {
    let game = |game: u64| {
        let rng = Rng::new(1, "game", game);
        let x = (0..2 * 300).map(|i| rng.uniform(i) - 0.5).collect();
        VectorGame { x, labels: (0..300).map(|t| (t % 3) as f32).collect() }
    };
    let games: Vec<VectorGame> = (0..8).map(game).collect();
    Corpus::build(&Schema::vector(2, &spec().heads), &games, dir).unwrap()
}

#[test]
fn a_run_halves_its_batches_until_they_fit_and_fails_if_no_batch_fits() {
    let Some((_alone, device)) = alone(BUDGET) else { return };
    drop(device);
    let dir = tempfile::tempdir().unwrap();
    let (corpus, never) = (corpus(&dir.path().join("corpus")), AtomicBool::new(false));
    let options = options();
    let go = |bytes: Option<u64>| {
        drop(limited(bytes));
        let out = dir.path().join(format!("{bytes:?}"));
        let told: Mutex<Vec<Event>> = Mutex::default();
        let listen = |event| told.lock().unwrap().push(event);
        let report = run(&corpus, &spec(), &options, &out, &listen, &never);
        // All memory of the run is back with the driver.
        assert_eq!(device::memory(0).unwrap().taken(), 0);
        let halved = told.into_inner().unwrap().into_iter().filter_map(|event| match event {
            Event::OutOfMemory { micro_batch, .. } => Some(micro_batch),
            _ => None,
        });
        (report, halved.collect::<Vec<usize>>(), out.join("last.safetensors"))
    };
    let weights = |path: &Path| -> Vec<f32> {
        let policy = Policy::load(path).unwrap();
        policy.weights().values().flat_map(|w| tensor::to_vec(w).unwrap()).collect()
    };
    let (report, told, whole) = go(None);
    assert_eq!((report.unwrap().micro_batch, told), (Some(BATCH), vec![]));
    let whole = weights(&whole);

    let (mut windows, mut halved) = (BATCH, 0);
    for bytes in (0..40).map(|i| (BUDGET as f64 * 0.8f64.powi(i)) as u64) {
        let (report, told, last) = go(Some(bytes));
        match report {
            Ok(report) => {
                let now = report.micro_batch.unwrap();
                assert!(now <= windows && told.last().is_none_or(|last| *last == now));
                (windows, halved) = (now, halved + usize::from(now < BATCH));
                let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
                assert!(weights(&last).iter().zip(&whole).all(near), "{bytes}: {told:?}");
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::OutOfMemory, "{error}");
                assert!(halved > 1, "{halved} runs that were halved");
                return;
            }
        }
    }
    panic!("a run that needs no memory");
}

#[test]
fn finished_runs_leave_no_memory_on_the_card() {
    let Some((_alone, device)) = alone(BUDGET) else { return };
    drop(device);
    let dir = tempfile::tempdir().unwrap();
    let (corpus, never) = (corpus(&dir.path().join("corpus")), AtomicBool::new(false));
    let options = options();
    for (name, spec) in backbones() {
        let leaves = |number: usize| {
            let out = dir.path().join(format!("{name}{number}"));
            run(&corpus, &spec, &options, &out, &|_| (), &never).unwrap();
            let memory = device::memory(0).unwrap();
            // Except for what candle keeps of a stream that was recorded on.
            let kept = memory.taken() - memory.activations;
            assert!(kept == 0 && memory.activations < 16 << 10, "{name}, run {number}: {memory:?}");
            (memory.activations, memory.others)
        };
        let first = leaves(0);
        for number in 1..4 {
            assert_eq!(leaves(number), first, "{name}, after run {number}");
        }
    }
}

#[test]
fn as_many_frames_are_scored_together_as_fit() {
    let Some((_alone, device)) = alone(BUDGET) else { return };
    drop(device);
    let dir = tempfile::tempdir().unwrap();
    let (corpus, never) = (corpus(dir.path()), AtomicBool::new(false));
    let here = Policy::init(&spec(), 1).unwrap();
    for mode in [Mode::Window, Mode::Carry] {
        let options = EvaluateOptions {
            mode: Some(mode),
            window_size: Some(TIME),
            ..EvaluateOptions::default()
        };
        let score = |policy: &Policy| {
            let report = evaluate(policy, &corpus, None, &options, &|_| (), &never)?;
            sconce_tensor::Result::Ok(report.policy.nll)
        };
        let want = score(&here).unwrap();
        let budgets = (0..40).map(|i| (BUDGET as f64 * 0.7f64.powi(i)) as u64);
        let within = |&bytes: &u64| {
            let device = limited(Some(bytes));
            let got = here.copy_on(&device).and_then(|there| score(&there));
            left(device);
            match got {
                Ok(nll) => assert!((nll - want).abs() < 1e-6, "{mode:?}, {bytes}: {nll}, {want}"),
                Err(ref error) => assert_eq!(error.kind(), Kind::OutOfMemory, "{error}"),
            }
            got.is_ok()
        };
        let least = budgets.take_while(within).last().unwrap();
        // Bytes of one layer's outputs for all that would be scored together.
        let layer = if mode == Mode::Window { 128 * TIME } else { 256 } * 64 * size_of::<f32>();
        assert!(least < layer as u64, "{mode:?}: {least} of {layer}");
    }
}

fn backbones() -> Vec<(&'static str, Spec)> {
    let common = json!({
        "hidden_size": 16, "num_layers": 2, "input_norm": false, "dropout": 0.0, "input_dropout": 0.0,
    });
    let all = [
        ("gru", json!({ "layer_norm": true })),
        ("lstm", json!({ "layer_norm": true })),
        ("mamba", json!({ "state_size": 16, "expand_factor": 2, "conv_size": 4 })),
        (
            "sliding_window",
            json!({ "num_heads": 2, "head_dim": 8, "window_size": 8, "qk_layernorm": false }),
        ),
        // These are recorded with strided operands of candle's own kernels.
        ("rwkv", json!({ "expand_factor": 2 })),
        ("xlstm", json!({ "num_heads": 2, "expand_factor": 2 })),
        ("gla", json!({ "num_heads": 2, "expand_factor": 2, "head_dim": 8 })),
        ("s5", json!({ "state_size": 8 })),
    ];
    let spec_of = |(name, own): (&'static str, Value)| {
        let mut config = common.clone();
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        (
            name,
            Spec { backbone: serde_json::from_value(json!({ name: config })).unwrap(), ..spec() },
        )
    };
    all.into_iter().map(spec_of).collect()
}
