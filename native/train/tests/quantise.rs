//! Weights that are trained for integers.
#![allow(clippy::disallowed_methods)]

use std::alloc::System;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use sconce_data::{Corpus, Schema, VectorGame};
use sconce_nn::spec::{Embedding, Head, HeadKind, Heads, HeadsKind, Spec};
use sconce_nn::{Policy, checkpoint};
use sconce_ops::fake_quantise::learned_step_gradients;
use sconce_ops::weights::{Coded, Weight, Weights};
use sconce_ops::{Codes, Groups};
use sconce_tensor::memory::Counted;
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Error, Precision, Tensor};
use sconce_train::bench::examples;
use sconce_train::objective::Objectives;
use sconce_train::objective::imitation::{Imitation, LossOptions};
use sconce_train::optimiser::{Kind, OptimiserConfig};
use sconce_train::options::{
    DataOptions, MachineOptions, OptimiserOptions, SavingOptions, ScheduleOptions, TrainOptions,
};
use sconce_train::plan::plan;
use sconce_train::report::{RunReport, Stopped};
use sconce_train::run::{Verdict, Watch, run, run_watched};
use sconce_train::step::{Stepper, Task};
use sconce_train::weights::WeightTransforms;
use sconce_train::weights::quantisation::{Format, Quantisation, Steps};
use serde_json::json;

/// A plan counts memory.
#[global_allocator]
static ALLOCATOR: Counted<System> = Counted(System);

const INT8: Quantisation = Quantisation {
    format: Format::Int8,
    group: None,
    after: 0.0,
    ramp: 0.0,
    steps: Steps::Largest,
    activations: false,
};
const INT4: Quantisation = Quantisation { format: Format::Int4, ..INT8 };

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

fn numbers(policy: &Policy) -> BTreeMap<String, Vec<u32>> {
    let bits = |weight: &Tensor| to_vec(weight).unwrap().iter().map(|w| w.to_bits()).collect();
    policy.weights().iter().map(|(name, weight)| (name.clone(), bits(weight))).collect()
}

fn stepper(policy: &Policy, kind: Kind, quantisation: Option<Quantisation>) -> Stepper<'static> {
    let imitation = Imitation::new(&policy.spec().heads, &LossOptions::plain()).unwrap();
    let objectives = Objectives::new(vec![Box::new(imitation)]);
    let transform = quantisation.map(|own| own.transform(policy.weights(), |_| true).unwrap());
    let transforms = WeightTransforms::new(transform.into_iter().collect());
    let config = OptimiserConfig { weight_decay: 0.0, ..OptimiserConfig::new(kind) };
    Stepper::new(policy, objectives, transforms, config, 1e9, 3).unwrap()
}

/// The shown form of a matrix, and its codes.
fn quantised(own: Quantisation, values: &[f32], [rows, cols]: [usize; 2]) -> (Vec<f32>, Coded) {
    let matrix = tensor(values.to_vec(), (rows, cols)).unwrap();
    let weights: Weights = [("dense.weight".to_string(), matrix.clone().into())].into();
    let transform = own.transform(&weights, |_| true).unwrap();
    let shown = to_vec(&transform.forward(&matrix).unwrap()).unwrap();
    (shown, transform.coded(&matrix).unwrap().unwrap())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn scales_codes_and_weights_are_those_of_the_definition() {
    let mut row = vec![0.0; 64];
    row[..5].copy_from_slice(&[-3.5, 0.25, 0.75, 1.25, -0.2]);
    row[32..34].copy_from_slice(&[-0.01, 14.0]);
    let (shown, coded) = quantised(INT4, &row, [1, 64]);
    assert_eq!((coded.bits(), coded.outputs(), coded.inputs(), coded.group()), (4, 1, 64, 32));
    assert_eq!(coded.scales(), [0.5, 2.0]);
    // 0.5, 1.5 and 2.5 steps are rounded to even.
    assert_eq!(coded.codes()[..5], [-7, 0, 2, 2, 0]);
    assert_eq!(coded.codes()[32..34], [0, 7]);
    assert_eq!(shown[..5], [-3.5, 0.0, 1.0, 1.0, 0.0]);
    assert!(shown[32].is_sign_positive());
    let wide = Quantisation { group: Some(128), ..INT4 };
    assert_eq!(quantised(wide, &row, [1, 64]).1.scales(), [2.0]);
    let (_, coded) = quantised(INT8, &row, [1, 64]);
    assert_eq!((coded.bits(), coded.group(), coded.scales()), (8, 64, &[14.0f32 / 127.0][..]));
    assert_eq!((coded.codes()[0], coded.codes()[33]), (-32, 127));
    let (shown, coded) = quantised(INT4, &[0.0; 64], [2, 32]);
    assert_eq!((coded.scales(), coded.codes()), (&[1.0; 2][..], &[0; 64][..]));
    assert_eq!(shown, vec![0.0; 64]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn shown_weights_are_their_codes_and_are_quantised_to_the_same_codes(
        rows in 1usize..5,
        cols in 32usize..150,
        seed: u64,
        exponent in -149i32..120,
        int8: bool,
        group in prop::option::of(1usize..130),
    ) {
        let rng = Rng::new(seed, "test", 0);
        let scale = 2f64.powi(exponent);
        let number = |i: u64| match rng.uniform(2 * i) < 0.1 {
            true => 0.0,
            false => (scale * f64::from(rng.uniform(2 * i + 1) - 0.5)) as f32,
        };
        let weight: Vec<f32> = (0..(rows * cols) as u64).map(number).collect();
        let own = if int8 { INT8 } else { Quantisation { group, ..INT4 } };
        let (shown, coded) = quantised(own, &weight, [rows, cols]);
        prop_assert_eq!(bits(&coded.weights()), bits(&shown));
        let most = if int8 { 127 } else { 7 };
        prop_assert!(coded.codes().iter().all(|code| (-most..=most).contains(code)));
        let groups = weight.chunks(cols).flat_map(|row| row.chunks(coded.group()));
        let shown_groups = shown.chunks(cols).flat_map(|row| row.chunks(coded.group()));
        for ((group, shown), scale) in groups.zip(shown_groups).zip(coded.scales()) {
            for (weight, shown) in group.iter().zip(shown) {
                prop_assert!((weight - shown).abs() <= 0.50001 * scale);
            }
        }
        let (_, again) = quantised(own, &shown, [rows, cols]);
        prop_assert_eq!(again, coded);
    }
}

#[test]
#[allow(clippy::float_cmp)]
fn a_scale_is_that_of_its_own_largest_weight() {
    // Rounding depends on the mantissa alone.
    for hi in [7.0f32, 127.0] {
        for mantissa in (1u32 << 23)..(1 << 24) {
            let scale = mantissa as f32 / hi;
            assert_eq!(scale * hi / hi, scale, "{mantissa} {hi}");
        }
    }
}

#[test]
fn matrices_are_quantised_and_all_other_weights_stay() {
    let weight = |shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        tensor((0..count).map(|i| (i as f32).sin()).collect(), shape).unwrap().into()
    };
    let cases = [
        ("backbone.layers.0.dense.weight", vec![3, 32], true),
        ("backbone.layers.0.gates.weight_hh_l0", vec![6, 40], true),
        ("heads.logits.weight", vec![3, 64], true),
        ("backbone.layers.0.dense.bias", vec![64], false),
        ("backbone.layers.0.norm.weight", vec![64], false),
        ("backbone.layers.0.conv.weight", vec![40, 1, 40], false),
        ("backbone.layers.0.A_log", vec![4, 64], false),
        ("backbone.layers.1.dense.weight", vec![64, 31], false),
        ("action_embedding.weight", vec![4, 64], false),
        ("critic.backbone.layers.0.dense.weight", vec![4, 64], false),
    ];
    let weights: Weights =
        cases.iter().map(|(name, shape, _)| (name.to_string(), weight(shape))).collect();
    let transform = INT8.transform(&weights, |_| true).unwrap();
    for (name, _, covered) in &cases {
        assert_eq!(transform.covers(name), *covered, "{name}");
    }
    let heads = INT8.transform(&weights, |name| name.starts_with("heads.")).unwrap();
    assert!(heads.covers("heads.logits.weight") && !heads.covers(cases[0].0));
    let refused = INT8.transform(&weights, |name| name.contains("norm")).err().unwrap();
    let said = "quantise: expected a matrix with 32 inputs or more that learns, got a policy \
                without one";
    assert_eq!(refused.to_string(), said);
}

#[test]
fn the_gradient_at_a_weight_is_that_at_its_quantised_value() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 4, 5, 2));
    for own in [INT8, INT4] {
        let mut through = stepper(&policy, Kind::Sgd, Some(own));
        let shown = through.frozen().unwrap();
        assert_ne!(numbers(&shown), numbers(&policy));
        let mut plain = stepper(&shown, Kind::Sgd, None);
        let rate = 0.25;
        assert_eq!(through.step(&batch, 0, rate).unwrap(), plain.step(&batch, 0, rate).unwrap());
        let (learned, after) = (through.learned_weights(), plain.policy().weights());
        for (name, before) in policy.weights() {
            let values = |weight: &Tensor| to_vec(weight).unwrap();
            let (before, learned) = (values(before), values(&learned[name]));
            let (shown, after) = (values(&shown.weights()[name]), values(&after[name]));
            for i in 0..before.len() {
                let (moved, want) = (learned[i] - before[i], after[i] - shown[i]);
                assert!((moved - want).abs() < 1e-6, "{name}: {moved}, not {want}");
            }
        }
    }
}

#[test]
fn a_share_blends_the_grid_in_and_what_is_validated_has_the_whole_of_it() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 4, 5, 2));
    for averages in [None, Some(0.5)] {
        let mut stepper = stepper(&policy, Kind::AdamW, Some(INT4)).averaging(averages);
        stepper.anneal(0.0).unwrap();
        assert_eq!(numbers(stepper.policy()), numbers(&policy));
        for (step, share) in [0.0, 0.25, 0.75, 1.0].into_iter().enumerate() {
            stepper.anneal(share).unwrap();
            stepper.step(&batch, step as u64, 0.01).unwrap();
            let played = stepper.averaged().unwrap();
            let own =
                |(name, weight): (&String, &Weight)| Some((name.clone(), weight.codes()?.clone()));
            let coded: BTreeMap<_, _> = played.weights().iter().filter_map(own).collect();
            let learned = stepper.learned_weights();
            assert_eq!(
                coded.keys().collect::<Vec<_>>(),
                ["backbone.weight_hh_l0", "heads.action_hidden.weight"],
            );
            for (name, weight) in stepper.policy().weights() {
                let (own, shown) = (to_vec(&learned[name]).unwrap(), to_vec(weight).unwrap());
                let Some(coded) = coded.get(name) else {
                    assert_eq!(own, shown, "{name}");
                    continue;
                };
                let whole = to_vec(&played.weights()[name]).unwrap();
                assert_eq!(bits(&whole), bits(&coded.weights()), "{name}");
                if averages.is_some() {
                    continue;
                }
                for ((own, whole), shown) in own.iter().zip(&whole).zip(&shown) {
                    let want = own + share as f32 * (whole - own);
                    let exact = share == 0.0 || share == 1.0;
                    assert!((shown - want).abs() <= if exact { 0.0 } else { 1e-7 }, "{name}");
                }
            }
        }
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

/// Options of a run of 16 steps, in which the weights move to their grid from step 4 to step 12.
fn options(format: Format) -> TrainOptions {
    TrainOptions {
        data: DataOptions {
            batch_size: 16,
            window_size: 10,
            stride: 5,
            val_split: 0.3,
            ..DataOptions::default()
        },
        optimiser: OptimiserOptions {
            quantise: Some(format),
            quantise_after: 0.25,
            quantise_ramp: 0.5,
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

/// The bits of all arrays of a file.
fn arrays(path: &Path) -> Vec<(String, Vec<u32>)> {
    let state = checkpoint::load(path).unwrap();
    let weights = state.weights.iter().map(|(name, own)| (name.clone(), to_vec(own).unwrap()));
    weights.chain(state.optimiser).map(|(name, own)| (name, bits(&own))).collect()
}

fn same_files(a: &Path, b: &Path) -> bool {
    let files = ["best.safetensors", "last.safetensors"];
    files.iter().all(|name| arrays(&a.join(name)) == arrays(&b.join(name)))
}

#[test]
fn a_run_that_stops_before_within_and_after_the_ramp_resumes_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    for (i, (format, ema_decay, steps, quantise_activations)) in [
        (Format::Int8, None, Steps::Largest, false),
        (Format::Int4, Some(0.9), Steps::Largest, false),
        (Format::Int8, Some(0.9), Steps::Learned, false),
        (Format::Int4, None, Steps::Learned, true),
    ]
    .into_iter()
    .enumerate()
    {
        let own = options(format);
        let quantise_steps = steps;
        let learned = OptimiserOptions { quantise_steps, quantise_activations, ..own.optimiser };
        let own = TrainOptions {
            optimiser: OptimiserOptions { ema_decay, ..learned },
            saving: SavingOptions { callback_every: 1, ..own.saving },
            ..own
        };
        let folder = |name: &str| dir.path().join(format!("{name} {i}"));
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
        assert!(same_files(&whole, &cut), "{format:?}");
        let threads = folder("threads");
        let machine = MachineOptions { threads: Some(3), ..own.machine };
        go(&corpus, &TrainOptions { machine, ..own }, &threads).unwrap();
        assert!(same_files(&whole, &threads), "{format:?}");
    }
}

/// The learned steps in a saved state, by the names of their weights.
fn saved_steps(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let state = checkpoint::load(path).unwrap().optimiser.into_iter();
    let logarithms = state.filter_map(|(name, own)| {
        let name = name.strip_suffix(".quantise_steps")?;
        let is_moment = name.starts_with("exp_avg") || name.starts_with("ema.");
        (!is_moment).then(|| (name.to_string(), own))
    });
    let steps = |own: Vec<f32>| own.into_iter().map(|v| f64::from(v).exp() as f32).collect();
    logarithms.map(|(name, own)| (name, steps(own))).collect()
}

#[test]
fn learned_steps_are_the_scales_of_the_codes() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    for format in [Format::Int8, Format::Int4] {
        let own = options(format);
        let learned = OptimiserOptions { quantise_steps: Steps::Learned, ..own.optimiser };
        // With one validation, at the end, the best policy is the last one.
        let saving = SavingOptions { validate_every: Some(16), ..own.saving };
        let own = TrainOptions { optimiser: learned, saving, ..own };
        let out = dir.path().join(format!("{format:?}"));
        go(&corpus, &own, &out).unwrap();
        let best = Policy::load(&out.join("best.safetensors")).unwrap();
        let last = Policy::load(&out.join("last.safetensors")).unwrap();
        let steps = saved_steps(&out.join("last.safetensors"));
        assert_eq!(
            steps.keys().collect::<Vec<_>>(),
            ["backbone.weight_hh_l0", "heads.action_hidden.weight"],
        );
        for (name, steps) in steps {
            let coded = best.weights()[&name].codes().unwrap();
            assert_eq!(bits(coded.scales()), bits(&steps), "{name}");
            let learned = to_vec(&last.weights()[&name]).unwrap();
            let group = coded.group();
            let on = Coded::on(format.bits(), &learned, coded.inputs(), group, steps.clone());
            assert_eq!(&on.unwrap(), &**coded, "{name}");
            let largest = Coded::nearest(format.bits(), &learned, coded.inputs(), group).unwrap();
            assert_ne!(bits(largest.scales()), bits(&steps), "{name}");
        }
    }
}

#[test]
fn steps_begin_to_learn_with_the_ramp_from_the_weights_of_then() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 4, 5, 2));
    let own = Quantisation { steps: Steps::Learned, ..INT4 };
    let mut stepper = stepper(&policy, Kind::AdamW, Some(own));
    let name = "backbone.weight_hh_l0";
    let scales = |stepper: &Stepper<'_>| {
        stepper.averaged().unwrap().weights()[name].codes().unwrap().scales().to_vec()
    };
    let first = |stepper: &Stepper<'_>| {
        let weight = to_vec(&stepper.learned_weights()[name]).unwrap();
        let groups = weight.chunks(40).flat_map(|row| row.chunks(32));
        let step = |group: &[f32]| {
            let largest = group.iter().fold(0.0f32, |most, w| most.max(w.abs()));
            let sum = group.iter().map(|w| f64::from(w.abs())).sum::<f64>();
            let mean = sum / group.len() as f64;
            (f64::from(largest) / 7.0).min(2.0 * mean / 7f64.sqrt())
        };
        groups.map(step).collect::<Vec<f64>>()
    };
    let apart = |got: &[f32], want: &[f64]| {
        let pairs = got.iter().zip(want);
        pairs.fold(0.0, |most: f64, (got, want)| most.max((f64::from(*got) / want - 1.0).abs()))
    };
    stepper.anneal(0.0).unwrap();
    let before = scales(&stepper);
    for step in 0..3 {
        stepper.step(&batch, step, 0.01).unwrap();
    }
    assert_ne!(bits(&before), bits(&scales(&stepper)));
    assert!(apart(&scales(&stepper), &first(&stepper)) < 1e-6);
    stepper.anneal(0.5).unwrap();
    stepper.step(&batch, 3, 0.01).unwrap();
    assert!(apart(&scales(&stepper), &first(&stepper)) > 1e-3);
    // Weight decay does not change a step, and a large rate leaves it above 0.
    stepper.anneal(1.0).unwrap();
    for step in 4..40 {
        stepper.step(&batch, step, 0.3).unwrap();
    }
    assert!(scales(&stepper).iter().all(|step| *step > 0.0 && step.is_finite()));
}

/// A step of SGD, which shows the gradients.
#[test]
fn a_share_of_the_gradient_reaches_the_steps() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 4, 5, 2));
    let own = Quantisation { steps: Steps::Learned, ..INT4 };
    let name = "backbone.weight_hh_l0";
    let key = format!("{name}.quantise_steps");
    let moved = |share: f64| {
        let mut stepper = stepper(&policy, Kind::Sgd, Some(own));
        let before = stepper.moments().unwrap()[&key].clone();
        stepper.anneal(share).unwrap();
        let gradients = {
            let zero = stepper.policy().zero_state(4).unwrap();
            stepper.learn(Task::new(&batch, &zero, 0)).unwrap();
            stepper.policy().weights()[name].flat_gradient().unwrap()
        };
        stepper.update(0.5).unwrap();
        let after = stepper.moments().unwrap()[&key].clone();
        let moved: Vec<f32> = before.iter().zip(&after).map(|(a, b)| (a - b) / 0.5).collect();
        (before, to_vec(&gradients).unwrap(), moved)
    };
    for share in [0.25, 1.0] {
        let (before, dy, moved) = moved(share);
        let weight = policy.weights()[name].detach();
        let steps: Vec<f32> = before.iter().map(|v| f64::from(*v).exp() as f32).collect();
        let groups = Groups::new(weight.dims()[0], 40, 32).unwrap();
        let dy = tensor(dy, weight.dims()).unwrap();
        let codes = Codes::symmetric(4).unwrap();
        let [_, want] = learned_step_gradients(&weight, &steps, &dy, codes, groups).unwrap();
        for (moved, want) in moved.iter().zip(&want) {
            let want = share as f32 * want;
            assert!((moved - want).abs() < 1e-5 + 1e-3 * want.abs(), "{share}: {moved}, {want}");
        }
        assert!(want.iter().any(|step| step.abs() > 1e-4), "{want:?}");
    }
}

#[test]
fn a_plan_counts_the_learned_steps_and_the_rounded_inputs() {
    let plan = |quantise_steps, quantise_activations| {
        let own = options(Format::Int4);
        let optimiser = OptimiserOptions { quantise_steps, quantise_activations, ..own.optimiser };
        let own = TrainOptions { optimiser, ..own };
        plan(&spec(), &own, None, &AtomicBool::new(false)).unwrap().owners
    };
    let plain = plan(Steps::Largest, false);
    let learned = plan(Steps::Learned, false);
    // Groups of 32 of 120 rows of 40 inputs and of 8 rows of 40 inputs.
    let bytes = 4 * 2 * (120 + 8);
    assert_eq!(learned.weights, plain.weights + bytes);
    assert_eq!(learned.gradients, plain.gradients + bytes);
    assert_eq!(learned.moments, plain.moments + 2 * bytes);
    assert!(plan(Steps::Learned, true).activations > learned.activations);
}

#[test]
fn a_lengthened_run_stays_on_the_grid() {
    let dir = tempfile::tempdir().unwrap();
    let (corpus, out) = (corpus(&dir.path().join("corpus")), dir.path().join("out"));
    let own = options(Format::Int4);
    go(&corpus, &own, &out).unwrap();
    let annealed = || {
        let state = checkpoint::load(&out.join("last.safetensors")).unwrap();
        state.manifest.run["annealed"].as_f64().unwrap()
    };
    assert_eq!(annealed(), 1.0);
    let steps = Some(2000);
    let schedule = ScheduleOptions { steps, decay_steps: Some(1998), ..own.schedule };
    let longer = TrainOptions { schedule, ..own };
    let cancel = AtomicBool::new(false);
    let stop = |_| cancel.store(true, Ordering::Relaxed);
    run(&corpus, &spec(), &longer, &out, &stop, &cancel).unwrap();
    assert_eq!(annealed(), 1.0);
}

#[test]
fn every_validated_policy_is_on_the_grid_and_patience_begins_there() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let own = options(Format::Int4);
    let own = TrainOptions {
        // No validation is better than the first one by so much.
        schedule: ScheduleOptions { patience: Some(1), min_delta: 100.0, ..own.schedule },
        saving: SavingOptions { validate_every: Some(2), keep_best: 20, ..own.saving },
        ..own
    };
    let out = dir.path().join("out");
    let report = go(&corpus, &own, &out).unwrap();
    assert_eq!((report.stopped, report.steps), (Stopped::Early, 12));
    let files = std::fs::read_dir(&out).unwrap().map(|file| file.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let best: Vec<_> = files.filter(|path| name(path).starts_with("best")).collect();
    assert!(best.len() >= 6, "{best:?}");
    for path in best {
        let policy = Policy::load(&path).unwrap();
        let hidden = to_vec(&policy.weights()["backbone.weight_hh_l0"]).unwrap();
        let rows = hidden.len() / 40;
        let (again, _) = quantised(INT4, &hidden, [rows, 40]);
        assert_eq!(bits(&again), bits(&hidden), "{path:?}");
    }
}

#[test]
fn a_quantised_run_learns_as_well_as_one_in_f32() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let nll = |name: &str, quantise: Option<Format>, learned: bool| {
        let own = options(Format::Int8);
        let defaults = OptimiserOptions::default();
        let own = TrainOptions {
            optimiser: OptimiserOptions {
                quantise,
                quantise_steps: if learned { Steps::Learned } else { Steps::Largest },
                quantise_activations: learned,
                ..defaults
            },
            schedule: ScheduleOptions { steps: Some(150), ..own.schedule },
            saving: SavingOptions { validate_every: Some(50), ..own.saving },
            ..own
        };
        let report = go(&corpus, &own, &dir.path().join(name)).unwrap();
        report.policy.unwrap().nll
    };
    let f32 = nll("f32", None, false);
    assert!(f32 < 0.2, "{f32}");
    for (name, format) in [("int8", Format::Int8), ("int4", Format::Int4)] {
        let own = nll(name, Some(format), false);
        assert!(own < f32 + 0.05 && own != f32, "{name}: {own}, f32: {f32}");
        let learned = nll(&format!("{name} learned"), Some(format), true);
        assert!(learned < f32 + 0.05 && learned != own, "{name}: {learned}, f32: {f32}");
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(&dir.path().join("corpus"));
    let own = || options(Format::Int4).optimiser;
    let cases = [
        (OptimiserOptions { quantise_group: Some(0), ..own() }, "quantise_group: 0 is outside"),
        (
            OptimiserOptions { quantise: Some(Format::Int8), quantise_group: Some(32), ..own() },
            "quantise_group: expected quantise int4",
        ),
        (OptimiserOptions { quantise_after: 1.5, ..own() }, "quantise_after: 1.5 is outside"),
        (
            OptimiserOptions { quantise_after: 0.75, quantise_ramp: 0.5, ..own() },
            "quantise_ramp: 0.5 is outside 0..0.25",
        ),
        (OptimiserOptions { quantise: None, ..own() }, "quantise_after: expected a quantise"),
        (
            OptimiserOptions { quantise_steps: Steps::Learned, ..OptimiserOptions::default() },
            "quantise_steps: expected a quantise",
        ),
        (
            OptimiserOptions { quantise_activations: true, ..OptimiserOptions::default() },
            "quantise_activations: expected a quantise",
        ),
        (
            OptimiserOptions { quantise_activations: true, quantise_group: Some(48), ..own() },
            "quantise_group: expected a multiple of 32 beside quantise_activations, got 48",
        ),
        (
            OptimiserOptions { quantise_activations: true, freeze: vec!["heads".into()], ..own() },
            "freeze: expected no parts beside quantise_activations, got heads",
        ),
        (
            OptimiserOptions {
                freeze: vec!["backbone".into(), "heads.action_hidden".into()],
                ..own()
            },
            "quantise: expected a matrix with 32 inputs or more that learns",
        ),
    ];
    for (optimiser, said) in cases {
        let options = TrainOptions { optimiser, ..options(Format::Int4) };
        let error = go(&corpus, &options, &dir.path().join("out")).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}, not {said}");
    }
    let mut in_bf16 = options(Format::Int4);
    in_bf16.optimiser.quantise_activations = true;
    in_bf16.machine.precision = Precision::Bf16;
    let error = go(&corpus, &in_bf16, &dir.path().join("out")).unwrap_err().to_string();
    assert_eq!(error, "precision: expected f32 beside quantise_activations, got bf16");
}
