//! Orthogonal initial weights, as PPO uses them.

mod backbones;
#[path = "../../ops/tests/common/mod.rs"]
mod common;

use backbones::{INPUT, configs};
use common::{noise, values};
use sconce_nn::backbone::Context;
use sconce_nn::heads::NONE;
use sconce_nn::policy::Frames;
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, Melee};
use sconce_nn::{Policy, Spec};
use serde_json::json;

const TRUNK: f32 = std::f32::consts::SQRT_2;
const CHOICE: f32 = 0.01;

fn spec(backbone: &Backbone, kind: HeadsKind, hidden_size: usize, critic: bool) -> Spec {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size };
    let fire = head("fire", HeadKind::Bernoulli(3));
    let parts =
        vec![fire, head("move", HeadKind::Categorical(4)), head("value", HeadKind::Value(1))];
    Spec {
        embedding: Embedding::vector(INPUT),
        backbone: backbone.clone(),
        heads: Heads { kind, parts, stream_size: 9, prior: false },
        critic: critic.then(|| backbone.clone()),
    }
}

fn of(name: &str) -> Backbone {
    configs().into_iter().find(|config| config.name() == name).unwrap()
}

/// Rows `rows` of a weight have orthogonal rows, or columns if there are fewer, of length `gain`.
fn assert_orthogonal(policy: &Policy, name: &str, rows: std::ops::Range<usize>, gain: f32) {
    let weight = &policy.weights()[name];
    let (columns, numbers) = (weight.dims()[1], values(weight));
    let numbers = &numbers[rows.start * columns..rows.end * columns];
    let is_wide = rows.len() <= columns;
    let (few, many) = (rows.len().min(columns), rows.len().max(columns));
    let at = |i: usize, k: usize| numbers[if is_wide { i * columns + k } else { k * columns + i }];
    for (i, j) in (0..few).flat_map(|i| (0..=i).map(move |j| (i, j))) {
        let got: f32 = (0..many).map(|k| at(i, k) * at(j, k)).sum();
        let want = if i == j { gain * gain } else { 0.0 };
        assert!((got - want).abs() < 1e-5, "{name} {rows:?}, {i} {j}: got {got}, want {want}");
    }
}

fn assert_zero(policy: &Policy, name: &str) {
    assert!(values(&policy.weights()[name]).iter().all(|v| *v == 0.0), "{name}");
}

#[test]
fn layers_are_orthogonal_with_the_gain_of_their_place() {
    let init = |kind, hidden_size, critic| {
        Policy::init_orthogonal(&spec(&of("mlp"), kind, hidden_size, critic), 7).unwrap()
    };
    let linear = init(HeadsKind::Independent, 0, false);
    assert_orthogonal(&linear, "backbone.layers.0.dense.weight", 0..17, TRUNK);
    assert_orthogonal(&linear, "backbone.layers.1.dense.weight", 0..9, TRUNK);
    assert_zero(&linear, "backbone.layers.0.dense.bias");
    // The rows of each head by themselves.
    for (rows, gain) in [(0..3, CHOICE), (3..7, CHOICE), (7..8, 1.0)] {
        assert_orthogonal(&linear, "heads.logits.weight", rows, gain);
    }
    assert_zero(&linear, "heads.logits.bias");

    let hidden = init(HeadsKind::Independent, 6, false);
    for (name, rows, gain) in [
        ("fire_hidden", 6, TRUNK),
        ("value_hidden", 6, TRUNK),
        ("fire_logits", 3, CHOICE),
        ("move_logits", 4, CHOICE),
        ("value_logits", 1, 1.0),
    ] {
        assert_orthogonal(&hidden, &format!("heads.{name}.weight"), 0..rows, gain);
        assert_zero(&hidden, &format!("heads.{name}.bias"));
    }

    let chain = init(HeadsKind::Autoregressive, 6, true);
    for (name, rows, gain) in [
        ("heads.stream_in", 9, TRUNK),
        ("heads.decode.fire", 3, CHOICE),
        ("critic.value", 1, 1.0),
        ("critic.backbone.layers.0.dense", 17, TRUNK),
    ] {
        assert_orthogonal(&chain, &format!("{name}.weight"), 0..rows, gain);
    }
    // The encoders of choices start as zero, so that the first choices are independent.
    assert_zero(&chain, "heads.encode.fire.weight");
}

#[test]
fn each_gate_of_a_recurrent_weight_is_orthogonal_by_itself() {
    for (name, gates) in [("lstm", 4), ("gru", 3)] {
        let spec = spec(&of(name), HeadsKind::Independent, 0, false);
        let policy = Policy::init_orthogonal(&spec, 7).unwrap();
        for gate in 0..gates {
            let rows = gate * 13..(gate + 1) * 13;
            assert_orthogonal(&policy, "backbone.weight_ih_l0", rows.clone(), 1.0);
            assert_orthogonal(&policy, "backbone.weight_hh_l1", rows, 1.0);
        }
        assert_zero(&policy, "backbone.bias_hh_l0");
    }
    let spec = spec(&of("xlstm"), HeadsKind::Independent, 0, false);
    let policy = Policy::init_orthogonal(&spec, 7).unwrap();
    for block in 0..8 {
        let rows = block * 6..(block + 1) * 6;
        assert_orthogonal(&policy, "backbone.layers.1.mixer.weight_hh", rows, 1.0);
    }
}

#[test]
fn other_parameters_start_as_usual() {
    let mamba = spec(&of("mamba"), HeadsKind::Independent, 6, false);
    let melee = Embedding::melee(Melee::default());
    let spec = Spec { embedding: melee, ..mamba };
    let (usual, orthogonal) =
        (Policy::init(&spec, 7).unwrap(), Policy::init_orthogonal(&spec, 7).unwrap());
    let mut kept = 0;
    for (name, weight) in usual.weights() {
        let same = values(weight) == values(&orthogonal.weights()[name]);
        let keeps = ["A_log", ".D", "conv1d", "dt_proj", "norm", "embedding"];
        assert_eq!(same, keeps.iter().any(|part| name.contains(part)), "{name}");
        kept += usize::from(same);
    }
    assert!(kept > 10, "{kept}");
}

#[test]
fn every_backbone_starts_and_runs_and_is_repeatable_by_seed() {
    for config in configs() {
        for (kind, critic) in [(HeadsKind::Independent, true), (HeadsKind::Autoregressive, false)] {
            let spec = spec(&config, kind, 6, critic);
            let policy = Policy::init_orthogonal(&spec, 7).unwrap();
            let (again, other) = (
                Policy::init_orthogonal(&spec, 7).unwrap(),
                Policy::init_orthogonal(&spec, 8).unwrap(),
            );
            let all = |policy: &Policy| -> Vec<Vec<f32>> {
                policy.weights().values().map(|weight| values(weight)).collect()
            };
            assert_eq!(all(&policy), all(&again), "{}", config.name());
            assert_ne!(all(&policy), all(&other), "{}", config.name());
            let continuous = values(&noise(&[2 * 5 * INPUT], 1));
            let frames =
                Frames { batch: 2, time: 5, continuous, ids: vec![], previous: vec![NONE; 40] };
            let zero = policy.zero_state(2).unwrap();
            let (logits, _) =
                policy.forward(&frames, Some(&[0.0; 40]), &zero, &Context::default()).unwrap();
            assert!(values(&logits).iter().all(|v| v.is_finite()), "{}", config.name());
        }
    }
}

#[test]
fn a_large_layer_is_orthogonal() {
    let mlp = json!({ "mlp": { "hidden_sizes": [300, 200], "layer_norm": false, "residual": false,
        "dropout": 0.0, "input_dropout": 0.0, "activation": "tanh" } });
    let backbone: Backbone = serde_json::from_value(mlp).unwrap();
    let spec = spec(&backbone, HeadsKind::Independent, 0, true);
    let policy = Policy::init_orthogonal(&spec, 1).unwrap();
    assert_orthogonal(&policy, "backbone.layers.0.dense.weight", 0..300, TRUNK);
    assert_orthogonal(&policy, "critic.backbone.layers.1.dense.weight", 0..200, TRUNK);
}
