//! What every backbone promises, and what every op's gradient is: by properties, not by examples.

mod common;

use candle_core::{Device, Tensor, Var};
use proptest::prelude::*;
use sconce_core::backbone::{self, Backbone, Context, State};
use sconce_core::ops::{self, Activation};
use sconce_core::rng::Rng;
use sconce_core::spec::{self, MlpConfig, RecurrentConfig};
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
    all
}

fn build(config: &spec::Backbone, seed: u64) -> (Box<dyn Backbone>, Weights) {
    let b = Builder::new(Source::Seed(seed), true);
    let net = backbone::new(config, INPUT, &b).unwrap();
    (net, b.finish().unwrap())
}

fn noise(shape: &[usize], seed: u64) -> Tensor {
    let rng = Rng::new(seed, "noise", 0);
    let data: Vec<f32> =
        (0..shape.iter().product::<usize>() as u64).map(|i| rng.normal(i)).collect();
    Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
}

fn values(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

fn apart(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.dims(), b.dims());
    values(a).iter().zip(values(b)).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
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
    fn missing_frames_leave_a_sequence_as_if_they_were_not_there(seed in 0u64..1000, short in 1usize..7) {
        for config in configs() {
            let (net, _) = build(&config, seed);
            let time = 9;
            let x = noise(&[2, time, INPUT], seed);
            let zero = net.zero_state(2).unwrap();
            let mask: Vec<bool> = (0..2 * time).map(|i| i / time == 1 || i % time < short).collect();
            let masked = Context::masked(Some(mask.into()));
            let (y, last) = net.forward(&x, &zero, &masked).unwrap();
            let alone = x.narrow(0, 0, 1).unwrap().narrow(1, 0, short).unwrap();
            let (want, end) = net.forward(&alone, &net.zero_state(1).unwrap(), &play()).unwrap();
            prop_assert!(apart(&y.narrow(0, 0, 1).unwrap().narrow(1, 0, short).unwrap(), &want) < 1e-5);
            for (part, want) in last.0.iter().zip(&end.0) {
                prop_assert!(apart(&part.narrow(0, 0, 1).unwrap(), want) < 1e-5);
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
            let gradient = values(gradients.get(weight).unwrap_or_else(|| panic!("{name}: none")));
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
            all.extend(weights.values().map(|w| bits(gradients.get(w).unwrap())));
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
fn dropout_keeps_the_mean_and_drops_whole_columns_where_asked() {
    let x = Tensor::ones((8, 10, 400), candle_core::DType::F32, &Device::Cpu).unwrap();
    let rng = Rng::new(1, "dropout", 0);
    let free = values(&ops::dropout(&x, 0.25, rng).unwrap());
    let mean = free.iter().sum::<f32>() / free.len() as f32;
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    let columns = values(&ops::dropout_columns(&x, 0.25, rng).unwrap());
    for window in columns.chunks(10 * 400) {
        assert!(window.chunks(400).all(|frame| frame == &window[..400]));
    }
    assert!(columns.chunks(4000).any(|w| w[..400] != columns[..400]), "all windows are alike");
}

#[test]
fn a_trunk_vector_can_be_tapped() {
    let (net, _) = build(&configs()[3], 1);
    let context = Context::tapped();
    let (y, _) =
        net.forward(&noise(&[2, 3, INPUT], 1), &net.zero_state(2).unwrap(), &context).unwrap();
    assert_eq!(values(&context.taps()["trunk"]), values(&y));
}

/// Central differences of `sum(f(x) * c)` against the gradients that the ops give.
fn differences(inputs: Vec<Tensor>, f: impl Fn(&[Tensor]) -> Tensor) {
    let variables: Vec<Tensor> =
        inputs.iter().map(|t| Var::from_tensor(t).unwrap().into_inner()).collect();
    let y = f(&variables);
    let c = noise(y.dims(), 77);
    let gradients = (&y * &c).unwrap().sum_all().unwrap().backward().unwrap();
    let c = values(&c);
    let at = |inputs: &[Tensor]| {
        values(&f(inputs)).iter().zip(&c).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
    };
    for (k, input) in inputs.iter().enumerate() {
        let gradient = values(gradients.get(&variables[k]).expect("a gradient"));
        let scale = gradient.iter().fold(0.1f32, |m, v| m.max(v.abs()));
        for i in (0..input.elem_count()).step_by(1 + input.elem_count() / 25) {
            let moved = |by: f32| {
                let mut data = values(input);
                data[i] += by;
                let mut moved = inputs.clone();
                moved[k] = Tensor::from_vec(data, input.shape(), &Device::Cpu).unwrap();
                at(&moved)
            };
            let slope = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            let off = (slope - f64::from(gradient[i])).abs();
            assert!(
                off < 2e-2 * f64::from(scale),
                "input {k}, number {i}: {slope} by differences, {} by the op",
                gradient[i]
            );
        }
    }
}

#[test]
fn gradients_of_every_op_are_its_finite_differences() {
    let n = |shape: &[usize], seed| (noise(shape, seed) * 0.7).unwrap();
    differences(vec![n(&[3, 5], 1), n(&[4, 5], 2), n(&[4], 3)], |t| {
        ops::linear(&t[0], &t[1], Some(&t[2]), Activation::None).unwrap()
    });
    differences(vec![n(&[3, 5], 1), n(&[4, 5], 2)], |t| {
        ops::linear(&t[0], &t[1], None, Activation::None).unwrap()
    });
    differences(vec![n(&[3, 8], 1), n(&[8], 2), n(&[8], 3)], |t| {
        ops::layer_norm(&t[0], &t[1], &t[2], 1e-5).unwrap()
    });
    differences(vec![n(&[6, 3], 1)], |t| {
        ops::gather(&t[0], vec![1, 5, 1, 0].into(), "ids").unwrap()
    });
    differences(vec![n(&[2, 3, 4], 1)], |t| ops::dropout(&t[0], 0.5, Rng::new(1, "d", 1)).unwrap());
    let mask: Vec<bool> = (0..8).map(|i| i != 2 && i != 7).collect();
    for mask in [None, Some(mask.into())] {
        let gru_mask: backbone::Mask = mask.clone();
        differences(vec![n(&[2, 4, 9], 1), n(&[9, 3], 2), n(&[9], 3), n(&[2, 3], 4)], move |t| {
            ops::gru(&t[0], &t[1], &t[2], &t[3], gru_mask.clone()).unwrap()
        });
        let lstm_mask: backbone::Mask = mask;
        differences(
            vec![n(&[2, 4, 12], 1), n(&[12, 3], 2), n(&[2, 3], 3), n(&[2, 3], 4)],
            move |t| {
                let (h, c) = ops::lstm(&t[0], &t[1], &t[2], &t[3], lstm_mask.clone()).unwrap();
                Tensor::cat(&[h, c], 2).unwrap()
            },
        );
    }
}

#[test]
fn relu_cuts_the_gradient_where_it_cut_the_output() {
    let x = Var::from_tensor(&noise(&[5, 4], 1)).unwrap().into_inner();
    let weight = noise(&[6, 4], 2);
    let fused = ops::linear(&x, &weight, None, Activation::Relu).unwrap();
    let plain = ops::linear(&x, &weight, None, Activation::None).unwrap().relu().unwrap();
    assert_eq!(values(&fused), values(&plain));
    let gradient = |y: &Tensor| {
        values(y.sqr().unwrap().sum_all().unwrap().backward().unwrap().get(&x).unwrap())
    };
    assert!(gradient(&fused).iter().zip(gradient(&plain)).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn shapes_that_do_not_fit_are_errors_that_give_both() {
    let message = |e: sconce_core::Error| e.to_string();
    let x = noise(&[2, 5], 1);
    let wrong = ops::linear(&x, &noise(&[3, 4], 1), None, Activation::None).unwrap_err();
    assert_eq!(message(wrong), "input of a linear layer: expected [.., 4], got [2, 5]");
    let wrong = ops::gather(&noise(&[3, 4], 1), vec![3].into(), "action").unwrap_err();
    assert_eq!(message(wrong), "id of table action: 3 is outside 0..2");
    let (net, _) = build(&configs()[1], 1);
    let wrong = net.forward(&noise(&[2, 3, INPUT], 1), &State(vec![]), &play()).unwrap_err();
    assert_eq!(message(wrong), "parts of a state: expected 4, got 0");
}
