mod masks;

use std::sync::Arc;

use sconce_env::EnvOptions;
use sconce_nn::backbone::Context;
use sconce_nn::policy::Frames;
use sconce_nn::spec::{Embedding, Normalised};
use sconce_tensor::tensor::to_vec;
use serde_json::{Value, json};

use super::*;
use crate::learner::{Learner, Taught, Tutor};
use crate::rollout::{Player, Rollout};

const STRIDE: usize = 4;

fn spec(backbone: Value, value: bool) -> Spec {
    let mut parts = vec![json!({"name": "action", "kind": {"categorical": 2}, "hidden_size": 0})];
    if value {
        parts.push(json!({"name": "value", "kind": {"value": 1}, "hidden_size": 0}));
    }
    let heads = json!({"kind": "independent", "stream_size": 8, "prior": false, "parts": parts});
    let spec = json!({"embedding": {"vector": 4}, "backbone": backbone, "heads": heads});
    serde_json::from_value(spec).unwrap()
}

/// A teacher, which has no value.
fn judge(backbone: Value) -> Spec {
    spec(backbone, false)
}

fn mlp() -> Value {
    json!({"mlp": {"hidden_sizes": [8], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh"}})
}

fn gru() -> Value {
    json!({"gru": {"hidden_size": 6, "num_layers": 1, "layer_norm": false, "input_norm": false,
        "dropout": 0.0, "input_dropout": 0.0}})
}

fn options(more: Value) -> PpoOptions {
    let mut all = json!({
        "environments": 1, "rollout_steps": 60, "sequence_length": STRIDE, "epochs": 1,
        "minibatches": 1, "seed": 3,
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn terms(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

fn live(spec: &Spec, names: &[&str], options: &PpoOptions, teachers: Vec<Listener>) -> Live {
    let inbox = Inbox::new(spec, 0, &terms(names), 10_000).unwrap();
    Live::new(&inbox, options, teachers, [0, 0], Episodes::default()).unwrap()
}

fn tutor(policy: &Arc<Policy>) -> Tutor {
    Tutor::new(policy.clone(), "the teacher".into(), String::new())
}

fn play(
    live: &mut Live,
    policy: &Policy,
    update: u64,
    statistics: &mut Statistics,
) -> Vec<Segment> {
    // All that there are.
    let decisions = (live.inbox.counts().decisions - live.steps()) as usize;
    live.play(Wanted { policy, update, decisions, over: &|| false }, statistics).unwrap()
}

/// A segment of `steps` decisions of an episode, whose reward terms are those of `reward`.
fn recorded(number: u64, before: u64, steps: usize, names: &[&str], reward: &[f32]) -> Recorded {
    Recorded {
        continuous: (0..4 * steps).map(|i| (before as f32 + i as f32 * 0.7).sin()).collect(),
        previous: vec![0.0; steps],
        labels: vec![1.0; steps],
        logits: vec![0.25; 3 * steps],
        rewards: reward.repeat(steps),
        terms: terms(names).into(),
        versions: vec![0; steps],
        stride: STRIDE,
        number,
        before,
        ..Recorded::default()
    }
}

#[test]
fn terms_are_weighed_by_the_learner_and_reported_without_weights() {
    let (spec, names) = (spec(mlp(), true), ["hit", "time", "goal"]);
    let policy = Policy::init(&spec, 1).unwrap();
    let given = options(json!({"reward_weights": [["time", -0.5], ["goal", 0.0]]}));
    let mut own = live(&spec, &names, &given, vec![]);
    own.inbox.put(recorded(1, 0, 3, &names, &[1.0, 2.0, 5.0]));
    let end = Recorded {
        over: Over::Terminated,
        episode: (vec![10.0, 4.0, 99.0], 4),
        ..recorded(1, 3, 1, &names, &[3.0, 0.0, 0.0])
    };
    own.inbox.put(end);
    let mut statistics = Statistics::new(&given, 1, 4).unwrap();
    let segments = play(&mut own, &policy, 0, &mut statistics);
    assert_eq!(segments[0].rewards, [0.0, 0.0, 0.0]);
    assert_eq!(segments[1].rewards, [3.0]);
    assert_eq!(own.terms(), [1.5, 1.5, 3.75]);
    let episodes = own.take_episodes();
    assert_eq!((episodes[0].ret, episodes[0].length), (8.0, 4));
    // The weights of a run are no matter of the games: another run weighs the same segments otherwise.
    let mut other = live(&spec, &names, &options(json!({})), vec![]);
    other.inbox.put(recorded(1, 0, 3, &names, &[1.0, 2.0, 5.0]));
    assert_eq!(play(&mut other, &policy, 0, &mut statistics)[0].rewards, [8.0; 3]);
    let unknown = options(json!({"reward_weights": [["tim", 1.0]]}));
    let inbox = Inbox::new(&spec, 0, &terms(&names), 9).unwrap();
    let error = Live::new(&inbox, &unknown, vec![], [0, 0], Episodes::default());
    let error = error.map(drop).unwrap_err().to_string();
    assert!(error.contains("\"tim\"") && error.contains("time"), "{error}");
}

#[test]
fn the_return_of_an_episode_goes_on_from_segment_to_segment_unless_one_is_lost() {
    let spec = spec(mlp(), true);
    let policy = Policy::init(&spec, 1).unwrap();
    let given = options(json!({"normalise_rewards": true, "discount": 0.5, "max_lag": 3}));
    let scaled = |segments: &[(u64, u64, usize, f32)]| -> Vec<Vec<f32>> {
        let mut own = live(&spec, &["reward"], &given, vec![]);
        let mut statistics = Statistics::new(&given, 1, 4).unwrap();
        let each = segments.iter().enumerate().map(|(update, (number, before, steps, reward))| {
            own.inbox.put(recorded(*number, *before, *steps, &["reward"], &[*reward]));
            play(&mut own, &policy, update as u64, &mut statistics)[0].rewards.clone()
        });
        each.collect()
    };
    let mut scale = sconce_env::RewardScale::new(1, 0.5).unwrap();
    let mut wanted = |given: &[f32], ends: bool| -> Vec<f32> {
        let mut step = |(i, reward): (usize, &f32)| {
            let mut reward = [*reward];
            let over: &[u32] = if ends && i + 1 == given.len() { &[0] } else { &[] };
            scale.step(&mut reward, over).unwrap();
            reward[0]
        };
        given.iter().enumerate().map(&mut step).collect()
    };
    // As one row of an environment has them.
    let whole = scaled(&[(1, 0, 3, 2.0), (1, 3, 2, 1.0), (2, 0, 2, 4.0)]);
    assert_eq!(whole[0], wanted(&[2.0; 3], false));
    assert_eq!(whole[1], wanted(&[1.0; 2], true));
    assert_eq!(whole[2], wanted(&[4.0; 2], true));
    // Decisions 4 and 5 never came.
    let mut scale = sconce_env::RewardScale::new(1, 0.5).unwrap();
    let mut first = [2.0; 3];
    scale.follow(&mut 0.0, &mut first).unwrap();
    let mut later = [1.0; 2];
    scale.follow(&mut 0.0, &mut later).unwrap();
    let lost = scaled(&[(1, 0, 3, 2.0), (1, 5, 2, 1.0)]);
    assert_eq!((&lost[0][..], &lost[1][..]), (&first[..], &later[..]));
    assert_ne!(later.to_vec(), whole[1]);
}

/// The plain numbers of frames that this embedding has normalised. Its means are 0 and its deviations powers of 2, so
/// that the numbers are exact.
fn plain(normalised: &Normalised, frames: &[f32]) -> Vec<f32> {
    frames.iter().zip(normalised.deviation.iter().cycle()).map(|(x, d)| x * d).collect()
}

/// The segments of live games in which a row of an environment was played: cut at ends and every 3 strides.
fn cut(own: &Segment, frames: &[f32], logits: &[f32]) -> Vec<Recorded> {
    let (mut all, mut from, mut before, mut number) = (vec![], 0, 0, 1);
    for t in 0..own.steps {
        let over = match (own.terminated[t], own.truncated[t]) {
            (1, _) => Over::Terminated,
            (_, 1) => Over::Truncated,
            _ => Over::No,
        };
        let (to, steps) = (t + 1, t + 1 - from);
        if over == Over::No && to < own.steps && steps < 3 * STRIDE {
            continue;
        }
        all.push(Recorded {
            continuous: frames[4 * from..4 * to].to_vec(),
            previous: own.previous[from..to].to_vec(),
            labels: own.labels[from..to].to_vec(),
            logits: logits[3 * from..3 * to].to_vec(),
            rewards: own.rewards[from..to].to_vec(),
            terms: terms(&["alive"]).into(),
            versions: vec![0; steps],
            stride: STRIDE,
            over,
            next_value: own.next_values[t],
            episode: if over == Over::No { (vec![], 0) } else { (vec![0.0], 0) },
            number,
            before,
            ..Recorded::default()
        });
        (from, before) = (to, before + steps as u64);
        if over != Over::No {
            (before, number) = (0, number + 1);
        }
    }
    all
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-5 * (1.0 + a.abs())
}

#[test]
fn segments_of_live_games_teach_what_those_of_an_environment_teach() {
    let deviation = vec![0.5, 2.0, 0.125, 1.0];
    let normalised = Normalised { mean: vec![0.0; 4], deviation };
    let spec = spec(mlp(), true);
    let seen = Spec { embedding: Embedding::normalised(normalised.clone()), ..spec.clone() };
    let learns = Policy::init(&spec, 1).unwrap();
    let plays = Policy::from_weights(&seen, learns.weights().clone()).unwrap();
    for backbone in [mlp(), gru()] {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("teacher.safetensors");
        let judge = Policy::init(&judge(backbone), 2).unwrap();
        judge.save(&path, Value::Null).unwrap();
        let given = options(json!({
            "teacher": path, "normalise_observations": true, "normalise_rewards": true,
            // An advantage then does not depend on where segments are cut.
            "lambda": 0.0,
        }));
        let teacher = Taught::of(&given).unwrap().unwrap();
        let world = EnvOptions {
            env: "cart_pole".into(),
            seed: 5,
            time_limit: Some(23),
            ..EnvOptions::default()
        };
        let mut player = Player::new(&world, &plays).unwrap();
        player.teach(&teacher.tutors()[0]).unwrap();
        player.observe();
        let mut of_env = player.play(&plays, Rollout { steps: 60, stride: STRIDE }).unwrap();
        let row = of_env[0].clone();
        assert!((0..60).filter(|t| row.ends_at(*t)).count() > 1);

        let frames = Frames {
            batch: 60,
            time: 1,
            continuous: row.continuous.clone(),
            ids: vec![],
            previous: row.previous.clone(),
        };
        let state = plays.zero_state(60).unwrap();
        let (logits, _) = plays.forward(&frames, None, &state, &Context::default()).unwrap();
        let raw = plain(&normalised, &row.continuous);
        let listener = Listener::new(&teacher.tutors()[0], &spec).unwrap();
        let mut own = live(&spec, &["alive"], &given, vec![listener]);
        let segments = cut(&row, &raw, &to_vec(&logits).unwrap());
        assert!(segments.iter().any(|own| own.before > 0));
        segments.into_iter().for_each(|one| own.inbox.offer(one).unwrap());

        let mut statistics = [0; 2].map(|_| Statistics::new(&given, 1, 4).unwrap());
        statistics[0].observe(&player.take_observed().unwrap()).unwrap();
        statistics[0].scale(&mut of_env).unwrap();
        let mut of_games = play(&mut own, &plays, 0, &mut statistics[1]);
        let all = |of: fn(&Segment) -> &[f32]| -> Vec<f32> {
            of_games.iter().flat_map(of).copied().collect()
        };
        assert_eq!(all(|own| &own.continuous), row.continuous);
        assert_eq!(all(|own| &own.rewards), of_env[0].rewards);
        assert_eq!(all(|own| &own.heard[0].seen), of_env[0].heard[0].seen);
        let pair = |spec: &Spec| match serde_json::to_value(&spec.embedding).unwrap() {
            Value::Object(own) => own["normalised"]["deviation"].clone(),
            other => other,
        };
        let [one, other] = statistics.map(|own| pair(&own.spec(&spec)));
        for (one, other) in one.as_array().unwrap().iter().zip(other.as_array().unwrap()) {
            assert!(close(one.as_f64().unwrap(), other.as_f64().unwrap()), "{one} {other}");
        }

        let learned = |segments: &mut Vec<Segment>| {
            segments.iter_mut().for_each(|own| own.estimate(given.discounts()).unwrap());
            let mut learner = Learner::new(&learns, &given, Some(teacher.clone())).unwrap();
            let updated = learner.learn(segments, 0, 0.0).unwrap();
            let policy = learner.stepper().policy();
            let weights = policy.weights().values().flat_map(|own| to_vec(own).unwrap());
            (updated, weights.collect::<Vec<f32>>())
        };
        let ((one, weights), (other, others)) = (learned(&mut of_env), learned(&mut of_games));
        assert!(close(one.figures.total, other.figures.total), "{one:?} {other:?}");
        let kl = |figures: &sconce_train::objective::Figures| figures.named["teacher_kl"];
        assert!(kl(&one.figures) > 1e-4, "{one:?}");
        assert!((kl(&one.figures) / kl(&other.figures) - 1.0).abs() < 1e-4, "{one:?} {other:?}");
        assert!(close(one.grad_norm, other.grad_norm));
        assert_eq!(weights.len(), others.len());
        let pairs = weights.iter().zip(&others);
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-4), "weights after an update");
        assert!(
            weights
                != learns.weights().values().flat_map(|w| to_vec(w).unwrap()).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_teacher_remembers_the_episode_unless_a_segment_was_lost() {
    let (spec, teacher) =
        (spec(mlp(), true), Arc::new(Policy::init(&spec(gru(), false), 2).unwrap()));
    let policy = Policy::init(&spec, 1).unwrap();
    let given = options(json!({}));
    // The memory of each teacher is its own, also beside one without memory.
    let other = Arc::new(Policy::init(&self::spec(gru(), false), 3).unwrap());
    let plain = Arc::new(Policy::init(&self::spec(mlp(), false), 4).unwrap());
    let listener = || {
        let all = [&teacher, &plain, &other, &teacher];
        Vec::from(all.map(|own| Listener::new(&tutor(own), &spec).unwrap()))
    };
    let mut statistics = Statistics::new(&given, 1, 4).unwrap();
    let mut own = live(&spec, &["reward"], &given, listener());
    let mut memories = |segments: &[Recorded]| -> Vec<Vec<f32>> {
        segments.iter().for_each(|one| own.inbox.put(one.clone()));
        let states = play(&mut own, &policy, 0, &mut statistics);
        let of = |i: usize| -> Vec<Vec<f32>> {
            states.iter().flat_map(|s| &s.heard[i].states).map(|s| s.to_vec().unwrap()).collect()
        };
        let [first, plain, other, again] = [0, 1, 2, 3].map(of);
        assert!(plain.is_empty() && again == first && other.len() == first.len());
        let begun = |(own, _): &(&Vec<f32>, &Vec<f32>)| own.iter().any(|v| *v != 0.0);
        assert!(first.iter().zip(&other).filter(begun).all(|(own, other)| own != other));
        first
    };
    let one = |number, before, steps| recorded(number, before, steps, &["reward"], &[0.0]);
    let [first, second] = [one(1, 0, 8), one(1, 8, 6)];
    let got = memories(&[first.clone(), one(2, 0, 4), second.clone()]);
    assert_eq!(got.len(), 2 + 1 + 2);
    assert!(got[0].iter().all(|number| *number == 0.0) && got[2] == got[0]);
    // The memory of the whole episode, in one pass.
    let frames = Frames {
        batch: 1,
        time: 8,
        continuous: first.continuous.clone(),
        ids: vec![],
        previous: first.previous.clone(),
    };
    let zero = teacher.zero_state(1).unwrap();
    let after = teacher.trunk(&frames, &zero, &Context::default()).unwrap().1.to_vec().unwrap();
    assert!(got[3].iter().zip(&after).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {after:?}");
    assert!(got[3].iter().any(|number| number.abs() > 0.01));
    // After 14 decisions the next segment would begin at 14.
    assert_eq!(memories(&[one(1, 16, 4)])[0], got[0]);
}

#[test]
fn a_teacher_of_other_frames_is_refused_by_name() {
    let learner = spec(mlp(), true);
    let of = |size: usize| {
        let spec = Spec { embedding: Embedding::vector(size), ..spec(mlp(), false) };
        Listener::new(&tutor(&Arc::new(Policy::init(&spec, 1).unwrap())), &learner).map(drop)
    };
    of(4).unwrap();
    let error = of(3).unwrap_err().to_string();
    assert!(error.contains("embedding of the teacher"), "{error}");
}
