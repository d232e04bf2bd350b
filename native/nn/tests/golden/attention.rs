//! Attention and the backbones made of it, and residual LSTMs, against PyTorch's float64 vectors.

use std::sync::Arc;

use candle_core::Tensor;
use sconce_nn::backbone::attention::{Sizes, block};
use sconce_nn::backbone::stack::Stack;
use sconce_nn::backbone::{self, Backbone, Context, State};
use sconce_nn::spec::{self, AttentionConfig, ExpandConfig, StackConfig, Trunk};
use sconce_ops::attention::Pairing;
use sconce_ops::weights::{Builder, Source};

use crate::common::{Golden, apart};

/// Steps frame by frame from `start` and compares with a whole pass.
fn steps(net: &dyn Backbone, x: &Tensor, start: &State, y: &Tensor, last: &State) {
    let mut now = start.clone();
    for t in 0..x.dim(1).unwrap() {
        let frame = |x: &Tensor| x.narrow(1, t, 1).unwrap().squeeze(1).unwrap();
        let (own, next) = net.step(&frame(x), &now, &Context::default()).unwrap();
        assert!(apart(&own, &frame(y)) < 1e-5, "step {t} and sequence differ");
        now = next;
    }
    for (stepped, whole) in now.0.iter().zip(&last.0) {
        assert!(apart(stepped, whole) < 1e-5, "states of steps and sequence differ");
    }
}

/// Blocks alone, without a projection of the input and without a final norm.
fn blocks(case: &str, num_layers: usize, sizes: Sizes, inner: usize) {
    for golden in Golden::everywhere(case) {
        let b = golden.builder();
        let trunk = Trunk {
            hidden_size: sizes.hidden_size,
            num_layers,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let layers: Vec<[Arc<_>; 2]> = (0..num_layers)
            .map(|i| block(&sizes, inner, &b.under("layers").under(i)).unwrap())
            .collect();
        let net = Stack::new(&trunk, sizes.hidden_size, layers.concat(), None, &b).unwrap();
        let weights = b.finish().unwrap();
        let x = golden.variable("input.x");
        let start = net.zero_state(x.dim(0).unwrap()).unwrap().beside(&x).unwrap();
        let (y, last) = net.forward(&x, &start, &Context::default()).unwrap();
        golden.check("output.y", &y);
        golden.check_gradients(&golden.loss(&[("y", &y)]), &weights, &[("x", &x)]);
        steps(&net, &x, &start, &y, &last);
    }
}

#[test]
fn blocks_agree_as_sequence_and_step() {
    for (name, pairing) in [("", Pairing::Half), ("_interleaved", Pairing::Interleaved)] {
        let sizes = |hidden_size, num_heads, head_dim, window_size| Sizes {
            hidden_size,
            num_heads,
            head_dim,
            window_size,
            qk_layernorm: false,
            pairing,
        };
        blocks(&format!("attention_w7{name}"), 1, sizes(24, 3, 8, 3), 96);
        blocks(&format!("attention_w60{name}"), 1, sizes(40, 3, 8, 16), 80);
        if pairing == Pairing::Half {
            blocks("attention_w60_l2", 2, sizes(24, 4, 6, 13), 48);
        }
    }
}

/// A whole backbone from a given state. `parts` are the golden names of the parts of the state before and after. A
/// name of a `[layer, b, h]` tensor ends with a slash and the layer.
fn given(case: &str, config: spec::Backbone, parts: &[(String, String)]) {
    for golden in Golden::everywhere(case) {
        let b = golden.builder();
        let x = golden.variable("input.x");
        let net = backbone::new(&config, x.dim(2).unwrap(), &b).unwrap();
        let weights = b.finish().unwrap();
        let mut inputs: Vec<(String, Tensor)> = vec![];
        let mut start = vec![];
        for (before, _) in parts {
            let (name, layer) = split(before);
            if !inputs.iter().any(|(n, _)| n == name) {
                inputs.push((name.into(), golden.variable(&format!("input.{name}"))));
            }
            let whole = &inputs.iter().find(|(n, _)| n == name).unwrap().1;
            start.push(layer.map_or(whole.clone(), |layer| whole.get(layer).unwrap()));
        }
        let start = State(start);
        let (y, last) = net.forward(&x, &start, &Context::default()).unwrap();
        let mut outputs = vec![("y".to_string(), vec![y.clone()], false)];
        for ((_, after), value) in parts.iter().zip(&last.0) {
            let (name, layer) = split(after);
            match outputs.iter_mut().find(|(n, _, _)| n == name) {
                Some((_, layers, _)) => layers.push(value.clone()),
                None => outputs.push((name.into(), vec![value.clone()], layer.is_some())),
            }
        }
        let outputs: Vec<(String, Tensor)> = outputs
            .into_iter()
            .map(|(name, values, layered)| match layered {
                true => (name, Tensor::stack(&values, 0).unwrap()),
                false => (name, values[0].clone()),
            })
            .collect();
        for (name, value) in &outputs {
            golden.check(&format!("output.{name}"), value);
        }
        let counted = |name: &str| name.starts_with("seen");
        let outputs: Vec<_> =
            outputs.iter().filter(|(n, _)| !counted(n)).map(|(n, t)| (n.as_str(), t)).collect();
        let mut wanted = vec![("x", &x)];
        wanted.extend(inputs.iter().filter(|(n, _)| !counted(n)).map(|(n, t)| (n.as_str(), t)));
        golden.check_gradients(&golden.loss(&outputs), &weights, &wanted);
        steps(&*net, &x, &start, &y, &last);
    }
}

fn split(name: &str) -> (&str, Option<usize>) {
    match name.split_once('/') {
        Some((name, layer)) => (name, Some(layer.parse().unwrap())),
        None => (name, None),
    }
}

/// The cache of layer i.
fn cache(i: usize) -> Vec<(String, String)> {
    ["keys", "values", "seen"].map(|part| (format!("{part}{i}"), format!("{part}{i}"))).into()
}

/// The states h and c of the layers of an LSTM.
fn lstm(layers: usize) -> Vec<(String, String)> {
    let part = |i| ["h", "c"].map(|part| (format!("{part}0/{i}"), format!("{part}_n/{i}")));
    (0..layers).flat_map(part).collect()
}

fn attention(
    hidden_size: usize,
    num_layers: usize,
    [num_heads, head_dim, window_size]: [usize; 3],
    qk_layernorm: bool,
) -> AttentionConfig {
    AttentionConfig {
        hidden_size,
        num_layers,
        num_heads,
        head_dim,
        window_size,
        qk_layernorm,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    }
}

#[test]
fn transformers_agree_from_a_carried_cache() {
    let config = spec::Backbone::SlidingWindow(attention(12, 2, [2, 6, 5], true));
    given("transformer_state", config, &[cache(0), cache(1)].concat());
    let config = spec::Backbone::SlidingWindow(attention(10, 1, [2, 4, 60], false));
    given("transformer_w60_state", config, &cache(0));
    let config = spec::Backbone::CausalTransformer(attention(12, 3, [3, 4, 20], false));
    given("decision_transformer", config, &[cache(0), cache(1), cache(2)].concat());
}

#[test]
fn attention_after_an_lstm_agrees_from_a_given_state_even_with_strong_decay() {
    let config = spec::Backbone::LstmHybrid(attention(10, 2, [2, 4, 4], true));
    given("lstm_hybrid", config, &[lstm(2), cache(0)].concat());
    let config = spec::Backbone::LstmHybrid(attention(8, 1, [2, 4, 13], false));
    given("lstm_hybrid_w60", config, &[lstm(1), cache(0)].concat());
    let config = spec::Backbone::LstmHybrid(attention(6, 1, [2, 4, 9], true));
    given("lstm_hybrid_w512_strong", config, &[lstm(1), cache(0)].concat());
}

#[test]
fn residual_lstms_agree_from_a_given_state_even_with_strong_decay() {
    for (name, hidden_size, num_layers) in [("", 10, 2), ("_w60", 8, 1), ("_w512_strong", 6, 2)] {
        let (input_norm, dropout, input_dropout) = (false, 0.0, 0.0);
        let config = StackConfig { hidden_size, num_layers, input_norm, dropout, input_dropout };
        given(&format!("res_lstm{name}"), spec::Backbone::ResLstm(config), &lstm(num_layers));
        let expand_factor = 2;
        let config = ExpandConfig {
            hidden_size,
            num_layers,
            expand_factor,
            input_norm,
            dropout,
            input_dropout,
        };
        given(&format!("tx_like{name}"), spec::Backbone::TxLike(config), &lstm(num_layers));
    }
}

#[test]
fn weights_of_attention_can_be_tapped() {
    let config = spec::Backbone::SlidingWindow(attention(12, 2, [3, 4, 5], true));
    let b = Builder::new(Source::Seed(1), false);
    let net = backbone::new(&config, 6, &b).unwrap();
    let context = Context::tapped();
    let x = crate::common::noise(&[2, 9, 6], 1);
    net.forward(&x, &net.zero_state(2).unwrap(), &context).unwrap();
    let weights = &context.taps().unwrap()["0.attention_weights"];
    assert_eq!(weights.dims(), [2, 3, 9, 5]);
    let sums = crate::common::values(&weights.sum(3).unwrap());
    assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-5));
}
