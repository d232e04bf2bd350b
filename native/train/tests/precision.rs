//! Steps and runs with products in less than f32.

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_data::{Batch, Corpus, Schema, VectorGame};
use sconce_nn::policy::Frames;
use sconce_nn::spec::{
    AttentionConfig, Backbone, Embedding, Head, HeadKind, Heads, HeadsConfig, HeadsKind,
    RecurrentConfig,
};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Precision, pool, tensor};
use sconce_train::eval::evaluate;
use sconce_train::objective::imitation::LossOptions;
use sconce_train::optimiser::OptimiserConfig;
use sconce_train::options::{
    DataOptions, EvaluateOptions, LrSchedule, MachineOptions, SavingOptions, ScheduleOptions,
    TrainOptions,
};
use sconce_train::report::{Event, RunReport};
use sconce_train::run::{Record, run};
use sconce_train::step::{Stepper, Task};

const BATCH: usize = 20;
const TIME: usize = 8;
const SIZE: usize = 40;

/// Specs with widths that a matrix unit takes.
fn specs() -> [Spec; 3] {
    let (hidden_size, num_layers, input_norm) = (96, 2, true);
    let (dropout, input_dropout, num_heads) = (0.1, 0.0, 2);
    let gru = RecurrentConfig {
        hidden_size,
        num_layers,
        layer_norm: true,
        input_norm,
        dropout,
        input_dropout,
        ..Default::default()
    };
    let attention = AttentionConfig {
        hidden_size,
        num_layers,
        num_heads,
        head_dim: 48,
        window_size: TIME,
        qk_layernorm: true,
        input_norm,
        dropout,
        input_dropout,
    };
    let retnet = HeadsConfig {
        hidden_size,
        num_layers,
        num_heads,
        expand_factor: 2,
        input_norm,
        dropout,
        input_dropout,
    };
    let backbones =
        [Backbone::Gru(gru), Backbone::SlidingWindow(attention), Backbone::Retnet(retnet)];
    let part = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
    let parts = vec![part("go", HeadKind::Bernoulli(2)), part("to", HeadKind::Categorical(3))];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 5, prior: false };
    backbones.map(|backbone| Spec {
        embedding: Embedding::vector(SIZE),
        backbone,
        heads: heads.clone(),
        critic: None,
    })
}

/// Losses of three steps, and the weights after them.
fn trained(spec: &Spec, precision: Option<Precision>) -> (Vec<f64>, Vec<f32>) {
    let (rng, n) = (Rng::new(2, "examples", 0), BATCH * TIME);
    let continuous = (0..(SIZE * n) as u64).map(|i| rng.normal(i)).collect();
    let previous = vec![f32::INFINITY; 3 * n];
    let frames = Frames { batch: BATCH, time: TIME, continuous, ids: vec![], previous };
    let label = |i| [rng.below(3 * i, 2), rng.below(3 * i + 1, 2), rng.below(3 * i + 2, 3)];
    let labels: Vec<f32> = (0..n as u64).flat_map(label).map(|label| label as f32).collect();
    let x = &Batch { frames, labels, weights: vec![1.0; n], ..Batch::default() };
    let (loss, config) = (LossOptions::plain(), OptimiserConfig::default());
    let policy = Policy::init(spec, 4).unwrap();
    let mut stepper = Stepper::imitating(&policy, &loss, config, 1.0, 7).unwrap();
    if let Some(precision) = precision {
        stepper = stepper.in_precision(precision);
    }
    let losses = (0..3).map(|step| stepper.step(x, step, 1e-3).unwrap().figures.total).collect();
    let weights = stepper.policy().weights().values();
    (losses, weights.flat_map(|w| tensor::to_vec(w).unwrap()).collect())
}

#[test]
fn steps_in_less_precision_learn_alike_with_the_same_bits_on_any_number_of_threads() {
    let before = pool::threads();
    for spec in specs() {
        let exact = trained(&spec, None);
        assert!(trained(&spec, Some(Precision::F32)) == exact);
        for (precision, near) in [(Precision::Bf16, 1e-2), (Precision::F16, 2e-3)] {
            let rounded = trained(&spec, Some(precision));
            for threads in [1, 2, 3] {
                pool::set_threads(threads).unwrap();
                assert!(trained(&spec, Some(precision)) == rounded, "{precision:?}, {threads}");
            }
            assert!(rounded.0[0] != exact.0[0]);
            for (got, want) in rounded.0.iter().zip(&exact.0) {
                assert!((got - want).abs() < near * want, "{precision:?}: {got}, not {want}");
            }
        }
    }
    pool::set_threads(before).unwrap();
}

/// A policy that predicts two bits of a frame from its numbers.
fn bits() -> Spec {
    let parts = vec![Head { name: "go".into(), kind: HeadKind::Bernoulli(2), hidden_size: 8 }];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 5, prior: false };
    let config = RecurrentConfig {
        hidden_size: 16,
        num_layers: 1,
        layer_norm: true,
        input_norm: false,
        dropout: 0.1,
        input_dropout: 0.0,
        ..Default::default()
    };
    Spec { embedding: Embedding::vector(2), backbone: Backbone::Gru(config), heads, critic: None }
}

/// A loss whose gradients are `button_weight` times as large.
fn weighing(button_weight: f32) -> LossOptions {
    LossOptions { button_weight, ..LossOptions::plain() }
}

fn stepper(precision: Precision, button_weight: f32) -> Stepper<'static> {
    let policy = Policy::init(&bits(), 4).unwrap();
    let (loss, config) = (weighing(button_weight), OptimiserConfig::default());
    Stepper::imitating(&policy, &loss, config, 1.0, 7)
        .unwrap()
        .averaging(Some(0.9))
        .in_precision(precision)
}

fn examples() -> Batch {
    let (rng, n) = (Rng::new(3, "examples", 0), BATCH * TIME);
    let continuous = (0..2 * n as u64).map(|i| rng.normal(i)).collect();
    let previous = vec![f32::INFINITY; 2 * n];
    let frames = Frames { batch: BATCH, time: TIME, continuous, ids: vec![], previous };
    let labels = (0..2 * n as u64).map(|i| rng.below(i, 2) as f32).collect();
    Batch { frames, labels, weights: vec![1.0; n], ..Batch::default() }
}

fn numbers(policy: &Policy) -> Vec<f32> {
    policy.weights().values().flat_map(|w| tensor::to_vec(w).unwrap()).collect()
}

#[test]
fn a_scaled_loss_keeps_gradients_in_the_range_of_f16_and_an_overflow_changes_nothing_else() {
    let x = &examples();
    for (button_weight, overflows) in [(1e-5, false), (1.0, false), (1e6, true)] {
        let exact = stepper(Precision::F32, button_weight).step(x, 0, 1e-3).unwrap().grad_norm;
        let mut stepper = stepper(Precision::F16, button_weight);
        let first = numbers(stepper.policy());
        let mut skipped = 0;
        let norm = loop {
            let stepped = stepper.step(x, 0, 1e-3).unwrap();
            if stepped.grad_norm.is_finite() {
                break stepped.grad_norm;
            }
            skipped += 1;
            let scale = stepper.loss_scale().unwrap();
            assert_eq!(
                (scale.skipped(), scale.factor()),
                (skipped, 2f64.powi(16 - skipped as i32))
            );
            assert_eq!(stepper.optimiser().updates(), 0);
            assert!(numbers(stepper.policy()) == first);
            assert!(numbers(&stepper.averaged().unwrap()) == first);
        };
        assert_eq!(skipped > 0, overflows, "{button_weight}");
        assert!((norm / exact - 1.0).abs() < 1e-2, "{button_weight}: {norm}, not {exact}");
        assert_eq!(stepper.optimiser().updates(), 1);
        assert!(numbers(stepper.policy()) != first);

        // Reported gradients do not include the scale.
        let zero = stepper.policy().zero_state(BATCH).unwrap();
        stepper.learn(Task::new(x, &zero, 1)).unwrap();
        let (norm, seen) = stepper.update_observed(1e-3).unwrap();
        let squares: f64 = seen.iter().map(|weight| weight.norm * weight.norm).sum();
        assert!((squares.sqrt() - norm).abs() < 1e-9 * norm, "{} is not {norm}", squares.sqrt());
    }
}

#[test]
fn a_gradient_that_overflows_without_a_scale_is_an_error_that_names_the_weight() {
    let x = &examples();
    stepper(Precision::F32, 1e12).step(x, 0, 1e-3).unwrap();
    let mut stepper = stepper(Precision::F16, 1e12);
    for _ in 0..16 {
        assert_eq!(stepper.step(x, 0, 1e-3).unwrap().grad_norm, f64::INFINITY);
    }
    match stepper.step(x, 0, 1e-3).unwrap_err() {
        Error::NonFinite { what, .. } => assert!(what.starts_with("gradient of "), "{what}"),
        other => panic!("{other}"),
    }
    // A step without a gradient does not change the scale.
    assert_eq!(stepper.update(1e-3).unwrap(), 0.0);
    assert_eq!(stepper.loss_scale().map(|scale| scale.factor()), Some(1.0));
}

/// Games from `first` on.
fn corpus(dir: &Path, first: u64) -> Corpus {
    let game = |game: u64| {
        let rng = Rng::new(1, "games", game);
        let x: Vec<f32> = (0..180).map(|i| rng.uniform(i) * 2.0 - 1.0).collect();
        VectorGame { labels: x.iter().map(|x| f32::from(u8::from(*x > 0.0))).collect(), x }
    };
    let games: Vec<VectorGame> = (first..first + 8).map(game).collect();
    Corpus::build(&Schema::vector(2, &bits().heads), &games, &dir.join("corpus")).unwrap()
}

fn options(precision: Precision, force_precision: bool) -> TrainOptions {
    TrainOptions {
        machine: MachineOptions { precision, force_precision, ..MachineOptions::default() },
        data: DataOptions {
            batch_size: 8,
            window_size: 20,
            stride: 10,
            val_split: 0.25,
            ..DataOptions::default()
        },
        schedule: ScheduleOptions {
            steps: Some(30),
            warmup_steps: 2,
            learning_rate: 1e-2,
            ..ScheduleOptions::default()
        },
        saving: SavingOptions { validate_every: Some(10), ..SavingOptions::default() },
        loss: weighing(1.0),
        ..TrainOptions::default()
    }
}

/// A step that no run reaches.
const END: u64 = u64::MAX;

/// A run to a step, and its events.
fn go(corpus: &Corpus, options: &TrainOptions, out: &Path, last: u64) -> (RunReport, Vec<Event>) {
    let (told, cancel) = (RefCell::new(vec![]), AtomicBool::new(false));
    let listen = |event| {
        if let Event::Step { step, .. } = event {
            cancel.store(step == last, Ordering::Relaxed);
        }
        told.borrow_mut().push(event);
    };
    let report = run(corpus, &bits(), options, out, &listen, &cancel).unwrap();
    (report, told.into_inner())
}

/// The scale of the loss, and all numbers.
fn state(out: &Path) -> (String, Vec<u32>) {
    let state = sconce_nn::checkpoint::load(&out.join("last.safetensors")).unwrap();
    let weights = state.weights.values().flat_map(|w| tensor::to_vec(w).unwrap());
    let numbers = weights.chain(state.optimiser.into_values().flatten());
    let scale = state.manifest.run["loss_scale"].to_string();
    (scale, numbers.map(f32::to_bits).collect())
}

fn losses(report: &RunReport) -> Vec<f64> {
    report.history.iter().filter_map(|point| point.loss).collect()
}

#[test]
fn a_precision_that_is_not_faster_is_reported_and_the_run_is_in_f32() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path(), 0);
    let out = |name: &str| dir.path().join(name);
    let asked = |told: &[Event]| {
        let asked = told.iter().filter_map(|event| match event {
            Event::Precision { asked, used } => Some((*asked, *used)),
            _ => None,
        });
        asked.collect::<Vec<_>>()
    };
    let (_, told) = go(&corpus, &options(Precision::F32, false), &out("f32"), END);
    assert_eq!(asked(&told), []);
    let (report, told) = go(&corpus, &options(Precision::F16, false), &out("f16"), END);
    assert_eq!(asked(&told), [(Precision::F16, Precision::F32)]);
    let started = |event: &Event| matches!(event, Event::Start { precision: Precision::F32, .. });
    assert!(told.iter().any(started));
    assert_eq!(
        (report.precision, report.options.machine.precision),
        (Precision::F32, Precision::F16)
    );
    assert_eq!(Record::read(&out("f16")).unwrap().precision, Precision::F32);
    assert!(state(&out("f16")) == state(&out("f32")));

    let (report, told) = go(&corpus, &options(Precision::F16, true), &out("forced"), END);
    assert_eq!((asked(&told), report.precision), (vec![], Precision::F16));
    assert_eq!(Record::read(&out("forced")).unwrap().precision, Precision::F16);
    assert!(state(&out("forced")) != state(&out("f32")));
}

#[test]
fn a_run_in_bf16_learns_as_well_and_is_measured_as_it_plays() {
    let dir = tempfile::tempdir().unwrap();
    let (corpus, others) = (corpus(dir.path(), 0), corpus(&dir.path().join("others"), 8));
    let measured = |precision: Precision, force| TrainOptions {
        data: DataOptions {
            validation: Some(others.dir().to_path_buf()),
            ..options(precision, force).data
        },
        ..options(precision, force)
    };
    let out = dir.path().join("bf16");
    let (exact, _) = go(&corpus, &measured(Precision::F32, false), &dir.path().join("f32"), END);
    let (report, _) = go(&corpus, &measured(Precision::Bf16, true), &out, END);
    assert!(losses(&report) != losses(&exact));
    for (got, want) in losses(&report).iter().zip(losses(&exact)) {
        assert!((got - want).abs() < 2e-2 * want, "{got}, not {want}");
    }
    let policy = Policy::load(&out.join("best.safetensors")).unwrap();
    assert_eq!(policy.notes()["precision"], "bf16");
    let score = |precision| {
        let options = EvaluateOptions { precision, ..EvaluateOptions::default() };
        let cancel = AtomicBool::new(false);
        let scored = evaluate(&policy, &others, None, &options, &|_| (), &cancel).unwrap();
        assert_eq!(scored.precision, precision);
        scored.policy
    };
    assert_eq!(report.policy, Some(score(Precision::F32)));
    assert_ne!(report.policy, Some(score(Precision::Bf16)));
}

#[test]
fn a_run_resumes_in_its_precision_to_the_same_bits_even_between_overflows() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path(), 0);
    let overflows = |told: &[Event]| {
        let overflows = told.iter().filter_map(|event| match event {
            Event::Overflow { step, skipped_updates, .. } => Some((*step, *skipped_updates)),
            _ => None,
        });
        overflows.collect::<Vec<_>>()
    };
    for (precision, button_weight) in [(Precision::Bf16, 1.0), (Precision::F16, 1e6)] {
        let with = |threads| TrainOptions {
            machine: MachineOptions {
                threads: Some(threads),
                resume: true,
                ..options(precision, true).machine
            },
            loss: weighing(button_weight),
            ..options(precision, true)
        };
        let (whole, parts) = (
            dir.path().join(format!("{precision}")),
            dir.path().join(format!("{precision} parts")),
        );
        let (report, told) = go(&corpus, &with(1), &whole, END);
        let all = overflows(&told);
        assert_eq!((report.skipped_updates, report.steps), (all.len() as u64, 30));
        match precision {
            // Overflows in a row until the scale fits.
            Precision::F16 => {
                assert!(state(&whole).0.contains("updates"));
                assert!(all.len() >= 3, "{all:?}");
                assert_eq!(all, (1..=all.len() as u64).map(|n| (n, n)).collect::<Vec<_>>());
            }
            _ => assert_eq!(all, []),
        }
        let (_, mut parted) = go(&corpus, &with(2), &parts, 2);
        parted.extend(go(&corpus, &with(2), &parts, 15).1);
        let (again, rest) = go(&corpus, &with(1), &parts, END);
        parted.extend(rest);
        assert_eq!(overflows(&parted), all);
        assert!(state(&parts) == state(&whole));
        assert_eq!((again.policy, again.skipped_updates), (report.policy, report.skipped_updates));

        let refused = |options: TrainOptions| {
            let cancel = AtomicBool::new(false);
            let options = TrainOptions {
                schedule: ScheduleOptions { steps: Some(40), ..options.schedule },
                ..options
            };
            run(&corpus, &bits(), &options, &parts, &|_| (), &cancel).unwrap_err().to_string()
        };
        let error = refused(TrainOptions {
            machine: MachineOptions {
                precision: Precision::F32,
                force_precision: false,
                ..with(1).machine
            },
            ..with(1)
        });
        let want = format!("precision is {precision}, not f32 (resume with precision {precision})");
        assert!(error.ends_with(&want), "{error}");
        if !sconce_ops::matmul::gains(precision) {
            let error = refused(TrainOptions {
                machine: MachineOptions { force_precision: false, ..with(1).machine },
                ..with(1)
            });
            let want = format!(
                "precision is {precision}, not f32 ({precision} gains nothing on this machine; \
                 resume with force_precision: true)"
            );
            assert!(error.ends_with(&want), "{error}");
        }
    }
}

#[test]
fn a_run_in_f32_resumes_in_f32_whatever_precision_is_requested() {
    let dir = tempfile::tempdir().unwrap();
    let (corpus, out) = (corpus(dir.path(), 0), dir.path().join("run"));
    let with = |precision, force, steps| TrainOptions {
        machine: MachineOptions { resume: true, ..options(precision, force).machine },
        schedule: ScheduleOptions {
            steps: Some(steps),
            lr_schedule: LrSchedule::Constant,
            ..options(precision, force).schedule
        },
        ..options(precision, force)
    };
    go(&corpus, &with(Precision::F16, false, 5), &out, 5);
    let cancel = AtomicBool::new(false);
    let forced = with(Precision::F16, true, 6);
    let error = run(&corpus, &bits(), &forced, &out, &|_| (), &cancel).unwrap_err().to_string();
    assert!(error.ends_with("precision is f32, not f16 (resume with precision f32)"), "{error}");
    for (steps, precision) in [(6, Precision::F16), (7, Precision::F32)] {
        let (report, _) = go(&corpus, &with(precision, false, steps), &out, steps);
        assert_eq!((report.steps, report.precision), (steps, Precision::F32));
    }
}
