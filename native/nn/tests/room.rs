//! The memory of a pass is known before it begins, for every backbone.

mod backbones;
#[path = "../../ops/tests/common/mod.rs"]
mod common;

use std::alloc::System;

use backbones::configs;
use sconce_nn::backbone::Context;
use sconce_nn::policy::Frames;
use sconce_nn::spec::{self, Embedding, Head, HeadKind, Heads, HeadsKind};
use sconce_nn::{Policy, Spec};
use sconce_tensor::memory::{Counted, Meter};
use sconce_tensor::{Error, Result, pool};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: Counted<System> = Counted(System);

const INPUT: usize = 40;
/// Smaller buffers do not matter beside buffers of a fixed size.
const SMALL: u64 = 256 << 10;

/// The backbone with a hidden size eight times as large.
fn wide(config: &spec::Backbone) -> spec::Backbone {
    let mut value = serde_json::to_value(config).unwrap();
    for config in value.as_object_mut().unwrap().values_mut() {
        if let Some(sizes) = config.get_mut("hidden_sizes") {
            *sizes = json!([136, 72]);
        } else if let Some(size) = config["hidden_size"].as_u64() {
            config["hidden_size"] = Value::from(8 * size);
            // Of this backbone, which alone has an `inner_size`, the heads have the width of the layers.
            if config.get("inner_size").is_some() {
                config["head_dim"] = Value::from(8 * config["head_dim"].as_u64().unwrap());
            }
        }
    }
    serde_json::from_value(value).unwrap()
}

fn spec(backbone: spec::Backbone) -> Spec {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 32 };
    let parts =
        vec![head("press", HeadKind::Bernoulli(4)), head("stick", HeadKind::Categorical(17))];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 16, prior: false };
    Spec { embedding: Embedding::vector(INPUT), backbone, heads, critic: None }
}

fn frames(batch: usize, time: usize) -> Frames {
    let rows = batch * time;
    let continuous = (0..rows * INPUT).map(|i| (i % 13) as f32 / 13.0).collect();
    Frames { batch, time, continuous, ids: vec![], previous: vec![0.0; rows * 5] }
}

/// The peak bytes of a pass.
fn taken(policy: &Policy, batch: usize, time: usize, tapped: bool) -> Result<u64> {
    let (frames, context) = (frames(batch, time), || match tapped {
        true => Context::tapped(),
        false => Context::default(),
    });
    let pass = || policy.forward(&frames, None, &policy.zero_state(batch)?, &context());
    // The first pass packs the weights.
    pass()?;
    let meter = Meter::start()?;
    pass()?;
    Ok(meter.peak())
}

#[test]
fn the_memory_of_a_pass_is_known_before_it_begins() -> Result<()> {
    for config in configs() {
        let policy = Policy::init(&spec(wide(&config)), 1)?;
        for (batch, time) in [(1, 600), (2, 60), (8, 60), (40, 16), (3, 200)] {
            for tapped in [false, true] {
                let taken = pool::serial(|| taken(&policy, batch, time, tapped))?;
                let planned = policy.pass_bytes(batch, time, tapped)?.unwrap();
                let most = policy.most_bytes(batch, time, tapped);
                let case = format!("{} {batch} x {time} {tapped}", config.name());
                let case = format!("{case}: {taken} used, {planned} planned, bound {most}");
                println!(
                    "{case} {:.2} {:.1}",
                    planned as f64 / taken as f64,
                    most as f64 / taken as f64
                );
                assert!(
                    planned <= 2 * taken + SMALL && taken <= planned + planned / 2 + SMALL,
                    "{case}"
                );
                assert!(taken <= most, "{case}");
            }
        }
    }
    Ok(())
}

#[test]
fn oversized_weights_are_an_error_before_memory_is_allocated() {
    let mlp = |sizes: Value| {
        let config = json!({ "mlp": {
            "hidden_sizes": sizes, "layer_norm": false, "residual": false,
            "dropout": 0.0, "input_dropout": 0.0,
        } });
        spec(serde_json::from_value(config).unwrap())
    };
    let meter = Meter::start().unwrap();
    for sizes in [json!([8192, 8192, 8192, 65536, 65536]), json!([65536, 65536, 65536])] {
        let refused = Policy::init(&mlp(sizes), 1).err();
        assert!(matches!(refused, Some(Error::OutOfMemory { bytes, .. }) if bytes > 1 << 32));
    }
    assert!(meter.peak() < 1 << 20);
}
