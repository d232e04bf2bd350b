//! Mamba-2, RetNet, GLA and xLSTM against PyTorch's float64 vectors, and sLSTM against finite differences.

use candle_core::{Tensor, Var};
use sconce_nn::backbone::mamba2::Mamba2;
use sconce_nn::backbone::{self, Backbone, Context, State};
use sconce_nn::layer::Norm;
use sconce_nn::spec::{self, GlaConfig, HeadsConfig, Mamba2Config};
use sconce_ops::recurrent::{SlstmState, slstm};
use sconce_ops::weights::{Builder, Source};

use crate::common::{Golden, apart, backward, differences, noise, record, values};

fn mamba2_config(
    hidden_size: usize,
    state_size: usize,
    heads: usize,
    chunk: usize,
) -> Mamba2Config {
    Mamba2Config {
        hidden_size,
        num_layers: 1,
        state_size,
        expand_factor: 2,
        conv_size: 4,
        head_dim: 2 * hidden_size / heads,
        chunk_size: chunk,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    }
}

fn mamba2(case: &str, config: Mamba2Config) {
    for golden in Golden::everywhere(case) {
        let b = golden.builder();
        let x = golden.variable("input.x");
        let norm = Norm::rms(config.hidden_size, &b.under("norm")).unwrap();
        let mixer = Mamba2::new(&config, &b.under("mixer")).unwrap();
        let weights = b.finish().unwrap();
        let mut inputs = vec![("x", x.clone())];
        let state = match golden.has("input.ssm_state") {
            true => {
                for name in ["conv_state", "ssm_state"] {
                    inputs.push((name, golden.variable(&format!("input.{name}"))));
                }
                State(vec![inputs[1].1.clone(), inputs[2].1.clone()])
            }
            false => mixer.zero_state(x.dim(0).unwrap()).unwrap().beside(&x).unwrap(),
        };
        let (y, last) =
            mixer.forward(&norm.forward(&x).unwrap(), &state, &Context::default()).unwrap();
        let y = (&x + y).unwrap();
        let outputs = [("y", &y), ("conv_state", &last.0[0]), ("ssm_state", &last.0[1])];
        for (name, value) in outputs {
            golden.check(&format!("output.{name}"), value);
        }
        let inputs: Vec<_> = inputs.iter().map(|(n, t)| (*n, t)).collect();
        golden.check_gradients(&golden.loss(&outputs), &weights, &inputs);
    }
}

#[test]
fn mamba_2_agrees_with_golden_for_every_chunk_size() {
    for chunk in [1, 7, 16, 32, 60] {
        mamba2("mamba2_w7", mamba2_config(24, 5, 3, chunk));
        mamba2("mamba2_w60", mamba2_config(40, 16, 4, chunk));
        mamba2("mamba2_w60_state", mamba2_config(24, 5, 3, chunk));
    }
}

/// A whole backbone. The `fixed` parts of its state have no gradient.
fn whole(case: &str, config: spec::Backbone, fixed: &[usize]) {
    for golden in Golden::everywhere(case) {
        let b = golden.builder();
        let x = golden.variable("input.x");
        let net = backbone::new(&config, x.dim(2).unwrap(), &b).unwrap();
        let weights = b.finish().unwrap();
        let mut state = net.zero_state(x.dim(0).unwrap()).unwrap().beside(&x).unwrap();
        let mut inputs = vec![("x".to_string(), x.clone())];
        for (i, part) in state.0.iter_mut().enumerate() {
            let name = format!("state.{i}");
            if golden.has(&format!("input.{name}")) {
                *part = golden.variable(&format!("input.{name}"));
                if !fixed.contains(&i) {
                    inputs.push((name, part.clone()));
                }
            }
        }
        let (y, last) = net.forward(&x, &state, &Context::default()).unwrap();
        golden.check("output.y", &y);
        for (i, part) in last.0.iter().enumerate() {
            golden.check(&format!("output.state.{i}"), part);
        }
        let inputs: Vec<_> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        golden.check_gradients(&golden.loss(&[("y", &y)]), &weights, &inputs);
    }
}

fn heads(hidden_size: usize, num_heads: usize, num_layers: usize) -> HeadsConfig {
    HeadsConfig {
        hidden_size,
        num_layers,
        num_heads,
        expand_factor: 2,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    }
}

#[test]
fn retnet_agrees_with_golden() {
    whole("retnet_w7", spec::Backbone::Retnet(heads(24, 3, 2)), &[]);
    whole("retnet_w60_state", spec::Backbone::Retnet(heads(16, 2, 2)), &[]);
    whole("retnet_w512", spec::Backbone::Retnet(heads(12, 2, 1)), &[]);
}

#[test]
fn gla_agrees_with_golden() {
    let gla = |hidden_size, num_heads, head_dim, num_layers| {
        spec::Backbone::Gla(GlaConfig {
            hidden_size,
            num_layers,
            num_heads,
            head_dim,
            expand_factor: 2,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
        })
    };
    whole("gla_w7", gla(24, 3, 8, 2), &[]);
    whole("gla_w60_state", gla(16, 2, 5, 2), &[]);
    whole("gla_w512_strong", gla(12, 2, 17, 1), &[]);
}

#[test]
fn xlstm_agrees_with_golden() {
    whole("xlstm_w7", spec::Backbone::Xlstm(heads(16, 2, 2)), &[2, 6]);
    whole("xlstm_w60_state", spec::Backbone::Xlstm(heads(12, 2, 2)), &[2, 6]);
    whole("xlstm_w512_strong", spec::Backbone::Xlstm(heads(12, 2, 2)), &[2, 6]);
}

/// The gradient of a loss on the second of two chunks, through the state between them.
#[test]
fn gradients_flow_through_a_carried_state() {
    record();
    let gla = GlaConfig {
        hidden_size: 12,
        num_layers: 2,
        num_heads: 2,
        head_dim: 5,
        expand_factor: 2,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    for config in [
        spec::Backbone::Mamba2(mamba2_config(12, 5, 3, 4)),
        spec::Backbone::Retnet(heads(12, 2, 2)),
        spec::Backbone::Gla(gla),
        spec::Backbone::Xlstm(heads(12, 2, 2)),
    ] {
        let b = Builder::new(Source::Seed(3), true);
        let net = backbone::new(&config, 12, &b).unwrap();
        let weights = b.finish().unwrap();
        let x = Var::from_tensor(&noise(&[2, 11, 12], 5)).unwrap().into_inner();
        let zero = net.zero_state(2).unwrap();
        let c = noise(&[2, 5, 12], 6);
        let play = Context::default();
        let gradient = |second: Tensor| {
            let store = backward(&(second * &c).unwrap().sum_all().unwrap());
            let own = |(name, weight)| values(&crate::common::gradient(name, weight, &store));
            let all: Vec<f32> = weights.iter().flat_map(|(n, w)| own((n, w))).collect();
            (store.get(&x).unwrap().clone(), all)
        };
        let (y, _) = net.forward(&x, &zero, &play).unwrap();
        let (dx, dw) = gradient(y.narrow(1, 6, 5).unwrap());
        let (_, middle) = net.forward(&x.narrow(1, 0, 6).unwrap(), &zero, &play).unwrap();
        let (y, _) = net.forward(&x.narrow(1, 6, 5).unwrap(), &middle, &play).unwrap();
        let (dx_carried, dw_carried) = gradient(y);
        assert!(apart(&dx, &dx_carried) < 1e-4, "{}", config.name());
        let scale = dw.iter().fold(1.0f32, |m, v| m.max(v.abs()));
        let worst = dw.iter().zip(&dw_carried).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst < 2e-5 * scale, "{}: {worst}", config.name());
    }
}

#[test]
fn gradients_of_slstm_equal_finite_differences() {
    let n = |shape: &[usize], seed| (noise(shape, seed) * 0.7).unwrap();
    let positive = (n(&[3, 6], 5).abs().unwrap() + 0.5).unwrap();
    let m = n(&[3, 6], 6);
    for lengths in [None, Some([5, 2, 0].into())] {
        let inputs =
            vec![n(&[3, 5, 24], 1), n(&[24, 3], 2), n(&[3, 6], 3), n(&[3, 6], 4), positive.clone()];
        differences(inputs, |t| {
            let state = SlstmState {
                h: (*t[2]).clone(),
                c: (*t[3]).clone(),
                n: (*t[4]).clone(),
                m: m.clone(),
            };
            let (y, last) = slstm(&t[0], &t[1], 2, &state, lengths.clone()).unwrap();
            // c / n is independent of m, which only scales both.
            let ratio = (&last.c / &last.n).unwrap();
            Tensor::cat(&[y, last.h.unsqueeze(1).unwrap(), ratio.unsqueeze(1).unwrap()], 1).unwrap()
        });
    }
}
