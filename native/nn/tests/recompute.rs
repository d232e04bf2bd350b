//! Blocks that run again in the backward pass, and the options of a pass: chunks, taps, projections.

#[path = "../../ops/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use candle_core::{Tensor, Var};
use common::{apart, backward, gradient, noise, record, values};
use sconce_nn::backbone::stack::{FeedForward, Residual, Stack};
use sconce_nn::backbone::{Backbone, Cell, Context, Recurrent, State};
use sconce_nn::layer::{Linear, Norm};
use sconce_nn::projection::Projection;
use sconce_nn::spec::{self, RecurrentConfig, Trunk};
use sconce_ops::Activation;
use sconce_ops::weights::{Builder, Source, Weights};

const HIDDEN: usize = 10;
const INPUT: usize = 7;

fn feed_forward(b: &Builder) -> FeedForward {
    let up = Linear::new(HIDDEN, 12, Activation::Gelu, &b.under("up")).unwrap();
    FeedForward::new(up, Linear::without_bias(12, HIDDEN, &b.under("down")).unwrap())
}

fn cell(cell: Cell, b: &Builder) -> Recurrent {
    let config = RecurrentConfig {
        hidden_size: HIDDEN,
        num_layers: 1,
        layer_norm: true,
        input_norm: false,
        dropout: 0.2,
        input_dropout: 0.0,
        ..Default::default()
    };
    Recurrent::new(cell, &config, HIDDEN, b).unwrap()
}

/// Six residuals. The feed-forward one occurs twice.
fn stack() -> (Stack, Weights) {
    let b = Builder::new(Source::Seed(3), true);
    let norm = |name: &str| Norm::layer(HIDDEN, &b.under(name)).unwrap();
    let shared = Residual::new(norm("n0"), feed_forward(&b.under("shared"))).unwrap();
    let shared = Arc::new(shared);
    let new = |name: &str, kind| {
        Arc::new(Residual::new(norm(&format!("n{name}")), cell(kind, &b.under(name))).unwrap())
    };
    let residuals = vec![
        new("a", Cell::Gru),
        shared.clone(),
        new("b", Cell::Lstm),
        new("c", Cell::Gru),
        shared,
        new("d", Cell::Lstm),
    ];
    let trunk = Trunk {
        hidden_size: HIDDEN,
        num_layers: 3,
        input_norm: true,
        dropout: 0.3,
        input_dropout: 0.1,
    };
    let last = Some(norm("last"));
    let stack = Stack::new(&trunk, INPUT, residuals, last, &b).unwrap();
    (stack, b.finish().unwrap())
}

fn bits(t: &Tensor) -> Vec<u32> {
    values(t).iter().map(|v| v.to_bits()).collect()
}

/// All results of a pass and of its backward pass, the gradients of the state included.
fn run(context: &Context, through_the_state: bool) -> Vec<(String, Vec<u32>)> {
    let (stack, weights) = stack();
    let x = Var::from_tensor(&noise(&[3, 8, INPUT], 1)).unwrap();
    let first: Vec<Var> = stack
        .zero_state(3)
        .unwrap()
        .0
        .iter()
        .enumerate()
        .map(|(i, part)| Var::from_tensor(&noise(part.dims(), 10 + i as u64)).unwrap())
        .collect();
    let state = State(first.iter().map(|v| v.as_tensor().clone()).collect());
    let (y, next) = stack.forward(&x, &state, context).unwrap();
    let mut loss = (&y * noise(y.dims(), 2)).unwrap().sum_all().unwrap();
    if through_the_state {
        for (i, part) in next.0.iter().enumerate() {
            let term = (part * noise(part.dims(), 30 + i as u64)).unwrap().sum_all().unwrap();
            loss = (loss + term).unwrap();
        }
    }
    let store = backward(&loss);
    let mut all = vec![("y".to_string(), bits(&y)), ("dx".into(), bits(store.get(&x).unwrap()))];
    all.extend(next.0.iter().enumerate().map(|(i, part)| (format!("next {i}"), bits(part))));
    for (i, part) in first.iter().enumerate() {
        all.push((format!("d state {i}"), bits(store.get(part).unwrap())));
    }
    all.extend(weights.iter().map(|(name, w)| (name.clone(), bits(&gradient(name, w, &store)))));
    all
}

#[test]
fn a_recomputed_stack_gives_the_same_bits_even_through_its_state() {
    record();
    for through_the_state in [false, true] {
        let plain = run(&Context::training(5, 2), through_the_state);
        for every in [1, 2, 4, 6, 100] {
            let recomputed = run(&Context::training(5, 2).recomputing(every), through_the_state);
            for (a, b) in plain.iter().zip(&recomputed) {
                assert!(a == b, "{} in groups of {every}", a.0);
            }
        }
    }
}

#[test]
fn weights_have_gradients_even_if_the_input_has_none() {
    record();
    let config = RecurrentConfig {
        hidden_size: HIDDEN,
        num_layers: 2,
        layer_norm: false,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
        ..Default::default()
    };
    let b = Builder::new(Source::Seed(1), true);
    let net = Recurrent::new(Cell::Gru, &config, INPUT, &b).unwrap();
    let weights = b.finish().unwrap();
    let context = Context::default().recomputing(1);
    let (y, _) =
        net.forward(&noise(&[2, 5, INPUT], 1), &net.zero_state(2).unwrap(), &context).unwrap();
    let store = backward(&y.sum_all().unwrap());
    for (name, weight) in &weights {
        assert!(values(&gradient(name, weight, &store)).iter().any(|v| *v != 0.0), "{name}");
    }
}

#[test]
fn dropout_of_chunks_equals_dropout_of_the_whole_window() {
    let (stack, _) = stack();
    let x = noise(&[3, 9, INPUT], 4);
    let training = || Context::training(1, 1);
    let zero = stack.zero_state(3).unwrap();
    let (whole, _) = stack.forward(&x, &zero, &training()).unwrap();
    let (mut parts, mut state) = (vec![], zero);
    for (before, frames) in [(0, 4), (4, 4), (8, 1)] {
        let context = training().chunk(9, before, frames);
        let (y, next) =
            stack.forward(&x.narrow(1, before, frames).unwrap(), &state, &context).unwrap();
        parts.push(y);
        state = next.hand_on().unwrap();
    }
    assert!(apart(&Tensor::cat(&parts, 1).unwrap(), &whole) < 1e-5);
}

#[test]
fn taps_are_named_by_layer_and_an_unknown_name_lists_those_that_exist() {
    struct Tapped;
    impl Backbone for Tapped {
        fn zero_state(&self, _: usize) -> sconce_tensor::Result<State> {
            Ok(State(vec![]))
        }

        fn forward(
            &self,
            x: &Tensor,
            state: &State,
            context: &Context,
        ) -> sconce_tensor::Result<(Tensor, State)> {
            context.tap("read", x);
            context.under("inner").tap_with("twice", || Ok((x * 2.0)?))?;
            Ok((x.clone(), state.clone()))
        }
    }
    let b = Builder::new(Source::Seed(3), false);
    let residual = |name: &str| {
        let norm = Norm::rms(HIDDEN, &b.under(name)).unwrap();
        Arc::new(Residual::new(norm, Tapped).unwrap())
    };
    let trunk = Trunk {
        hidden_size: HIDDEN,
        num_layers: 2,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let layers = vec![residual("a"), residual("b")];
    let stack = Stack::new(&trunk, HIDDEN, layers, None, &b).unwrap();
    let x = noise(&[1, 2, HIDDEN], 1);
    let pass = |context: Context| {
        stack.forward(&x, &State(vec![]), &context).unwrap();
        context.taps()
    };
    let all = pass(Context::tapped()).unwrap();
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    assert_eq!(names, ["0.inner.twice", "0.read", "1.inner.twice", "1.read"]);
    assert_ne!(values(&all["0.read"]), values(&all["1.read"]));
    let recomputed = pass(Context::tapped().recomputing(1)).unwrap();
    assert_eq!(values(&recomputed["1.read"]), values(&all["1.read"]));

    let one = |name: &str| pass(Context::default().tapping([name.to_string()]));
    assert_eq!(one("1.read").unwrap().len(), 1);
    let error = one("1.red").unwrap_err().to_string();
    assert_eq!(error, "tap: expected 0.inner.twice, 0.read, 1.inner.twice, 1.read, got 1.red");
    assert!(pass(Context::default()).unwrap().is_empty());
}

#[test]
fn the_heads_read_the_trunk_without_the_projected_directions() {
    use sconce_nn::policy::Frames;
    use sconce_nn::{Policy, Spec};
    let config = RecurrentConfig {
        hidden_size: 8,
        num_layers: 1,
        layer_norm: false,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
        ..Default::default()
    };
    let kind = spec::HeadKind::Categorical(3);
    let parts = vec![spec::Head { name: "action".into(), kind, hidden_size: 5 }];
    let spec = Spec {
        embedding: spec::Embedding::vector(2),
        backbone: spec::Backbone::Gru(config),
        heads: spec::Heads {
            kind: spec::HeadsKind::Independent,
            parts,
            stream_size: 4,
            prior: false,
        },
        critic: None,
    };
    let policy = Policy::init(&spec, 1).unwrap();
    let frames = Frames {
        batch: 1,
        time: 3,
        continuous: values(&noise(&[6], 2)),
        ids: vec![],
        previous: vec![sconce_nn::heads::NONE; 3],
    };
    let u = values(&noise(&[2, 8], 3));
    let projection = Arc::new(Projection::new(&u, policy.trunk_width()).unwrap());
    let zero = policy.zero_state(1).unwrap();
    let forward = |context: &Context| policy.forward(&frames, None, &zero, context).unwrap();

    let context = Context::tapped().projecting(Some(projection));
    let (logits, state) = forward(&context);
    let taps = context.taps().unwrap();
    assert_eq!(taps["embedding"].dims(), [1, 3, 2]);
    let trunk = values(&taps["trunk"]);
    // Gram-Schmidt by hand, then the head from its weights.
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let without = |x: &[f32], u: &[f32]| -> Vec<f32> {
        let along = dot(x, u) / dot(u, u);
        x.iter().zip(u).map(|(x, u)| x - along * u).collect()
    };
    let (u1, u2) = (&u[..8], without(&u[8..], &u[..8]));
    let weight = |name: &str| values(&policy.weights()[name]);
    let linear = |x: &[f32], name: &str| -> Vec<f32> {
        let (w, b) =
            (weight(&format!("heads.{name}.weight")), weight(&format!("heads.{name}.bias")));
        w.chunks_exact(x.len()).zip(b).map(|(row, b)| dot(row, x) + b).collect()
    };
    for (trunk, logits) in trunk.chunks_exact(8).zip(values(&logits).chunks_exact(3)) {
        let seen = without(&without(trunk, u1), &u2);
        let hidden: Vec<f32> = linear(&seen, "action_hidden").iter().map(|v| v.max(0.0)).collect();
        for (want, got) in linear(&hidden, "action_logits").iter().zip(logits) {
            assert!((want - got).abs() < 1e-5, "got {got}, want {want}");
        }
    }
    let (plain, untouched) = forward(&Context::default());
    assert_ne!(values(&plain), values(&logits));
    assert_eq!(untouched.to_vec().unwrap(), state.to_vec().unwrap());
}

#[test]
fn recomputed_blocks_give_the_same_gradients_twice() {
    record();
    let (stack, weights) = stack();
    let x = Var::from_tensor(&noise(&[2, 4, INPUT], 1)).unwrap();
    let context = Context::training(1, 1).recomputing(2);
    let gradients = || {
        let (y, _) = stack.forward(&x, &stack.zero_state(2).unwrap(), &context).unwrap();
        let loss = y.sqr().unwrap().sum_all().unwrap();
        let store = backward(&loss);
        let of = weights.iter().map(|(name, weight)| bits(&gradient(name, weight, &store)));
        std::iter::once(bits(store.get(&x).unwrap())).chain(of).collect::<Vec<_>>()
    };
    assert_eq!(gradients(), gradients());
}
