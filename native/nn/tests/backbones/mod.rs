//! Specs of all backbones.
#![allow(dead_code, reason = "each test uses a part of it")]

use sconce_nn::backbone::{self, Backbone};
use sconce_nn::spec;
use sconce_ops::weights::{Builder, Source, Weights};
use sconce_tensor::rng::Rng;
use serde_json::{Value, json};

/// Width of their input.
pub const INPUT: usize = 11;

/// Every backbone with small sizes that are not multiples of a SIMD vector.
pub fn configs() -> Vec<spec::Backbone> {
    let attention =
        json!({ "num_heads": 3, "head_dim": 6, "window_size": 7, "qk_layernorm": true });
    let mamba = json!({ "state_size": 5, "expand_factor": 2, "conv_size": 4 });
    let selective =
        json!({ "state_size": 5, "expand_factor": 2, "conv_size": 4, "hidden_size": 12 });
    let exphil_jamba =
        json!({ "num_layers": 4, "attention_every": 2, "num_heads": 3, "head_dim": 6 });
    let jamba = json!({ "num_layers": 4, "attention_every": 2 });
    let heads = json!({ "hidden_size": 12, "num_heads": 2, "expand_factor": 2 });
    let exphil = json!({ "num_heads": 3, "head_dim": 6, "window_size": 90 });
    let stored = json!({ "initial_state": true });
    let expand = json!({ "expand_factor": 2 });
    let tanh = json!({ "hidden_sizes": [17, 9], "activation": "tanh" });
    let plain = json!({ "layer_norm": false, "residual": false });
    let table = [
        ("mlp", vec![json!({ "hidden_sizes": [17, 9], "layer_norm": true, "residual": true })]),
        ("lstm", vec![json!({ "layer_norm": false })]),
        ("lstm", vec![json!({ "layer_norm": true, "input_norm": true })]),
        ("gru", vec![json!({ "layer_norm": false })]),
        ("gru", vec![json!({ "layer_norm": true, "input_norm": true })]),
        ("sliding_window", vec![attention.clone()]),
        (
            "sliding_window",
            vec![attention.clone(), json!({ "window_size": 60, "qk_layernorm": false })],
        ),
        ("causal_transformer", vec![attention.clone(), json!({ "window_size": 5 })]),
        ("lstm_hybrid", vec![attention.clone(), json!({ "window_size": 4, "input_norm": true })]),
        ("mlp", vec![tanh.clone(), json!({ "layer_norm": false, "residual": true })]),
        ("mlp", vec![tanh, json!({ "layer_norm": true, "residual": false })]),
        ("mlp", vec![json!({ "hidden_sizes": [17, 9], "activation": "silu" }), plain.clone()]),
        ("mlp", vec![json!({ "hidden_sizes": [17, 9], "activation": "gelu" }), plain]),
        ("mamba", vec![mamba.clone()]),
        (
            "mamba_2",
            vec![mamba.clone(), json!({ "hidden_size": 12, "head_dim": 8, "chunk_size": 7 })],
        ),
        ("min_gru", vec![]),
        ("min_lstm", vec![]),
        ("jamba", vec![mamba.clone(), attention.clone(), jamba.clone()]),
        ("zamba", vec![mamba, attention, jamba]),
        (
            "griffin",
            vec![heads.clone(), json!({ "conv_size": 3, "attention_every": 2, "window_size": 5 })],
        ),
        ("hawk", vec![json!({ "expand_factor": 3, "conv_size": 4 })]),
        ("gated_ssm", vec![json!({ "expand_factor": 2, "conv_size": 3 })]),
        ("res_lstm", vec![]),
        ("tx_like", vec![expand.clone(), json!({ "hidden_size": 11, "input_norm": true })]),
        ("hgrn", vec![expand.clone()]),
        ("rwkv", vec![expand]),
        ("s4d", vec![json!({ "state_size": 9 })]),
        ("s5", vec![json!({ "state_size": 9 })]),
        ("retnet", vec![heads.clone()]),
        ("xlstm", vec![heads.clone()]),
        ("gla", vec![heads, json!({ "head_dim": 5 })]),
        ("exphil_mamba", vec![selective.clone(), json!({ "decays_input": false })]),
        (
            "exphil_mamba",
            vec![selective.clone(), json!({ "decays_input": true, "state_size": 18 })],
        ),
        ("exphil_gated_ssm", vec![selective.clone(), json!({ "conv_size": 3 })]),
        ("exphil_jamba", vec![selective, exphil_jamba]),
        ("lstm", vec![stored.clone(), json!({ "layer_norm": true, "norm_eps": 0.3 })]),
        ("gru", vec![stored.clone(), json!({ "layer_norm": false })]),
        (
            "exphil_attention",
            vec![exphil.clone(), json!({ "hidden_size": 18, "window_size": 5, "inner_size": 14 })],
        ),
        ("exphil_attention", vec![exphil.clone(), json!({ "hidden_size": 18, "inner_size": 9 })]),
        ("exphil_lstm_hybrid", vec![exphil.clone(), stored.clone(), json!({ "input_norm": true })]),
        ("exphil_lstm_hybrid", vec![exphil, json!({ "window_size": 4 })]),
        ("exphil_deep_res_lstm", vec![stored]),
        ("exphil_deep_res_lstm", vec![json!({ "hidden_size": 11, "input_norm": true })]),
    ];
    let given = |name: &&str| table.iter().any(|(known, _)| known == name);
    let others =
        spec::Backbone::NAMES.iter().filter(|name| !given(name)).map(|name| config(name, &[]));
    table.iter().map(|(name, own)| config(name, own)).chain(others).collect()
}

fn config(name: &str, own: &[Value]) -> spec::Backbone {
    let mut all = json!({
        "hidden_size": 13, "num_layers": 2, "input_norm": false, "dropout": 0.4, "input_dropout": 0.4,
    });
    for own in own {
        for (key, value) in own.as_object().unwrap() {
            all[key] = value.clone();
        }
    }
    serde_json::from_value(json!({ name: all })).unwrap()
}

/// Every backbone with a step, see [`configs`].
pub fn stepping() -> Vec<spec::Backbone> {
    configs().into_iter().filter(|config| !config.is_window_only()).collect()
}

/// A backbone with trainable weights.
pub fn build(config: &spec::Backbone, seed: u64) -> (Box<dyn Backbone>, Weights) {
    let b = Builder::new(Source::Seed(seed), true);
    let net = backbone::new(config, INPUT, &b).unwrap();
    let weights = b.finish().unwrap();
    // Weights that start as zero would hide errors of the layers after them.
    for (name, weight) in weights.iter().filter(|(_, w)| w.rank() == 2) {
        let rng = Rng::new(seed, name, 0);
        let fill = |v: &mut [f32]| {
            if v.iter().all(|v| *v == 0.0) {
                v.iter_mut().enumerate().for_each(|(i, v)| *v = 0.3 * rng.normal(i as u64));
            }
        };
        sconce_tensor::tensor::update(weight, fill).unwrap();
    }
    (net, weights)
}
