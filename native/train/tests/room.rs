//! The bound on a training's memory, from the shapes of its weights. A training within the bound is not measured.

#[path = "../../nn/tests/backbones/mod.rs"]
mod backbones;

use std::alloc::System;
use std::sync::atomic::AtomicBool;

use sconce_nn::spec::{self, Embedding, Head, HeadKind, Heads, HeadsKind};
use sconce_nn::{Policy, Spec};
use sconce_tensor::Result;
use sconce_tensor::memory::Counted;
use sconce_train::options::{DataOptions, MachineOptions, OptimiserOptions, TrainOptions};
use sconce_train::plan::plan;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: Counted<System> = Counted(System);

/// The backbone with layers four times as wide.
fn wide(config: &spec::Backbone) -> spec::Backbone {
    let mut value = serde_json::to_value(config).unwrap();
    for config in value.as_object_mut().unwrap().values_mut() {
        match config.get("hidden_size").and_then(Value::as_u64) {
            Some(size) => {
                config["hidden_size"] = Value::from(4 * size);
                // Of this backbone, which alone has an `inner_size`, the heads have the width of the layers.
                if config.get("inner_size").is_some() {
                    config["head_dim"] = Value::from(4 * config["head_dim"].as_u64().unwrap());
                }
            }
            None => config["hidden_sizes"] = json!([68, 36]),
        }
    }
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_training_takes_no_more_than_its_bound() -> Result<()> {
    let options = TrainOptions {
        data: DataOptions {
            batch_size: 16,
            window_size: 40,
            val_split: 0.0,
            ..DataOptions::default()
        },
        optimiser: OptimiserOptions { ema_decay: Some(0.99), ..OptimiserOptions::default() },
        machine: MachineOptions { threads: Some(1), ..MachineOptions::default() },
        ..TrainOptions::default()
    };
    for config in backbones::configs() {
        let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 32 };
        let parts =
            vec![head("press", HeadKind::Bernoulli(4)), head("stick", HeadKind::Categorical(17))];
        let kind = HeadsKind::Autoregressive;
        let heads = Heads { kind, parts, stream_size: 16, prior: false };
        let embedding = Embedding::vector(backbones::INPUT);
        let spec = Spec { embedding, backbone: wide(&config), heads, critic: None };
        let planned = plan(&spec, &options, None, &AtomicBool::new(false))?.owners;
        let bound = Policy::init(&spec, 1)?.most_step_bytes(16, 40);
        let taken = planned.total() - planned.batches;
        println!("{}: {taken} taken, {bound} at most", config.name());
        assert!(taken <= bound, "{}: {taken} taken, {bound} at most", config.name());
        assert!(bound <= 32 * taken, "{}: {taken} taken, {bound} at most", config.name());
    }
    Ok(())
}
