//! Runs that prune weights while they learn.
#![allow(clippy::disallowed_methods)]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use sconce_data::{Corpus, Schema, VectorGame};
use sconce_nn::spec::{Embedding, Head, HeadKind, Heads, HeadsKind, Spec};
use sconce_nn::{Policy, checkpoint};
use sconce_ops::weights::two_four::fits;
use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::Error;
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_train::bench::examples;
use sconce_train::objective::Objectives;
use sconce_train::objective::imitation::{Imitation, LossOptions};
use sconce_train::optimiser::{Kind, OptimiserConfig};
use sconce_train::options::{
    DataOptions, MachineOptions, OptimiserOptions, SavingOptions, ScheduleOptions, TrainOptions,
};
use sconce_train::report::{RunReport, Stopped};
use sconce_train::run::{Verdict, Watch, run, run_watched};
use sconce_train::step::Stepper;
use sconce_train::weights::WeightTransforms;
use sconce_train::weights::pruning::{Pattern, Pruning};
use sconce_train::weights::quantisation::Format;
use serde_json::json;

const TWO_FOUR: Pruning =
    Pruning { pattern: Pattern::TwoFour, sparsity: 0.8, after: 0.0, ramp: 0.0 };
const UNSTRUCTURED: Pruning = Pruning { pattern: Pattern::Unstructured, ..TWO_FOUR };
const HIDDEN: &str = "backbone.weight_hh_l0";

/// A GRU with matrices of 40 inputs, behind an embedding of 3 numbers.
fn spec() -> Spec {
    let gru = json!({"gru": {
        "hidden_size": 40, "num_layers": 1, "layer_norm": true, "input_norm": false,
        "dropout": 0.0, "input_dropout": 0.0,
    }});
    let parts =
        vec![Head { name: "action".into(), kind: HeadKind::Categorical(2), hidden_size: 8 }];
    Spec {
        embedding: Embedding::vector(3),
        backbone: serde_json::from_value(gru).unwrap(),
        heads: Heads { kind: HeadsKind::Independent, parts, stream_size: 8, prior: false },
        critic: None,
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The form of a matrix that forward passes read at a share of the ramp.
fn shown(own: Pruning, values: &[f32], cols: usize, share: f64) -> Vec<f32> {
    let matrix = tensor(values.to_vec(), (values.len() / cols, cols)).unwrap();
    let weights: Weights = [("dense.weight".to_string(), matrix.clone().into())].into();
    let transform = own.transform(&weights, |_| true).unwrap();
    let partial = transform.partial(&matrix, share).unwrap().unwrap();
    if share == 1.0 {
        let whole = to_vec(&transform.forward(&matrix).unwrap()).unwrap();
        assert_eq!(whole, to_vec(&partial).unwrap());
    }
    to_vec(&partial).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn the_smallest_weights_go_first_and_the_ramp_is_cubic(
        rows in 1usize..4, cols in 32usize..70, seed: u64, share in 0f64..=1.0, two_four: bool
    ) {
        let rng = Rng::new(seed, "test", 0);
        let weight: Vec<f32> = (0..(rows * cols) as u64).map(|i| rng.normal(i)).collect();
        let own = if two_four { TWO_FOUR } else { UNSTRUCTURED };
        let now = shown(own, &weight, cols, share);
        let whole = shown(own, &weight, cols, 1.0);
        let zeros = |of: &[f32]| of.iter().filter(|w| **w == 0.0).count();
        let part = 1.0 - (1.0 - share).powi(3);
        prop_assert!((zeros(&now) as f64 - part * zeros(&whole) as f64).abs() <= rows as f64);
        // Others keep their bits, and what is gone at a share is gone at the end.
        for ((w, v), end) in weight.iter().zip(&now).zip(&whole) {
            prop_assert!(*v == 0.0 || v.to_bits() == w.to_bits());
            prop_assert!(*v != 0.0 || *end == 0.0);
        }
        if two_four {
            prop_assert!(fits(&whole, cols));
            let groups = weight.chunks(cols).flat_map(|row| row.chunks(4));
            for (w, v) in groups.zip(whole.chunks(cols).flat_map(|row| row.chunks(4))) {
                prop_assert_eq!(zeros(v), w.len().saturating_sub(2));
                let least = v.iter().filter(|v| **v != 0.0).fold(f32::MAX, |a, b| a.min(b.abs()));
                let gone = w.iter().zip(v).filter(|(_, v)| **v == 0.0);
                prop_assert!(gone.map(|(w, _)| w.abs()).all(|w| w <= least));
            }
        } else {
            let gone = (0.8 * cols as f64).round_ties_even() as usize;
            prop_assert!(whole.chunks(cols).all(|row| zeros(row) == gone));
        }
    }
}

#[test]
fn matrices_are_pruned_by_name_and_a_policy_without_one_is_refused() {
    let weight = |shape: &[usize]| -> Weight {
        tensor(vec![1.0; shape.iter().product()], shape).unwrap().into()
    };
    let cases = [("backbone.layers.0.dense.weight", [3, 32]), ("critic.dense.weight", [4, 64])];
    let weights: Weights =
        cases.iter().map(|(name, shape)| (name.to_string(), weight(shape))).collect();
    let transform = TWO_FOUR.transform(&weights, |_| true).unwrap();
    assert!(transform.covers(cases[0].0) && !transform.covers(cases[1].0));
    let refused = TWO_FOUR.transform(&weights, |name| name.starts_with("critic")).err().unwrap();
    let said =
        "prune: expected a matrix with 32 inputs or more that learns, got a policy without one";
    assert_eq!(refused.to_string(), said);
}

#[test]
fn a_removed_weight_learns_from_the_gradient_at_0() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 4, 5, 2));
    let stepper = |policy: &Policy, own: Option<Pruning>| {
        let imitation = Imitation::new(&policy.spec().heads, &LossOptions::plain()).unwrap();
        let objectives = Objectives::new(vec![Box::new(imitation)]);
        let transform = own.map(|own| own.transform(policy.weights(), |_| true).unwrap());
        let transforms = WeightTransforms::new(transform.into_iter().collect());
        let config = OptimiserConfig { weight_decay: 0.0, ..OptimiserConfig::new(Kind::Sgd) };
        Stepper::new(policy, objectives, transforms, config, 1e9, 3).unwrap()
    };
    for share in [0.4, 1.0] {
        let mut through = stepper(&policy, Some(TWO_FOUR));
        through.anneal(share).unwrap();
        let weights = through.policy().weights().iter();
        let copied = |(name, own): (&String, &Weight)| {
            let values = tensor(to_vec(own).unwrap(), own.dims()).unwrap();
            (name.clone(), values.into())
        };
        let read = Policy::from_weights(policy.spec(), weights.map(copied).collect()).unwrap();
        let hidden = to_vec(&read.weights()[HIDDEN]).unwrap();
        assert_eq!(fits(&hidden, 40), share == 1.0);
        let mut plain = stepper(&read, None);
        assert_eq!(through.step(&batch, 0, 0.25).unwrap(), plain.step(&batch, 0, 0.25).unwrap());
        let (learned, after) = (through.learned_weights(), plain.policy().weights());
        let mut back = 0;
        for (name, before) in policy.weights() {
            let [before, read, learned, after] =
                [before, &read.weights()[name], &learned[name], &after[name]]
                    .map(|own| to_vec(own).unwrap());
            for i in 0..before.len() {
                let (moved, want) = (learned[i] - before[i], after[i] - read[i]);
                assert!((moved - want).abs() < 1e-6, "{name}: {moved}, not {want}");
                back += usize::from(read[i] == 0.0 && before[i] != 0.0 && moved != 0.0);
            }
        }
        assert!(back > 100, "{back}");
        // What is validated and played has the whole pattern.
        let played = through.averaged().unwrap();
        assert!(fits(&to_vec(&played.weights()[HIDDEN]).unwrap(), 40));
    }
}

/// The action is the sign of the sum of the numbers.
fn corpus(dir: &Path) -> Corpus {
    let game = |game: u64| {
        let rng = Rng::new(1, "test", game);
        let x: Vec<f32> = (0..3 * 60).map(|i| rng.uniform(i) * 2.0 - 1.0).collect();
        let labels = x.chunks(3).map(|x| f32::from(u8::from(x.iter().sum::<f32>() > 0.0)));
        VectorGame { labels: labels.collect(), x: x.clone() }
    };
    let games: Vec<VectorGame> = (0..10).map(game).collect();
    Corpus::build(&Schema::vector(3, &spec().heads), &games, dir).unwrap()
}

/// Options of a run of 16 steps, in which weights are removed from step 4 to step 12.
fn options(pattern: Pattern) -> TrainOptions {
    TrainOptions {
        data: DataOptions {
            batch_size: 16,
            window_size: 10,
            stride: 5,
            val_split: 0.3,
            ..DataOptions::default()
        },
        optimiser: OptimiserOptions {
            prune: Some(pattern),
            prune_after: 0.25,
            prune_ramp: 0.5,
            ..OptimiserOptions::default()
        },
        schedule: ScheduleOptions {
            steps: Some(16),
            warmup_steps: 2,
            learning_rate: 1e-2,
            ..ScheduleOptions::default()
        },
        saving: SavingOptions { validate_every: Some(3), ..SavingOptions::default() },
        machine: MachineOptions { resume: true, ..MachineOptions::default() },
        loss: LossOptions::plain(),
        ..TrainOptions::default()
    }
}

fn go(corpus: &Corpus, options: &TrainOptions, out: &Path) -> Result<RunReport, Error> {
    run(corpus, &spec(), options, out, &|_| (), &AtomicBool::new(false))
}

fn same_files(a: &Path, b: &Path) -> bool {
    let arrays = |path: &Path| -> Vec<(String, Vec<u32>)> {
        let state = checkpoint::load(path).unwrap();
        let weights = state.weights.iter().map(|(name, own)| (name.clone(), to_vec(own).unwrap()));
        weights.chain(state.optimiser).map(|(name, own)| (name, bits(&own))).collect()
    };
    let files = ["best.safetensors", "last.safetensors"];
    files.iter().all(|name| arrays(&a.join(name)) == arrays(&b.join(name)))
}

#[test]
fn a_run_that_stops_before_within_and_after_the_ramp_resumes_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    for (pattern, ema_decay) in [(Pattern::TwoFour, None), (Pattern::Unstructured, Some(0.9))] {
        let own = options(pattern);
        let own = TrainOptions {
            optimiser: OptimiserOptions { ema_decay, ..own.optimiser },
            saving: SavingOptions { callback_every: 1, ..own.saving },
            ..own
        };
        let folder = |name: &str| dir.path().join(format!("{name} {pattern:?}"));
        let (whole, cut) = (folder("whole"), folder("cut"));
        go(&corpus, &own, &whole).unwrap();
        for stop in [2, 6, 9, 14] {
            let ask = |step| Some(Verdict { learning_rate: None, stop: step == stop });
            let watch = Watch { events: &|_| (), ask: Some(&ask) };
            let never = AtomicBool::new(false);
            let report = run_watched(&corpus, &spec(), &own, &cut, watch, &never).unwrap();
            assert_eq!((report.stopped, report.steps), (Stopped::Stopped, stop));
        }
        go(&corpus, &own, &cut).unwrap();
        assert!(same_files(&whole, &cut), "{pattern:?}");
        let threads = folder("threads");
        let machine = MachineOptions { threads: Some(3), ..own.machine };
        go(&corpus, &TrainOptions { machine, ..own }, &threads).unwrap();
        assert!(same_files(&whole, &threads), "{pattern:?}");
    }
}

#[test]
fn every_validated_policy_is_pruned_and_patience_begins_with_the_last_weight() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    for pattern in [Pattern::TwoFour, Pattern::Unstructured] {
        let own = options(pattern);
        let own = TrainOptions {
            // No validation is better than the first one by so much.
            schedule: ScheduleOptions { patience: Some(1), min_delta: 100.0, ..own.schedule },
            saving: SavingOptions { validate_every: Some(2), keep_best: 20, ..own.saving },
            ..own
        };
        let out = dir.path().join(format!("{pattern:?}"));
        let report = go(&corpus, &own, &out).unwrap();
        assert_eq!((report.stopped, report.steps), (Stopped::Early, 12));
        let files = std::fs::read_dir(&out).unwrap().map(|file| file.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        let best: Vec<_> = files.filter(|path| name(path).starts_with("best")).collect();
        assert!(best.len() >= 6, "{best:?}");
        for path in best {
            let policy = Policy::load(&path).unwrap();
            let hidden = to_vec(&policy.weights()[HIDDEN]).unwrap();
            let zeros = |row: &[f32]| row.iter().filter(|w| **w == 0.0).count();
            match pattern {
                Pattern::TwoFour => assert!(fits(&hidden, 40), "{path:?}"),
                Pattern::Unstructured => {
                    assert!(hidden.chunks(40).all(|row| zeros(row) >= 32), "{path:?}");
                }
            }
        }
        let last = checkpoint::load(&out.join("last.safetensors")).unwrap();
        assert!(!fits(&to_vec(&last.weights[HIDDEN]).unwrap(), 40));
    }
}

#[test]
fn a_pruned_run_learns_as_well_as_one_with_all_weights() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let nll = |name: &str, prune: Option<Pattern>| {
        let own = options(Pattern::TwoFour);
        let own = TrainOptions {
            optimiser: OptimiserOptions { prune, ..OptimiserOptions::default() },
            schedule: ScheduleOptions { steps: Some(150), ..own.schedule },
            saving: SavingOptions { validate_every: Some(50), ..own.saving },
            ..own
        };
        go(&corpus, &own, &dir.path().join(name)).unwrap().policy.unwrap().nll
    };
    let all = nll("all", None);
    assert!(all < 0.2, "{all}");
    for (name, pattern) in [("2:4", Pattern::TwoFour), ("unstructured", Pattern::Unstructured)] {
        let own = nll(name, Some(pattern));
        assert!(own < all + 0.05 && own != all, "{name}: {own}, all: {all}");
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let own = || options(Pattern::Unstructured).optimiser;
    let cases = [
        (OptimiserOptions { prune_sparsity: 1.0, ..own() }, "prune_sparsity: 1 is outside"),
        (
            OptimiserOptions { prune: Some(Pattern::TwoFour), prune_sparsity: 0.5, ..own() },
            "prune_sparsity: expected prune unstructured",
        ),
        (OptimiserOptions { prune_after: 1.5, ..own() }, "prune_after: 1.5 is outside"),
        (
            OptimiserOptions { prune_after: 0.75, prune_ramp: 0.5, ..own() },
            "prune_ramp: 0.5 is outside 0..0.25",
        ),
        (OptimiserOptions { prune: None, ..own() }, "prune_after: expected a prune"),
        (
            OptimiserOptions { quantise: Some(Format::Int8), ..own() },
            "prune: expected a run without quantise",
        ),
        (
            OptimiserOptions {
                freeze: vec!["backbone".into(), "heads.action_hidden".into()],
                ..own()
            },
            "prune: expected a matrix with 32 inputs or more that learns",
        ),
    ];
    for (optimiser, said) in cases {
        let options = TrainOptions { optimiser, ..options(Pattern::Unstructured) };
        let error = go(&corpus, &options, &dir.path().join("out")).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}, not {said}");
    }
}
