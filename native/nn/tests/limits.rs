//! Unchecked specs from a file give typed errors before memory is allocated, and no depth that overflows a stack.

#[path = "../../ops/tests/common/mod.rs"]
mod common;

use common::{backward, noise, record};
use sconce_nn::backbone::{self, Backbone, Context};
use sconce_nn::spec;
use sconce_ops::weights::{Builder, Source};
use sconce_tensor::{Error, Result};
use serde_json::{Value, json};

fn build(name: &str, own: Value, trainable: bool) -> Result<Box<dyn Backbone>> {
    let mut all = json!({
        "hidden_size": 2, "num_layers": 1, "input_norm": false, "dropout": 0.0, "input_dropout": 0.0,
    });
    own.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
    let config: spec::Backbone = serde_json::from_value(json!({ name: all })).unwrap();
    backbone::new(&config, 3, &Builder::new(Source::Seed(1), trainable))
}

fn attention(heads: usize, head_dim: usize, window: usize) -> Value {
    json!({
        "num_heads": heads, "head_dim": head_dim, "window_size": window, "qk_layernorm": false,
    })
}

const MOST: usize = 1 << 16;

#[test]
fn an_oversized_state_is_an_error_before_memory_is_allocated() {
    let heads =
        json!({ "hidden_size": 1, "num_heads": 1, "head_dim": MOST, "expand_factor": MOST });
    let mamba_2 = json!({
        "hidden_size": 1, "state_size": MOST, "expand_factor": MOST, "conv_size": 1, "head_dim": 64,
        "chunk_size": MOST,
    });
    for (name, own) in [
        ("sliding_window", attention(256, 256, MOST)),
        ("lstm_hybrid", attention(256, 256, MOST)),
        // A table of rotations takes memory too.
        ("sliding_window", attention(1, MOST, MOST)),
        ("mamba_2", mamba_2),
        ("gla", heads),
    ] {
        let error = build(name, own, false).err();
        assert!(
            matches!(error, Some(Error::OutOfMemory { bytes, .. }) if bytes > 1 << 32),
            "{name}"
        );
    }
    let net = build("sliding_window", attention(2, 4, 60), false).unwrap();
    assert!(net.zero_state(3).is_ok());
    for batch in [1 << 30, usize::MAX] {
        assert!(matches!(net.zero_state(batch), Err(Error::OutOfMemory { .. })));
    }
}

#[test]
fn heads_that_do_not_divide_the_width_are_errors_with_both_numbers() {
    let heads = json!({ "hidden_size": 7, "num_heads": 3, "head_dim": 4, "expand_factor": 1 });
    let griffin = json!({
        "hidden_size": 7, "num_heads": 3, "expand_factor": 1, "conv_size": 1, "attention_every": 1,
        "window_size": 3,
    });
    let mamba_2 = json!({
        "hidden_size": 7, "state_size": 2, "expand_factor": 1, "conv_size": 1, "head_dim": 8,
        "chunk_size": 3,
    });
    for (name, own, said) in [
        ("gla", heads.clone(), "inner width of a GLA: expected a multiple of 3, got 7"),
        ("retnet", heads.clone(), "hidden_size of a RetNet: expected a multiple of 3, got 7"),
        ("xlstm", heads, "inner width of an mLSTM: expected a multiple of 3, got 7"),
        ("griffin", griffin, "hidden_size of a griffin: expected a multiple of 3 heads, got 7"),
        ("mamba_2", mamba_2, "inner width of Mamba-2: expected a multiple of 8, got 7"),
        (
            "sliding_window",
            attention(1, 5, 3),
            "head_dim of an attention: expected an even number, got 5",
        ),
    ] {
        assert_eq!(build(name, own, false).err().map(|e| e.to_string()).as_deref(), Some(said));
    }
}

/// A quarter of the stack of the training threads, in bytes.
const STACK: usize = 16 << 20;

#[test]
fn the_graph_of_the_deepest_backbone_fits_the_stack_of_a_thread() {
    let deep = || {
        let heads = json!({ "num_layers": 256, "num_heads": 2, "head_dim": 2, "expand_factor": 1 });
        let mut jamba = attention(1, 2, 3);
        for (key, value) in [
            ("num_layers", 256),
            ("state_size", 1),
            ("expand_factor", 1),
            ("conv_size", 2),
            ("attention_every", 1),
        ] {
            jamba[key] = value.into();
        }
        for (name, own) in [("xlstm", heads.clone()), ("rwkv", heads), ("zamba", jamba)] {
            let net = build(name, own, true).unwrap();
            let state = net.zero_state(1).unwrap();
            record();
            let (y, _) =
                net.forward(&noise(&[1, 2, 3], 1), &state, &Context::training(1, 1)).unwrap();
            backward(&y.sum_all().unwrap());
        }
    };
    std::thread::Builder::new().stack_size(STACK).spawn(deep).unwrap().join().unwrap();
}
