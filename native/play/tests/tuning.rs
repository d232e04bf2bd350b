//! The search for a number of environments. Planned memory depends on the number of threads, which the tests of this
//! program leave as it is.

use std::sync::atomic::AtomicBool;

use sconce_nn::Spec;
use sconce_play::options::PpoOptions;
use sconce_play::plan::plan;
use sconce_play::run::Task;
use sconce_play::tune::{TuneOptions, tune};
use sconce_tensor::Kind;
use sconce_tensor::memory::Counted;
use sconce_train::tune::Reason;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: Counted<std::alloc::System> = Counted(std::alloc::System);

static GO: AtomicBool = AtomicBool::new(false);

fn spec(backbone: Value) -> Spec {
    let part = |name: &str, kind: Value| json!({"name": name, "kind": kind, "hidden_size": 0});
    let parts = [part("action", json!({"categorical": 2})), part("value", json!({"value": 1}))];
    let heads = json!({"kind": "independent", "stream_size": 8, "prior": false, "parts": parts});
    let spec = json!({"embedding": {"vector": 4}, "backbone": backbone, "heads": heads});
    serde_json::from_value(spec).unwrap()
}

fn mlp() -> Value {
    json!({"mlp": {"hidden_sizes": [8, 8], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh"}})
}

fn gru() -> Value {
    json!({"gru": {"hidden_size": 8, "num_layers": 1, "layer_norm": false, "input_norm": false,
        "dropout": 0.0, "input_dropout": 0.0}})
}

fn options(given: Value) -> PpoOptions {
    serde_json::from_value(given).unwrap()
}

fn task(spec: &Spec) -> Task<'_> {
    Task { spec, env: "cart_pole", host: None, inbox: None, resume: false }
}

#[test]
fn tuning_doubles_the_environments_until_memory_or_the_largest_number_ends_it() {
    let spec = spec(mlp());
    let given = options(json!({"environments": 2, "rollout_steps": 16}));
    let run = task(&spec);
    let most = TuneOptions { max: 7, backoff: 1.0, memory_limit: None };
    let tuned = tune(run, &given, &most, &GO).unwrap();
    let numbers: Vec<usize> = tuned.rows.iter().map(|row| row.environments).collect();
    assert!([2, 4].starts_with(&numbers) && numbers.contains(&tuned.environments), "{numbers:?}");
    for row in &tuned.rows {
        assert_eq!(row.update_steps, 16 * row.environments as u64);
        assert!(row.steps_per_second > 0.0 && row.bytes > 0);
    }

    // A run of 32 environments has one update, and one of 64 has none.
    let short = options(json!({"environments": 32, "rollout_steps": 16, "steps": 1000}));
    let tuned = tune(run, &short, &TuneOptions::default(), &GO).unwrap();
    assert_eq!((tuned.rows.len(), tuned.stopped), (1, Reason::Max));

    // The limit fits 8 environments, so the first 32 are halved to 8.
    let of = |environments: usize| options(json!({"environments": environments}));
    let limit = plan(run, &of(8), &GO).unwrap().bytes;
    let within = TuneOptions { memory_limit: Some(limit), backoff: 1.0, max: 64 };
    let tuned = tune(run, &of(32), &within, &GO).unwrap();
    assert_eq!(tuned.rows[0].environments, 8);
    assert_eq!((tuned.rows.len(), tuned.environments), (1, 8));
    assert!(matches!(tuned.stopped, Reason::Memory | Reason::Throughput));
    let none = TuneOptions { memory_limit: Some(1000), ..within };
    let error = tune(run, &of(32), &none, &GO).unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfMemory);
    let error = tune(run, &of(128), &TuneOptions { max: 64, ..most }, &GO).unwrap_err();
    assert!(error.to_string().contains("max"), "{error}");
}

#[test]
fn a_limit_that_fits_too_few_sequences_is_an_error_of_memory() {
    let spec = spec(gru());
    // Two environments have 8 sequences, half as many as batches.
    let sizes =
        json!({"environments": 32, "rollout_steps": 64, "sequence_length": 16, "minibatches": 16});
    let limit = TuneOptions { memory_limit: Some(1000), backoff: 1.0, max: 64 };
    let error = tune(task(&spec), &options(sizes), &limit, &GO).unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfMemory);
    assert!(error.to_string().contains("a run with 4 environments"), "{error}");
}
