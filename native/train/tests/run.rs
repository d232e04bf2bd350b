//! Whole runs on a small corpus: they repeat bit by bit, and resume where they were interrupted.
#![allow(clippy::disallowed_methods)]

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_data::{Corpus, Reader, SamplerOptions, Schema, Tracks, VectorGame};
use sconce_nn::backbone::Context;
use sconce_nn::checkpoint::{self, Checkpoint};
use sconce_nn::spec::{
    Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, MlpConfig, RecurrentConfig,
};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, device, tensor};
use sconce_train::eval::evaluate;
use sconce_train::objective::imitation::LossOptions;
use sconce_train::optimiser::Kind;
use sconce_train::options::{
    DataOptions, EvaluateOptions, LrSchedule, MachineOptions, Mode, OptimiserOptions,
    SavingOptions, ScheduleOptions, TrainOptions,
};
use sconce_train::report::{Event, Stopped};
use sconce_train::run::{read_gradients, run};

const FRAMES: usize = 90;

fn heads() -> Heads {
    let parts =
        vec![Head { name: "action".into(), kind: HeadKind::Categorical(3), hidden_size: 8 }];
    Heads { kind: HeadsKind::Independent, parts, stream_size: 8, prior: false }
}

fn gru() -> Spec {
    let config = RecurrentConfig {
        hidden_size: 24,
        num_layers: 1,
        layer_norm: true,
        input_norm: false,
        dropout: 0.1,
        input_dropout: 0.0,
        ..Default::default()
    };
    Spec {
        embedding: Embedding::vector(2),
        backbone: Backbone::Gru(config),
        heads: heads(),
        critic: None,
    }
}

/// The action is the sign of the number one frame ago, which a policy without memory cannot know.
fn corpus(dir: &Path) -> Corpus {
    let games: Vec<VectorGame> = (0..8)
        .map(|game| {
            let rng = Rng::new(1, "test", game);
            let x: Vec<f32> = (0..2 * FRAMES as u64).map(|i| rng.uniform(i) * 2.0 - 1.0).collect();
            let label = |t: usize| match t.checked_sub(1).map(|t| x[2 * t]) {
                None => 2.0,
                Some(v) => f32::from(u8::from(v > 0.0)),
            };
            VectorGame { labels: (0..FRAMES).map(label).collect(), x }
        })
        .collect();
    Corpus::build(&Schema::vector(2, &heads()), &games, dir).expect("a corpus")
}

fn options() -> TrainOptions {
    TrainOptions {
        data: DataOptions {
            batch_size: 8,
            window_size: 20,
            stride: 10,
            val_split: 0.25,
            ..DataOptions::default()
        },
        schedule: ScheduleOptions {
            steps: Some(12),
            warmup_steps: 2,
            learning_rate: 1e-2,
            ..ScheduleOptions::default()
        },
        saving: SavingOptions { validate_every: Some(5), ..SavingOptions::default() },
        loss: LossOptions::plain(),
        ..TrainOptions::default()
    }
}

fn silent(_: Event) {}

fn weights(path: &Path) -> Vec<(String, Vec<u32>)> {
    let policy = Policy::load(path).expect("a policy");
    let bits = |t| {
        sconce_tensor::tensor::to_vec(t).expect("numbers").iter().map(|v| v.to_bits()).collect()
    };
    policy.weights().iter().map(|(name, t)| (name.clone(), bits(t))).collect()
}

#[test]
fn two_seeded_runs_are_equal_on_any_number_of_threads_and_another_seed_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let last = |name: &str, options: &TrainOptions| {
        let out = dir.path().join(name);
        run(&corpus, &gru(), options, &out, &silent, &AtomicBool::new(false)).unwrap();
        weights(&out.join("last.safetensors"))
    };
    let one = last(
        "one",
        &TrainOptions {
            machine: MachineOptions { threads: Some(1), ..options().machine },
            ..options()
        },
    );
    let two = last(
        "two",
        &TrainOptions {
            machine: MachineOptions { threads: Some(2), ..options().machine },
            ..options()
        },
    );
    assert!(one == two, "runs differ");
    assert!(
        one != last(
            "three",
            &TrainOptions { machine: MachineOptions { seed: 1, ..options().machine }, ..options() }
        ),
        "the seed does nothing"
    );
}

#[test]
fn a_stopped_run_resumes_to_the_same_result_as_the_uninterrupted_one() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let whole = dir.path().join("whole");
    let uninterrupted =
        run(&corpus, &gru(), &options(), &whole, &silent, &AtomicBool::new(false)).unwrap();

    let cut = dir.path().join("cut");
    for stop_at in [3, 7, 12] {
        let cancel = AtomicBool::new(false);
        let resume = TrainOptions {
            machine: MachineOptions { resume: true, ..options().machine },
            ..options()
        };
        let listen = |event| match event {
            Event::Step { step, .. } if step == stop_at => cancel.store(true, Ordering::Relaxed),
            _ => {}
        };
        let report = run(&corpus, &gru(), &resume, &cut, &listen, &cancel).unwrap();
        assert_eq!(report.steps, stop_at);
    }
    let resume =
        TrainOptions { machine: MachineOptions { resume: true, ..options().machine }, ..options() };
    let report = run(&corpus, &gru(), &resume, &cut, &silent, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.stopped, Stopped::Finished);
    assert!(weights(&cut.join("last.safetensors")) == weights(&whole.join("last.safetensors")));
    assert_eq!(report.best_step, uninterrupted.best_step);
    assert_eq!(report.policy, uninterrupted.policy);
}

/// Emulated cards serve too: `SCONCE_EMULATED_CARDS=2` (`bin/test-cuda`).
#[test]
#[ignore = "needs two cards"]
fn a_run_on_two_cards_learns_the_same_as_on_one_card_and_resumes_on_one() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let go = |name: &str, device: &str, until: u64| {
        let (losses, cancel) = (RefCell::new(vec![]), AtomicBool::new(false));
        let listen = |event| {
            if let Event::Step { step, loss, .. } = event {
                losses.borrow_mut().push(loss);
                cancel.store(step >= until, Ordering::Relaxed);
            }
        };
        let options = TrainOptions {
            machine: MachineOptions { device: device.into(), resume: true, ..options().machine },
            ..options()
        };
        let out = dir.path().join(name);
        run(&corpus, &gru(), &options, &out, &listen, &cancel).unwrap();
        let weights = weights(&out.join("last.safetensors")).into_iter();
        let weights: Vec<f32> = weights.flat_map(|(_, w)| w).map(f32::from_bits).collect();
        (losses.take(), weights)
    };
    let near = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-3 * a.abs().max(1e-2))
    };
    let (losses, one) = go("one", "cuda:0", u64::MAX);
    let (others, two) = go("two", "cuda:0,1", u64::MAX);
    assert!(losses.iter().zip(&others).all(|(a, b)| (a - b).abs() < 1e-4), "{losses:?} {others:?}");
    assert!(near(&one, &two));
    let last = Policy::load(&dir.path().join("two/last.safetensors")).unwrap();
    let [first, second] = ["cuda:0", "cuda:1"].map(|name| device::named(name).unwrap());
    let there = last.copy_on(&first).unwrap().copy_on(&second).unwrap();
    assert!(there.device().same_device(&second));
    for (name, weight) in there.weights() {
        let want = tensor::to_vec(&last.weights()[name]).unwrap();
        assert_eq!(tensor::to_vec(weight).unwrap(), want, "{name}");
    }
    go("cut", "cuda:1,0", 5);
    assert!(near(&go("cut", "cuda:1", u64::MAX).1, &two));
}

const OPTIMISERS: [(Kind, f64); 9] = [
    (Kind::AdamW, 1e-2),
    (Kind::Adam, 1e-2),
    (Kind::Sgd, 1e-1),
    (Kind::RmsProp, 3e-3),
    (Kind::RAdam, 3e-2),
    (Kind::Lamb, 5e-2),
    (Kind::AdaBelief, 1e-2),
    (Kind::Yogi, 1e-2),
    (Kind::Lion, 5e-3),
];

#[test]
fn each_step_reports_the_loss_of_each_head_and_epochs_and_points_their_means() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let options = TrainOptions {
        optimiser: OptimiserOptions { accumulation_steps: 2, ..options().optimiser },
        machine: MachineOptions { resume: true, ..options().machine },
        ..options()
    };
    let go = |name: &str, stops: &[u64]| {
        let (steps, epochs) = (RefCell::new(vec![]), RefCell::new(vec![]));
        let cancel = AtomicBool::new(false);
        let listen = |event| match event {
            Event::Step { step, loss, heads, .. } => {
                assert_eq!(heads.len(), 1);
                assert_eq!(heads[0].name, "action");
                // The plain loss has no part but that of the one head.
                assert!((heads[0].loss - loss).abs() < 1e-9, "{} is not {loss}", heads[0].loss);
                steps.borrow_mut().push(loss);
                cancel.store(stops.contains(&step), Ordering::Relaxed);
            }
            Event::Epoch { avg_loss, heads, .. } => {
                assert!((heads[0].loss - avg_loss).abs() < 1e-9);
                epochs.borrow_mut().push(heads[0].loss);
            }
            _ => {}
        };
        let out = dir.path().join(name);
        loop {
            let report = run(&corpus, &gru(), &options, &out, &listen, &cancel).unwrap();
            if report.stopped == Stopped::Finished {
                let losses = report.history.iter().map(|point| point.losses.clone()).collect();
                return (steps.take(), epochs.take(), losses);
            }
            cancel.store(false, Ordering::Relaxed);
        }
    };
    let whole: (Vec<f64>, Vec<f64>, Vec<Vec<_>>) = go("whole", &[]);
    assert_eq!(whole.0.len(), 12);
    assert!(whole.1.len() > 1 && whole.2.iter().any(|losses| !losses.is_empty()));
    assert_eq!(whole, go("cut", &[1, 4, 5, 8]));
}

#[test]
fn gradient_reports_are_made_on_request_once_a_step_and_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let looking = TrainOptions {
        saving: SavingOptions { gradient_report: Some(4), ..options().saving },
        optimiser: OptimiserOptions { max_grad_norm: 0.1, ..options().optimiser },
        machine: MachineOptions { resume: true, ..options().machine },
        ..options()
    };
    let go = |name: &str, options: &TrainOptions, stop: u64| {
        let (norms, seen) = (RefCell::new(vec![]), RefCell::new(vec![]));
        let cancel = AtomicBool::new(false);
        let listen = |event| match event {
            Event::Step { step, grad_norm, .. } => {
                norms.borrow_mut().push(grad_norm.unwrap());
                cancel.store(step == stop, Ordering::Relaxed);
            }
            Event::Gradients { step, weights } => {
                // Together they give the norm before the clip.
                let squares: f64 = weights.iter().map(|w| w.norm * w.norm).sum();
                let norm = *norms.borrow().last().unwrap();
                assert!((squares.sqrt() - norm).abs() < 1e-9 * norm, "{} {norm}", squares.sqrt());
                assert!(weights.iter().all(|w| w.update_ratio.is_none_or(|r| r > 0.0 && r < 1.0)));
                seen.borrow_mut().push(step);
            }
            _ => {}
        };
        let out = dir.path().join(name);
        run(&corpus, &gru(), options, &out, &listen, &cancel).unwrap();
        (out, seen.take())
    };
    let (blind, seen) = go(
        "blind",
        &TrainOptions {
            saving: SavingOptions { gradient_report: None, ..looking.clone().saving },
            ..looking.clone()
        },
        0,
    );
    assert!(seen.is_empty() && !blind.join("gradients.jsonl").exists());
    let (whole, seen) = go("whole", &looking, 0);
    assert_eq!(seen, [4, 8, 12]);
    let last = |out: &Path| weights(&out.join("last.safetensors"));
    assert!(last(&whole) == last(&blind));

    // Reports after the last save of a killed run are made again; a line may be incomplete.
    let lines = |out: &Path| std::fs::read_to_string(out.join("gradients.jsonl")).unwrap();
    let (cut, _) = go("cut", &looking, 6);
    assert_eq!(lines(&cut), lines(&whole).split_inclusive('\n').take(1).collect::<String>());
    let more = lines(&whole).split_inclusive('\n').take(2).collect::<String>() + "{\"step\":9";
    std::fs::write(cut.join("gradients.jsonl"), more).unwrap();
    assert_eq!(go("cut", &looking, 0).1, [8, 12]);
    assert_eq!(lines(&cut), lines(&whole));
    let steps = read_gradients(&cut).unwrap().iter().map(|seen| seen.step).collect::<Vec<_>>();
    assert_eq!(steps, [4, 8, 12]);
}

/// The whole state from which a run resumes, as bits.
fn state(folder: &Path) -> Vec<(String, Vec<u32>)> {
    let Checkpoint { optimiser, .. } = checkpoint::load(&folder.join("last.safetensors")).unwrap();
    let bits = |(name, v): (String, Vec<f32>)| (name, v.iter().map(|v| v.to_bits()).collect());
    let mut all = weights(&folder.join("last.safetensors"));
    all.extend(optimiser.into_iter().map(bits));
    all
}

/// Runs until `step` steps are made.
fn run_to(step: u64, corpus: &Corpus, options: &TrainOptions, out: &Path) {
    let cancel = AtomicBool::new(false);
    let listen = |event| match event {
        Event::Step { step: made, .. } if made == step => cancel.store(true, Ordering::Relaxed),
        _ => {}
    };
    let report = run(corpus, &gru(), options, out, &listen, &cancel).unwrap();
    assert_eq!(report.steps, step);
}

#[test]
fn every_optimiser_resumes_to_the_same_bits_with_averages_and_accumulated_batches() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    for (optimizer, learning_rate) in OPTIMISERS {
        for unroll in [Mode::Window, Mode::Carry] {
            let options = TrainOptions {
                optimiser: OptimiserOptions {
                    optimizer,
                    accumulation_steps: 3,
                    ema_decay: Some(0.9),
                    weight_decay: Some(0.01),
                    ..options().optimiser
                },
                schedule: ScheduleOptions { learning_rate, steps: Some(6), ..options().schedule },
                data: DataOptions { unroll, batch_size: 4, ..options().data },
                saving: SavingOptions {
                    validate_every: Some(4),
                    evaluate: false,
                    ..options().saving
                },
                machine: MachineOptions { resume: true, ..options().machine },
                ..options()
            };
            let folder = |name: &str| dir.path().join(format!("{optimizer:?} {unroll:?} {name}"));
            let on = |threads| TrainOptions {
                machine: MachineOptions { threads: Some(threads), ..options.clone().machine },
                ..options.clone()
            };
            run_to(6, &corpus, &on(2), &folder("whole"));
            run_to(3, &corpus, &on(2), &folder("cut"));
            run_to(6, &corpus, &on(1), &folder("cut"));
            let (whole, cut) = (state(&folder("whole")), state(&folder("cut")));
            assert!(whole.iter().any(|(name, _)| name.starts_with("ema.")));
            assert!(whole == cut, "{optimizer:?}, {unroll:?}");
            let best = |name| weights(&folder(name).join("best.safetensors"));
            assert!(best("whole") == best("cut"), "{optimizer:?}, {unroll:?}");
        }
    }
}

#[test]
fn every_optimiser_brings_the_loss_down() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    for (optimizer, learning_rate) in OPTIMISERS {
        let options = TrainOptions {
            optimiser: OptimiserOptions { optimizer, ..options().optimiser },
            schedule: ScheduleOptions { learning_rate, steps: Some(200), ..options().schedule },
            saving: SavingOptions { validate_every: Some(40), ..options().saving },
            ..options()
        };
        let out = dir.path().join(format!("{optimizer:?}"));
        let report =
            run(&corpus, &gru(), &options, &out, &silent, &AtomicBool::new(false)).unwrap();
        let nll = report.policy.unwrap().nll;
        eprintln!("{optimizer:?} {nll}");
        // Without memory the NLL is at least 0.69.
        assert!(nll < 0.65, "{optimizer:?}: {nll}");
    }
}

#[test]
fn accumulated_batches_learn_the_same_as_one_batch_of_all_their_windows() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let mut spec = gru();
    if let Backbone::Gru(config) = &mut spec.backbone {
        config.dropout = 0.0;
    }
    let steps = |batch_size, accumulation_steps| {
        let options = TrainOptions {
            data: DataOptions { batch_size, ..options().data },
            optimiser: OptimiserOptions { accumulation_steps, ..options().optimiser },
            schedule: ScheduleOptions {
                // Within the first epoch, which has whole batches of both sizes.
                steps: Some(3),
                ..options().schedule
            },
            ..options()
        };
        let out = dir.path().join(format!("{accumulation_steps}"));
        let told = RefCell::new(vec![]);
        let listen = |event| match event {
            Event::Step { loss, grad_norm, .. } => {
                told.borrow_mut().push((loss, grad_norm.unwrap()));
            }
            Event::Start { epoch_steps, .. } => assert_eq!(epoch_steps, 3),
            _ => {}
        };
        run(&corpus, &spec, &options, &out, &listen, &AtomicBool::new(false)).unwrap();
        told.into_inner()
    };
    let (whole, parts) = (steps(8, 1), steps(2, 4));
    assert_eq!(whole.len(), 3);
    for (step, (want, got)) in whole.iter().zip(&parts).enumerate() {
        let near = |want: f64, got: f64| (want - got).abs() < 1e-4 * want;
        assert!(near(want.0, got.0) && near(want.1, got.1), "{step}: {got:?} is not {want:?}");
    }
}

#[test]
fn the_averaged_weights_are_validated_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    // The only validation is the best.
    let options = TrainOptions {
        optimiser: OptimiserOptions { ema_decay: Some(0.9), ..options().optimiser },
        schedule: ScheduleOptions { steps: Some(4), ..options().schedule },
        saving: SavingOptions { validate_every: Some(4), validation_stride: 1, ..options().saving },
        ..options()
    };
    let told = RefCell::new(None);
    let listen = |event| {
        if let Event::Validation { nll, .. } = event {
            *told.borrow_mut() = Some(nll);
        }
    };
    let cancel = AtomicBool::new(false);
    let report = run(&corpus, &gru(), &options, &out, &listen, &cancel).unwrap();
    assert_eq!(told.into_inner().unwrap(), report.policy.unwrap().nll);

    let last = checkpoint::load(&out.join("last.safetensors")).unwrap();
    let best = Policy::load(&out.join("best.safetensors")).unwrap();
    for (name, weight) in best.weights() {
        let numbers = |t| sconce_tensor::tensor::to_vec(t).unwrap();
        assert_eq!(numbers(weight), last.optimiser[&format!("ema.{name}")], "{name}");
        assert_ne!(numbers(weight), numbers(&last.weights[name]), "{name}");
    }
}

#[test]
fn a_run_is_resumed_with_the_numbers_of_its_optimiser_given_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    let with = |weight_decay| TrainOptions {
        optimiser: OptimiserOptions { weight_decay, ..options().optimiser },
        machine: MachineOptions { resume: true, ..options().machine },
        ..options()
    };
    run_to(3, &corpus, &with(Some(0.01)), &out);
    run_to(6, &corpus, &with(None), &out);
    for (name, other) in [
        ("weight_decay", with(Some(0.02))),
        (
            "optimizer",
            TrainOptions {
                optimiser: OptimiserOptions {
                    optimizer: Kind::RAdam,
                    ..with(Some(0.01)).optimiser
                },
                ..with(Some(0.01))
            },
        ),
        (
            "ema_decay",
            TrainOptions {
                optimiser: OptimiserOptions { ema_decay: Some(0.9), ..with(None).optimiser },
                ..with(None)
            },
        ),
        (
            "accumulation_steps",
            TrainOptions {
                optimiser: OptimiserOptions { accumulation_steps: 2, ..with(None).optimiser },
                ..with(None)
            },
        ),
    ] {
        let error = run(&corpus, &gru(), &other, &out, &silent, &AtomicBool::new(false));
        let text = error.unwrap_err().to_string();
        assert!(text.contains(&format!("last.safetensors: {name} is ")), "{text}");
    }
}

#[test]
fn batches_that_are_made_ahead_change_no_bit_and_every_report_counts_them() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    for unroll in [Mode::Window, Mode::Carry] {
        let last = |prefetch: usize, loader_threads: usize| {
            let out = dir.path().join(format!("{unroll:?} {prefetch} {loader_threads}"));
            let options = TrainOptions {
                data: DataOptions {
                    unroll,
                    prefetch,
                    loader_threads,
                    previous_dropout: 0.2,
                    noise: 0.5,
                    frame_delay_max: Some(3),
                    ..options().data
                },
                saving: SavingOptions { validation_mode: unroll, ..options().saving },
                ..options()
            };
            let waits = RefCell::new(0.0);
            let events = |event| {
                if let Event::Step { data_wait, .. } = event {
                    *waits.borrow_mut() += data_wait;
                }
            };
            let report =
                run(&corpus, &gru(), &options, &out, &events, &AtomicBool::new(false)).unwrap();
            let flow = report.loader;
            assert_eq!((flow.batches, flow.rows, flow.dropped), (12, 12 * 8 * 20, 0));
            assert_eq!((flow.prefetch, flow.threads), (prefetch, loader_threads.min(prefetch)));
            assert!((waits.into_inner() - flow.data_wait_seconds).abs() < 1e-6);
            assert!(flow.making_seconds > 0.0 && flow.bytes > flow.rows);
            weights(&out.join("last.safetensors"))
        };
        let plain = last(0, 1);
        for (prefetch, threads) in [(1, 1), (2, 1), (3, 2)] {
            assert!(last(prefetch, threads) == plain, "{unroll:?} {prefetch} {threads}");
        }
    }
}

#[test]
fn a_shard_removed_or_cut_during_a_run_ends_it_with_the_shards_name_and_a_saved_state() {
    let gone = |path: &Path| std::fs::remove_file(path).unwrap();
    let cut = |path: &Path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    };
    for (harm, kind) in [(&gone as &dyn Fn(&Path), "not_found"), (&cut, "corrupt")] {
        let dir = tempfile::tempdir().unwrap();
        let corpus = corpus(&dir.path().join("corpus"));
        let shard = |i: usize| corpus.dir().join(&corpus.games()[i].file);
        let listen = |event| {
            if let Event::Step { step: 3, .. } = event {
                (0..8).for_each(|i| harm(&shard(i)));
            }
        };
        let out = dir.path().join("run");
        let error = run(&corpus, &gru(), &options(), &out, &listen, &AtomicBool::new(false))
            .map(drop)
            .unwrap_err();
        assert_eq!(error.kind().name(), kind, "{error}");
        assert!(error.to_string().contains(".safetensors"), "{error}");
        assert!(out.join("last.safetensors").exists());
    }
}

/// A killed process leaves the files of its latest save.
#[test]
fn states_saved_between_validations_resume_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let options = TrainOptions {
        saving: SavingOptions { save_every: Some(2), ..options().saving },
        optimiser: OptimiserOptions { ema_decay: Some(0.9), ..options().optimiser },
        data: DataOptions { unroll: Mode::Carry, ..options().data },
        machine: MachineOptions { resume: true, ..options().machine },
        ..options()
    };
    let (whole, never) = (dir.path().join("whole"), AtomicBool::new(false));
    let copies = RefCell::new(vec![]);
    let listen = |event| {
        if let Event::Checkpoint { path, step } = event {
            let copy = dir.path().join(format!("from {step}"));
            std::fs::create_dir_all(&copy).unwrap();
            // There is no best policy before the first validation.
            for name in ["last.safetensors", "best.safetensors"] {
                let _ = std::fs::copy(path.with_file_name(name), copy.join(name));
            }
            copies.borrow_mut().push((step, copy));
        }
    };
    run(&corpus, &gru(), &options, &whole, &listen, &never).unwrap();
    let copies = copies.into_inner();
    assert!(copies.iter().any(|(step, _)| step % 5 != 0 && *step < 12), "{copies:?}");
    for (step, copy) in copies {
        // Other options of saving change no bit.
        let options = TrainOptions {
            saving: SavingOptions { save_every: None, keep_last: 3, ..options.clone().saving },
            ..options.clone()
        };
        run(&corpus, &gru(), &options, &copy, &silent, &never).unwrap();
        assert!(state(&copy) == state(&whole), "from {step}");
        let best = |folder: &Path| weights(&folder.join("best.safetensors"));
        assert!(best(&copy) == best(&whole), "from {step}");
    }
}

#[test]
fn numbered_checkpoints_stay_for_the_latest_states_and_the_best_policies() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let options = TrainOptions {
        saving: SavingOptions { validate_every: Some(2), evaluate: false, ..options().saving },
        ..options()
    };
    let go = |name: &str, options: &TrainOptions| {
        let out = dir.path().join(name);
        let report = run(&corpus, &gru(), options, &out, &silent, &AtomicBool::new(false)).unwrap();
        let entries = std::fs::read_dir(&out).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        (report, out, names)
    };
    let plain = ["best.safetensors", "last.safetensors", "lock", "report.json", "run.json"];
    assert_eq!(go("plain", &options).2, plain);

    let options = TrainOptions {
        saving: SavingOptions { keep_last: 2, keep_best: 3, ..options.saving },
        ..options
    };
    let (report, out, names) = go("numbered", &options);
    let mut nlls: Vec<_> =
        report.history.iter().filter_map(|p| p.nll.map(|nll| (nll, p.step))).collect();
    assert_eq!(nlls.len(), 6);
    nlls.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let numbered = |kind: &str, step: u64| format!("{kind}-{step:08}.safetensors");
    let mut want: Vec<String> = plain.map(String::from).to_vec();
    want.extend(nlls[..3].iter().map(|(_, step)| numbered("best", *step)));
    want.extend([10, 12].map(|step| numbered("last", step)));
    want.sort();
    assert_eq!(names, want);
    let same = |a: &str, b: &str| weights(&out.join(a)) == weights(&out.join(b));
    assert!(same("last.safetensors", &numbered("last", 12)));
    assert!(!same("last.safetensors", &numbered("last", 10)));
    assert!(same("best.safetensors", &numbered("best", nlls[0].1)));
    let second = Policy::load(&out.join(numbered("best", nlls[1].1))).unwrap();
    assert_eq!(second.notes()["nll"], nlls[1].0);
}

#[test]
fn a_run_that_carries_its_state_resumes_to_the_same_bits_however_it_is_computed() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    // Games of 90 frames in windows of 20: the last window of each is partial.
    let carry = |truncate_bptt| TrainOptions {
        data: DataOptions { unroll: Mode::Carry, batch_size: 3, burn_in: 2, ..options().data },
        optimiser: OptimiserOptions { truncate_bptt, ..options().optimiser },
        saving: SavingOptions { validation_mode: Mode::Carry, ..options().saving },
        ..options()
    };
    for truncate_bptt in [None, Some(6)] {
        let name = |kind: &str| dir.path().join(format!("{kind} {truncate_bptt:?}"));
        let whole = name("whole");
        let options = carry(truncate_bptt);
        run(&corpus, &gru(), &options, &whole, &silent, &AtomicBool::new(false)).unwrap();

        let cut = name("cut");
        // Computed in another way each time, and stopped between windows of a game.
        for (stop_at, every, threads) in [(0, 1, 2), (3, 1, 2), (7, 2, 1), (12, 1, 1)] {
            let cancel = AtomicBool::new(false);
            let listen = |event| match event {
                Event::Start { .. } if stop_at == 0 => cancel.store(true, Ordering::Relaxed),
                Event::Step { step, .. } if step == stop_at => {
                    cancel.store(true, Ordering::Relaxed)
                }
                _ => {}
            };
            let options = TrainOptions {
                machine: MachineOptions {
                    resume: true,
                    gradient_checkpoint: stop_at > 3,
                    checkpoint_every: every,
                    threads: Some(threads),
                    ..options.clone().machine
                },
                ..options.clone()
            };
            let report = run(&corpus, &gru(), &options, &cut, &listen, &cancel).unwrap();
            assert_eq!(report.steps, stop_at);
        }
        assert!(
            weights(&cut.join("last.safetensors")) == weights(&whole.join("last.safetensors")),
            "{truncate_bptt:?}"
        );
        let other = TrainOptions {
            machine: MachineOptions { resume: true, ..options.machine },
            data: DataOptions { unroll: Mode::Window, ..options.data },
            ..options
        };
        let error = run(&corpus, &gru(), &other, &cut, &silent, &AtomicBool::new(false));
        assert!(error.unwrap_err().to_string().contains("unroll is carry, not window"));
    }
}

/// Without learning, the losses of the steps are those of one pass over the games.
#[test]
fn a_track_reads_a_game_as_one_pass_over_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    let mut spec = gru();
    if let Backbone::Gru(config) = &mut spec.backbone {
        config.dropout = 0.0;
    }
    let options = TrainOptions {
        data: DataOptions { unroll: Mode::Carry, batch_size: 1, val_split: 0.0, ..options().data },
        schedule: ScheduleOptions { learning_rate: 0.0, steps: Some(15), ..options().schedule },
        optimiser: OptimiserOptions { truncate_bptt: Some(7), ..options().optimiser },
        ..options()
    };
    let losses = RefCell::new(vec![]);
    let listen = |event| {
        if let Event::Step { loss, .. } = event {
            losses.borrow_mut().push(loss);
        }
    };
    run(&corpus, &spec, &options, &out, &listen, &AtomicBool::new(false)).unwrap();

    let policy = Policy::load(&out.join("last.safetensors")).unwrap();
    let views = corpus.views(&(0..8).collect::<Vec<_>>()).unwrap();
    let reader = Reader::new(spec.embedding.clone(), spec.heads.clone(), 0);
    let sampling =
        SamplerOptions { window: 20, seed: options.machine.seed, ..SamplerOptions::default() };
    let mut tracks = Tracks::new(views.clone(), reader.clone(), sampling, 1, 0).unwrap();
    let mut compared = 0;
    let mut since = 0;
    for (step, loss) in losses.borrow().iter().enumerate() {
        let track = tracks.at(step as u64)[0];
        since = if track.fresh { track.start } else { since };
        let whole = reader.sequence(&views[track.view], since..track.start + track.frames).unwrap();
        let frames = whole.frames;
        let zero = policy.zero_state(1).unwrap();
        let (logits, _) = policy.forward(&frames, None, &zero, &Context::default()).unwrap();
        let logits = sconce_tensor::tensor::to_vec(&logits).unwrap();
        let nll = |t: usize| {
            let row = &logits[3 * t..3 * t + 3];
            let total: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
            total.ln() - f64::from(row[whole.labels[t] as usize])
        };
        let window = frames.time - track.frames..frames.time;
        let want = window.map(nll).sum::<f64>() / track.frames as f64;
        assert!((want - loss).abs() < 1e-5, "step {step}: {loss} is not {want}");
        compared += usize::from(!track.fresh);
    }
    assert!(compared > 8);
}

#[test]
fn a_folder_that_holds_a_run_is_not_overwritten_and_other_options_do_not_resume_it() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    let go = |options: &TrainOptions| {
        run(&corpus, &gru(), options, &out, &silent, &AtomicBool::new(false))
    };
    go(&options()).unwrap();
    assert!(matches!(go(&options()), Err(Error::Mismatch { .. })));
    let other = TrainOptions {
        machine: MachineOptions { resume: true, ..options().machine },
        schedule: ScheduleOptions { learning_rate: 1.0, ..options().schedule },
        ..options()
    };
    assert!(matches!(go(&other), Err(Error::Fixed { .. })));
}

#[test]
fn a_lengthened_run_keeps_the_schedule_that_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    let rates = RefCell::new(vec![]);
    let listen = |event| {
        if let Event::Step { learning_rate, .. } = event {
            rates.borrow_mut().push(learning_rate);
        }
    };
    let never = AtomicBool::new(false);
    let go = |options: &TrainOptions| run(&corpus, &gru(), options, &out, &listen, &never);
    let lr_schedule = LrSchedule::Exponential;
    let short = TrainOptions {
        schedule: ScheduleOptions { lr_schedule, warmup_steps: 4, ..options().schedule },
        saving: SavingOptions { evaluate: false, ..options().saving },
        ..options()
    };
    let steps = short.schedule.steps.unwrap();
    go(&short).unwrap();
    let longer = Some(steps + 6);
    let long = TrainOptions {
        schedule: ScheduleOptions { steps: longer, ..short.schedule },
        saving: SavingOptions { validate_every: Some(2), ..short.saving },
        machine: MachineOptions { resume: true, ..short.machine },
        ..short
    };
    let report = go(&long).unwrap();
    assert_eq!((report.steps, report.options.schedule.steps), (steps + 6, longer));
    assert_eq!(report.options.schedule.decay_steps, Some(steps - 4));
    let decay = |s: u64| 0.95f64.powf((s - 4) as f64 / (steps - 4) as f64);
    let want = long.schedule.learning_rate * decay(steps + 5);
    assert!((rates.borrow().last().unwrap() - want).abs() < 1e-12);
    // Without new options, the recorded steps and lengths are kept.
    let record = sconce_train::run::Record::read(&out).unwrap();
    let again = record.with(serde_json::json!({ "resume": true })).unwrap();
    assert_eq!((again.schedule.steps, again.schedule.decay_steps), (longer, None));
    let report = go(&again).unwrap();
    assert_eq!(
        (report.stopped, report.options.schedule.decay_steps),
        (Stopped::Finished, Some(steps - 4))
    );
}

#[test]
fn a_lengthened_run_resumes_from_before_its_first_save_and_with_the_same_options_again() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    let go = |options: &TrainOptions| {
        run(&corpus, &gru(), options, &out, &silent, &AtomicBool::new(false)).unwrap()
    };
    // A warm-up that is longer than half of the run is cut.
    let lr_schedule = LrSchedule::Constant;
    let short = TrainOptions {
        schedule: ScheduleOptions { lr_schedule, warmup_steps: 100, ..options().schedule },
        saving: SavingOptions { evaluate: false, ..options().saving },
        ..options()
    };
    let steps = short.schedule.steps.unwrap();
    go(&short);
    let last = out.join("last.safetensors");
    let before = std::fs::read(&last).unwrap();
    let long = TrainOptions {
        schedule: ScheduleOptions { steps: Some(steps + 6), ..short.schedule },
        machine: MachineOptions { resume: true, ..short.machine },
        ..short
    };
    let report = go(&long);
    let after = state(&out);
    assert_eq!((report.steps, report.options.schedule.warmup_steps), (steps + 6, steps / 2));
    assert_eq!(go(&long).stopped, Stopped::Finished);

    // As if the run had been killed before its first save.
    std::fs::remove_file(&last).unwrap();
    std::fs::write(&last, before).unwrap();
    let record = sconce_train::run::Record::read(&out).unwrap();
    let again = record.with(serde_json::json!({ "resume": true })).unwrap();
    assert_eq!(go(&again).steps, steps + 6);
    assert!(state(&out) == after);
}

#[test]
fn a_damaged_state_is_named_with_another_to_use() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    run_to(
        6,
        &corpus,
        &TrainOptions { saving: SavingOptions { keep_last: 1, ..options().saving }, ..options() },
        &out,
    );
    let last = out.join("last.safetensors");
    let bytes = std::fs::read(&last).unwrap();
    // A new file, as the numbered name is a link to the same one.
    std::fs::remove_file(&last).unwrap();
    std::fs::write(&last, &bytes[..bytes.len() / 2]).unwrap();
    let resume = TrainOptions {
        machine: MachineOptions { resume: true, ..options().machine },
        saving: SavingOptions { keep_last: 1, ..options().saving },
        ..options()
    };
    let error = run(&corpus, &gru(), &resume, &out, &silent, &AtomicBool::new(false));
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with(&format!("{}: cut short, damaged", last.display())), "{text}");
    assert!(text.ends_with("last-00000006.safetensors over it"), "{text}");
}

#[test]
fn a_run_resumes_with_any_learning_rate_but_not_on_other_games() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    // A number that an inexact JSON reader returns one bit off.
    let options = TrainOptions {
        schedule: ScheduleOptions { learning_rate: 5.0 * 1e-5 * 3.0, ..options().schedule },
        ..options()
    };
    let go = |corpus: &Corpus, options: &TrainOptions| {
        run(corpus, &gru(), options, &out, &silent, &AtomicBool::new(false))
    };
    go(&corpus, &options).unwrap();
    let resume =
        TrainOptions { machine: MachineOptions { resume: true, ..options.machine }, ..options };
    go(&corpus, &resume).unwrap();

    let game = |x: f32| VectorGame { x: vec![x; 2 * FRAMES], labels: vec![0.0; FRAMES] };
    let games: Vec<VectorGame> = (0..8).map(|i| game(i as f32)).collect();
    let other = Corpus::build(&Schema::vector(2, &heads()), &games, &dir.path().join("other"));
    let error = go(&other.unwrap(), &resume).unwrap_err();
    assert!(error.to_string().ends_with("games is those of the run, not others"), "{error}");
}

#[test]
fn a_loss_that_is_not_finite_keeps_the_last_whole_step_and_partial_files_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    std::fs::create_dir_all(&out).unwrap();
    let stale = out.join("best.safetensors.1-0.partial");
    std::fs::write(&stale, b"half").unwrap();
    let wild = TrainOptions {
        schedule: ScheduleOptions { learning_rate: 1e3, steps: Some(100), ..options().schedule },
        optimiser: OptimiserOptions { max_grad_norm: 1e30, ..options().optimiser },
        saving: SavingOptions { validate_every: Some(100), ..options().saving },
        ..options()
    };
    let mlp = MlpConfig {
        hidden_sizes: vec![32, 32, 32],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let spec = Spec { backbone: Backbone::Mlp(mlp), ..gru() };
    let error = run(&corpus, &spec, &wild, &out, &silent, &AtomicBool::new(false)).unwrap_err();
    let Error::Diverged { what, step, batch, windows, .. } = &error else { panic!("{error}") };
    assert!(what == "logit of action" || what.starts_with("gradient of "), "{what}");
    assert_eq!((*batch, windows.len()), (step - 1, 8));
    assert!(!stale.exists());
    Policy::load(&out.join("last.safetensors")).unwrap();
}

#[test]
fn the_last_step_learns_too_and_patience_ends_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let rates = RefCell::new(vec![]);
    let listen = |event| {
        if let Event::Step { learning_rate, .. } = event {
            rates.borrow_mut().push(learning_rate);
        }
    };
    let out = |name: &str| dir.path().join(name);
    let cancel = AtomicBool::new(false);
    for steps in [1, 3] {
        let options = TrainOptions {
            schedule: ScheduleOptions { steps: Some(steps), ..options().schedule },
            ..options()
        };
        run(&corpus, &gru(), &options, &out(&steps.to_string()), &listen, &cancel).unwrap();
    }
    assert!(rates.borrow().iter().all(|rate| *rate > 0.0), "{:?}", rates.borrow());

    let patient = TrainOptions {
        schedule: ScheduleOptions {
            patience: Some(2),
            min_delta: 100.0,
            steps: Some(50),
            ..options().schedule
        },
        saving: SavingOptions { validate_every: Some(1), ..options().saving },
        ..options()
    };
    let report = run(&corpus, &gru(), &patient, &out("patient"), &silent, &cancel).unwrap();
    assert_eq!((report.stopped, report.steps), (Stopped::Early, 3));
}

#[test]
fn a_validation_corpus_must_not_have_training_games() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let options = TrainOptions {
        data: DataOptions { validation: Some(dir.path().join("corpus")), ..options().data },
        ..options()
    };
    let out = dir.path().join("run");
    let error = run(&corpus, &gru(), &options, &out, &silent, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().starts_with("validation corpus"), "{error}");
}

#[test]
fn a_folder_in_use_is_busy() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    let second = RefCell::new(None);
    let listen = |event| {
        if matches!(event, Event::Start { .. }) {
            *second.borrow_mut() =
                Some(run(&corpus, &gru(), &options(), &out, &silent, &AtomicBool::new(false)));
        }
    };
    run(&corpus, &gru(), &options(), &out, &listen, &AtomicBool::new(false)).unwrap();
    assert!(matches!(second.into_inner(), Some(Err(Error::Busy { .. }))));
}

#[test]
fn a_policy_with_memory_learns_what_one_without_memory_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let options = TrainOptions {
        schedule: ScheduleOptions { steps: Some(250), ..options().schedule },
        saving: SavingOptions { validate_every: Some(50), ..options().saving },
        ..options()
    };
    let mlp = MlpConfig {
        hidden_sizes: vec![32],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let mlp = Spec { backbone: Backbone::Mlp(mlp), ..gru() };
    let nll = |name: &str, spec: &Spec| {
        let out = dir.path().join(name);
        let report = run(&corpus, spec, &options, &out, &silent, &AtomicBool::new(false)).unwrap();
        assert!(out.join("report.json").exists());
        report.policy.expect("an evaluation").nll
    };
    let (remembering, memoryless) = (nll("gru", &gru()), nll("mlp", &mlp));
    assert!(remembering < 0.25 && memoryless > 0.6, "{remembering} and {memoryless}");
}

#[test]
fn the_evaluation_of_a_file_equals_that_of_its_run_and_both_modes_score_every_frame() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let out = dir.path().join("run");
    let cancel = AtomicBool::new(false);
    run(&corpus, &gru(), &options(), &out, &silent, &cancel).unwrap();
    for name in ["best.safetensors", "last.safetensors"] {
        let policy = Policy::load(&out.join(name)).unwrap();
        let report =
            evaluate(&policy, &corpus, None, &EvaluateOptions::default(), &silent, &cancel);
        assert_eq!(report.unwrap().options.window_size, 20, "{name}");
    }
    let policy = Policy::load(&out.join("best.safetensors")).unwrap();
    for mode in [Mode::Window, Mode::Carry] {
        let options = EvaluateOptions { mode: Some(mode), ..EvaluateOptions::default() };
        let report = evaluate(&policy, &corpus, Some(&corpus), &options, &silent, &cancel).unwrap();
        assert_eq!(report.policy.frames, 8 * FRAMES as u64);
        assert_eq!(report.options.window_size, 20, "the window it was trained with");
        assert_eq!(report.baselines.len(), 3);
        assert!(report.policy.nll.is_finite());
    }
}

#[test]
fn a_corpus_of_another_game_is_refused_with_both_named() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let spec = Spec { embedding: Embedding::vector(3), ..gru() };
    let out = dir.path().join("run");
    let error =
        run(&corpus, &spec, &options(), &out, &silent, &AtomicBool::new(false)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("vectors of 3") && text.contains("vectors of 2"), "{text}");
    assert!(!out.exists(), "a refused run leaves no folder");
}

#[test]
fn a_run_in_the_folder_of_a_corpus_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("corpus");
    let corpus = corpus(&out);
    let error =
        run(&corpus, &gru(), &options(), &out, &silent, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains("a corpus"), "{error}");
    assert!(!out.join("last.safetensors").exists() && !out.join("report.json").exists());
}

#[test]
fn options_out_of_bounds_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let go = |options: TrainOptions| {
        run(&corpus, &gru(), &options, &dir.path().join("run"), &silent, &AtomicBool::new(false))
            .unwrap_err()
            .to_string()
    };
    assert!(
        go(TrainOptions { data: DataOptions { burn_in: 20, ..options().data }, ..options() })
            .starts_with("burn_in: 20 is outside 0..19")
    );
    assert!(
        go(TrainOptions { data: DataOptions { mirror: f32::NAN, ..options().data }, ..options() })
            .starts_with("mirror")
    );
    assert!(
        go(TrainOptions {
            data: DataOptions { window_size: 500, stride: 1, ..options().data },
            ..options()
        })
        .contains("500 frames")
    );
}

#[test]
fn batches_of_frames_of_weight_0_are_skipped_and_the_run_continues() {
    let dir = tempfile::tempdir().unwrap();
    let mut heads = Heads::controller(HeadsKind::Independent);
    heads.parts.iter_mut().for_each(|part| part.hidden_size = 4);
    // The sticks are centred and nothing is pressed, except at the end of each game.
    let games: Vec<VectorGame> = (0..4)
        .map(|game| {
            let label = |t: usize| -> [f32; 13] {
                let press = u16::from(t >= 35 && (t + game).is_multiple_of(2));
                [press, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 0].map(f32::from)
            };
            VectorGame { x: vec![0.5; 80], labels: (0..40).flat_map(label).collect() }
        })
        .collect();
    let schema = Schema::vector(2, &heads);
    let corpus = Corpus::build(&schema, &games, &dir.path().join("corpus")).unwrap();
    let spec = Spec { heads, ..gru() };
    for (unroll, accumulation_steps) in [(Mode::Window, 1), (Mode::Window, 3), (Mode::Carry, 2)] {
        let options = TrainOptions {
            data: DataOptions {
                unroll,
                batch_size: 1,
                window_size: 5,
                stride: 5,
                neutral_weight: 0.0,
                ..options().data
            },
            optimiser: OptimiserOptions { accumulation_steps, ..options().optimiser },
            schedule: ScheduleOptions { steps: Some(24), ..options().schedule },
            machine: MachineOptions { resume: true, ..options().machine },
            ..options()
        };
        let told = RefCell::new(vec![]);
        let go = |name: &str, last: u64| {
            let cancel = AtomicBool::new(false);
            let listen = |event| {
                if let Event::Step { step, loss, grad_norm, .. } = event {
                    told.borrow_mut().push((loss, grad_norm.unwrap()));
                    cancel.store(step == last, Ordering::Relaxed);
                }
            };
            let out = dir.path().join(format!("{unroll:?} {accumulation_steps} {name}"));
            let report = run(&corpus, &spec, &options, &out, &listen, &cancel).unwrap();
            assert!(report.history.iter().all(|p| p.loss.is_none_or(|loss| loss > 0.0)));
            state(&out)
        };
        let whole = go("whole", 24);
        let told = told.take();
        let learned = |&(loss, norm): &(f64, f64)| loss > 0.0 && norm > 0.0;
        assert!(told.iter().all(|step| learned(step) || *step == (0.0, 0.0)), "{told:?}");
        assert!(told.iter().any(learned) && !told.iter().all(learned), "{told:?}");
        go("cut", 11);
        assert!(whole == go("cut", 24), "{unroll:?}, {accumulation_steps}");
    }
}
