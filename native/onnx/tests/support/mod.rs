//! Policies of all kinds that can be exported.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::disallowed_methods)]

#[path = "../../../nn/tests/backbones/mod.rs"]
mod backbones;
pub mod reader;

use sconce_nn::heads::NONE;
use sconce_nn::policy::Frames;
use sconce_nn::spec::{Backbone, Declared, Embedding, Head, HeadKind, Heads, Melee, Normalised};
use sconce_nn::{Policy, Spec};
use sconce_onnx::BACKBONES;
use sconce_ops::weights::Weight;
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::{tensor, to_vec};
use serde_json::{Value, json};

/// A policy with the name of its case.
pub struct Case {
    pub name: String,
    pub policy: Policy,
}

/// A config with the usual fields.
pub fn backbone(name: &str, own: Value) -> Backbone {
    let mut all = json!({
        "hidden_size": 13, "num_layers": 2, "input_norm": false, "dropout": 0.0,
        "input_dropout": 0.0, "layer_norm": false, "residual": false, "num_heads": 4,
        "head_dim": 64, "window_size": 60, "qk_layernorm": true, "expand_factor": 2,
        "hidden_sizes": [256, 256],
    });
    all.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    serde_json::from_value(json!({ name: all })).unwrap()
}

/// All configs of supported backbones in the tests of `nn`, and one of each kind with the widths of the presets.
fn every_backbone() -> Vec<(String, Spec)> {
    let fits = |of: &Backbone| match of {
        Backbone::Lstm(config) | Backbone::Gru(config) => !config.initial_state,
        of => BACKBONES.contains(&of.name()),
    };
    let small = backbones::configs().into_iter().filter(fits);
    let small = small.enumerate().map(|(i, of)| (format!("small_{i}_{}", of.name()), of));
    let wide = BACKBONES
        .iter()
        .map(|name| (format!("wide_{name}"), backbone(name, json!({ "hidden_size": 256 }))));
    let spec = |(name, backbone): (String, Backbone)| {
        let wide = name.starts_with("wide");
        let embedding = Embedding::vector(if wide { 256 } else { backbones::INPUT });
        (name, Spec { embedding, backbone, heads: heads(&json!({})), critic: None })
    };
    small.chain(wide).map(spec).collect()
}

/// Heads of all kinds but the value, with these options.
fn heads(options: &Value) -> Heads {
    let hidden = options["hidden_size"].as_u64().unwrap_or(6);
    let head =
        |name: &str, kind: Value| json!({ "name": name, "kind": kind, "hidden_size": hidden });
    let mut parts = vec![
        head("fire", json!({ "bernoulli": 3 })),
        head("move", json!({ "categorical": 4 })),
        head("aim", json!({ "gaussian": { "size": 2, "low": -1.5, "high": 3.0 } })),
    ];
    if options["value"] == true {
        parts.push(head("value", json!({ "value": 1 })));
    }
    let kind = options["kind"].as_str().unwrap_or("independent");
    let prior = options["prior"] == true;
    serde_json::from_value(
        json!({ "kind": kind, "parts": parts, "stream_size": 7, "prior": prior }),
    )
    .unwrap()
}

/// A game with a table of ids, whose input the heads choose.
fn game() -> Embedding {
    let declaration = json!({
        "name": "duel",
        "fields": [
            { "name": "x", "kind": "number" },
            { "name": "weapon", "kind": { "id": 5 }, "table": "weapon" },
            { "name": "other", "kind": { "id": 5 }, "table": "weapon" },
            { "name": "map", "kind": { "id": 3 }, "table": "map" },
        ],
        "tables": [
            { "name": "weapon", "ids": { "below": 5 }, "width": 4 },
            { "name": "map", "ids": { "below": 3 }, "width": 2 },
        ],
        "input": [
            { "name": "fire", "kind": { "bits": 3 } },
            { "name": "move", "kind": { "choice": 4 } },
            { "name": "aim", "kind": { "continuous": { "size": 2, "min": -1.5, "max": 3.0 } } },
        ],
    });
    Embedding::declared(Declared::new(serde_json::from_value(declaration).unwrap()))
}

fn every_embedding_and_head() -> Vec<(String, Spec)> {
    let gru = || backbone("gru", json!({}));
    let spec = |name: &str, embedding: Embedding, options: Value| {
        (name.into(), Spec { embedding, backbone: gru(), heads: heads(&options), critic: None })
    };
    let normalised =
        Normalised { mean: vec![0.3, -2.0, 0.0, 5.0], deviation: vec![0.1, 3.0, 0.01, 1.0] };
    let vector = || Embedding::vector(4);
    let mut all = vec![
        spec("normalised", Embedding::normalised(normalised), json!({})),
        spec("linear", vector(), json!({ "hidden_size": 0, "value": true })),
        spec("value", vector(), json!({ "value": true })),
        spec("autoregressive", vector(), json!({ "kind": "autoregressive", "value": true })),
        spec("game", game(), json!({})),
        spec("prior", game(), json!({ "prior": true, "value": true })),
        spec("prior_of_a_stream", game(), json!({ "prior": true, "kind": "autoregressive" })),
    ];
    for (name, kind) in [("critic", "independent"), ("critic_of_a_stream", "autoregressive")] {
        let (name, mut spec) =
            spec(name, game(), json!({ "kind": kind, "value": true, "prior": true }));
        spec.critic = Some(backbone("min_gru", json!({})));
        all.push((name, spec));
    }
    let options = json!({ "kind": "autoregressive", "prior": true });
    let mut melee = heads(&options);
    melee.parts = Heads::controller(melee.kind).parts;
    let embedding = Embedding::melee(Melee { queue_depth: 3, num_delays: 4, ..Melee::default() });
    all.push(("melee".into(), Spec { embedding, backbone: gru(), heads: melee, critic: None }));
    let parts = vec![Head { name: "go".into(), kind: HeadKind::Bernoulli(1), hidden_size: 5 }];
    let one = Heads { parts, ..heads(&json!({ "kind": "autoregressive" })) };
    all.push((
        "one_head".into(),
        Spec { embedding: vector(), backbone: gru(), heads: one, critic: None },
    ));
    all
}

pub fn cases() -> Vec<Case> {
    let all = every_backbone().into_iter().chain(every_embedding_and_head());
    all.map(|(name, spec)| Case { name, policy: policy(&spec) }).collect()
}

/// A policy all of whose weights have an effect: layers and tables may start as zero.
pub fn policy(spec: &Spec) -> Policy {
    let init = Policy::init(spec, 3).unwrap();
    let moved = |(name, weight): (&String, &Weight)| {
        let rng = Rng::new(5, name, 0);
        let numbers = to_vec(weight).unwrap().into_iter().enumerate();
        let numbers = numbers.map(|(i, v)| v + 0.05 * rng.normal(i as u64)).collect();
        (name.clone(), Weight::from(tensor(numbers, weight.dims()).unwrap()))
    };
    let weights = init.weights().iter().map(moved).collect();
    Policy::from_weights(spec, weights).unwrap()
}

/// Random frames before normalisation, and labels of actions.
pub fn frames(spec: &Spec, batch: usize, time: usize, seed: u64) -> (Frames, Vec<f32>) {
    let (rows, rng) = (batch * time, Rng::new(seed, "frames", 0));
    let count = rows * spec.embedding.continuous_width();
    let continuous = (0..count as u64).map(|i| rng.normal(i)).collect();
    let slots = spec.embedding.id_slots();
    let id = |i: usize| {
        let rows = slots[i % slots.len()].rows as f32;
        (rng.uniform((1 << 20) + i as u64) * rows) as u32
    };
    let ids = (0..rows * slots.len()).map(id).collect();
    let (labels, mut previous) = (labels(spec, rows, seed), labels(spec, rows, seed + 1));
    // Every third frame has no previous action.
    let width = spec.heads.num_labels();
    previous.chunks_exact_mut(width).step_by(3).for_each(|row| row.fill(NONE));
    (Frames { batch, time, continuous, ids, previous }, labels)
}

fn labels(spec: &Spec, rows: usize, seed: u64) -> Vec<f32> {
    let rng = Rng::new(seed, "labels", 0);
    let mut at = 0;
    let mut label = |kind: HeadKind| {
        at += 1;
        let uniform = rng.uniform(at);
        match kind {
            HeadKind::Bernoulli(_) => f32::from(u8::from(uniform < 0.5)),
            HeadKind::Categorical(classes) => (uniform * classes as f32).floor(),
            // Some numbers lie at a bound.
            _ => (kind.least() + (1.2 * uniform - 0.1) * (kind.largest() - kind.least()))
                .clamp(kind.least(), kind.largest()),
        }
    };
    let mut all = vec![];
    for _ in 0..rows {
        for head in &spec.heads.parts {
            all.extend((0..head.kind.labels()).map(|_| label(head.kind)));
        }
    }
    all
}
