use std::path::Path;

use sconce_nn::Spec;
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind};
use sconce_tensor::memory::Meter;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::live::Inbox;
use crate::run::run;

static GO: AtomicBool = AtomicBool::new(false);

fn spec(env: &str, hidden: usize, gru: bool) -> Spec {
    let env = sconce_env::spec(&PpoOptions::default().env(env)).unwrap();
    let mut heads = Heads::of_parts(&env.inputs, HeadsKind::Independent);
    heads.parts.push(Head { name: "value".into(), kind: HeadKind::Value(1), hidden_size: 0 });
    heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
    let backbone = match gru {
        true => json!({"gru": {"hidden_size": hidden, "num_layers": 1, "layer_norm": false,
            "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}}),
        false => json!({"mlp": {"hidden_sizes": [hidden, hidden], "layer_norm": false,
            "residual": false, "dropout": 0.0, "input_dropout": 0.0, "activation": "tanh"}}),
    };
    let backbone: Backbone = serde_json::from_value(backbone).unwrap();
    let embedding = Embedding::vector(env.observation_size);
    Spec { embedding, critic: Some(backbone.clone()), backbone, heads }
}

fn options(given: Value) -> PpoOptions {
    serde_json::from_value(given).unwrap()
}

fn task<'a>(spec: &'a Spec, env: &'a str) -> Task<'a> {
    Task { spec, env, host: None, inbox: None, resume: false }
}

/// Peak bytes of a run, counted from its start to its end on one thread.
fn counted(task: Task<'_>, options: &PpoOptions, out: &Path) -> u64 {
    apart(|| {
        let meter = Meter::start()?;
        run(task, options, out, &|_| {}, &GO)?;
        Ok(meter.peak())
    })
    .unwrap()
}

#[test]
fn the_planned_bytes_are_those_that_a_run_takes() {
    let cases = [
        ("cart_pole", false, json!({})),
        ("cart_pole", false, json!({"overlap": true})),
        ("cart_pole", false, json!({"environments": 256, "rollout_steps": 128, "minibatches": 32})),
        ("cart_pole", false, json!({"environments": 16, "rollout_steps": 2048})),
        (
            "cart_pole_velocity_less",
            true,
            json!({"rollout_steps": 128, "sequence_length": 32,
            "normalise_observations": true}),
        ),
        ("cart_pole_velocity_less", true, json!({"environments": 1024, "rollout_steps": 32})),
        (
            "duel",
            true,
            json!({"environments": 64, "opponents": ["mixer"], "past_selves": 2,
            "snapshot_every": 1}),
        ),
    ];
    for (env, gru, given) in cases {
        let (spec, out) = (spec(env, 64, gru), TempDir::new().unwrap());
        let mut options = options(given);
        options.machine.threads = Some(1);
        let memory = Memory::measure(task(&spec, env), &options, &GO).unwrap();
        options.schedule.steps = 3 * options.update_steps(memory.rows);
        options.ppo.epochs = 1;
        let taken = counted(task(&spec, env), &options, out.path()) as f64;
        let planned = memory.owners.total() as f64;
        let off = (planned / taken - 1.0).abs();
        assert!(off < 0.05, "{env}: {planned} for {taken}, {:?}", memory.owners);
    }
}

#[test]
fn a_plan_has_the_sizes_of_its_run_and_owners_that_add_up() {
    let (spec, given) =
        (spec("duel", 8, false), options(json!({"environments": 40, "steps": 80_000})));
    let planned = plan(task(&spec, "duel"), &given, &GO).unwrap();
    // The policy plays both seats.
    assert_eq!((planned.rows, planned.update_steps, planned.batches), (80, 5120, 16));
    assert_eq!((planned.updates, planned.steps), (15, 76_800));
    assert_eq!(planned.seconds, 15.0 * planned.update_seconds);
    assert_eq!(planned.least_seconds, planned.seconds);
    assert!((0.0..1.0).contains(&planned.rollout_share) && planned.steps_per_second > 0.0);
    let each = 4 * (planned.copies * planned.num_weights) as u64;
    let Owners { weights, gradients, moments, teacher, opponents, .. } = planned.owners;
    assert_eq!([weights, gradients, moments, teacher, opponents], [each, each, 2 * each, 0, 0]);
    assert_eq!(planned.bytes, planned.owners.total());
    let short = options(json!({"environments": 40, "steps": 5119}));
    let error = plan(task(&spec, "duel"), &short, &GO).unwrap_err().to_string();
    assert!(error.contains("5120 steps of one update"), "{error}");
}

#[test]
fn a_run_with_long_episodes_takes_no_longer() {
    let env = "cart_pole_velocity_less";
    let spec = spec(env, 16, true);
    let planned = plan(task(&spec, env), &options(json!({"environments": 16})), &GO).unwrap();
    assert!(planned.least_seconds > 0.0 && planned.least_seconds <= planned.seconds);
}

#[test]
fn a_teacher_and_past_selves_take_memory_and_no_file_is_written() {
    let (out, own) = (TempDir::new().unwrap(), spec("duel", 32, true));
    let path = out.path().join("teacher.safetensors");
    sconce_nn::Policy::init(&own, 1).unwrap().save(&path, Value::Null).unwrap();
    let given = |more: Value| {
        let mut all = json!({"environments": 16, "rollout_steps": 16});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Memory::measure(task(&own, "duel"), &options(all), &GO).unwrap()
    };
    let taught = given(json!({"teacher": path}));
    let each = 4 * taught.num_weights as u64;
    // Buffers below 1 KiB are not counted.
    assert!((each * 9 / 10..2 * each).contains(&taught.owners.teacher), "{:?}", taught.owners);
    let few = given(json!({"past_selves": 1})).owners;
    let many = given(json!({"past_selves": 11})).owners;
    assert!(few.opponents >= each * 9 / 10, "{few:?}");
    assert!((many.opponents - few.opponents) / each >= 10, "{few:?} {many:?}");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1);
    assert!(!Path::new("league").exists());
}

#[test]
fn live_games_cannot_be_planned() {
    let spec = spec("cart_pole", 8, false);
    let inbox = Inbox::new(&spec, 0, &["reward".to_string()], 4).unwrap();
    let task = Task { inbox: Some(&inbox), ..task(&spec, "live") };
    let error = plan(task, &options(json!({})), &GO).unwrap_err().to_string();
    assert!(error.contains("live games"), "{error}");
}

#[test]
fn a_measurement_ends_when_it_is_cancelled() {
    let spec = spec("cart_pole", 8, false);
    let stop = AtomicBool::new(true);
    let result = plan(task(&spec, "cart_pole"), &options(json!({})), &stop);
    assert!(matches!(result, Err(Error::Cancelled)));
}
