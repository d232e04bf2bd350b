//! Action masks: what is not allowed is never chosen, and likelihoods are those among the allowed actions.

use sconce_nn::Policy;
use sconce_nn::backbone::Context;
use sconce_nn::heads::Decision;
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, FORBIDDEN, Sampling};
use sconce_nn::spec::{Heads, NONE, Spec};
use sconce_realtime::{Format, Scratch};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Error, Result};
use serde_json::{Value, json};

/// Rows of a decision.
const ROWS: usize = 7;
/// Entries of a mask: three buttons and four classes. The numbers of `force` and the value have none.
const SIZE: usize = 7;

fn policy(kind: &str, backbone: Value) -> Policy {
    let hidden = if kind == "independent" { 4 } else { 0 };
    let head = |name: &str, kind: Value| json!({"name": name, "kind": kind, "hidden_size": hidden});
    let force = json!({"gaussian": {"size": 2, "low": -1.0, "high": 1.0}});
    let spec: Spec = serde_json::from_value(json!({
        "embedding": {"vector": 3},
        "backbone": backbone,
        "heads": {"kind": kind, "stream_size": 8, "prior": false, "parts": [
            head("keys", json!({"bernoulli": 3})),
            head("force", force),
            head("move", json!({"categorical": 4})),
            head("value", json!({"value": 1})),
        ]},
    }))
    .unwrap();
    // Weights of encodings begin at zero: random ones make later heads depend on earlier choices.
    let init = Policy::init(&spec, 3).unwrap();
    let rng = Rng::new(5, "weights", 0);
    let weight = |(i, (name, weight)): (usize, (&String, &sconce_ops::weights::Weight))| {
        let numbers = (0..weight.elem_count() as u64).map(|k| rng.at(i as u64).normal(k));
        let tensor = sconce_tensor::tensor::tensor(numbers.collect(), weight.dims()).unwrap();
        (name.clone(), tensor.into())
    };
    let weights = init.weights().iter().enumerate().map(weight).collect();
    Policy::from_weights(&spec, weights).unwrap()
}

fn policies() -> Vec<Policy> {
    let mlp = json!({"mlp": {"hidden_sizes": [8], "layer_norm": false, "residual": false,
        "dropout": 0.0, "input_dropout": 0.0}});
    let gru = json!({"gru": {"hidden_size": 8, "num_layers": 1, "layer_norm": false,
        "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}});
    let kinds = ["independent", "autoregressive"];
    kinds.iter().flat_map(|kind| [policy(kind, mlp.clone()), policy(kind, gru.clone())]).collect()
}

fn frames(step: u64) -> Frames {
    let rng = Rng::new(9, "frames", step);
    Frames {
        batch: ROWS,
        time: 1,
        continuous: (0..3 * ROWS as u64).map(|i| rng.normal(i)).collect(),
        ids: vec![],
        previous: vec![NONE; 6 * ROWS],
    }
}

/// A mask of each row, with at least one class.
fn masks(step: u64) -> Vec<u8> {
    let rng = Rng::new(4, "masks", step);
    let row = |row: u64| {
        let mut mask: Vec<u8> =
            (0..SIZE as u64).map(|i| u8::from(rng.uniform(10 * row + i) < 0.5)).collect();
        mask[3 + (row as usize + step as usize) % 4] = 1;
        mask
    };
    (0..ROWS as u64).flat_map(row).collect()
}

fn rngs(step: u64) -> Vec<Rng> {
    (0..ROWS as u64).map(|row| Rng::new(row, "act", step)).collect()
}

/// The logits and labels of a row's bits and classes, and its mask.
struct Row<'a> {
    logits: &'a [f32],
    labels: &'a [f32],
    mask: &'a [u8],
}

fn rows<'a>(decision: &'a Decision, masks: &'a [u8]) -> impl Iterator<Item = Row<'a>> {
    let rows = decision.logits.chunks_exact(12).zip(decision.choices.chunks_exact(6));
    rows.zip(masks.chunks_exact(SIZE)).map(|((logits, labels), mask)| Row { logits, labels, mask })
}

/// Log-likelihood of a row's bits and class among the allowed ones, computed in f64 as PyTorch does for masked logits.
fn by_hand(plain: &[f32], row: &Row<'_>) -> f64 {
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let bit = |i: usize| match (row.mask[i], row.labels[i]) {
        (0, _) => 0.0,
        (_, 1.0) => -softplus(-f64::from(plain[i])),
        _ => -softplus(plain[i].into()),
    };
    let own = &plain[7..11];
    let allowed = own.iter().zip(&row.mask[3..]).filter(|(_, allowed)| **allowed == 1);
    let sum: f64 = allowed.map(|(x, _)| f64::from(*x).exp()).sum();
    (0..3).map(bit).sum::<f64>() + f64::from(own[row.labels[5] as usize]) - sum.ln()
}

fn likelihood(heads: &Heads, row: &Row<'_>) -> f64 {
    let parts = heads.iter().filter(|part| part.head.kind.mask_size() > 0);
    let of = |part: sconce_nn::spec::Part<'_>| {
        let kind = part.head.kind;
        -kind.nll(
            &row.logits[part.logits..][..kind.logits()],
            &row.labels[part.labels..][..kind.labels()],
        )
    };
    parts.map(of).sum()
}

#[test]
fn an_action_that_is_not_allowed_is_never_chosen_however_it_is_drawn() {
    let plain = Sampling::default();
    let greedy = Sampling { deterministic: true, press_threshold: 0.0, ..plain.clone() };
    let all = [
        plain.clone(),
        Sampling { temperature: 1e3, ..plain.clone() },
        Sampling { temperature: 1e-3, ..plain.clone() },
        Sampling { deterministic_buttons: true, press_threshold: 0.0, ..plain.clone() },
        greedy,
    ];
    for policy in policies() {
        for sampling in &all {
            let mut seen = [0; SIZE];
            for step in 0..200 {
                let (masks, rngs) = (masks(step), rngs(step));
                let draw = Draw { sampling, rngs: &rngs, given: None, mask: Some(&masks) };
                let state = policy.zero_state(ROWS).unwrap();
                let (decision, _) =
                    policy.act(&frames(step), &state, draw, &Context::default()).unwrap();
                for row in rows(&decision, &masks) {
                    let class = row.labels[5] as usize;
                    assert_eq!(row.mask[3 + class], 1, "{sampling:?}");
                    seen[3 + class] += 1;
                    for ((bit, allowed), seen) in
                        row.labels.iter().zip(row.mask).zip(&mut seen).take(3)
                    {
                        assert!(*allowed == 1 || *bit == 0.0, "{sampling:?}");
                        *seen += *bit as usize;
                    }
                }
            }
            // Each allowed action is chosen now and then.
            let is_random = *sampling == all[0] || *sampling == all[1];
            assert!(!is_random || seen.iter().all(|count| *count > 0), "{seen:?}");
        }
    }
}

#[test]
fn likelihoods_are_those_among_the_allowed_actions_also_after_other_choices() {
    for policy in policies() {
        let (heads, sampling) = (&policy.spec().heads, Sampling::default());
        let mut state = policy.zero_state(ROWS).unwrap();
        for step in 0..20 {
            let (masks, rngs, frames) = (masks(step), rngs(step), frames(step));
            let draw = Draw { sampling: &sampling, rngs: &rngs, given: None, mask: Some(&masks) };
            let (decision, after) = policy.act(&frames, &state, draw, &Context::default()).unwrap();
            // The sequence form without masks, given the choices.
            let labels = Some(&decision.choices[..]);
            let (plain, _) = policy.forward(&frames, labels, &state, &Context::default()).unwrap();
            let plain = to_vec(&plain).unwrap();
            for (row, plain) in rows(&decision, &masks).zip(plain.chunks_exact(12)) {
                let (got, want) = (likelihood(heads, &row), by_hand(plain, &row));
                assert!((got - want).abs() < 1e-5, "{got} and {want}");
                let marked =
                    |(i, at): (usize, usize)| (row.mask[i] == 0) == (row.logits[at] == FORBIDDEN);
                assert!([0, 1, 2, 7, 8, 9, 10].into_iter().enumerate().all(marked));
                // Numbers and the value are as they were.
                for at in [3, 4, 5, 6, 11] {
                    assert!((row.logits[at] - plain[at]).abs() < 1e-5);
                }
            }
            state = after;
        }
    }
}

fn most(most: f32, of: &f32) -> f32 {
    most.max(of.abs())
}

#[test]
fn a_plan_and_given_labels_have_the_masked_decisions_of_the_policy() -> Result<()> {
    for policy in policies() {
        let plan = Plan::of(&policy, Format::F32)?.expect("a plan");
        let (sampling, mut scratch) = (Sampling::default(), Scratch::default());
        for step in 0..50 {
            let (masks, rngs, frames) = (masks(step), rngs(step), frames(step));
            let draw = Draw { sampling: &sampling, rngs: &rngs, given: None, mask: Some(&masks) };
            let state = policy.zero_state(ROWS)?;
            let (want, _) = policy.act(&frames, &state, draw, &Context::default())?;
            let given = Draw { given: Some(&want.choices), ..draw };
            assert_eq!(policy.act(&frames, &state, given, &Context::default())?.0, want);
            let mut states = vec![plan.zero_state().to_vec(); ROWS];
            let mut decisions = vec![plan.blank(); ROWS];
            let places = states.iter_mut().zip(&mut decisions).enumerate();
            let mut games: Vec<Game<'_>> = places
                .map(|(row, (state, decision))| {
                    let frame = Frame {
                        continuous: &frames.continuous[3 * row..3 * row + 3],
                        ids: &[],
                        previous: &frames.previous[6 * row..6 * row + 6],
                    };
                    let game = Game::new(frame, state, &sampling, rngs[row], decision);
                    Game { mask: Some(&masks[SIZE * row..SIZE * (row + 1)]), ..game }
                })
                .collect();
            plan.step(&mut games, &mut scratch);
            games.into_iter().try_for_each(|game| game.outcome)?;
            for (row, got) in decisions.iter().enumerate() {
                // The tolerance is relative to the largest logit, as in the other tests of plans.
                let largest = want.logits[12 * row..].iter().take(12).fold(1.0, most);
                let close = |(a, b): (&f32, &f32)| {
                    assert!((a - b).abs() < 1e-5 * largest, "{a} and {b}");
                };
                got.choices.iter().zip(&want.choices[6 * row..]).for_each(close);
                got.logits.iter().zip(&want.logits[12 * row..]).for_each(close);
            }
        }
    }
    Ok(())
}

#[test]
fn a_mask_of_another_size_or_without_a_class_and_a_forbidden_label_are_errors_that_name_it() {
    for policy in policies() {
        let (sampling, rngs, frames) = (Sampling::default(), rngs(0), frames(0));
        let plan = Plan::of(&policy, Format::F32).unwrap().expect("a plan");
        let said = |mask: &[u8], given: Option<&[f32]>| {
            let draw = Draw { sampling: &sampling, rngs: &rngs, given, mask: Some(mask) };
            let state = policy.zero_state(ROWS).unwrap();
            let error = policy.act(&frames, &state, draw, &Context::default()).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            // The last row alone, by the plan.
            let (mut state, mut decision) = (plan.zero_state().to_vec(), plan.blank());
            let frame = Frame {
                continuous: &frames.continuous[..3],
                ids: &[],
                previous: &frames.previous[..6],
            };
            let game = Game::new(frame, &mut state, &sampling, rngs[0], &mut decision);
            let mask = &mask[mask.len().saturating_sub(SIZE)..];
            let game = Game { mask: Some(mask), given: given.map(|all| &all[36..]), ..game };
            let mut games = [game];
            plan.step(&mut games, &mut Scratch::default());
            let [game] = games;
            let alone = game.outcome.map_err(|error| error.to_string());
            (error.to_string(), alone.err().unwrap_or_default())
        };
        let (all, none) = said(&[1; 6], None);
        assert_eq!(all, "entries of a mask: expected 49, got 6");
        assert_eq!(none, "entries of a mask: expected 7, got 6");
        let mut nothing = vec![1; SIZE * ROWS];
        nothing[SIZE * ROWS - 4..].fill(0);
        let wanted = "mask of move: expected a class that is allowed, got none";
        assert_eq!(said(&nothing, None), (wanted.into(), wanted.into()));
        let mut one = vec![1; SIZE * ROWS];
        (one[SIZE * ROWS - 1], one[SIZE * ROWS - 6]) = (0, 0);
        let mut labels = [0.0; 6 * ROWS];
        labels[6 * ROWS - 1] = 3.0;
        let wanted = "move: expected an action that the mask allows, got another";
        assert_eq!(said(&one, Some(&labels)), (wanted.into(), wanted.into()));
        (labels[6 * ROWS - 1], labels[6 * ROWS - 5]) = (0.0, 1.0);
        let wanted = "keys: expected an action that the mask allows, got another";
        assert_eq!(said(&one, Some(&labels)), (wanted.into(), wanted.into()));
    }
}
