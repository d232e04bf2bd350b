//! Policies whose value head reads a backbone of its own.

mod backbones;
#[path = "../../ops/tests/common/mod.rs"]
mod common;

use backbones::{INPUT, configs, with_steps};
use candle_core::Tensor;
use common::{apart, noise, values};
use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::NONE;
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind};
use sconce_nn::{Policy, Spec};
use sconce_ops::weights::{Weight, Weights};
use sconce_realtime::{Format, Scratch};
use sconce_tensor::Result;
use sconce_tensor::rng::Rng;
use sconce_tensor::tape;
use sconce_tensor::tensor::{tensor, to_vec};

const TIME: usize = 9;
/// Labels and logits of a frame: three bits, a class of four, and a value.
const LABELS: usize = 4;
const LOGITS: usize = 8;

/// Linear heads, heads with a hidden layer, autoregressive heads.
const KINDS: [(HeadsKind, usize); 3] =
    [(HeadsKind::Independent, 0), (HeadsKind::Independent, 6), (HeadsKind::Autoregressive, 6)];

fn spec(backbone: &Backbone, critic: &Backbone, (kind, hidden_size): (HeadsKind, usize)) -> Spec {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size };
    let fire = head("fire", HeadKind::Bernoulli(3));
    let parts =
        vec![fire, head("move", HeadKind::Categorical(4)), head("value", HeadKind::Value(1))];
    Spec {
        embedding: Embedding::vector(INPUT),
        backbone: backbone.clone(),
        heads: Heads { kind, parts, stream_size: 7, prior: false },
        critic: Some(critic.clone()),
    }
}

fn of(name: &str) -> Backbone {
    configs().into_iter().find(|config| config.name() == name).unwrap()
}

/// A policy without weights of exactly 0.
fn policy(spec: &Spec) -> Policy {
    let init = Policy::init(spec, 3).unwrap();
    let moved = |(name, weight): (&String, &Weight)| {
        let rng = Rng::new(5, name, 0);
        let numbers = to_vec(weight).unwrap().into_iter().enumerate();
        let numbers = numbers.map(|(i, v)| v + 0.05 * rng.normal(i as u64)).collect();
        (name.clone(), Weight::from(tensor(numbers, weight.dims()).unwrap()))
    };
    let weights: Weights = init.weights().iter().map(moved).collect();
    Policy::from_weights(spec, weights).unwrap()
}

fn frames(batch: usize) -> Frames {
    let continuous = values(&noise(&[batch * TIME * INPUT], 2));
    Frames {
        batch,
        time: TIME,
        continuous,
        ids: vec![],
        previous: vec![NONE; batch * TIME * LABELS],
    }
}

fn labels(rows: usize) -> Vec<f32> {
    (0..rows * LABELS).map(|i| ((i / 3) % 2) as f32).collect()
}

fn assert_near(got: &[f32], want: &[f32], about: &str) {
    assert_eq!(got.len(), want.len(), "{about}");
    let largest = want.iter().fold(1.0f32, |most, v| most.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= 1e-5 * largest, "{about}[{i}]: got {got}, want {want}");
    }
}

/// Logits of each frame of one game, stepped by the policy's own ops, and the state after the last frame.
fn stepped(policy: &Policy, frames: &Frames, labels: &[f32]) -> (Vec<f32>, State) {
    let (mut logits, mut state) = (vec![], policy.zero_state(1).unwrap());
    for t in 0..TIME {
        let frame = frames.part(&(0..1), &(t..t + 1));
        let rngs = [Rng::new(1, "act", t as u64)];
        let given = Some(&labels[t * LABELS..][..LABELS]);
        let draw = Draw { sampling: &Sampling::default(), rngs: &rngs, given, mask: None };
        let (decision, next) = policy.act(&frame, &state, draw, &Context::default()).unwrap();
        logits.extend(decision.logits);
        state = next;
    }
    (logits, state)
}

/// The same by the packed policy.
fn planned(policy: &Policy, frames: &Frames, labels: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let plan = Plan::of(policy, Format::F32).unwrap().expect("a plan");
    let (mut logits, mut state) = (vec![], plan.zero_state().to_vec());
    let (mut old, mut scratch, mut decision) = (state.clone(), Scratch::default(), plan.blank());
    for t in 0..TIME {
        let continuous = &frames.continuous[t * INPUT..][..INPUT];
        let frame = Frame { continuous, ids: &[], previous: &frames.previous[..LABELS] };
        let (sampling, rng) = (Sampling::default(), Rng::new(1, "act", t as u64));
        let mut games = [Game::new(frame, &mut state, &sampling, rng, &mut decision)];
        games[0].given = Some(&labels[t * LABELS..][..LABELS]);
        plan.step(&mut games, &mut scratch);
        let [game] = games;
        game.outcome.unwrap();
        logits.extend(&decision.logits);
        plan.catch_up(&mut old, &state, 1);
        assert_eq!(old, state, "what a step changed");
    }
    (logits, state)
}

#[test]
fn a_pass_its_steps_and_its_plan_agree() {
    let first = of("gru");
    for critic in with_steps() {
        for kind in KINDS {
            let spec = spec(&first, &critic, kind);
            let (policy, frames, labels) = (policy(&spec), frames(1), labels(TIME));
            let zero = policy.zero_state(1).unwrap();
            let context = Context::default();
            let whole = policy.forward(&frames, Some(&labels), &zero, &context).unwrap();
            let about = format!("{} {kind:?}", critic.name());
            let want = values(&whole.0);
            assert_eq!(want.len(), TIME * LOGITS);
            let (logits, state) = stepped(&policy, &frames, &labels);
            // RetNet normalises tiny outputs, which amplifies rounding errors.
            if critic.name() != "retnet" {
                assert_near(&logits, &want, &format!("steps of {about}"));
            }
            let (packed, after) = planned(&policy, &frames, &labels);
            assert_near(&packed, &logits, &format!("plan of {about}"));
            assert_near(&after, &state.to_vec().unwrap(), &format!("state of {about}"));
            let last = &labels[(TIME - 1) * LABELS..];
            let last = policy.forward_last(&frames, Some(last), &zero, &context).unwrap().0;
            assert_near(&values(&last), &want[(TIME - 1) * LOGITS..], &about);
        }
    }
}

#[test]
fn the_other_heads_equal_those_of_a_policy_without_a_value() {
    for kind in KINDS {
        let spec = spec(&of("lstm"), &of("mlp"), kind);
        let policy = policy(&spec);
        let mut plain = Spec { critic: None, ..spec };
        plain.heads.parts.pop();
        let own = policy.weights().iter().filter(|(name, _)| !name.starts_with("critic."));
        let own: Weights = own.map(|(name, weight)| (name.clone(), weight.clone())).collect();
        assert!(own.keys().all(|name| !name.contains("value")));
        let plain = Policy::from_weights(&plain, own).unwrap();
        let (frames, labels) = (frames(2), labels(2 * TIME));
        let forward = |policy: &Policy| {
            let zero = policy.zero_state(2).unwrap();
            policy.forward(&frames, Some(&labels), &zero, &Context::default()).unwrap().0
        };
        let logits = forward(&policy).narrow(1, 0, LOGITS - 1).unwrap();
        assert_eq!(values(&logits), values(&forward(&plain)), "{kind:?}");
    }
}

/// The largest gradient of the first backbone and the heads, and of the critic.
fn gradients(policy: &Policy, context: &Context, columns: std::ops::Range<usize>) -> [f32; 2] {
    let _tape = tape::record();
    let zero = policy.zero_state(2).unwrap();
    let labels = labels(2 * TIME);
    let (logits, _) = policy.forward(&frames(2), Some(&labels), &zero, context).unwrap();
    let mut weights = [0.0f32; LOGITS];
    weights[columns].fill(1.0);
    let gradient = Tensor::from_vec(weights.repeat(2 * TIME), logits.shape(), logits.device());
    let store = tape::backward(&logits, gradient.unwrap()).unwrap();
    let mut largest = [0.0f32; 2];
    for (name, weight) in policy.weights() {
        weight.gather(&store).unwrap();
        let own = &mut largest[usize::from(name.starts_with("critic."))];
        weight.gradient(|numbers| *own = numbers.iter().fold(*own, |most, v| most.max(v.abs())));
        weight.forget();
    }
    largest
}

#[test]
fn gradients_of_choices_and_of_the_value_reach_their_own_trunk_only() {
    for kind in KINDS {
        for context in [Context::training(1, 1), Context::training(1, 1).recomputing(1)] {
            let spec = spec(&of("gru"), &of("lstm"), kind);
            let policy = policy(&spec).trainable(None).unwrap();
            let [first, critic] = gradients(&policy, &context, 0..LOGITS - 1);
            assert!(first > 0.0 && critic == 0.0, "{kind:?}: {first} {critic}");
            let [first, critic] = gradients(&policy, &context, LOGITS - 1..LOGITS);
            assert!(first == 0.0 && critic > 0.0, "{kind:?}: {first} {critic}");
        }
    }
}

#[test]
fn both_trunks_follow_the_options_of_a_pass_and_draw_dropout_of_their_own() {
    let gru = of("gru");
    let spec = spec(&gru, &gru, KINDS[1]);
    let mut weights = policy(&spec).weights().clone();
    let of_first = |name: &str| name.strip_prefix("backbone.").map(|name| name.to_owned());
    let copies: Vec<_> = weights
        .iter()
        .filter_map(|(name, w)| Some((format!("critic.backbone.{}", of_first(name)?), w.clone())))
        .collect();
    weights.extend(copies);
    let policy = Policy::from_weights(&spec, weights).unwrap();
    let (frames, zero) = (frames(2), policy.zero_state(2).unwrap());
    let trunks = |context: Context| {
        let context = context.tapping(["trunk".to_owned(), "critic.trunk".to_owned()]);
        let (logits, _) = policy.forward(&frames, None, &zero, &context).unwrap();
        let taps = context.taps().unwrap();
        (values(&logits), values(&taps["trunk"]), values(&taps["critic.trunk"]))
    };
    let mask = (0..2 * TIME).map(|i| i % 4 != 1).collect();
    for context in [Context::default(), Context::masked(Some(mask))] {
        let (_, first, critic) = trunks(context);
        assert_eq!(first, critic);
    }
    let (whole, first, critic) = trunks(Context::training(1, 1));
    assert_ne!(first, critic);
    // Chunks of a window give the same logits as the whole window.
    let (mut state, mut rows) = (zero.clone(), vec![vec![]; 2]);
    for chunk in [0..4, 4..TIME] {
        let context = Context::training(1, 1).chunk(TIME, chunk.start, chunk.len());
        let part = frames.part(&(0..2), &chunk);
        let (logits, next) = policy.forward(&part, None, &state, &context).unwrap();
        let logits = values(&logits);
        let games = rows.iter_mut().zip(logits.chunks_exact(logits.len() / 2));
        games.for_each(|(row, own)| row.extend_from_slice(own));
        state = next;
    }
    assert_near(&rows.concat(), &whole, "chunks");
}

#[test]
fn a_checkpoint_keeps_a_critic_and_counts_its_weights() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let spec = spec(&of("gru"), &of("mlp"), KINDS[0]);
    let policy = policy(&spec);
    policy.save(&path, serde_json::Value::Null)?;
    let loaded = Policy::load(&path)?;
    assert_eq!(loaded.spec(), &spec);
    let logits = |policy: &Policy| {
        let zero = policy.zero_state(2)?;
        Ok::<_, sconce_tensor::Error>(
            policy.forward(&frames(2), None, &zero, &Context::default())?.0,
        )
    };
    assert_eq!(apart(&logits(&policy)?, &logits(&loaded)?), 0.0);
    assert_eq!(policy.weights()["critic.value.weight"].dims(), [1, 9]);
    assert_eq!(policy.weights()["critic.value.bias"].dims(), [1]);
    assert_eq!(policy.weights()["heads.logits.weight"].dims(), [LOGITS - 1, 13]);
    let of_critic = policy.weights().iter().filter(|(name, _)| name.starts_with("critic."));
    let of_critic: usize = of_critic.map(|(_, weight)| weight.elem_count()).sum();
    let shared = Policy::init(&Spec { critic: None, ..spec }, 1)?;
    // Without a critic the value is a row of the linear heads.
    assert_eq!(policy.num_weights(), shared.num_weights() - 14 + of_critic);
    assert_eq!(policy.state_size()?, shared.state_size()?);
    Ok(())
}

#[test]
fn a_state_without_the_parts_of_the_critic_is_an_error() {
    let policy = policy(&spec(&of("gru"), &of("lstm"), KINDS[0]));
    let zero = policy.zero_state(2).unwrap();
    for parts in [0, 2] {
        let short = State(zero.0[..parts].to_vec());
        assert!(policy.forward(&frames(2), None, &short, &Context::default()).is_err(), "{parts}");
    }
}

#[test]
fn games_picked_from_a_batch_continue_as_before() {
    let policy = policy(&spec(&of("gru"), &of("sliding_window"), KINDS[1]));
    let zero = policy.zero_state(3).unwrap();
    let context = Context::default();
    let (_, state) = policy.forward(&frames(3), None, &zero, &context).unwrap();
    let (logits, _) = policy.forward_last(&frames(3), None, &state, &context).unwrap();
    let order = [2, 0, 2];
    let picked = state.picked(&order).unwrap();
    let games = frames(3);
    let row = |game: u32| games.part(&(game as usize..game as usize + 1), &(0..TIME)).continuous;
    let games = Frames { continuous: order.iter().copied().flat_map(row).collect(), ..games };
    let (again, _) = policy.forward_last(&games, None, &picked, &context).unwrap();
    let want: Vec<Tensor> =
        order.iter().map(|&game| logits.narrow(0, game as usize, 1).unwrap()).collect();
    let want = Tensor::cat(&want, 0).unwrap();
    assert_near(&values(&again), &values(&want), "picked games");
}
