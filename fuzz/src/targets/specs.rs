//! Small models, one for each backbone.

use sconce_nn::Spec;
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, Layout, Melee};
use serde_json::json;

pub fn backbone(name: &str) -> Backbone {
    let mut all = json!({
        "hidden_size": 8, "num_layers": 2, "num_heads": 2, "head_dim": 4, "window_size": 5,
        "expand_factor": 2, "conv_size": 3, "state_size": 3, "chunk_size": 4, "attention_every": 2,
        "layer_norm": true, "qk_layernorm": true, "input_norm": false, "residual": true,
        "hidden_sizes": [6, 5], "dropout": 0.1, "input_dropout": 0.0,
    });
    if name == "mamba_2" {
        all["head_dim"] = json!(8);
    }
    serde_json::from_value(json!({ name: all })).expect(name)
}

pub const BACKBONES: [&str; 24] = [
    "mlp",
    "lstm",
    "gru",
    "sliding_window",
    "mamba",
    "mamba_2",
    "min_gru",
    "min_lstm",
    "lstm_hybrid",
    "jamba",
    "griffin",
    "hawk",
    "res_lstm",
    "tx_like",
    "hgrn",
    "s4d",
    "s5",
    "retnet",
    "rwkv",
    "gla",
    "xlstm",
    "zamba",
    "gated_ssm",
    "causal_transformer",
];

/// Heads for two bits and one choice of three.
pub fn heads(kind: HeadsKind) -> Heads {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 4 };
    let parts = vec![head("go", HeadKind::Bernoulli(2)), head("to", HeadKind::Categorical(3))];
    Heads { kind, parts, stream_size: 4, prior: false }
}

/// A model of vectors of two values.
pub fn of_vectors(name: &str) -> Spec {
    let heads = heads(HeadsKind::Independent);
    Spec { embedding: Embedding::vector(2), backbone: backbone(name), heads, critic: None }
}

/// A model of small images.
pub fn of_images(name: &str) -> Spec {
    let conv = json!({
        "kind": "conv", "filters": 2, "kernel": [3, 3], "stride": [2, 2], "padding": [1, 1],
        "dilation": [1, 1], "groups": 1, "bias": true, "activation": "relu",
    });
    let dense = json!({"kind": "dense", "size": 3, "bias": true, "activation": "tanh"});
    let net = json!({
        "inputs": [{"name": "input", "shape": [1, 4, 4]}],
        "layers": [conv, {"kind": "flatten"}, dense],
    });
    let embedding = serde_json::from_value(json!({ "net": net })).expect("an embedding");
    Spec { embedding, ..of_vectors(name) }
}

/// A small model of Melee frames.
pub fn of_melee(name: &str) -> Spec {
    let melee = Melee {
        layout: Layout::Learned,
        action_embed_size: 2,
        character_embed_size: 2,
        stage_embed_size: 1,
        num_player_names: 2,
        num_projectiles: 1,
        queue_depth: 2,
        num_delays: 3,
        previous_action: true,
    };
    let mut heads = Heads::controller(HeadsKind::Autoregressive);
    heads.stream_size = 4;
    heads.parts.iter_mut().for_each(|part| part.hidden_size = 4);
    Spec { embedding: Embedding::melee(melee), backbone: backbone(name), heads, critic: None }
}
