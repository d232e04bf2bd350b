//! ExPhil's state spaces against the answers that Axon computed for policies of ExPhil.

use candle_core::Tensor;
use sconce_nn::backbone::{self, Context};
use sconce_nn::spec::{Backbone, ExphilGatedSsmConfig, ExphilJambaConfig, ExphilMambaConfig};

use crate::common::{Golden, apart};

/// Checks the output for the last frame of each window, by all passes.
fn check(case: &str, config: &Backbone) {
    for golden in Golden::everywhere(&format!("exphil_{case}")) {
        let b = golden.builder();
        let x = golden.tensor("input.x");
        let (batch, time, width) = x.dims3().unwrap();
        let net = backbone::new(config, width, &b).unwrap();
        b.finish().unwrap();
        let zero = net.zero_state(batch).unwrap().beside(&x).unwrap();
        let last = |context: &Context| {
            let (y, _) = net.forward(&x, &zero, context).unwrap();
            y.narrow(1, y.dim(1).unwrap() - 1, 1).unwrap().squeeze(1).unwrap()
        };
        golden.check("output.y", &last(&Context::default()));
        golden.check("output.y", &last(&Context::default().of_last()));
        golden.check("output.y", &last(&Context::tapped()));
        if config.is_window_only() {
            continue;
        }
        let (mut y, mut state) = (None, zero.clone());
        for t in 0..time {
            let frame = x.narrow(1, t, 1).unwrap().squeeze(1).unwrap();
            let (frame, next) = net.step(&frame, &state, &Context::default()).unwrap();
            (y, state) = (Some(frame), next);
        }
        golden.check("output.y", &y.unwrap());
    }
}

/// A Mamba with the sizes of the golden files.
fn mamba(hidden_size: usize, num_layers: usize, decays_input: bool) -> Backbone {
    Backbone::ExphilMamba(ExphilMambaConfig {
        hidden_size,
        num_layers,
        state_size: 8,
        expand_factor: 2,
        conv_size: 4,
        decays_input,
        input_norm: false,
        dropout: 0.1,
        input_dropout: 0.0,
    })
}

#[test]
fn mamba_and_both_forms_of_mamba_2_agree() {
    check("mamba", &mamba(32, 2, false));
    check("mamba_2", &mamba(16, 2, true));
    check("mamba_ssd", &mamba(8, 1, false));
}

#[test]
fn the_two_recurrences_of_mamba_differ() {
    let golden = Golden::open("exphil_mamba_2");
    let x = golden.tensor("input.x");
    let y = |decays_input| -> Tensor {
        let net = backbone::new(&mamba(16, 2, decays_input), 288, &golden.builder()).unwrap();
        let zero = net.zero_state(x.dim(0).unwrap()).unwrap();
        net.forward(&x, &zero, &Context::default().of_last()).unwrap().0
    };
    assert!(apart(&y(false), &y(true)) > 1e-2);
}

#[test]
fn the_gated_state_space_agrees() {
    let config = Backbone::ExphilGatedSsm(ExphilGatedSsmConfig {
        hidden_size: 16,
        num_layers: 2,
        state_size: 8,
        expand_factor: 2,
        conv_size: 4,
        input_norm: false,
        dropout: 0.1,
        input_dropout: 0.0,
    });
    check("gated_ssm", &config);
}

#[test]
fn jamba_agrees() {
    let config = Backbone::ExphilJamba(ExphilJambaConfig {
        hidden_size: 16,
        num_layers: 3,
        state_size: 8,
        expand_factor: 2,
        conv_size: 4,
        attention_every: 3,
        num_heads: 2,
        head_dim: 4,
        input_norm: false,
        dropout: 0.1,
        input_dropout: 0.0,
    });
    check("jamba", &config);
}
