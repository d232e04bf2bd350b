//! Backbones of policies that ExPhil saved, against the trunk vectors that Axon computed from windows.

use sconce_nn::backbone::{self, Context};
use sconce_nn::spec::Backbone;
use serde_json::{Value, json};

use crate::common::Golden;

fn config(name: &str, hidden_size: usize, num_layers: usize, own: Value) -> Backbone {
    let mut all = json!({
        "hidden_size": hidden_size, "num_layers": num_layers, "input_norm": true, "dropout": 0.0,
        "input_dropout": 0.0,
    });
    own.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
    serde_json::from_value(json!({ name: all })).unwrap()
}

/// The name of the golden file and the config of each policy.
fn policies() -> [(&'static str, Backbone); 5] {
    let stack = json!({ "layer_norm": true, "norm_eps": 1e-6, "initial_state": true });
    let attention = json!({
        "num_heads": 3, "head_dim": 8, "window_size": 20, "inner_size": 256, "input_norm": false,
    });
    let hybrid =
        json!({ "num_heads": 2, "head_dim": 10, "window_size": 20, "initial_state": true });
    let residual = json!({ "initial_state": true, "input_norm": false });
    [
        ("exphil_lstm", config("lstm", 24, 2, stack.clone())),
        ("exphil_gru", config("gru", 24, 2, stack)),
        ("exphil_attention", config("exphil_attention", 24, 2, attention)),
        ("exphil_lstm_hybrid", config("exphil_lstm_hybrid", 16, 1, hybrid)),
        ("exphil_deep_res_lstm", config("exphil_deep_res_lstm", 16, 2, residual)),
    ]
}

#[test]
fn trunk_vectors_are_those_of_the_policies_that_were_saved() {
    for (name, config) in policies() {
        for golden in Golden::everywhere(name) {
            let b = golden.builder();
            let net = backbone::new(&config, 288, &b).unwrap();
            b.finish().unwrap();
            let x = golden.tensor("input.x");
            let (batch, time, _) = x.dims3().unwrap();
            let zero = net.zero_state(batch).unwrap().beside(&x).unwrap();
            for context in [Context::default(), Context::default().of_last()] {
                let (y, _) = net.forward(&x, &zero, &context).unwrap();
                let last = y.narrow(1, y.dim(1).unwrap() - 1, 1).unwrap();
                golden.check("output.trunk", &last.squeeze(1).unwrap());
            }
            if config.is_window_only() {
                continue;
            }
            let (mut state, mut last) = (zero, None);
            for t in 0..time {
                let frame = x.narrow(1, t, 1).unwrap().squeeze(1).unwrap();
                let (y, next) = net.step(&frame, &state, &Context::default()).unwrap();
                (state, last) = (next, Some(y));
            }
            golden.check("output.trunk", &last.unwrap());
        }
    }
}
