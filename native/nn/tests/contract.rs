//! The contract of every backbone, checked by properties instead of examples.

mod backbones;
#[path = "../../ops/tests/common/mod.rs"]
mod common;

use std::collections::BTreeSet;

use backbones::{INPUT, build, configs, stepping};
use candle_core::{Device, Tensor, Var};
use common::{apart, backward, noise, record, values};
use proptest::prelude::*;
use sconce_nn::backbone::{self, Backbone, Context, State};
use sconce_nn::spec;
use sconce_ops::weights::{Builder, Source, Weight, Weights};
use serde_json::json;

#[test]
fn every_backbone_of_a_spec_is_tested() {
    let error = serde_json::from_value::<spec::Backbone>(json!({ "none": {} })).unwrap_err();
    let error = error.to_string();
    let known: BTreeSet<&str> = error.split('`').skip(3).step_by(2).collect();
    let configs = configs();
    assert!(known.len() > 20, "{error}");
    // An alias of the causal transformer, for older files.
    let alias = "decision_transformer";
    assert_eq!(known, configs.iter().map(spec::Backbone::name).chain([alias]).collect());
}

/// The backbone with weights that are not trained, as in play.
fn frozen(config: &spec::Backbone, seed: u64) -> Box<dyn Backbone> {
    let (_, weights) = build(config, seed);
    backbone::new(config, INPUT, &Builder::new(Source::Stored(weights), false)).unwrap()
}

/// The weights that learn.
fn learning(weights: &Weights) -> impl Iterator<Item = (&String, &Weight)> {
    weights.iter().filter(|(_, weight)| weight.is_variable())
}

fn rows(t: &Tensor, order: &[u32]) -> Tensor {
    let order = Tensor::new(order, &Device::Cpu).unwrap();
    t.contiguous().unwrap().index_select(&order, 0).unwrap()
}

fn play() -> Context {
    Context::default()
}

/// The largest absolute value, at least 1.
fn largest(x: &Tensor) -> f32 {
    values(x).iter().fold(1.0f32, |m, v| m.max(v.abs()))
}

/// True within 1e-5 of the largest number.
fn near(a: &Tensor, b: &Tensor) -> bool {
    apart(a, b) <= 1e-5 * largest(b)
}

/// True within 1e-5 of the largest number, or within the change that rounding errors of the inputs cause. RetNet
/// normalises the output of a head, which is tiny where the product of query and key almost cancels.
fn near_or_sensitive(a: &Tensor, b: &Tensor, sensitive: f32) -> bool {
    apart(a, b) <= sensitive.max(1e-5 * largest(b))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn step_equals_sequence_and_two_chunks_equal_one(seed in 0u64..1000, batch in 1usize..6, time in 2usize..20) {
        for config in stepping() {
            let (net, _) = build(&config, seed);
            let x = noise(&[batch, time, INPUT], seed);
            let zero = net.zero_state(batch).unwrap();
            let (whole, last) = net.forward(&x, &zero, &play()).unwrap();
            let sensitive = match config.name() {
                // One change may miss the frame that is most sensitive, so the largest of several counts.
                "retnet" => {
                    let changed = (2..10).map(|other| {
                        let by = (noise(&[batch, time, INPUT], seed + other) * 3e-7).unwrap();
                        let moved = (by + &x).unwrap();
                        apart(&net.forward(&moved, &zero, &play()).unwrap().0, &whole)
                    });
                    changed.fold(0.0, f32::max)
                }
                _ => 0.0,
            };

            let mut state = zero.clone();
            for t in 0..time {
                let frame = x.narrow(1, t, 1).unwrap().squeeze(1).unwrap();
                let (y, next) = net.step(&frame, &state, &play()).unwrap();
                let want = whole.narrow(1, t, 1).unwrap().squeeze(1).unwrap();
                prop_assert!(near_or_sensitive(&y, &want, sensitive), "{} at {t}: {} apart", config.name(), apart(&y, &want));
                state = next;
            }
            let cut = time / 2;
            let (a, middle) = net.forward(&x.narrow(1, 0, cut).unwrap(), &zero, &play()).unwrap();
            let (b, end) = net.forward(&x.narrow(1, cut, time - cut).unwrap(), &middle, &play()).unwrap();
            let parts = Tensor::cat(&[a, b], 1).unwrap();
            prop_assert!(near_or_sensitive(&parts, &whole, sensitive), "{} cut at {cut}: {} apart", config.name(), apart(&parts, &whole));
            // Later outputs must agree. Parts of a state may differ: with exponential gates the exponent is stored
            // separately in steps, and the rest compensates for a step more or less.
            let more = noise(&[batch, 3, INPUT], seed + 1);
            let (want, _) = net.forward(&more, &last, &play()).unwrap();
            for state in [end, state] {
                let (got, _) = net.forward(&more, &state, &play()).unwrap();
                prop_assert!(near_or_sensitive(&got, &want, sensitive), "{} later frames {} apart", config.name(), apart(&got, &want));
            }
        }
    }

    #[test]
    fn a_pass_of_the_last_frame_equals_the_end_of_the_whole_pass(seed in 0u64..1000, batch in 1usize..4, time in 1usize..80) {
        for config in configs() {
            let net = frozen(&config, seed);
            let x = noise(&[batch, time, INPUT], seed);
            let zero = net.zero_state(batch).unwrap();
            // Also from a state that is not zero.
            let (_, begun) = net.forward(&noise(&[batch, 3, INPUT], seed + 1), &zero, &play()).unwrap();
            let states = if config.is_window_only() { vec![zero] } else { vec![zero, begun] };
            for state in states {
                let (whole, after) = net.forward(&x, &state, &play()).unwrap();
                let (last, own) = net.forward(&x, &state, &play().of_last()).unwrap();
                let end = |y: &Tensor| y.narrow(1, y.dim(1).unwrap() - 1, 1).unwrap();
                prop_assert!(apart(&end(&last), &end(&whole)) <= 1e-6 * largest(&whole), "{}", config.name());
                for (own, after) in own.0.iter().zip(&after.0) {
                    prop_assert!(apart(own, after) <= 1e-6 * largest(after), "{}", config.name());
                }
            }
        }
    }

    #[test]
    fn the_order_of_the_batch_does_not_change_the_results(seed in 0u64..1000, time in 1usize..9) {
        for config in configs() {
            let (net, _) = build(&config, seed);
            let x = noise(&[3, time, INPUT], seed);
            let zero = net.zero_state(3).unwrap();
            let (y, _) = net.forward(&x, &zero, &play()).unwrap();
            let (turned, _) = net.forward(&rows(&x, &[2, 0, 1]), &zero, &play()).unwrap();
            prop_assert!(near(&rows(&y, &[2, 0, 1]), &turned));
        }
    }

    #[test]
    fn missing_frames_do_not_affect_the_rest_of_a_sequence(seed in 0u64..1000, gaps in 0u32..512) {
        for config in configs() {
            let (net, _) = build(&config, seed);
            let time = 9;
            let x = noise(&[2, time, INPUT], seed);
            let zero = net.zero_state(2).unwrap();
            // Arbitrary frames of the first row are missing; the second row is complete.
            let present: Vec<usize> = (0..time).filter(|t| gaps >> t & 1 == 0).collect();
            let mask: Vec<bool> = (0..2 * time).map(|i| i >= time || present.contains(&i)).collect();
            let (y, last) = net.forward(&x, &zero, &Context::masked(Some(mask.into()))).unwrap();
            let row = |t: &Tensor, i| t.narrow(0, i, 1).unwrap();
            let (want, end) = net.forward(&x, &zero, &play()).unwrap();
            prop_assert!(near(&row(&y, 1), &row(&want, 1)));
            for (part, want) in last.0.iter().zip(&end.0) {
                prop_assert!(near(&row(part, 1), &row(want, 1)));
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
                prop_assert!(near(&row(part, 0), want));
            }
            for (i, &t) in present.iter().enumerate() {
                let want = want.as_ref().unwrap().narrow(1, i, 1).unwrap();
                prop_assert!(near(&row(&y, 0).narrow(1, t, 1).unwrap(), &want));
            }
        }
    }
}

#[test]
fn a_pass_of_the_last_frame_returns_only_that_frame_unless_it_has_options() {
    for config in configs().iter().filter(|config| !matches!(config.name(), "lstm" | "gru")) {
        let (net, _) = build(config, 1);
        let (x, zero) = (noise(&[2, 5, INPUT], 1), net.zero_state(2).unwrap());
        let frames = |context: Context| {
            net.forward(&x, &zero, &context.of_last()).unwrap().0.dim(1).unwrap()
        };
        assert_eq!(frames(play()), 1, "{}", config.name());
        let asking =
            [Context::tapped(), Context::training(1, 1), Context::masked(Some([true; 10].into()))];
        assert_eq!(asking.map(frames), [5; 3], "{}", config.name());
    }
}

#[test]
fn every_weight_has_a_finite_gradient_even_with_dropout() {
    record();
    for config in configs() {
        let (net, weights) = build(&config, 5);
        let x = noise(&[4, 6, INPUT], 5);
        let (y, _) =
            net.forward(&x, &net.zero_state(4).unwrap(), &Context::training(1, 1)).unwrap();
        let gradients = backward(&(&y * noise(y.dims(), 6)).unwrap().sum_all().unwrap());
        for (name, weight) in &weights {
            let is_constant = name.starts_with("initial_state.");
            assert_eq!(weight.is_variable(), !is_constant, "{name} of {}", config.name());
            if is_constant {
                continue;
            }
            let gradient = values(&common::gradient(name, weight, &gradients));
            assert!(gradient.iter().all(|v| v.is_finite()), "{name}");
            assert!(gradient.iter().any(|v| *v != 0.0), "{name} is all zero");
        }
    }
}

#[test]
fn gradients_of_the_last_frame_equal_those_of_the_whole_pass() {
    record();
    for config in configs() {
        let gradients = |context: Context| {
            let (net, weights) = build(&config, 5);
            let x = noise(&[2, 6, INPUT], 5);
            let (y, _) = net.forward(&x, &net.zero_state(2).unwrap(), &context).unwrap();
            let last = y.narrow(1, y.dim(1).unwrap() - 1, 1).unwrap();
            let gradients = backward(&last.sqr().unwrap().sum_all().unwrap());
            let own =
                learning(&weights).map(|(n, w)| (n.clone(), common::gradient(n, w, &gradients)));
            own.collect::<Vec<_>>()
        };
        let (own, whole) = (gradients(play().of_last()), gradients(play()));
        for ((name, own), (_, whole)) in own.iter().zip(&whole) {
            assert!(near(own, whole), "{name} of {}", config.name());
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_the_bits() {
    record();
    for config in configs() {
        let mut seen: Option<Vec<Vec<u32>>> = None;
        for threads in [1, 2, 3] {
            sconce_tensor::pool::set_threads(threads).unwrap();
            let (net, weights) = build(&config, 2);
            let x = noise(&[40, 33, INPUT], 9);
            let (y, _) =
                net.forward(&x, &net.zero_state(40).unwrap(), &Context::training(3, 7)).unwrap();
            let gradients = backward(&y.sqr().unwrap().sum_all().unwrap());
            let bits = |t: &Tensor| values(t).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let mut all = vec![bits(&y)];
            all.extend(learning(&weights).map(|(n, w)| bits(&common::gradient(n, w, &gradients))));
            match &seen {
                Some(first) => assert_eq!(*first, all, "{} with {threads} threads", config.name()),
                None => seen = Some(all),
            }
        }
    }
}

#[test]
fn recomputed_blocks_give_the_same_bits() {
    record();
    // Ops over few frames round differently where no backward pass follows.
    for (config, time) in
        configs().into_iter().flat_map(|config| [(config.clone(), 9), (config, 3)])
    {
        let bits = |t: &Tensor| values(t).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let run = |context: Context| {
            let (net, weights) = build(&config, 2);
            let x = Var::from_tensor(&noise(&[3, time, INPUT], 9)).unwrap();
            let zero = net.zero_state(3).unwrap();
            let (y, state) = net.forward(&x, &zero, &context).unwrap();
            let (z, state) = net.forward(&x, &state, &context).unwrap();
            let gradients = backward(&(y + z).unwrap().sqr().unwrap().sum_all().unwrap());
            let mut all = vec![bits(gradients.get(x.as_tensor()).unwrap())];
            all.extend(state.0.iter().map(bits));
            all.extend(learning(&weights).map(|(n, w)| bits(&common::gradient(n, w, &gradients))));
            all
        };
        let plain = run(Context::training(3, 7));
        for every in [1, 2, 9] {
            let again = run(Context::training(3, 7).recomputing(every));
            // Gradients of a weight that occurs several times in a group are added in another order.
            let shared = config.name() == "zamba";
            let same = |(a, b): (&u32, &u32)| {
                let (a, b) = (f32::from_bits(*a), f32::from_bits(*b));
                a.to_bits() == b.to_bits() || shared && (a - b).abs() <= 1e-5 * b.abs().max(1e-3)
            };
            let all = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().zip(b).all(same);
            assert!(again.iter().zip(&plain).all(all), "{}, groups of {every}", config.name());
        }
    }
}

#[test]
fn dropout_is_active_in_training_and_not_in_play() {
    record();
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
fn the_trunk_vector_can_be_tapped() {
    let (net, _) = build(&configs()[3], 1);
    let context = Context::tapped();
    let (y, _) =
        net.forward(&noise(&[2, 3, INPUT], 1), &net.zero_state(2).unwrap(), &context).unwrap();
    assert_eq!(values(&context.taps().unwrap()["trunk"]), values(&y));
}

#[test]
fn a_state_of_another_backbone_is_an_error_with_both_lengths() {
    let (net, _) = build(&configs()[1], 1);
    let wrong = net.forward(&noise(&[2, 3, INPUT], 1), &State(vec![]), &play()).unwrap_err();
    assert_eq!(wrong.to_string(), "parts of a state: expected 4, got 0");
}
