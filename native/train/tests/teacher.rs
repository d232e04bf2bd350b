//! Runs that stay close to a frozen policy.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_data::{Corpus, Schema, VectorGame};
use sconce_nn::checkpoint::{self, Checkpoint};
use sconce_nn::head::Direction;
use sconce_nn::spec::{
    Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, MlpConfig, Normalised, RecurrentConfig,
};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Result, tensor};
use sconce_train::objective::imitation::LossOptions;
use sconce_train::options::{
    DataOptions, MachineOptions, Mode, ObjectiveOptions, OptimiserOptions, SavingOptions,
    ScheduleOptions, Teachers, TrainOptions,
};
use sconce_train::report::{Event, RunReport, Stopped};
use sconce_train::run::run;

const FRAMES: usize = 70;

fn heads(kind: HeadsKind) -> Heads {
    let part = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 6 };
    let parts = vec![part("go", HeadKind::Bernoulli(2)), part("to", HeadKind::Categorical(3))];
    Heads { kind, parts, stream_size: 5, prior: false }
}

fn gru(hidden_size: usize, dropout: f32, kind: HeadsKind) -> Spec {
    let (num_layers, layer_norm, input_norm, input_dropout) = (1, true, false, 0.0);
    let config = RecurrentConfig {
        hidden_size,
        num_layers,
        layer_norm,
        input_norm,
        dropout,
        input_dropout,
        ..Default::default()
    };
    let (embedding, backbone) = (Embedding::vector(2), Backbone::Gru(config));
    Spec { embedding, backbone, heads: heads(kind), critic: None }
}

fn mlp() -> Spec {
    let config = MlpConfig {
        hidden_sizes: vec![12],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let (embedding, backbone) = (Embedding::vector(2), Backbone::Mlp(config));
    Spec { embedding, backbone, heads: heads(HeadsKind::Independent), critic: None }
}

/// Games of different lengths, so that tracks change games at different steps.
fn corpus(dir: &Path) -> Corpus {
    let games: Vec<VectorGame> = (0..8)
        .map(|game| {
            let (rng, frames) = (Rng::new(1, "test", game), FRAMES + 5 * game as usize);
            let x: Vec<f32> = (0..2 * frames as u64).map(|i| rng.normal(i)).collect();
            let bit = |v: f32| f32::from(u8::from(v > 0.0));
            let label = |t: usize| [bit(x[2 * t]), bit(x[2 * t + 1]), bit(x[2 * (t / 2)]) + 1.0];
            VectorGame { labels: (0..frames).flat_map(label).collect(), x }
        })
        .collect();
    Corpus::build(&Schema::vector(2, &heads(HeadsKind::Independent)), &games, dir).unwrap()
}

fn options(teacher: Option<PathBuf>) -> TrainOptions {
    TrainOptions {
        data: DataOptions {
            batch_size: 4,
            window_size: 16,
            stride: 8,
            val_split: 0.25,
            ..DataOptions::default()
        },
        schedule: ScheduleOptions {
            steps: Some(10),
            warmup_steps: 2,
            learning_rate: 1e-2,
            ..ScheduleOptions::default()
        },
        saving: SavingOptions {
            validate_every: Some(5),
            evaluate: false,
            ..SavingOptions::default()
        },
        objective: ObjectiveOptions {
            teacher: teacher.map(Teachers::from),
            ..ObjectiveOptions::default()
        },
        loss: LossOptions::plain(),
        ..TrainOptions::default()
    }
}

/// A random policy in a file.
fn teacher(dir: &Path, spec: &Spec, seed: u64) -> PathBuf {
    let path = dir.join(format!("teacher{seed}.safetensors"));
    Policy::init(spec, seed).unwrap().save(&path, serde_json::Value::Null).unwrap();
    path
}

/// Loss, imitation loss and divergence of each step.
type Told = Vec<(f64, f64, Option<f64>)>;

fn go(
    corpus: &Corpus,
    spec: &Spec,
    options: &TrainOptions,
    out: &Path,
) -> Result<(RunReport, Told)> {
    until(u64::MAX, corpus, spec, options, out)
}

/// A run that is stopped after step `last`.
fn until(
    last: u64,
    corpus: &Corpus,
    spec: &Spec,
    options: &TrainOptions,
    out: &Path,
) -> Result<(RunReport, Told)> {
    let (told, cancel) = (RefCell::new(vec![]), AtomicBool::new(false));
    let listen = |event| {
        if let Event::Step { step, loss, heads, figures, .. } = event {
            let teacher_kl = figures.get("teacher_kl").copied();
            told.borrow_mut().push((loss, heads.iter().map(|h| h.loss).sum(), teacher_kl));
            cancel.store(step >= last, Ordering::Relaxed);
        }
    };
    let report = run(corpus, spec, options, out, &listen, &cancel)?;
    Ok((report, told.into_inner()))
}

fn state(folder: &Path) -> Vec<(String, Vec<u32>)> {
    let bits = |v: Vec<f32>| v.iter().map(|v| v.to_bits()).collect();
    let Checkpoint { weights, optimiser, .. } =
        checkpoint::load(&folder.join("last.safetensors")).unwrap();
    let weights = weights.iter().map(|(n, w)| (n.clone(), bits(tensor::to_vec(w).unwrap())));
    weights.chain(optimiser.into_iter().map(|(name, v)| (name, bits(v)))).collect()
}

#[test]
fn a_teacher_of_large_weight_is_followed_and_its_divergence_is_in_the_loss() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let spec = gru(8, 0.0, HeadsKind::Autoregressive);
    let path = teacher(dir.path(), &mlp(), 9);
    for direction in [Direction::Forward, Direction::Reverse] {
        let options = TrainOptions {
            objective: ObjectiveOptions {
                teacher_weight: 20.0,
                teacher_direction: direction,
                ..options(Some(path.clone())).objective
            },
            schedule: ScheduleOptions { steps: Some(60), ..options(Some(path.clone())).schedule },
            optimiser: OptimiserOptions {
                max_grad_norm: 100.0,
                ..options(Some(path.clone())).optimiser
            },
            ..options(Some(path.clone()))
        };
        let out = dir.path().join(format!("{direction:?}"));
        let (report, told) = go(&corpus, &spec, &options, &out).unwrap();
        let kl: Vec<f64> = told.iter().map(|(_, _, kl)| kl.unwrap()).collect();
        assert!(kl[0] > 0.01 && kl[59] < 0.3 * kl[0], "{direction:?}: {} {}", kl[0], kl[59]);
        for (loss, heads, kl) in &told {
            assert!((heads + 20.0 * kl.unwrap() - loss).abs() < 1e-9 * loss);
        }
        let noted = report.history.last().unwrap().figures["teacher_kl"];
        assert!(noted < kl[0]);
    }
    let (report, told) = go(&corpus, &spec, &options(None), &dir.path().join("alone")).unwrap();
    assert!(told.iter().all(|(loss, heads, kl)| (loss - heads).abs() < 1e-9 && kl.is_none()));
    assert!(report.history.iter().all(|point| point.figures.is_empty()));
}

/// A policy and its copy agree only with the same states before each window.
#[test]
fn a_policy_agrees_with_itself_wherever_its_windows_begin_and_however_they_are_cut() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let spec = gru(8, 0.0, HeadsKind::Autoregressive);
    // The policy that a run of seed 0 starts with.
    let path = teacher(dir.path(), &spec, 0);
    for unroll in [Mode::Window, Mode::Carry] {
        for truncate_bptt in [None, Some(5)] {
            let out = dir.path().join(format!("{unroll:?} {truncate_bptt:?}"));
            let options = TrainOptions {
                data: DataOptions { unroll, burn_in: 3, ..options(Some(path.clone())).data },
                optimiser: OptimiserOptions {
                    truncate_bptt,
                    ..options(Some(path.clone())).optimiser
                },
                schedule: ScheduleOptions {
                    learning_rate: 0.0,
                    ..options(Some(path.clone())).schedule
                },
                ..options(Some(path.clone()))
            };
            let (_, told) = go(&corpus, &spec, &options, &out).unwrap();
            assert_eq!(told.len(), 10);
            for (step, (_, _, kl)) in told.iter().enumerate() {
                assert!(kl.unwrap().abs() < 1e-9, "{unroll:?} {truncate_bptt:?} {step}: {kl:?}");
            }
        }
    }
    // Two different policies do not agree.
    let other = teacher(dir.path(), &spec, 1);
    let (_, told) = go(&corpus, &spec, &options(Some(other)), &dir.path().join("other")).unwrap();
    assert!(told[0].2.unwrap() > 1e-3);
}

#[test]
fn a_run_with_a_teacher_resumes_to_the_same_bits_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let spec = gru(8, 0.2, HeadsKind::Independent);
    let path = teacher(dir.path(), &gru(11, 0.3, HeadsKind::Autoregressive), 5);
    let options = TrainOptions {
        data: DataOptions { unroll: Mode::Carry, ..options(Some(path.clone())).data },
        optimiser: OptimiserOptions {
            truncate_bptt: Some(7),
            accumulation_steps: 2,
            ema_decay: Some(0.9),
            ..options(Some(path.clone())).optimiser
        },
        machine: MachineOptions { resume: true, ..options(Some(path.clone())).machine },
        ..options(Some(path.clone()))
    };
    let on = |threads| TrainOptions {
        machine: MachineOptions { threads: Some(threads), ..options.clone().machine },
        ..options.clone()
    };
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    let (_, told) = go(&corpus, &spec, &on(1), &whole).unwrap();
    assert!(state(&whole).iter().any(|(name, _)| name == "carried.teacher"));

    // With the same teacher in another file, too.
    let moved = dir.path().join("moved.safetensors");
    std::fs::copy(&path, &moved).unwrap();
    let mut again = vec![];
    for stop in [3, 4, 8, u64::MAX] {
        let options = TrainOptions {
            objective: ObjectiveOptions { teacher: Some(moved.clone().into()), ..on(2).objective },
            ..on(2)
        };
        let (report, more) = until(stop, &corpus, &spec, &options, &cut).unwrap();
        again.extend(more);
        assert_eq!(report.stopped == Stopped::Finished, stop == u64::MAX);
    }
    assert_eq!(again, told);
    assert!(state(&whole) == state(&cut));

    let refused = |teacher: Option<PathBuf>| {
        let options = TrainOptions {
            objective: ObjectiveOptions {
                teacher: teacher.map(Teachers::from),
                ..options.clone().objective
            },
            ..options.clone()
        };
        go(&corpus, &spec, &options, &cut).map(drop).unwrap_err().to_string()
    };
    let other = teacher(dir.path(), &spec, 6);
    for error in [refused(Some(other)), refused(None)] {
        assert!(error.contains("teacher is that of the run, not another"), "{error}");
    }
}

/// Numbers on another scale are another embedding of the same frames.
fn scaled(spec: &Spec) -> Spec {
    let (mean, deviation) = (vec![0.5, -0.25], vec![2.0, 0.5]);
    let embedding = Embedding::normalised(Normalised { mean, deviation });
    Spec { embedding, ..spec.clone() }
}

#[test]
fn a_run_with_several_teachers_resumes_to_the_same_bits_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let spec = gru(8, 0.2, HeadsKind::Independent);
    // With and without memory, and with three embeddings, one of which two of them share.
    let teachers = [
        gru(11, 0.3, HeadsKind::Autoregressive),
        scaled(&mlp()),
        mlp(),
        scaled(&gru(5, 0.0, HeadsKind::Independent)),
    ];
    let paths: Vec<PathBuf> =
        (5..).zip(&teachers).map(|(seed, own)| teacher(dir.path(), own, seed)).collect();
    let several = |paths: &[PathBuf]| Some(Teachers::try_from(paths.to_vec()).unwrap());
    let plain = options(None);
    let options = |threads, paths: &[PathBuf]| TrainOptions {
        data: DataOptions { unroll: Mode::Carry, ..plain.clone().data },
        objective: ObjectiveOptions {
            teacher: several(paths),
            teacher_temperature: 2.0,
            teacher_direction: Direction::Reverse,
            ..plain.clone().objective
        },
        optimiser: OptimiserOptions { truncate_bptt: Some(7), ..plain.clone().optimiser },
        machine: MachineOptions { resume: true, threads: Some(threads), ..plain.clone().machine },
        ..plain.clone()
    };
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    let (_, told) = go(&corpus, &spec, &options(1, &paths), &whole).unwrap();
    assert!(told.iter().all(|(_, _, kl)| kl.unwrap() > 1e-3), "{told:?}");
    let names: Vec<String> = state(&whole).into_iter().map(|(name, _)| name).collect();
    assert!(["carried.teacher", "carried.teacher.4"].iter().all(|n| names.contains(&(*n).into())));
    assert!(!names.contains(&"carried.teacher.2".into()));
    let mut again = vec![];
    for stop in [3, 7, u64::MAX] {
        again.extend(until(stop, &corpus, &spec, &options(2, &paths), &cut).unwrap().1);
    }
    assert_eq!(again, told);
    assert!(state(&whole) == state(&cut));
    for others in [&paths[..3], &paths[..1]] {
        let error = go(&corpus, &spec, &options(1, others), &cut).map(drop).unwrap_err();
        assert!(error.to_string().contains("teacher is that of the run, not another"), "{error}");
    }
    // A teacher that does not fit is named by its path.
    let mut other = mlp();
    other.heads.parts[1].kind = HeadKind::Categorical(4);
    let misfit = teacher(dir.path(), &other, 77);
    let given = options(1, &[paths[0].clone(), misfit.clone()]);
    let error = go(&corpus, &spec, &given, &dir.path().join("misfit")).map(drop).unwrap_err();
    let named = format!("action space of the teacher {}: expected ", misfit.display());
    assert!(error.to_string().starts_with(&named), "{error}");
}

#[test]
fn a_teacher_given_twice_teaches_what_it_teaches_once_and_a_temperature_changes_that() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let path = teacher(dir.path(), &mlp(), 9);
    let told = |name: &str, count: usize, teacher_temperature: f64| {
        let teacher = Some(Teachers::try_from(vec![path.clone(); count]).unwrap());
        let own = options(None);
        let objective = ObjectiveOptions { teacher, teacher_temperature, ..own.objective };
        let given = TrainOptions { objective, ..own };
        go(&corpus, &mlp(), &given, &dir.path().join(name)).unwrap().1
    };
    let [once, twice, soft] = [("once", 1, 1.0), ("twice", 2, 1.0), ("soft", 1, 4.0)]
        .map(|(name, count, temperature)| told(name, count, temperature));
    for ((_, _, one), (_, _, two)) in once.iter().zip(&twice) {
        assert!((one.unwrap() - two.unwrap()).abs() < 1e-5 * one.unwrap(), "{one:?} {two:?}");
    }
    // Softened distributions lie closer together; the square of the temperature is a factor of the loss.
    let (loss, heads, kl) = soft[0];
    assert!(kl.unwrap() < 0.2 * once[0].2.unwrap(), "{kl:?} {:?}", once[0]);
    assert!((heads + 0.1 * 16.0 * kl.unwrap() - loss).abs() < 1e-9 * loss);
}

#[test]
fn a_missing_teacher_or_one_of_another_action_space_is_an_error_before_the_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let mut other = mlp();
    other.heads.parts[1].kind = HeadKind::Categorical(4);
    let path = teacher(dir.path(), &other, 1);
    let refused = |path: PathBuf| {
        let out = dir.path().join("run");
        let error = go(&corpus, &mlp(), &options(Some(path)), &out).map(drop).unwrap_err();
        assert!(!out.join("last.safetensors").exists());
        error
    };
    let error = refused(path);
    assert_eq!(error.kind().name(), "mismatch", "{error}");
    assert!(error.to_string().starts_with("action space of the teacher"), "{error}");
    assert_eq!(refused(dir.path().join("nowhere.safetensors")).kind().name(), "not_found");
}
