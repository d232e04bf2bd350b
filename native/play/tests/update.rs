//! Whole updates, and the advantages that they learn from, beside those of Stable-Baselines3.

#[path = "../../train/tests/support/mod.rs"]
mod support;

use sconce_nn::Policy;
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, Spec};
use sconce_ops::weights::{Weight, Weights};
use sconce_play::learner::{Learner, Updated};
use sconce_play::options::PpoOptions;
use sconce_play::returns::{Discounts, Returns, Steps, advantages};
use sconce_play::segment::{Segment, Sequence};
use sconce_tensor::tensor::{tensor, to_vec};
use serde_json::json;
use support::Golden;

const CASES: [&str; 4] =
    ["play_update", "play_update_unclipped", "play_update_stopped", "play_update_halves"];

/// Numbers of an observation.
const SIZE: usize = 4;

/// Names of the layers: in this crate, and in the files.
const LAYERS: [(&str, &str); 6] = [
    ("backbone.layers.0.dense", "mlp_extractor.policy_net.0"),
    ("backbone.layers.1.dense", "mlp_extractor.policy_net.2"),
    ("heads.logits", "action_net"),
    ("critic.backbone.layers.0.dense", "mlp_extractor.value_net.0"),
    ("critic.backbone.layers.1.dense", "mlp_extractor.value_net.2"),
    ("critic.value", "value_net"),
];

fn size(golden: &Golden, name: &str) -> usize {
    golden.config[name].as_u64().unwrap() as usize
}

fn widened(all: impl IntoIterator<Item = f32>) -> impl Iterator<Item = f64> {
    all.into_iter().map(f64::from)
}

fn spec(golden: &Golden) -> Spec {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
    let action = head("action", HeadKind::Categorical(size(golden, "actions")));
    let parts = vec![action, head("value", HeadKind::Value(1))];
    let hidden = size(golden, "hidden");
    let backbone: Backbone = serde_json::from_value(json!({"mlp": {
        "hidden_sizes": [hidden, hidden], "layer_norm": false, "residual": false,
        "dropout": 0.0, "input_dropout": 0.0, "activation": "tanh",
    }}))
    .unwrap();
    Spec {
        embedding: Embedding::vector(SIZE),
        critic: Some(backbone.clone()),
        backbone,
        heads: Heads { kind: HeadsKind::Independent, parts, stream_size: 8, prior: false },
    }
}

/// Names of all weights: in this crate, and in the files.
fn names() -> impl Iterator<Item = (String, String)> {
    let of = |(own, theirs): (&str, &str)| {
        ["weight", "bias"].map(|kind| (format!("{own}.{kind}"), format!("{theirs}.{kind}")))
    };
    LAYERS.into_iter().flat_map(of)
}

/// The policy before the update.
fn policy(golden: &Golden) -> Policy {
    let spec = spec(golden);
    let init = Policy::init(&spec, 0).unwrap();
    assert_eq!(init.weights().len(), names().count(), "{:?}", init.weights().keys());
    let weight = |(own, theirs): (String, String)| {
        let numbers = golden.f32(&format!("param.{theirs}"));
        let like = init.weights().get(&own).unwrap_or_else(|| panic!("{own}"));
        (own, Weight::from(tensor(numbers, like.dims()).unwrap()))
    };
    let weights: Weights = names().map(weight).collect();
    Policy::from_weights(&spec, weights).unwrap()
}

fn options(golden: &Golden) -> PpoOptions {
    let given = &golden.config;
    let options: PpoOptions = serde_json::from_value(json!({
        "environments": given["envs"],
        "rollout_steps": given["steps"],
        "discount": given["gamma"],
        "lambda": given["lam"],
        "epochs": given["epochs"],
        "minibatches": given["minibatches"],
        "clip": given["clip_range"],
        // The value loss here is half the square, and that of Stable-Baselines3 is the square.
        "value_weight": 2.0 * given["vf_coef"].as_f64().unwrap(),
        "entropy_weight": given["ent_coef"],
        "target_kl": given["target_kl"],
        "learning_rate": given["learning_rate"],
        "max_grad_norm": given["max_grad_norm"],
    }))
    .unwrap();
    options.validate().unwrap();
    options
}

/// The rollout of a file, without advantages.
fn segment(golden: &Golden) -> Segment {
    let column = |name: &str| golden.f32(&format!("input.{name}"));
    let flags =
        |name: &str| golden.labels(&format!("input.{name}")).iter().map(|v| *v as u8).collect();
    let steps = size(golden, "steps");
    Segment {
        continuous: column("observation"),
        labels: golden.labels("input.action"),
        log_likelihoods: column("log_prob"),
        values: column("value"),
        next_values: column("next_value"),
        rewards: column("reward"),
        terminated: flags("terminated"),
        truncated: flags("truncated"),
        ..Segment::new(&spec(golden), size(golden, "envs"), steps, steps)
    }
}

/// The order of each pass. The files number steps by environment, then by time.
fn orders(golden: &Golden) -> Vec<Vec<Sequence>> {
    let (rows, steps) = (size(golden, "envs"), size(golden, "steps"));
    let sequence = |i: &usize| Sequence { segment: 0, row: i / steps, start: i % steps, len: 1 };
    let order = |pass: &[usize]| pass.iter().map(sequence).collect();
    golden.indices("input.order").chunks(rows * steps).map(order).collect()
}

/// The learner after the update, and its report.
fn updated(golden: &Golden) -> (Learner, Updated) {
    let options = options(golden);
    let mut segment = segment(golden);
    segment.estimate(options.discounts()).unwrap();
    let mut learner = Learner::new(&policy(golden), &options, None).unwrap();
    let orders = orders(golden).into_iter();
    let report = learner.learn_in_order(&[segment], orders, 0, 0.0).unwrap();
    (learner, report)
}

#[test]
fn an_update_moves_every_weight_as_that_of_stable_baselines3_does() {
    for case in CASES {
        let golden = Golden::open(case);
        let (learner, _) = updated(&golden);
        let after = learner.stepper().policy().weights();
        for (own, theirs) in names() {
            let output = format!("output.{theirs}");
            golden.check(&output, widened(to_vec(&after[&own]).unwrap()));
            let before = golden.f32(&format!("param.{theirs}"));
            let moved = before.iter().zip(golden.f32(&output)).all(|(v, w)| *v != w);
            assert!(moved, "{case}: {theirs}");
        }
    }
}

#[test]
fn an_update_stops_at_the_batch_at_which_that_of_stable_baselines3_stops() {
    for case in CASES {
        let golden = Golden::open(case);
        let (_, report) = updated(&golden);
        assert_eq!(report.batches, size(&golden, "batches"), "{case}");
        assert_eq!(report.stopped, case == "play_update_stopped", "{case}");
    }
}

#[test]
fn the_figures_of_an_update_are_those_of_stable_baselines3() {
    for case in CASES.into_iter().filter(|case| *case != "play_update_stopped") {
        let golden = Golden::open(case);
        let (_, report) = updated(&golden);
        for name in ["policy_loss", "entropy", "clip_fraction"] {
            golden.check(&format!("output.{name}"), [report.figures.named[name]]);
        }
        golden.check("output.value_loss", [2.0 * report.figures.named["value_loss"]]);
        golden.check("output.explained_variance", [report.explained_variance]);
        golden.check("output.grad_norm", [report.grad_norm]);
    }
}

fn check_returns(golden: &Golden, returns: Returns) {
    golden.check("output.advantage", widened(returns.advantages));
    golden.check("output.return", widened(returns.targets));
}

#[test]
fn advantages_and_targets_are_those_of_stable_baselines3() {
    for case in CASES {
        let golden = Golden::open(case);
        let mut segment = segment(&golden);
        segment.estimate(options(&golden).discounts()).unwrap();
        check_returns(&golden, segment.returns);
    }
}

/// Stable-Baselines3 has no flag for a truncation: it adds the discounted value of the last state to the reward, and
/// sees a termination.
#[test]
fn a_truncation_is_a_termination_whose_reward_contains_the_value_after_it() {
    for case in CASES {
        let golden = Golden::open(case);
        let Segment { rows, values, next_values, terminated, truncated, .. } = segment(&golden);
        let ended: Vec<u8> = terminated.iter().zip(&truncated).map(|(a, b)| a | b).collect();
        let steps = Steps {
            rows,
            rewards: &golden.f32("input.reward_with_value"),
            values: &values,
            next_values: &next_values,
            terminated: &ended,
            truncated: &vec![0; ended.len()],
        };
        let Discounts { gamma, lambda } = options(&golden).discounts();
        check_returns(&golden, advantages(steps, Discounts { gamma, lambda }).unwrap());
        let cut = terminated.iter().zip(&truncated).filter(|(a, b)| **a == 0 && **b != 0).count();
        assert!(cut > 0, "{case} has no truncation");
    }
}
