//! Rollouts, updates and whole runs on a card, beside those of the CPU. They run where `SCONCE_TEST_CARD` is set.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_env::{EnvOptions, names, spec};
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, Spec};
use sconce_nn::{Policy, checkpoint};
use sconce_play::learner::Learner;
use sconce_play::options::PpoOptions;
use sconce_play::rollout::{Player, Rollout};
use sconce_play::run::{Event, PlayReport, Stopped, Task, run};
use sconce_play::segment::Segment;
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Device, Tensor, device};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The card of the tests, if there is one.
fn card() -> Option<Device> {
    std::env::var_os("SCONCE_TEST_CARD").map(|_| device::open(0).unwrap())
}

fn mlp() -> Backbone {
    serde_json::from_value(json!({"mlp": {
        "hidden_sizes": [24, 17], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh",
    }}))
    .unwrap()
}

/// A policy for an environment, with a critic of its own or without.
fn of(options: &EnvOptions, critic: bool) -> Spec {
    let env = spec(options).unwrap();
    let mut heads = Heads::of_parts(&env.inputs, HeadsKind::Independent);
    let value = HeadKind::Value(1);
    heads.parts.push(Head { name: "value".into(), kind: value, hidden_size: 0 });
    heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
    let embedding = Embedding::vector(env.observation_size);
    Spec { embedding, backbone: mlp(), heads, critic: critic.then(mlp) }
}

fn assert_near(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let bound = tolerance * want.iter().fold(0.1f32, |most, v| most.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= bound, "{what}[{i}]: {got} is not {want} within {bound}");
    }
}

/// A column of a segment.
type Column = fn(&Segment) -> &[f32];

/// A column of segments, whose rows play side by side, as one of all rows.
fn column(segments: &[Segment], of: Column) -> Vec<f32> {
    let mut all = vec![];
    for t in 0..segments[0].steps {
        for segment in segments {
            let step = of(segment).len() / segment.steps;
            all.extend_from_slice(&of(segment)[t * step..(t + 1) * step]);
        }
    }
    all
}

/// Environments whose rules run on CPUs only.
const OF_CPUS: [&str; 2] = ["billiards", "billiards_published"];

fn world(env: &str) -> EnvOptions {
    let (env, time_limit) = (env.into(), Some(25));
    EnvOptions { env, count: 35, seed: 9, time_limit, ..EnvOptions::default() }
}

/// Environments in several shards, whose episodes end at different steps.
fn worlds() -> Vec<EnvOptions> {
    let on_card = names().into_iter().filter(|name| !OF_CPUS.contains(name));
    let mut all: Vec<EnvOptions> = on_card.map(world).collect();
    let stacked = EnvOptions { frame_stack: 3, action_repeat: 2, ..world("cart_pole") };
    let weights = vec![("touch".to_string(), 0.5)];
    let scripted = EnvOptions { opponent: Some("mixer".into()), ..world("duel") };
    all.extend([stacked, EnvOptions { reward_weights: weights, ..scripted }]);
    all
}

const STEPS: usize = 30;

fn options(more: Value) -> PpoOptions {
    let mut all = json!({
        "environments": 35, "rollout_steps": STEPS, "minibatches": 3, "epochs": 2, "seed": 9,
        "learning_rate": 3e-3,
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

#[test]
fn rollouts_on_a_card_are_those_of_the_cpu() {
    let Some(card) = card() else { return };
    for world in worlds() {
        let policy = Policy::init(&of(&world, true), 4).unwrap();
        let there = policy.copy_on(&card).unwrap();
        let mut host = Player::new(&world, &policy).unwrap();
        let mut on_card = Player::on_card(&world, &there, STEPS).unwrap();
        assert_eq!((host.rows(), host.spec()), (on_card.rows(), on_card.spec()));
        let discounts = options(json!({})).discounts();
        let what = |of: &str, i: usize| format!("{of} of rollout {i}, {world:?}");
        // The second rollout goes on from the first one.
        for i in 0..3 {
            let rollout = Rollout { steps: STEPS, stride: STEPS };
            let mut want = host.play(&policy, rollout).unwrap();
            want.iter_mut().for_each(|segment| segment.estimate(discounts).unwrap());
            let got = on_card.play_on_card(&there, discounts).unwrap();
            let columns: [(&str, &Tensor, Column); 6] = [
                ("observations", &got.observations, |s| &s.continuous),
                ("labels", &got.labels, |s| &s.labels),
                ("log-likelihoods", &got.log_likelihoods, |s| &s.log_likelihoods),
                ("values", &got.values, |s| &s.values),
                ("advantages", &got.advantages, |s| &s.returns.advantages),
                ("targets", &got.targets, |s| &s.returns.targets),
            ];
            for (name, tensor, of) in columns {
                let want = column(&want, of);
                assert_near(&what(name, i), &to_vec(tensor).unwrap(), &want, 1e-4);
            }
            let ((mut want, none), (got, others)) = (host.episodes(), on_card.episodes());
            assert!(!want.is_empty() && none == 0, "{}", what("episodes", i));
            let earlier = want.len() - got.len();
            assert_eq!(others, earlier as u64, "{}", what("earlier episodes", i));
            for (got, want) in got.iter().zip(want.drain(earlier..)) {
                let own = (got.seat, got.length, got.terminated);
                assert_eq!(
                    own,
                    (want.seat, want.length, want.terminated),
                    "{}",
                    what("episode", i)
                );
                assert_near(&what("return", i), &[got.ret], &[want.ret], 1e-4);
            }
            let (want, got) = (host.take_terms().unwrap(), on_card.take_terms().unwrap());
            let narrow = |sums: Vec<f64>| sums.iter().map(|sum| *sum as f32).collect::<Vec<_>>();
            assert_near(&what("terms", i), &narrow(got), &narrow(want), 1e-4);
        }
        assert_eq!(host.steps(), on_card.steps());
    }
}

#[test]
fn environments_of_cpus_are_refused_on_a_card_by_name() {
    let Some(card) = card() else { return };
    for name in OF_CPUS {
        let policy = Policy::init(&of(&world(name), false), 4).unwrap().on(&card).unwrap();
        let error = Player::on_card(&world(name), &policy, STEPS).err().unwrap().to_string();
        assert!(error.contains(name) && error.contains("CPUs only"), "{error}");
    }
}

#[test]
fn a_rollout_reports_no_more_than_the_last_hundred_episodes() {
    let Some(card) = card() else { return };
    let world = EnvOptions { time_limit: Some(2), count: 40, ..worlds().swap_remove(0) };
    let policy = Policy::init(&of(&world, false), 4).unwrap().on(&card).unwrap();
    let mut player = Player::on_card(&world, &policy, STEPS).unwrap();
    player.play_on_card(&policy, options(json!({})).discounts()).unwrap();
    let (episodes, others) = player.episodes();
    assert_eq!((episodes.len(), others), (100, 40 * STEPS as u64 / 2 - 100));
    assert_eq!((episodes[99].env, episodes[99].length, episodes[99].terminated), (39, 2, false));
}

/// Weights after some updates, and their figures.
type Learned = (Vec<f32>, Vec<f32>);

fn numbers(policy: &Policy) -> Vec<f32> {
    policy.weights().values().flat_map(|w| to_vec(w).unwrap()).collect()
}

fn learned(world: &EnvOptions, policy: &Policy, options: &PpoOptions) -> (Learned, u64) {
    let mut learner = Learner::new(policy, options, None).unwrap();
    let mut player = match policy.device().is_cpu() {
        true => Player::new(world, policy).unwrap(),
        false => Player::on_card(world, policy, STEPS).unwrap(),
    };
    let mut figures = vec![];
    for update in 0..3 {
        let policy = learner.stepper().frozen().unwrap();
        let done = update as f64 / 3.0;
        let updated = match player.is_on_card() {
            true => {
                let segment = player.play_on_card(&policy, options.discounts()).unwrap();
                learner.learn_on_card(&segment, update, done).unwrap()
            }
            false => {
                let rollout = Rollout { steps: STEPS, stride: STEPS };
                let mut segments = player.play(&policy, rollout).unwrap();
                let estimate = |s: &mut Segment| s.estimate(options.discounts()).unwrap();
                segments.iter_mut().for_each(estimate);
                learner.learn(&segments, update, done).unwrap()
            }
        };
        let named = ["policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"];
        figures.extend(named.map(|name| updated.figures.named[name] as f32));
        figures.extend([updated.grad_norm, updated.explained_variance].map(|v| v as f32));
        figures.extend([updated.batches as f32, f32::from(u8::from(updated.stopped))]);
    }
    let updates = learner.stepper().optimiser().updates();
    ((numbers(learner.stepper().policy()), figures), updates)
}

#[test]
fn updates_on_a_card_are_those_of_the_cpu() {
    let Some(card) = card() else { return };
    let ways = [
        json!({}),
        json!({"value_clip": 0.2, "entropy_weight": 0.05, "clip_to": 0.05, "minibatches": 1}),
        json!({"normalise_advantages": "none", "max_grad_norm": 0.1}),
        json!({"target_kl": 1e-4, "learning_rate": 3e-2, "normalise_advantages": "population"}),
    ];
    for (i, world) in worlds().into_iter().enumerate() {
        for (way, more) in ways.iter().enumerate().filter(|(way, _)| i < 2 || way % 4 == i % 4) {
            let options = options(more.clone());
            let policy = Policy::init_orthogonal(&of(&world, way % 2 == 0), 4).unwrap();
            let there = policy.copy_on(&card).unwrap();
            let ((weights, figures), updates) = learned(&world, &policy, &options);
            let ((got, got_figures), got_updates) = learned(&world, &there, &options);
            let what = |of: &str| format!("{of} of {}, way {way}", world.env);
            assert_eq!(got_updates, updates, "{}", what("updates"));
            assert_near(&what("figures"), &got_figures, &figures, 1e-3);
            // Adam divides small gradients by their size.
            assert_near(&what("weights"), &got, &weights, 1e-3);
            assert!(weights != numbers(&policy), "{}", what("weights"));
        }
    }
}

fn go(spec: &Spec, env: &str, options: &PpoOptions, out: &Path, updates: u64) -> PlayReport {
    let stop = AtomicBool::new(false);
    let count = |event: Event| {
        if let Event::Update { point, .. } = event {
            stop.store(point.updates == updates, Ordering::Relaxed);
        }
    };
    let task = Task { spec, env, host: None, inbox: None, resume: true };
    run(task, options, out, &count, &stop).unwrap()
}

/// All numbers of the last state, by name.
fn saved(out: &Path) -> Vec<(String, Vec<f32>)> {
    let file = checkpoint::load(&out.join("last.safetensors")).unwrap();
    let weights = file.weights.iter().map(|(name, w)| (name.clone(), to_vec(w).unwrap()));
    // The previous actions, which these policies do not read.
    weights.chain(file.optimiser).filter(|(name, _)| !name.ends_with("previous")).collect()
}

#[test]
fn a_run_on_a_card_learns_saves_and_resumes_on_either_device() {
    if card().is_none() {
        return;
    }
    for (env, more) in [
        ("cart_pole", json!({})),
        ("cart_pole", json!({"frame_stack": 2, "time_limit": 40})),
        ("pendulum", json!({})),
        ("duel", json!({"opponent": "striker"})),
    ] {
        let dir = TempDir::new().unwrap();
        let here = options(more.clone());
        let steps = 6 * 35 * STEPS;
        let mut all = more.clone();
        all.as_object_mut().unwrap().insert("steps".into(), json!(steps));
        let own = |device: &str| {
            let mut all = all.clone();
            all.as_object_mut().unwrap().insert("device".into(), json!(device));
            options(all)
        };
        let spec = of(&here.env(env), true);
        let run = |name: &str, device: &str, until: u64| {
            go(&spec, env, &own(device), &dir.path().join(name), until)
        };
        let (want, got) = (run("cpu", "cpu", 9), run("card", "cuda:0", 9));
        assert_eq!((got.stopped, got.updates, got.steps), (Stopped::Finished, 6, want.steps));
        assert_eq!(got.episodes, want.episodes, "{env}");
        for (got, want) in got.history.iter().zip(&want.history) {
            let figures = |point: &sconce_play::run::Point| -> Vec<f32> {
                let own = [point.loss, point.grad_norm, point.explained_variance];
                let all = own.iter().chain(point.figures.values()).chain(point.rewards.values());
                let means = [point.mean_return, point.mean_length];
                all.copied().chain(means.into_iter().flatten()).map(|v| v as f32).collect()
            };
            assert_near(&format!("figures of {env}"), &figures(got), &figures(want), 2e-3);
        }

        // Stopped and resumed: the same bits on the card, and on both devices in turn the same numbers.
        let out = |name: &str| dir.path().join(name);
        assert_eq!(run("cut", "cuda:0", 3).stopped, Stopped::Stopped);
        run("cut", "cuda:0", 9);
        assert!(saved(&out("cut")) == saved(&out("card")), "state of {env}");
        run("mixed", "cpu", 2);
        run("mixed", "cuda:0", 4);
        run("mixed", "cpu", 9);
        for ((name, got), (other, want)) in saved(&out("mixed")).iter().zip(saved(&out("cpu"))) {
            assert_eq!(*name, other);
            assert_near(&format!("{name} of {env}"), got, &want, 5e-3);
        }
    }
}
