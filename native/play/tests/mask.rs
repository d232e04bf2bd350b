//! Action masks from a world to the loss: what a policy plays is what it learns from.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sconce_data::{Batch, Extra, Played};
use sconce_env::{Answered, Asked, Begin, Begun, EnvOptions, Host, HostSpec, Worker};
use sconce_nn::checkpoint;
use sconce_nn::policy::Frames;
use sconce_nn::{Policy, Spec};
use sconce_play::evaluate::{Evaluation, evaluate};
use sconce_play::objective::{Clipped, Normalise, Terms};
use sconce_play::options::PpoOptions;
use sconce_play::rollout::{Player, Rollout};
use sconce_play::run::{Event, Task, run};
use sconce_play::segment::{Segment, frames};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Error, Result};
use sconce_train::objective::{Objective, Rows};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Entries of a mask: two keys and three gates.
const SIZE: usize = 5;

/// A corridor with three gates in each step. A player that goes through a closed gate or presses a locked key is an
/// error. The reward is 1 for the last gate that is open.
#[derive(Default)]
struct Corridor {
    groups: Mutex<HashMap<u64, Vec<(u64, u8)>>>,
}

/// The keys and gates that are open for an environment in a step.
fn open_in(env: u64, step: u8) -> [u8; SIZE] {
    let rng = Rng::new(env, "corridor", step.into());
    let mut mask = std::array::from_fn(|i| u8::from(rng.uniform(i as u64) < 0.5));
    mask[2 + (env as usize + usize::from(step)) % 3] = 1;
    mask
}

fn observation(env: u64, step: u8) -> Vec<f32> {
    open_in(env, step).iter().map(|open| f32::from(*open)).collect()
}

struct Shared(Arc<Corridor>);

impl Worker for Shared {
    fn open(&self, group: u64, first: u64, count: usize) -> Result<()> {
        let envs = (0..count as u64).map(|i| (first + i, 0)).collect();
        self.0.groups.lock().unwrap().insert(group, envs);
        Ok(())
    }

    fn reset(&self, group: u64, begins: &[Begin]) -> Result<Begun> {
        let mut groups = self.0.groups.lock().unwrap();
        let own = groups.get_mut(&group).unwrap();
        let mut begun = Begun::default();
        for begin in begins {
            own[begin.at].1 = 0;
            begun.observations.extend(observation(begin.env, 0));
            begun.masks.extend(open_in(begin.env, 0));
        }
        Ok(begun)
    }

    fn step(&self, group: u64, asked: Asked<'_>) -> Result<Answered> {
        let mut groups = self.0.groups.lock().unwrap();
        let own = groups.get_mut(&group).unwrap();
        let mut answered = Answered::default();
        let inputs = asked.inputs.chunks_exact(4);
        for ((env, step), (input, active)) in own.iter_mut().zip(inputs.zip(asked.active)) {
            let mut reward = 0.0;
            if *active == 1 {
                let open = open_in(*env, *step);
                let gate = input[2] as usize;
                let locked = (0..2).any(|key| input[key] == 1.0 && open[key] == 0);
                if locked || open[2 + gate] == 0 {
                    return Err(Error::mismatch(
                        "input",
                        "one that is allowed",
                        format!("{input:?}"),
                    ));
                }
                reward = f32::from(u8::from(open[2 + gate + 1..].iter().all(|open| *open == 0)));
                *step += 1;
            }
            answered.observations.extend(observation(*env, *step));
            answered.rewards.push(reward);
            answered.flags.push(u8::from(*step >= 7));
            // A state that ends an episode allows nothing.
            answered.masks.extend(if *step >= 7 { [0; SIZE] } else { open_in(*env, *step) });
        }
        Ok(answered)
    }

    fn save(&self, group: u64) -> Result<Vec<Vec<u8>>> {
        Ok(self.0.groups.lock().unwrap()[&group].iter().map(|(_, step)| vec![*step]).collect())
    }

    fn restore(&self, group: u64, states: Vec<Vec<u8>>) -> Result<Vec<bool>> {
        let mut groups = self.0.groups.lock().unwrap();
        let own = groups.get_mut(&group).unwrap();
        own.iter_mut().zip(&states).for_each(|((_, step), state)| *step = state[0]);
        Ok(vec![true; states.len()])
    }

    fn close(&self, group: u64) {
        self.0.groups.lock().unwrap().remove(&group);
    }
}

fn host() -> Arc<Host> {
    let spec: HostSpec = serde_json::from_value(json!({
        "name": "corridor", "observation_size": SIZE, "time_limit": 100,
        "reward_terms": ["reward"], "solved": null, "masks": true,
        "inputs": [
            {"name": "keys", "kind": {"flags": ["jump", "duck"]}},
            {"name": "gate", "kind": {"choice": 3}},
            {"name": "speed", "kind": {"continuous": {"size": 1, "min": -1.0, "max": 1.0}}},
        ],
    }))
    .unwrap();
    Host::new(spec, Box::new(Shared(Arc::default()))).unwrap()
}

fn spec(kind: &str, backbone: Value) -> Spec {
    let part = |name: &str, kind: Value| json!({"name": name, "kind": kind, "hidden_size": 0});
    serde_json::from_value(json!({
        "embedding": {"vector": SIZE},
        "backbone": backbone,
        "heads": {"kind": kind, "stream_size": 8, "prior": false, "parts": [
            part("keys", json!({"bernoulli": 2})),
            part("gate", json!({"categorical": 3})),
            part("speed", json!({"gaussian": {"size": 1, "low": -1.0, "high": 1.0}})),
            part("value", json!({"value": 1})),
        ]},
    }))
    .unwrap()
}

fn mlp() -> Value {
    json!({"mlp": {"hidden_sizes": [16], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh"}})
}

fn gru() -> Value {
    json!({"gru": {"hidden_size": 8, "num_layers": 1, "layer_norm": false, "input_norm": false,
        "dropout": 0.0, "input_dropout": 0.0}})
}

fn specs() -> [Spec; 4] {
    let [a, b] = ["independent", "autoregressive"];
    [spec(a, mlp()), spec(a, gru()), spec(b, mlp()), spec(b, gru())]
}

fn world(count: usize) -> EnvOptions {
    EnvOptions { count, seed: 2, host: Some(host()), ..EnvOptions::default() }
}

/// Log-likelihood of a row's bits, gate and speed among the allowed ones, from logits without masks.
fn by_hand(spec: &Spec, logits: &[f32], labels: &[f32], mask: &[u8]) -> f64 {
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let bit = |i: usize| match (mask[i], labels[i]) {
        (0, _) => 0.0,
        (_, 1.0) => -softplus(-f64::from(logits[i])),
        _ => -softplus(logits[i].into()),
    };
    let open = logits[2..5].iter().zip(&mask[2..]).filter(|(_, open)| **open == 1);
    let sum: f64 = open.map(|(x, _)| f64::from(*x).exp()).sum();
    let gate = f64::from(logits[2 + labels[2] as usize]) - sum.ln();
    let speed = -spec.heads.parts[2].kind.nll(&logits[5..7], &labels[3..]);
    bit(0) + bit(1) + gate + speed
}

#[test]
fn a_rollout_plays_what_is_allowed_and_records_the_mask_and_the_likelihood_of_the_loss() {
    for spec in specs() {
        let policy = Policy::init(&spec, 3).unwrap();
        let mut player = Player::new(&world(20), &policy).unwrap();
        let segments = player.play(&policy, Rollout { steps: 30, stride: 30 }).unwrap();
        assert_eq!(segments.iter().map(|segment| segment.mask.len()).sum::<usize>(), 600 * SIZE);
        for segment in segments.iter().filter(|_| policy.zero_state(1).unwrap().0.is_empty()) {
            let frames = Frames {
                batch: segment.frames(),
                time: 1,
                continuous: segment.continuous.clone(),
                ids: vec![],
                previous: segment.previous.clone(),
            };
            // A mask is that of its observation.
            let seen = segment.continuous.iter().map(|open| *open as u8);
            assert!(seen.eq(segment.mask.iter().copied()));
            let state = policy.zero_state(frames.batch).unwrap();
            let labels = Some(&segment.labels[..]);
            let (logits, _) = policy.forward(&frames, labels, &state, &Default::default()).unwrap();
            let logits = to_vec(&logits).unwrap();
            let rows = logits.chunks_exact(8).zip(segment.labels.chunks_exact(4));
            for (at, ((logits, labels), mask)) in
                rows.zip(segment.mask.chunks_exact(SIZE)).enumerate()
            {
                let want = by_hand(&spec, logits, labels, mask);
                let got = f64::from(segment.log_likelihoods[at]);
                assert!((got - want).abs() < 1e-5, "{got} and {want}");
            }
        }
    }
}

#[test]
fn an_evaluation_never_takes_what_is_not_allowed_greedily_or_by_chance() {
    let go = AtomicBool::new(false);
    for spec in specs() {
        for deterministic in [true, false] {
            for seed in 0..10 {
                let policy = Policy::init(&spec, seed).unwrap();
                let play = Evaluation { episodes: 40, seed, deterministic };
                let played = evaluate(&policy, &world(1), play, &go).unwrap();
                assert!(played.lengths.iter().all(|length| *length == 7));
            }
        }
    }
}

/// Figures and gradient of a batch whose rows have these logits.
fn loss(spec: &Spec, batch: &Batch, logits: &[f32]) -> (f64, Vec<f32>) {
    let terms = Terms {
        clip: 0.2,
        policy_weight: 1.0,
        value_clip: None,
        value_weight: 0.5,
        entropy_weight: 0.1,
        normalise: Normalise::None,
    };
    let objective = Clipped::new(&spec.heads, terms).unwrap();
    let whole = objective.denominators(batch, None).unwrap();
    let mut gradient = vec![f32::NAN; logits.len()];
    let range = 0..batch.weights.len();
    let rows = Rows { logits, companions: vec![], batch, range };
    let sums = objective.rows(&rows, &whole, Some(&mut gradient)).unwrap();
    (objective.finish(&sums, &whole).unwrap().total, gradient)
}

#[test]
fn the_gradient_is_zero_for_what_is_not_allowed_and_that_of_the_loss_elsewhere() {
    let spec = spec("independent", mlp());
    let rng = Rng::new(1, "logits", 0);
    let rows = 12;
    let mask: Vec<f32> = (0..rows).flat_map(|row| observation(row, 3)).collect();
    let logits: Vec<f32> = (0..8 * rows).map(|i| rng.normal(i)).collect();
    let labels: Vec<f32> = (0..rows as usize)
        .flat_map(|row| {
            let open = open_in(row as u64, 3);
            let gate = (2..5).rev().find(|i| open[*i] == 1).unwrap() - 2;
            [f32::from(open[0]), 0.0, gate as f32, 0.3]
        })
        .collect();
    let likelihoods =
        logits.chunks_exact(8).zip(labels.chunks_exact(4)).zip(mask.chunks_exact(SIZE));
    let likelihoods = likelihoods.map(|((logits, labels), mask)| {
        let mask: Vec<u8> = mask.iter().map(|open| *open as u8).collect();
        // Ratios a little off 1.
        by_hand(&spec, logits, labels, &mask) as f32 - 0.05
    });
    let column = |numbers: &dyn Fn(u64) -> f32| (0..rows).map(numbers).collect::<Vec<f32>>();
    let beside = vec![
        (Extra::Played(Played::Advantage), column(&|i| rng.normal(500 + i))),
        (Extra::Played(Played::Target), column(&|i| rng.normal(600 + i))),
        (Extra::Played(Played::LogLikelihood), likelihoods.collect()),
        (Extra::Played(Played::Value), column(&|_| 0.0)),
        (Extra::Played(Played::Mask), mask.clone()),
    ];
    let weights = vec![1.0; rows as usize];
    let batch = Batch { labels, weights, beside, ..Batch::default() };
    let (_, gradient) = loss(&spec, &batch, &logits);
    let mut forbidden = 0;
    for (row, mask) in mask.chunks_exact(SIZE).enumerate() {
        for (at, open) in mask.iter().enumerate() {
            forbidden += usize::from(*open == 0.0);
            assert!(*open == 1.0 || gradient[8 * row + at] == 0.0);
        }
    }
    assert!(forbidden > 10 && gradient.iter().any(|slope| *slope != 0.0));
    for i in 0..logits.len() {
        let at = |h: f32| {
            let mut logits = logits.clone();
            logits[i] += h;
            loss(&spec, &batch, &logits).0
        };
        let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
        let off = (f64::from(gradient[i]) - slope).abs();
        assert!(off < 2e-5 + 1e-3 * slope.abs(), "{i}: {} {slope}", gradient[i]);
    }
}

#[test]
fn a_batch_of_segments_with_and_without_masks_allows_everything_in_the_others() {
    let spec = spec("independent", mlp());
    let policy = Policy::init(&spec, 3).unwrap();
    let segment = || Segment::new(&spec, 1, 3, 3);
    let masked = Segment { mask: [[1, 0, 1, 1, 0]; 3].concat(), ..segment() };
    let mut segments = [segment(), masked, segment()];
    let discounts = sconce_play::returns::Discounts { gamma: 0.9, lambda: 0.9 };
    segments.iter_mut().for_each(|own| own.estimate(discounts).unwrap());
    let gather = |some: &[Segment]| {
        let zero = policy.zero_state(1).unwrap();
        let gather = sconce_play::segment::Gather::new(&spec, some, &zero, &[]).unwrap();
        let batch = gather.batch(&frames(some)).unwrap().batch;
        batch.column(|extra| extra == Extra::Played(Played::Mask)).map(<[f32]>::to_vec)
    };
    let mut want = vec![1.0; 9 * SIZE];
    want[3 * SIZE..6 * SIZE].copy_from_slice(&[1.0, 0.0, 1.0, 1.0, 0.0].repeat(3));
    assert_eq!(gather(&segments), Some(want));
    assert_eq!(gather(&segments[..1]), None);
}

fn options(more: Value) -> PpoOptions {
    let mut all = json!({
        "environments": 4, "rollout_steps": 10, "sequence_length": 4, "steps": 160, "minibatches": 2,
        "seed": 5,
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn go(spec: &Spec, options: &PpoOptions, out: &Path, updates: usize, resume: bool) -> f64 {
    let (host, stop, left) = (host(), AtomicBool::new(false), Mutex::new(updates));
    let told = |event: Event| {
        if let Event::Update { .. } = event {
            *left.lock().unwrap() -= 1;
            stop.store(*left.lock().unwrap() == 0, Ordering::Relaxed);
        }
    };
    let task = Task { spec, env: "corridor", host: Some(&host), inbox: None, resume };
    let report = run(task, options, out, &told, &stop).unwrap();
    report.mean_return.unwrap_or(0.0)
}

/// The bytes of every array of a state.
fn numbers(out: &Path) -> Vec<(String, Vec<u32>)> {
    let state = checkpoint::load(&out.join("last.safetensors")).unwrap();
    let weights = state.weights.iter().map(|(name, own)| (name.clone(), to_vec(own).unwrap()));
    let all = weights.chain(state.optimiser);
    all.map(|(name, own)| (name, own.iter().map(|v| v.to_bits()).collect())).collect()
}

#[test]
fn runs_with_masks_resume_to_the_same_bits_with_any_number_of_threads_and_learn() {
    for spec in specs() {
        let (whole, parts) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        go(&spec, &options(json!({})), whole.path(), 4, false);
        go(&spec, &options(json!({})), parts.path(), 2, false);
        go(&spec, &options(json!({})), parts.path(), 2, true);
        assert_eq!(numbers(whole.path()), numbers(parts.path()));
        let bits = |threads: usize| {
            let out = TempDir::new().unwrap();
            let given =
                json!({"environments": 48, "rollout_steps": 20, "steps": 1920, "threads": threads});
            go(&spec, &options(given), out.path(), 2, false);
            numbers(out.path())
        };
        let one = bits(1);
        assert_eq!(one, bits(2));
        assert_eq!(one, bits(5));
    }
    let (out, spec) = (TempDir::new().unwrap(), spec("independent", mlp()));
    let long = json!({"environments": 16, "rollout_steps": 64, "steps": 60_000,
        "learning_rate": 1e-2, "entropy_weight": 0.0, "target_return": 6.8});
    let mean = go(&spec, &options(long), out.path(), usize::MAX, false);
    assert!(mean >= 6.8, "{mean} of 7");
}

#[test]
fn a_run_with_masks_stays_close_to_a_teacher() {
    let (out, taught) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for spec in specs() {
        let teacher = out.path().join("teacher.safetensors");
        let policy = Policy::init(&spec, 8).unwrap();
        policy.save(&teacher, Value::Null).unwrap();
        let given = options(json!({"teacher": teacher, "teacher_weight": 0.5}));
        let out = taught.path().join(format!("{:?}", spec.heads.kind));
        let (host, stop) = (host(), AtomicBool::new(false));
        let task =
            Task { spec: &spec, env: "corridor", host: Some(&host), inbox: None, resume: false };
        let report = run(task, &given, &out, &|_| {}, &stop).unwrap();
        let kl = report.history[0].figures["teacher_kl"];
        assert!(kl.is_finite() && kl >= 0.0, "{kl}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}
