//! Selective state spaces against PyTorch's float64 vectors: forward, gradient and carried state.

use candle_core::Tensor;
use sconce_nn::backbone::mamba::Mamba;
use sconce_nn::backbone::{self, Backbone, Context, State};
use sconce_nn::layer::Norm;
use sconce_nn::spec;
use sconce_nn::spec::{HawkConfig, JambaConfig, MambaConfig, StateConfig};
use sconce_ops::weights::Weights;
use sconce_tensor::Result;

use crate::common::Golden;

/// The golden block, `x + mixer(norm(x))`.
struct Block(Norm, Mamba);

impl Backbone for Block {
    fn zero_state(&self, batch: usize) -> Result<State> {
        self.1.zero_state(batch)
    }

    fn forward(&self, x: &Tensor, state: &State, context: &Context) -> Result<(Tensor, State)> {
        let (y, state) = self.1.forward(&self.0.forward(x)?, state, context)?;
        Ok(((x + y)?, state))
    }
}

/// Checks values, gradients and steps, fused and, with taps, op by op.
fn check(golden: &Golden, net: &dyn Backbone, weights: &Weights, parts: &[&str]) {
    check_in(&Context::default(), golden, net, weights, parts);
    let tapped = Context::tapped();
    check_in(&tapped, golden, net, weights, parts);
    assert!(tapped.taps().unwrap().keys().any(|name| name.ends_with("ssm_out")));
}

fn check_in(
    context: &Context,
    golden: &Golden,
    net: &dyn Backbone,
    weights: &Weights,
    parts: &[&str],
) {
    let x = golden.variable("input.x");
    let given = golden.has(&format!("input.{}", parts[0]));
    let first = match given {
        true => State(parts.iter().map(|p| golden.variable(&format!("input.{p}"))).collect()),
        false => net.zero_state(x.dim(0).unwrap()).unwrap().beside(&x).unwrap(),
    };
    let (y, last) = net.forward(&x, &first, context).unwrap();
    golden.check("output.y", &y);
    let mut outputs = vec![("y", &y)];
    let mut inputs = vec![("x", &x)];
    for (part, (before, after)) in parts.iter().zip(first.0.iter().zip(&last.0)) {
        golden.check(&format!("output.{part}"), after);
        if golden.has(&format!("input.cotangent.{part}")) {
            outputs.push((part, after));
        }
        if given && golden.has(&format!("grad.input.{part}")) {
            inputs.push((part, before));
        }
    }
    golden.check_gradients(&golden.loss(&outputs), weights, &inputs);

    let (mut state, mut frames) = (first, vec![]);
    for t in 0..x.dim(1).unwrap() {
        let frame = x.narrow(1, t, 1).unwrap().squeeze(1).unwrap().detach();
        let (y, next) = net.step(&frame, &state, context).unwrap();
        frames.push(y);
        state = next;
    }
    golden.check("output.y", &Tensor::stack(&frames, 1).unwrap());
    for (part, state) in parts.iter().zip(&state.0) {
        golden.check(&format!("output.{part}"), state);
    }
}

#[test]
fn the_mamba_block_agrees_even_if_a_channel_keeps_or_forgets_everything() {
    for case in ["mamba_w7", "mamba_w60", "mamba_w60_state", "mamba_w512_extreme"] {
        for golden in Golden::everywhere(case) {
            let b = golden.builder();
            let h = golden.shape("input.x")[2];
            let config = MambaConfig {
                hidden_size: h,
                num_layers: 1,
                state_size: golden.shape("param.mixer.A_log")[1],
                expand_factor: 2,
                conv_size: 4,
                input_norm: false,
                dropout: 0.0,
                input_dropout: 0.0,
            };
            let norm = Norm::rms(h, &b.under("norm")).unwrap();
            let block = Block(norm, Mamba::new(h, &config, &b.under("mixer")).unwrap());
            check(&golden, &block, &b.finish().unwrap(), &["conv_state", "ssm_state"]);
        }
    }
}

fn backbone(case: &str, config: spec::Backbone) {
    for golden in Golden::everywhere(case) {
        let b = golden.builder();
        let net = backbone::new(&config, golden.shape("input.x")[2], &b).unwrap();
        let parts = net.zero_state(1).unwrap().0.len();
        let names: Vec<String> = (0..parts).map(|i| format!("state.{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check(&golden, &*net, &b.finish().unwrap(), &names);
    }
}

fn jamba(hidden_size: usize, num_layers: usize, attention_every: usize) -> JambaConfig {
    JambaConfig {
        hidden_size,
        num_layers,
        state_size: 4,
        expand_factor: 2,
        conv_size: 4,
        attention_every,
        num_heads: 2,
        head_dim: 4,
        window_size: 9,
        qk_layernorm: true,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    }
}

#[test]
fn hybrids_with_attention_agree_even_with_strong_decay() {
    backbone("jamba", spec::Backbone::Jamba(jamba(12, 3, 2)));
    backbone("jamba_w512_strong", spec::Backbone::Jamba(jamba(6, 3, 2)));
    backbone("zamba", spec::Backbone::Zamba(jamba(12, 4, 2)));
    backbone("zamba_w512_strong", spec::Backbone::Zamba(jamba(6, 2, 1)));
}

#[test]
fn the_gated_recurrence_and_s4d_agree_even_with_strong_decay() {
    let gated = |hidden_size| HawkConfig {
        hidden_size,
        num_layers: 2,
        expand_factor: 2,
        conv_size: 4,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    backbone("gated_ssm_w60", spec::Backbone::GatedSsm(gated(18)));
    backbone("gated_ssm_w512_strong", spec::Backbone::GatedSsm(gated(6)));
    let s4d = |hidden_size, state_size| StateConfig {
        hidden_size,
        num_layers: 2,
        state_size,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    backbone("s4d_w60", spec::Backbone::S4d(s4d(12, 17)));
    backbone("s4d_w512_strong", spec::Backbone::S4d(s4d(6, 4)));
}
