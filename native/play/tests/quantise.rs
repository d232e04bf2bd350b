//! Runs that learn weights for integers, or fewer weights, from play.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_nn::{Policy, Spec, checkpoint};
use sconce_ops::weights::Coded;
use sconce_play::options::PpoOptions;
use sconce_play::run::{Event, PlayReport, Stopped, Task, run};
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Error, Result};
use sconce_train::weights::quantisation::{Format, Quantisation, Steps};
use serde_json::{Value, json};
use tempfile::TempDir;

fn spec(hidden: usize) -> Spec {
    let part = |name: &str, kind: Value| json!({"name": name, "kind": kind, "hidden_size": 0});
    let parts = [part("action", json!({"categorical": 2})), part("value", json!({"value": 1}))];
    let heads = json!({"kind": "independent", "stream_size": 8, "prior": false, "parts": parts});
    let mlp = json!({"mlp": {
        "hidden_sizes": [hidden, hidden], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh",
    }});
    let spec = json!({
        "embedding": {"vector": 4}, "backbone": mlp, "heads": heads, "critic": mlp,
    });
    serde_json::from_value(spec).unwrap()
}

/// Options of a run of eight updates, in which the weights move to their grid from update 2 to update 6.
fn options(more: Value) -> PpoOptions {
    let mut all = json!({
        "environments": 16, "rollout_steps": 32, "steps": 4096, "minibatches": 2, "seed": 5,
        "quantise": "int4", "quantise_after": 0.25, "quantise_ramp": 0.5,
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn go(options: &PpoOptions, out: &Path, stop_at: u64, resume: bool) -> Result<PlayReport> {
    let (spec, stop, updates) = (spec(32), AtomicBool::new(false), Cell::new(0));
    let told = |event: Event| {
        if let Event::Update { point, .. } = event {
            updates.set(point.updates);
            stop.store(point.updates == stop_at, Ordering::Relaxed);
        }
    };
    let task = Task { spec: &spec, env: "cart_pole", host: None, inbox: None, resume };
    run(task, options, out, &told, &stop)
}

fn arrays(path: &Path) -> Vec<(String, Vec<u32>)> {
    let state = checkpoint::load(path).unwrap();
    let weights = state.weights.iter().map(|(name, own)| (name.clone(), to_vec(own).unwrap()));
    let all = weights.chain(state.optimiser);
    all.map(|(name, own)| (name, own.iter().map(|v| v.to_bits()).collect())).collect()
}

fn same_files(a: &Path, b: &Path) -> bool {
    let files = ["best.safetensors", "last.safetensors"];
    files.iter().all(|name| arrays(&a.join(name)) == arrays(&b.join(name)))
}

/// Whether all matrices of a policy but those of its critic are on a grid.
fn is_on_grid(policy: &Policy, format: Format) -> bool {
    let own = Quantisation {
        format,
        group: None,
        after: 0.0,
        ramp: 0.0,
        steps: Steps::Largest,
        activations: false,
    };
    let transform = own.transform(policy.weights(), |_| true).unwrap();
    let mut covered = policy.weights().iter().filter(|(name, _)| transform.covers(name));
    covered.all(|(_, weight)| {
        let (own, coded) = (to_vec(weight).unwrap(), transform.coded(weight).unwrap().unwrap());
        own == coded.weights()
    })
}

#[test]
fn a_run_that_stops_before_within_and_after_the_ramp_resumes_to_the_same_bits() {
    for more in [
        json!({}),
        json!({"quantise": "int8", "overlap": true}),
        json!({"quantise_steps": "learned", "overlap": true}),
        json!({"quantise_steps": "learned", "quantise_activations": true}),
    ] {
        let [whole, cut, threads] = [(); 3].map(|()| TempDir::new().unwrap());
        let own = options(more.clone());
        let report = go(&own, whole.path(), 0, false).unwrap();
        assert_eq!((report.stopped, report.updates), (Stopped::Finished, 8));
        for (i, stop) in [1, 3, 6, 7].into_iter().enumerate() {
            let report = go(&own, cut.path(), stop, i > 0).unwrap();
            assert_eq!((report.stopped, report.updates), (Stopped::Stopped, stop));
        }
        go(&own, cut.path(), 0, true).unwrap();
        assert!(same_files(whole.path(), cut.path()), "{more}");
        let mut given = more.clone();
        given["threads"] = json!(3);
        go(&options(given), threads.path(), 0, false).unwrap();
        assert!(same_files(whole.path(), threads.path()), "{more}");
    }
}

#[test]
fn the_best_policy_is_a_quantised_one_and_the_state_has_the_weights_that_learn() {
    let out = TempDir::new().unwrap();
    let at = |file: &str| Policy::load(&out.path().join(file)).unwrap();
    let own = options(json!({}));
    let report = go(&own, out.path(), 5, false).unwrap();
    assert!(report.best_update.is_some_and(|update| update < 6));
    assert!(!is_on_grid(&at("best.safetensors"), Format::Int4));
    let report = go(&own, out.path(), 0, true).unwrap();
    // The first quantised rollout is that of the weights after six updates.
    assert!(report.best_update.is_some_and(|update| update >= 6), "{report:?}");
    assert!(is_on_grid(&at("best.safetensors"), Format::Int4));
    assert!(!is_on_grid(&at("last.safetensors"), Format::Int4));
}

#[test]
fn the_best_policy_has_the_steps_that_were_learned_when_it_played() {
    let out = TempDir::new().unwrap();
    let own = options(json!({"quantise_steps": "learned", "quantise_activations": true}));
    let report = go(&own, out.path(), 0, false).unwrap();
    assert!(report.best_update.is_some_and(|update| update >= 6), "{report:?}");
    let best = Policy::load(&out.path().join("best.safetensors")).unwrap();
    assert_eq!(best.bits(), 4);
    // Learned steps are not those of the largest magnitudes.
    let last = checkpoint::load(&out.path().join("last.safetensors")).unwrap();
    let mut coded = best.weights().iter().filter_map(|(name, own)| Some((name, own.codes()?)));
    assert!(coded.any(|(name, codes)| {
        let learned = to_vec(&last.weights[name]).unwrap();
        let group = codes.group();
        let nearest = Coded::nearest(4, &learned, codes.inputs(), group).unwrap();
        nearest.scales() != codes.scales()
    }));
    assert!(last.optimiser.keys().any(|name| name.ends_with(".quantise_steps")));
}

#[test]
fn a_target_is_reached_by_quantised_weights() {
    let out = TempDir::new().unwrap();
    // At this rate episodes stay short, so each rollout has more than 100.
    let given = json!({
        "environments": 64, "rollout_steps": 64, "steps": 40_960, "target_return": 1.0,
        "learning_rate": 1e-6,
    });
    let report = go(&options(given), out.path(), 0, false).unwrap();
    assert_eq!((report.stopped, report.updates), (Stopped::Target, 8));
}

#[test]
fn the_last_rollout_is_quantised_though_the_ramp_ends_with_the_run() {
    let out = TempDir::new().unwrap();
    let own = options(json!({"quantise_after": 0.5, "quantise_ramp": 0.5}));
    let report = go(&own, out.path(), 0, false).unwrap();
    assert_eq!(report.best_update, Some(report.updates - 1));
    let best = Policy::load(&out.path().join("best.safetensors")).unwrap();
    assert_eq!(best.bits(), 4);
}

#[test]
fn cart_pole_is_learned_with_four_bits() {
    let out = TempDir::new().unwrap();
    let given =
        json!({"environments": 32, "rollout_steps": 64, "steps": 200_000, "minibatches": 4});
    let report = go(&options(given.clone()), out.path(), 0, false).unwrap();
    let best = Policy::load(&out.path().join("best.safetensors")).unwrap();
    assert!(is_on_grid(&best, Format::Int4));
    assert_eq!(best.bits(), 4, "the file has the codes");
    assert!(report.best_return.is_some_and(|best| best > 200.0), "{:?}", report.best_return);
    let mut learned = given;
    learned["quantise_steps"] = json!("learned");
    learned["quantise_activations"] = json!(true);
    let out = TempDir::new().unwrap();
    let report = go(&options(learned), out.path(), 0, false).unwrap();
    assert!(report.best_return.is_some_and(|best| best > 200.0), "{:?}", report.best_return);
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let out = TempDir::new().unwrap();
    let cases = [
        (json!({"quantise_group": 0}), "quantise_group: 0 is outside"),
        (
            json!({"quantise": "int8", "quantise_group": 32}),
            "quantise_group: expected quantise int4",
        ),
        (json!({"quantise_after": -0.5}), "quantise_after: -0.5 is outside"),
        (json!({"quantise_after": 0.75}), "quantise_ramp: 0.5 is outside 0..0.25"),
        (json!({"quantise": null}), "quantise_after: expected a quantise"),
        (
            json!({"quantise_group": 48, "quantise_activations": true}),
            "quantise_group: expected a multiple of 32 beside quantise_activations, got 48",
        ),
    ];
    for (given, said) in cases {
        let error = go(&options(given), out.path(), 0, false).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}, not {said}");
    }
    let small = spec(16);
    let task = Task { spec: &small, env: "cart_pole", host: None, inbox: None, resume: false };
    let stop = AtomicBool::new(false);
    let refused = run(task, &options(json!({})), out.path(), &|_| (), &stop);
    let Err(error @ Error::Mismatch { .. }) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().starts_with("quantise: expected a matrix with 32 inputs"));
}

/// Options of a run of eight updates, in which weights are removed from update 2 to update 6.
fn pruned(more: Value) -> PpoOptions {
    let mut all = json!({
        "environments": 16, "rollout_steps": 32, "steps": 4096, "minibatches": 2, "seed": 5,
        "prune": "two_four", "prune_after": 0.25, "prune_ramp": 0.5,
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

#[test]
fn a_pruned_run_resumes_to_the_same_bits_and_its_best_policy_is_pruned() {
    for more in [json!({}), json!({"prune": "unstructured", "overlap": true})] {
        let [whole, cut, threads] = [(); 3].map(|()| TempDir::new().unwrap());
        let own = pruned(more.clone());
        let report = go(&own, whole.path(), 0, false).unwrap();
        assert_eq!((report.stopped, report.updates), (Stopped::Finished, 8));
        for (i, stop) in [1, 3, 6, 7].into_iter().enumerate() {
            go(&own, cut.path(), stop, i > 0).unwrap();
        }
        go(&own, cut.path(), 0, true).unwrap();
        assert!(same_files(whole.path(), cut.path()), "{more}");
        let mut given = more.clone();
        given["threads"] = json!(3);
        go(&pruned(given), threads.path(), 0, false).unwrap();
        assert!(same_files(whole.path(), threads.path()), "{more}");

        let zeros = |file: &str| {
            let policy = Policy::load(&whole.path().join(file)).unwrap();
            let own = to_vec(&policy.weights()["backbone.layers.1.dense.weight"]).unwrap();
            own.iter().filter(|w| **w == 0.0).count() as f64 / own.len() as f64
        };
        let (best, least) =
            (zeros("best.safetensors"), if more["prune"].is_null() { 0.5 } else { 0.8 });
        assert!((best - least).abs() < 0.02, "{best}");
        assert!(zeros("last.safetensors") < 0.1);
    }
    let out = TempDir::new().unwrap();
    for (given, said) in [
        (json!({"prune_after": 0.75}), "prune_ramp: 0.5 is outside 0..0.25"),
        (json!({"prune_sparsity": 0.5}), "prune_sparsity: expected prune unstructured"),
        (json!({"quantise": "int8"}), "prune: expected a run without quantise"),
    ] {
        let error = go(&pruned(given), out.path(), 0, false).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}, not {said}");
    }
}
