use std::cell::RefCell;

use sconce_nn::checkpoint;
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, RecurrentConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

fn spec(backbone: Backbone, inputs: usize) -> Spec {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
    let parts = vec![head("action", HeadKind::Categorical(2)), head("value", HeadKind::Value(1))];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 8, prior: false };
    let value =
        json!({"embedding": Embedding::vector(inputs), "backbone": backbone, "heads": heads});
    serde_json::from_value(value).unwrap()
}

fn mlp() -> Spec {
    let config = json!({"mlp": {
        "hidden_sizes": [16], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh",
    }});
    spec(serde_json::from_value(config).unwrap(), 4)
}

fn gru() -> Spec {
    let config = RecurrentConfig {
        hidden_size: 8,
        num_layers: 1,
        layer_norm: false,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
        ..Default::default()
    };
    spec(Backbone::Gru(config), 2)
}

/// Options of a run of four updates of 40 steps.
fn options(more: Value) -> PpoOptions {
    let mut all = json!({
        "environments": 4, "rollout_steps": 10, "sequence_length": 4, "steps": 160, "minibatches": 2,
        "seed": 5,
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

static GO: AtomicBool = AtomicBool::new(false);

fn go(
    spec: &Spec,
    env: &str,
    options: &PpoOptions,
    out: &Path,
    resume: bool,
) -> Result<PlayReport> {
    run(Task { spec, env, host: None, inbox: None, resume }, options, out, &|_| {}, &GO)
}

/// The bytes of every array of a state.
fn numbers(out: &Path) -> Vec<(String, Vec<u32>)> {
    let state = checkpoint::load(&out.join("last.safetensors")).unwrap();
    let weights = state
        .weights
        .iter()
        .map(|(name, weight)| (name.clone(), sconce_tensor::tensor::to_vec(weight).unwrap()));
    let all = weights.chain(state.optimiser);
    all.map(|(name, own)| (name, own.iter().map(|v| v.to_bits()).collect())).collect()
}

/// These options and an overlap.
fn overlapping(mut given: Value) -> Value {
    given["overlap"] = true.into();
    given
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_not_interrupted() {
    let normalised = json!({"normalise_observations": true, "normalise_rewards": true});
    let cases = [
        (mlp(), "cart_pole", json!({})),
        (gru(), "cart_pole_velocity_less", json!({})),
        (mlp(), "cart_pole", normalised.clone()),
        (mlp(), "cart_pole", json!({"overlap": true})),
        (gru(), "cart_pole_velocity_less", overlapping(normalised)),
    ];
    for (spec, env, more) in cases {
        let (whole, parts) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        go(&spec, env, &options(more.clone()), whole.path(), false).unwrap();
        let stop = AtomicBool::new(false);
        let updates = RefCell::new(0);
        let half = |event: Event| {
            if let Event::Update { .. } = event {
                *updates.borrow_mut() += 1;
                stop.store(*updates.borrow() == 2, Ordering::Relaxed);
            }
        };
        let given = options(more);
        let task = Task { spec: &spec, env, host: None, inbox: None, resume: false };
        let report = run(task, &given, parts.path(), &half, &stop).unwrap();
        assert_eq!((report.stopped, report.updates), (Stopped::Stopped, 2));
        let report = go(&spec, env, &given, parts.path(), true).unwrap();
        assert_eq!(
            (report.stopped, report.updates, report.history.len()),
            (Stopped::Finished, 4, 4)
        );
        assert_eq!(numbers(whole.path()), numbers(parts.path()), "{env}");
        let best =
            |out: &Path| sconce_tensor::fs::read(&out.join("best.safetensors"), 1 << 20).unwrap();
        assert_eq!(best(whole.path()), best(parts.path()), "{env}");
    }
}

#[test]
fn a_run_has_the_same_bits_with_any_number_of_threads() {
    let spec = mlp();
    let bits = |threads: usize, overlap: bool| {
        let out = TempDir::new().unwrap();
        // Several shards of environments, and several shards of a batch.
        let given = json!({"environments": 48, "rollout_steps": 20, "steps": 1920, "threads": threads, "overlap": overlap});
        go(&spec, "cart_pole", &options(given), out.path(), false).unwrap();
        numbers(out.path())
    };
    for overlap in [false, true] {
        let one = bits(1, overlap);
        assert_eq!(one, bits(2, overlap));
        assert_eq!(one, bits(5, overlap));
    }
    assert_ne!(bits(1, false), bits(1, true));
}

#[test]
fn with_an_overlap_each_rollout_but_the_first_is_of_weights_one_update_older() {
    let kl = |overlap: bool| {
        let out = TempDir::new().unwrap();
        let given = json!({"epochs": 1, "minibatches": 1, "overlap": overlap, "steps": 200});
        let report = go(&mlp(), "cart_pole", &options(given), out.path(), false).unwrap();
        assert_eq!((report.steps, report.history.len()), (200, 5));
        report.history.iter().map(|point| point.figures["approx_kl"]).collect::<Vec<_>>()
    };
    // The only batch of an update has the weights before it.
    assert!(kl(false).iter().all(|kl| kl.abs() < 1e-9), "{:?}", kl(false));
    let overlapped = kl(true);
    assert!(overlapped[0].abs() < 1e-9, "{overlapped:?}");
    assert!(overlapped[1..].iter().all(|kl| *kl > 1e-7), "{overlapped:?}");
}

#[test]
fn a_league_and_a_teacher_overlap_and_resume_with_the_same_bits() {
    let env = sconce_env::spec(&options(json!({})).env("duel")).unwrap();
    let mut heads = Heads::of_parts(&env.inputs, HeadsKind::Independent);
    heads.parts.push(Head { name: "value".into(), kind: HeadKind::Value(1), hidden_size: 0 });
    heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
    let spec = Spec { embedding: Embedding::vector(env.observation_size), heads, ..gru() };
    let files = TempDir::new().unwrap();
    let teacher = policy(&spec, &files);
    let [whole, parts] = [0, 1].map(|_| TempDir::new().unwrap());
    let given = |steps: u64| {
        options(
            json!({"overlap": true, "opponents": ["mixer"], "past_selves": 2, "snapshot_every": 2,
            "teacher": teacher, "time_limit": 15, "steps": 48 * steps, "environments": 32, "rollout_steps": 8}),
        )
    };
    go(&spec, "duel", &given(64), whole.path(), false).unwrap();
    for updates in [1, 2, 5, 8] {
        go(&spec, "duel", &given(8 * updates), parts.path(), updates > 1).unwrap();
    }
    assert_eq!(numbers(whole.path()), numbers(parts.path()));
    let state = |out: &TempDir| {
        let state = checkpoint::load(&out.path().join("last.safetensors")).unwrap();
        state.manifest.run["league"].clone()
    };
    assert_eq!(state(&whole), state(&parts));
    let members = state(&whole)["members"].as_object().unwrap().clone();
    assert!(members.values().filter(|own| own["update"].is_u64()).count() >= 2, "{members:?}");
}

#[test]
fn the_best_policy_and_a_report_are_written_and_every_update_is_told() {
    let out = TempDir::new().unwrap();
    let told = RefCell::new(vec![]);
    let tell = |event: Event| told.borrow_mut().push(serde_json::to_value(event).unwrap());
    let (spec, options) = (mlp(), options(json!({})));
    let task = Task { spec: &spec, env: "cart_pole", host: None, inbox: None, resume: false };
    let report = run(task, &options, out.path(), &tell, &GO).unwrap();
    assert_eq!((report.updates, report.steps, report.history.len()), (4, 160, 4));
    assert!(report.episodes > 0 && report.mean_return.is_some_and(|mean| mean > 5.0));
    assert_eq!(read_report(out.path()).unwrap(), report);
    let best = Policy::load(&out.path().join("best.safetensors")).unwrap();
    assert_eq!(best.notes()["env"]["env"], "cart_pole");
    let names: Vec<_> = told.borrow().iter().map(|e| e["event"].clone()).collect();
    assert_eq!(names, ["start", "update", "update", "update", "update", "saved"]);
    let point = &report.history[3];
    for name in ["policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"] {
        assert!(point.figures[name].is_finite(), "{name}");
    }
    assert_eq!(point.rewards.values().copied().collect::<Vec<_>>(), [1.0]);
}

#[test]
fn a_run_that_cannot_be_is_refused_before_anything_is_written() {
    let out = TempDir::new().unwrap();
    let refused = |spec: &Spec, env: &str, given: Value| {
        go(spec, env, &options(given), &out.path().join("run"), false).unwrap_err().to_string()
    };
    let short = refused(&mlp(), "cart_pole", json!({"steps": 39}));
    assert!(short.contains("40 steps of one update") && short.contains("39"), "{short}");
    assert!(refused(&gru(), "cart_pole", json!({})).contains("expected 4, got 2"));
    assert!(refused(&mlp(), "pendulum", json!({})).contains("observation"));
    assert!(refused(&mlp(), "cart_pol", json!({})).contains("cart_pole"));
    let without =
        Spec { heads: Heads { parts: mlp().heads.parts[..1].to_vec(), ..mlp().heads }, ..mlp() };
    assert!(refused(&without, "cart_pole", json!({})).contains("value_head"));
    assert!(!out.path().join("run/last.safetensors").exists());
}

#[test]
fn a_resumed_run_keeps_its_options_and_a_new_run_needs_an_empty_folder() {
    let out = TempDir::new().unwrap();
    let spec = mlp();
    go(&spec, "cart_pole", &options(json!({})), out.path(), false).unwrap();
    let again = go(&spec, "cart_pole", &options(json!({})), out.path(), false).unwrap_err();
    assert!(again.to_string().contains("resume: true"), "{again}");
    let other = options(json!({"clip": 0.3, "environments": 5}));
    let error = go(&spec, "cart_pole", &other, out.path(), true).unwrap_err().to_string();
    assert!(error.contains("clip is 0.2, not 0.3") && error.contains("environments"), "{error}");
    let record = Record::read(out.path()).unwrap();
    let longer = record.with(json!({"steps": 240})).unwrap();
    let report = go(&spec, "cart_pole", &longer, out.path(), true).unwrap();
    assert_eq!((report.updates, report.history.len()), (6, 6));
    assert!(matches!(record.with(json!({"stepz": 1})), Err(Error::Mismatch { .. })));
}

#[test]
fn a_run_ends_at_its_target_and_one_that_is_stopped_at_once_has_no_report() {
    let out = TempDir::new().unwrap();
    let given =
        json!({"target_return": 1.0, "environments": 64, "rollout_steps": 100, "steps": 64_000});
    let report = go(&mlp(), "cart_pole", &options(given), out.path(), false).unwrap();
    assert_eq!(report.stopped, Stopped::Target);
    let (spec, stop, out) = (mlp(), AtomicBool::new(true), TempDir::new().unwrap());
    let task = Task { spec: &spec, env: "cart_pole", host: None, inbox: None, resume: false };
    let result = run(task, &options(json!({})), out.path(), &|_| {}, &stop);
    assert!(matches!(result, Err(Error::Cancelled)));
}

/// The file of a policy with random weights.
fn policy(spec: &Spec, out: &TempDir) -> String {
    let path = out.path().join("policy.safetensors");
    Policy::init(spec, 9).unwrap().save(&path, Value::Null).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn a_run_stays_close_to_its_teacher_and_resumes_with_the_same_bits() {
    for (spec, env) in [(mlp(), "cart_pole"), (gru(), "cart_pole_velocity_less")] {
        let files = TempDir::new().unwrap();
        // A teacher has no value.
        let heads = Heads { parts: spec.heads.parts[..1].to_vec(), ..spec.heads.clone() };
        let teacher = policy(&Spec { heads, ..spec.clone() }, &files);
        let kl = |weight: f64| {
            let given = json!({"teacher": teacher, "teacher_weight": weight, "steps": 1600, "learning_rate": 1e-2});
            let out = TempDir::new().unwrap();
            let report = go(&spec, env, &options(given), out.path(), false).unwrap();
            report.history.last().unwrap().figures["teacher_kl"]
        };
        let (held, free) = (kl(100.0), kl(0.0));
        assert!(held < 0.6 * free && held >= 0.0, "{env}: {held} {free}");
        // A learner that is its teacher does not differ from it, also after ends and in later sequences.
        let given = json!({
            "teacher": teacher, "policy": teacher, "steps": 400, "learning_rate": 1e-12,
        });
        let out = TempDir::new().unwrap();
        let report = go(&spec, env, &options(given), out.path(), false).unwrap();
        let same = report.history.iter().all(|p| p.figures["teacher_kl"].abs() < 1e-9);
        assert!(same && report.episodes > 3, "{env}");
        let [whole, parts] = [0, 1].map(|_| TempDir::new().unwrap());
        let given = |steps: u64| {
            options(json!({"teacher": teacher, "normalise_observations": true, "steps": steps}))
        };
        go(&spec, env, &given(160), whole.path(), false).unwrap();
        go(&spec, env, &given(80), parts.path(), false).unwrap();
        go(&spec, env, &given(160), parts.path(), true).unwrap();
        assert_eq!(numbers(whole.path()), numbers(parts.path()), "{env}");
    }
}

#[test]
fn a_run_with_several_teachers_resumes_with_the_same_bits_on_any_number_of_threads() {
    let files = TempDir::new().unwrap();
    let saved = |name: &str, spec: &Spec, seed: u64| {
        let path = files.path().join(name);
        // A teacher has no value.
        let heads = Heads { parts: spec.heads.parts[..1].to_vec(), ..spec.heads.clone() };
        let spec = Spec { heads, ..spec.clone() };
        Policy::init(&spec, seed).unwrap().save(&path, Value::Null).unwrap();
        path.to_str().unwrap().to_string()
    };
    let wide = Spec { embedding: Embedding::vector(4), ..gru() };
    let teachers = [saved("mlp", &mlp(), 1), saved("gru", &wide, 2), saved("other", &wide, 3)];
    let given = |teachers: &[String], more: Value| {
        let mut all = json!({
            "teacher": teachers, "teacher_temperature": 2.0, "normalise_observations": true,
            // Several shards of environments.
            "environments": 40, "steps": 1600,
        });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        options(all)
    };
    for overlap in [false, true] {
        let run = |threads: usize, steps: &[u64]| {
            let out = TempDir::new().unwrap();
            let mut kl = vec![];
            for (i, steps) in steps.iter().enumerate() {
                let more = json!({"threads": threads, "steps": steps, "overlap": overlap});
                let own = given(&teachers, more);
                let report = go(&mlp(), "cart_pole", &own, out.path(), i > 0).unwrap();
                kl = report.history.iter().map(|p| p.figures["teacher_kl"]).collect();
            }
            (numbers(out.path()), kl)
        };
        let (whole, kl) = run(1, &[1600]);
        assert!(kl.iter().all(|kl| *kl > 1e-4), "{kl:?}");
        assert_eq!(run(2, &[400, 800, 1600]), (whole, kl), "overlap: {overlap}");
    }
    let out = TempDir::new().unwrap();
    go(&mlp(), "cart_pole", &given(&teachers, json!({})), out.path(), false).unwrap();
    let fewer = given(&teachers[..2], json!({"steps": 3200}));
    let error = go(&mlp(), "cart_pole", &fewer, out.path(), true).unwrap_err();
    assert!(error.to_string().contains("teacher"), "{error}");
    // A teacher of other observations is named by its path.
    let narrow = saved("narrow", &gru(), 4);
    let own = given(&[teachers[0].clone(), narrow.clone()], json!({}));
    let error = go(&mlp(), "cart_pole", &own, files.path(), false).unwrap_err().to_string();
    assert!(error.contains(&format!("observation of the teacher {narrow}: expected 4")), "{error}");
}

#[test]
fn with_a_policy_weight_of_0_a_run_learns_from_its_teacher_alone() {
    let files = TempDir::new().unwrap();
    let teacher = policy(&mlp(), &files);
    let alone = json!({
        "teacher": teacher, "policy_weight": 0.0, "value_weight": 0.0, "entropy_weight": 0.0,
        "teacher_weight": 2.0, "steps": 4000, "learning_rate": 1e-2,
    });
    let out = TempDir::new().unwrap();
    let report = go(&mlp(), "cart_pole", &options(alone.clone()), out.path(), false).unwrap();
    let kl = |i: usize| report.history[i].figures["teacher_kl"];
    let last = report.history.len() - 1;
    for point in &report.history {
        let loss = 2.0 * point.figures["teacher_kl"];
        assert!((point.loss - loss).abs() < 1e-12, "{} {loss}", point.loss);
        assert!(point.figures["policy_loss"].is_finite() && point.figures["value_loss"] > 0.0);
    }
    assert!(kl(last) < 0.1 * kl(0), "{} {}", kl(0), kl(last));
    // The row of the value among the logits has learned nothing.
    let [first, learned] = [Policy::init_orthogonal(&mlp(), 5).unwrap(), {
        Policy::load(&out.path().join("last.safetensors")).unwrap()
    }];
    let row = |policy: &Policy, row: usize| {
        let weight = &policy.weights()["heads.logits.weight"];
        let width = weight.dims()[1];
        sconce_tensor::tensor::to_vec(weight).unwrap()[row * width..][..width].to_vec()
    };
    assert_eq!(row(&first, 2), row(&learned, 2));
    assert_ne!(row(&first, 0), row(&learned, 0));

    let refused = |more: Value| {
        let mut given = alone.clone();
        given.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        options(given).validate().unwrap_err().to_string()
    };
    let error = refused(json!({"teacher": null, "teacher_weight": 1.0}));
    assert_eq!(error, "policy_weight: expected a teacher, got none");
    for (name, value) in
        [("clip", json!(0.1)), ("clip_to", json!(0.1)), ("normalise_advantages", json!("none"))]
    {
        let mut more = json!({});
        more[name] = value;
        assert_eq!(refused(more), format!("{name}: expected policy_weight above 0, got none"));
    }
}

#[test]
fn a_teacher_with_memory_judges_a_learner_without_one_by_what_it_remembers() {
    // The teacher sees positions alone, as the learner does.
    let spec = Spec { embedding: Embedding::vector(2), ..mlp() };
    let (files, heads) = (TempDir::new().unwrap(), gru().heads);
    let heads = Heads { parts: heads.parts[..1].to_vec(), ..heads };
    let teacher = policy(&Spec { heads, ..gru() }, &files);
    let kl = |stride: usize| {
        let given = json!({
            "teacher": teacher, "sequence_length": stride, "steps": 40, "epochs": 1, "minibatches": 1,
        });
        let out = TempDir::new().unwrap();
        let env = "cart_pole_velocity_less";
        let report = go(&spec, env, &options(given), out.path(), false).unwrap();
        report.history[0].figures["teacher_kl"]
    };
    // With a stride of 1 the memory of every frame is stored.
    let (stored, sequences) = (kl(1), kl(5));
    assert!((stored - sequences).abs() < 1e-6 * stored, "{stored} {sequences}");
}

#[test]
fn a_teacher_file_that_has_changed_and_options_without_effect_are_refused() {
    let (files, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let spec = mlp();
    let teacher = policy(&spec, &files);
    let given = || options(json!({"teacher": teacher}));
    go(&spec, "cart_pole", &given(), out.path(), false).unwrap();
    Policy::init(&spec, 10).unwrap().save(Path::new(&teacher), Value::Null).unwrap();
    let error = go(&spec, "cart_pole", &given(), out.path(), true).unwrap_err().to_string();
    assert!(error.contains("teacher"), "{error}");
    let error = options(json!({"teacher_weight": 0.5})).validate().unwrap_err().to_string();
    assert!(error.contains("teacher_weight"), "{error}");
}

#[test]
fn a_policy_that_normalises_its_frames_goes_on_by_its_own_spec() {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let given = options(json!({"normalise_observations": true}));
    go(&mlp(), "cart_pole", &given, first.path(), false).unwrap();
    let path = first.path().join("last.safetensors");
    let learned = Policy::load(&path).unwrap();
    let given = |steps: u64| options(json!({"policy": path.to_str().unwrap(), "steps": steps}));
    let error = go(&mlp(), "cart_pole", &given(80), second.path(), false).unwrap_err();
    assert!(error.to_string().contains("embedding of"), "{error}");
    go(learned.spec(), "cart_pole", &given(80), second.path(), false).unwrap();
    go(learned.spec(), "cart_pole", &given(160), second.path(), true).unwrap();
}

#[test]
fn play_against_itself_has_no_mean_return_and_no_best_policy() {
    let out = TempDir::new().unwrap();
    let env = sconce_env::spec(&options(json!({})).env("duel")).unwrap();
    let mut heads = Heads::of_parts(&env.inputs, HeadsKind::Independent);
    heads.parts.push(Head { name: "value".into(), kind: HeadKind::Value(1), hidden_size: 64 });
    let spec = Spec { embedding: Embedding::vector(env.observation_size), heads, ..mlp() };
    let given = json!({"rollout_steps": 100, "steps": 1600, "time_limit": 50});
    let report = go(&spec, "duel", &options(given), out.path(), false).unwrap();
    assert_eq!((report.updates, report.mean_return, report.best_return), (2, None, None));
    assert!(report.episodes > 0 && !out.path().join("best.safetensors").exists());
    let given = json!({"target_return": 1.0, "steps": 1600});
    let error = go(&spec, "duel", &options(given), &out.path().join("other"), false).unwrap_err();
    assert!(error.to_string().contains("target_return"), "{error}");
}

#[test]
fn a_mean_of_few_episodes_does_not_stay_the_best() {
    let mut progress = progress::Progress { best: Some((90.0, 0)), ..Default::default() };
    progress.recent.extend(std::iter::repeat_n((10.0, 5), 99));
    assert!(!progress.is_better(50.0) && progress.is_better(91.0));
    progress.recent.push_back((10.0, 5));
    assert!(progress.is_better(10.0));
    progress.best_is_full = true;
    assert!(!progress.is_better(10.0));
}

#[test]
fn a_run_starts_from_the_weights_of_a_policy_without_a_value() {
    let (files, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let spec = mlp();
    let heads = Heads { parts: spec.heads.parts[..1].to_vec(), ..spec.heads.clone() };
    let path = policy(&Spec { heads, ..spec.clone() }, &files);
    let begun = first_policy(&spec, &options(json!({"policy": path}))).unwrap();
    let old = Policy::load(Path::new(&path)).unwrap();
    let values = |policy: &Policy, name: &str| {
        sconce_tensor::tensor::to_vec(&policy.weights()[name]).unwrap()
    };
    let name = "backbone.layers.0.dense.weight";
    assert_eq!(values(&begun, name), values(&old, name));
    let (own, its) = (values(&begun, "heads.logits.weight"), values(&old, "heads.logits.weight"));
    assert_eq!((own.len(), &own[..its.len()]), (3 * 16, &its[..]));
    // A policy whose value has no trunk of its own has one row more than a run with a critic.
    let whole = policy(&spec, &files);
    let separate = Spec { critic: Some(spec.backbone.clone()), ..spec.clone() };
    let begun = first_policy(&separate, &options(json!({"policy": whole}))).unwrap();
    assert_eq!(values(&begun, "heads.logits.weight").len(), 2 * 16);
    let error =
        go(&gru(), "cart_pole_velocity_less", &options(json!({"policy": path})), out.path(), false);
    assert!(error.unwrap_err().to_string().contains("backbone and heads"));
}
