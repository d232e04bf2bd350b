//! What every backbone promises: by properties, not by examples.

mod common;

use candle_core::{Device, Tensor};
use common::{apart, noise, values};
use proptest::prelude::*;
use sconce_core::backbone::{self, Backbone, Context, State};
use sconce_core::rng::Rng;
use sconce_core::spec::{
    self, AttentionConfig, ExpandConfig, GriffinConfig, HawkConfig, JambaConfig, MambaConfig,
    MlpConfig, RecurrentConfig, StackConfig, StateConfig,
};
use sconce_core::weights::{Builder, Source, Weights};

const INPUT: usize = 11;

fn configs() -> Vec<spec::Backbone> {
    let recurrent = |layer_norm| RecurrentConfig {
        hidden_size: 13,
        num_layers: 2,
        layer_norm,
        input_norm: layer_norm,
        dropout: 0.4,
        input_dropout: 0.4,
    };
    let mlp = MlpConfig {
        hidden_sizes: vec![17, 9],
        layer_norm: true,
        residual: true,
        dropout: 0.4,
        input_dropout: 0.4,
    };
    let mut all = vec![spec::Backbone::Mlp(mlp)];
    for layer_norm in [false, true] {
        all.push(spec::Backbone::Lstm(recurrent(layer_norm)));
        all.push(spec::Backbone::Gru(recurrent(layer_norm)));
    }
    all.extend(attention());
    all.extend(gated());
    all.extend(selective());
    all
}

/// Those over the gated linear recurrence.
fn gated() -> Vec<spec::Backbone> {
    let (hidden_size, num_layers, input_norm, dropout, input_dropout) = (13, 2, false, 0.4, 0.4);
    let plain = StackConfig { hidden_size, num_layers, input_norm, dropout, input_dropout };
    let expand = ExpandConfig {
        hidden_size,
        num_layers,
        expand_factor: 2,
        input_norm,
        dropout,
        input_dropout,
    };
    let hawk = HawkConfig {
        hidden_size,
        num_layers,
        expand_factor: 3,
        conv_size: 4,
        input_norm,
        dropout,
        input_dropout,
    };
    let griffin = GriffinConfig {
        hidden_size: 12,
        num_layers,
        expand_factor: 2,
        conv_size: 3,
        attention_every: 2,
        num_heads: 3,
        window_size: 5,
        input_norm,
        dropout,
        input_dropout,
    };
    let s5 =
        StateConfig { hidden_size, num_layers, state_size: 9, input_norm, dropout, input_dropout };
    vec![
        spec::Backbone::MinGru(plain.clone()),
        spec::Backbone::MinLstm(plain),
        spec::Backbone::Hawk(hawk),
        spec::Backbone::Griffin(griffin),
        spec::Backbone::Hgrn(expand.clone()),
        spec::Backbone::Rwkv(expand),
        spec::Backbone::S5(s5),
    ]
}

fn attention() -> Vec<spec::Backbone> {
    let config = |window_size, qk_layernorm| AttentionConfig {
        hidden_size: 13,
        num_layers: 2,
        num_heads: 3,
        head_dim: 6,
        window_size,
        qk_layernorm,
        input_norm: qk_layernorm,
        dropout: 0.4,
        input_dropout: 0.4,
    };
    let (stack, expand) = (
        StackConfig {
            hidden_size: 13,
            num_layers: 2,
            input_norm: false,
            dropout: 0.4,
            input_dropout: 0.4,
        },
        ExpandConfig {
            hidden_size: 11,
            num_layers: 2,
            expand_factor: 2,
            input_norm: true,
            dropout: 0.4,
            input_dropout: 0.4,
        },
    );
    vec![
        spec::Backbone::SlidingWindow(config(7, false)),
        spec::Backbone::SlidingWindow(config(60, true)),
        spec::Backbone::LstmHybrid(config(4, true)),
        spec::Backbone::DecisionTransformer(config(5, false)),
        spec::Backbone::ResLstm(stack),
        spec::Backbone::TxLike(expand),
    ]
}

fn selective() -> Vec<spec::Backbone> {
    let (hidden_size, dropout, input_dropout) = (13, 0.4, 0.4);
    let mamba = MambaConfig {
        hidden_size,
        num_layers: 2,
        state_size: 5,
        expand_factor: 2,
        conv_size: 4,
        input_norm: true,
        dropout,
        input_dropout,
    };
    let jamba = JambaConfig {
        hidden_size,
        num_layers: 4,
        state_size: 16,
        expand_factor: 2,
        conv_size: 3,
        attention_every: 2,
        num_heads: 2,
        head_dim: 4,
        window_size: 5,
        qk_layernorm: true,
        input_norm: false,
        dropout,
        input_dropout,
    };
    let gated = HawkConfig {
        hidden_size,
        num_layers: 2,
        expand_factor: 2,
        conv_size: 4,
        input_norm: false,
        dropout,
        input_dropout,
    };
    let s4d = StateConfig {
        hidden_size,
        num_layers: 2,
        state_size: 18,
        input_norm: true,
        dropout,
        input_dropout,
    };
    vec![
        spec::Backbone::Mamba(mamba),
        spec::Backbone::Jamba(jamba.clone()),
        spec::Backbone::Zamba(jamba),
        spec::Backbone::GatedSsm(gated),
        spec::Backbone::S4d(s4d),
    ]
}

fn build(config: &spec::Backbone, seed: u64) -> (Box<dyn Backbone>, Weights) {
    let b = Builder::new(Source::Seed(seed), true);
    let net = backbone::new(config, INPUT, &b).unwrap();
    let weights = b.finish().unwrap();
    // What is zero at first hides what lies behind it.
    for (name, weight) in weights.iter().filter(|(_, w)| w.rank() == 2) {
        let rng = Rng::new(seed, name, 0);
        let fill = |v: &mut [f32]| {
            if v.iter().all(|v| *v == 0.0) {
                v.iter_mut().enumerate().for_each(|(i, v)| *v = 0.3 * rng.normal(i as u64));
            }
        };
        sconce_core::ops::tensor::update(weight, fill).unwrap();
    }
    (net, weights)
}

fn rows(t: &Tensor, order: &[u32]) -> Tensor {
    let order = Tensor::new(order, &Device::Cpu).unwrap();
    t.contiguous().unwrap().index_select(&order, 0).unwrap()
}

fn play() -> Context {
    Context::default()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn step_equals_sequence_and_two_chunks_equal_one(seed in 0u64..1000, batch in 1usize..6, time in 2usize..20) {
        for config in configs() {
            let (net, _) = build(&config, seed);
            let x = noise(&[batch, time, INPUT], seed);
            let zero = net.zero_state(batch).unwrap();
            let (whole, last) = net.forward(&x, &zero, &play()).unwrap();

            let mut state = zero.clone();
            for t in 0..time {
                let frame = x.narrow(1, t, 1).unwrap().squeeze(1).unwrap();
                let (y, next) = net.step(&frame, &state, &play()).unwrap();
                prop_assert!(apart(&y, &whole.narrow(1, t, 1).unwrap().squeeze(1).unwrap()) < 1e-5);
                state = next;
            }
            let cut = time / 2;
            let (a, middle) = net.forward(&x.narrow(1, 0, cut).unwrap(), &zero, &play()).unwrap();
            let (b, end) = net.forward(&x.narrow(1, cut, time - cut).unwrap(), &middle, &play()).unwrap();
            prop_assert!(apart(&Tensor::cat(&[a, b], 1).unwrap(), &whole) < 1e-5);
            for (part, want) in end.0.iter().chain(&state.0).zip(last.0.iter().chain(&last.0)) {
                prop_assert!(apart(part, want) < 1e-5);
            }
        }
    }

    #[test]
    fn the_order_of_the_batch_does_not_matter(seed in 0u64..1000, time in 1usize..9) {
        for config in configs() {
            let (net, _) = build(&config, seed);
            let x = noise(&[3, time, INPUT], seed);
            let zero = net.zero_state(3).unwrap();
            let (y, _) = net.forward(&x, &zero, &play()).unwrap();
            let (turned, _) = net.forward(&rows(&x, &[2, 0, 1]), &zero, &play()).unwrap();
            prop_assert!(apart(&rows(&y, &[2, 0, 1]), &turned) < 1e-5);
        }
    }

    #[test]
    fn missing_frames_leave_a_sequence_as_if_they_were_not_there(seed in 0u64..1000, gaps in 0u32..512) {
        for config in configs() {
            let (net, _) = build(&config, seed);
            let time = 9;
            let x = noise(&[2, time, INPUT], seed);
            let zero = net.zero_state(2).unwrap();
            // Any frames of the first row are missing; the second row has all.
            let present: Vec<usize> = (0..time).filter(|t| gaps >> t & 1 == 0).collect();
            let mask: Vec<bool> = (0..2 * time).map(|i| i >= time || present.contains(&i)).collect();
            let (y, last) = net.forward(&x, &zero, &Context::masked(Some(mask.into()))).unwrap();
            let row = |t: &Tensor, i| t.narrow(0, i, 1).unwrap();
            let (want, end) = net.forward(&x, &zero, &play()).unwrap();
            prop_assert!(apart(&row(&y, 1), &row(&want, 1)) < 1e-5);
            for (part, want) in last.0.iter().zip(&end.0) {
                prop_assert!(apart(&row(part, 1), &row(want, 1)) < 1e-5);
            }
            let alone = net.zero_state(1).unwrap();
            let (want, end) = match present.is_empty() {
                true => (None, alone),
                false => {
                    let frames: Vec<Tensor> =
                        present.iter().map(|&t| row(&x, 0).narrow(1, t, 1).unwrap()).collect();
                    let x = Tensor::cat(&frames, 1).unwrap();
                    let (y, end) = net.forward(&x, &alone, &play()).unwrap();
                    (Some(y), end)
                }
            };
            for (part, want) in last.0.iter().zip(&end.0) {
                prop_assert!(apart(&row(part, 0), want) < 1e-5);
            }
            for (i, &t) in present.iter().enumerate() {
                let want = want.as_ref().unwrap().narrow(1, i, 1).unwrap();
                prop_assert!(apart(&row(&y, 0).narrow(1, t, 1).unwrap(), &want) < 1e-5);
            }
        }
    }
}

#[test]
fn every_weight_gets_a_finite_gradient_also_with_dropout() {
    for config in configs() {
        let (net, weights) = build(&config, 5);
        let x = noise(&[4, 6, INPUT], 5);
        let (y, _) =
            net.forward(&x, &net.zero_state(4).unwrap(), &Context::training(1, 1)).unwrap();
        let gradients = (&y * noise(y.dims(), 6)).unwrap().sum_all().unwrap().backward().unwrap();
        for (name, weight) in &weights {
            let gradient = values(&common::gradient(name, weight, &gradients));
            assert!(gradient.iter().all(|v| v.is_finite()), "{name}");
            assert!(gradient.iter().any(|v| *v != 0.0), "{name} is all zero");
        }
    }
}

#[test]
fn one_thread_and_two_give_the_same_bits() {
    for config in configs() {
        let mut seen: Option<Vec<Vec<u32>>> = None;
        for threads in [1, 2, 3] {
            sconce_core::pool::set_threads(threads).unwrap();
            let (net, weights) = build(&config, 2);
            let x = noise(&[40, 33, INPUT], 9);
            let (y, _) =
                net.forward(&x, &net.zero_state(40).unwrap(), &Context::training(3, 7)).unwrap();
            let gradients = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let bits = |t: &Tensor| values(t).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let mut all = vec![bits(&y)];
            all.extend(weights.iter().map(|(n, w)| bits(&common::gradient(n, w, &gradients))));
            match &seen {
                Some(first) => assert_eq!(*first, all, "{} with {threads} threads", config.name()),
                None => seen = Some(all),
            }
        }
    }
}

#[test]
fn dropout_fires_in_training_and_not_in_play() {
    for config in configs() {
        let (net, _) = build(&config, 1);
        let x = noise(&[2, 4, INPUT], 1);
        let zero = net.zero_state(2).unwrap();
        let run = |context: Context| net.forward(&x, &zero, &context).unwrap().0;
        assert_eq!(values(&run(play())), values(&run(play())));
        assert_ne!(values(&run(Context::training(1, 1))), values(&run(play())));
        assert_ne!(values(&run(Context::training(1, 1))), values(&run(Context::training(1, 2))));
        assert_eq!(values(&run(Context::training(1, 1))), values(&run(Context::training(1, 1))));
    }
}

#[test]
fn a_trunk_vector_can_be_tapped() {
    let (net, _) = build(&configs()[3], 1);
    let context = Context::tapped();
    let (y, _) =
        net.forward(&noise(&[2, 3, INPUT], 1), &net.zero_state(2).unwrap(), &context).unwrap();
    assert_eq!(values(&context.taps()["trunk"]), values(&y));
}

#[test]
fn a_state_of_another_backbone_is_an_error_that_gives_both() {
    let (net, _) = build(&configs()[1], 1);
    let wrong = net.forward(&noise(&[2, 3, INPUT], 1), &State(vec![]), &play()).unwrap_err();
    assert_eq!(wrong.to_string(), "parts of a state: expected 4, got 0");
}
