//! Gradients of every op by finite differences, and the errors of wrong inputs.

use candle_core::{Device, Tensor, Var};
use sconce_ops::lengths::Lengths;
use sconce_ops::recurrent::Gates;
use sconce_ops::weights::Weight;
use sconce_ops::{self as ops, Activation};
use sconce_tensor::rng::Rng;

use crate::common::{ACTIVATIONS, apart, backward, differences, noise, record, values};

#[test]
fn dropout_keeps_the_mean_and_drops_whole_columns_if_requested() {
    let x = Tensor::ones((8, 10, 400), candle_core::DType::F32, &Device::Cpu).unwrap();
    let rng = Rng::new(1, "dropout", 0);
    let free = values(&ops::dropout(&x, 0.25, rng).unwrap());
    let mean = free.iter().sum::<f32>() / free.len() as f32;
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    let columns = values(&ops::dropout_columns(&x, 0.25, rng, 0).unwrap());
    for window in columns.chunks(10 * 400) {
        assert!(window.chunks(400).all(|frame| frame == &window[..400]));
    }
    assert!(
        columns.chunks(4000).any(|w| w[..400] != columns[..400]),
        "all windows have the same mask"
    );
}

#[test]
fn gradients_of_every_op_equal_finite_differences() {
    let n = |shape: &[usize], seed| (noise(shape, seed) * 0.7).unwrap();
    differences(vec![n(&[3, 5], 1), n(&[4, 5], 2), n(&[4], 3)], |t| {
        ops::linear(&t[0], &t[1], Some(&t[2]), Activation::None).unwrap()
    });
    differences(vec![n(&[3, 5], 1), n(&[4, 5], 2)], |t| {
        ops::linear(&t[0], &t[1], None, Activation::None).unwrap()
    });
    let norm =
        |t: &[Weight]| ops::Norm { weight: t[1].clone(), bias: Some(t[2].clone()), eps: 1e-5 };
    differences(vec![n(&[3, 8], 1), n(&[8], 2), n(&[8], 3)], |t| {
        ops::row_norm(&t[0], &norm(t)).unwrap()
    });
    for activation in [Activation::Tanh, Activation::Silu] {
        let mut all = vec![n(&[3, 5], 1), n(&[4], 2), n(&[4], 3)];
        all.extend([n(&[4, 5], 4), n(&[4], 5)]);
        differences(all, |t| {
            ops::linear_norm(&t[0], &t[3], Some(&t[4]), &norm(t), activation).unwrap()
        });
    }
    differences(vec![n(&[6, 3], 1)], |t| {
        ops::gather(&t[0], vec![1, 5, 1, 0].into(), "ids").unwrap()
    });
    differences(vec![n(&[2, 3, 4], 1)], |t| ops::dropout(&t[0], 0.5, Rng::new(1, "d", 1)).unwrap());
    for lengths in [None, Some([2, 4].into())] {
        let layer = |gates: usize, states: usize| {
            let mut all = vec![n(&[2, 4, 5], 1), n(&[gates * 3, 5], 2), n(&[gates * 3, 3], 3)];
            all.extend([n(&[gates * 3], 4), n(&[gates * 3], 5)]);
            all.extend((0..states).map(|i| n(&[2, 3], 6 + i as u64)));
            all
        };
        let gates =
            |t: &[Weight]| Gates::new(t[1].clone(), t[2].clone(), t[3].clone(), t[4].clone());
        // The last states are concatenated to those of all frames.
        let beside = |y: &Tensor, last: &Tensor| Tensor::cat(&[y, &last.unsqueeze(1).unwrap()], 1);
        let own: Lengths = lengths.clone();
        differences(layer(3, 1), move |t| {
            let (y, h) = ops::gru(&t[0], &gates(t), &t[5], own.clone()).unwrap();
            beside(&y, &h).unwrap()
        });
        let own: Lengths = lengths;
        differences(layer(4, 2), move |t| {
            let (y, h, c) = ops::lstm(&t[0], &gates(t), &t[5], &t[6], own.clone()).unwrap();
            beside(&beside(&y, &h).unwrap(), &c).unwrap()
        });
    }
    differences(vec![n(&[3, 8], 1), n(&[8], 2)], |t| {
        let rms = ops::Norm { weight: t[1].clone(), bias: None, eps: 1e-5 };
        ops::row_norm(&t[0], &rms).unwrap()
    });
}

/// The distribution function of the standard normal: the series `1/2 + density sum x^(2k+1) / (1 3 .. (2k+1))`, which has
/// only positive terms, and beyond 3 the continued fraction of its tail.
fn normal(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() > 3.0 {
        let below = (1..200).rev().fold(0.0, |below, k| f64::from(k) / (x.abs() + below));
        let tail = density / (x.abs() + below);
        return if x < 0.0 { tail } else { 1.0 - tail };
    }
    let (mut term, mut sum) = (x, x);
    for k in 1..100 {
        term *= x * x / f64::from(2 * k + 1);
        sum += term;
    }
    0.5 + density * sum
}

#[test]
fn clipped_numbers_are_within_their_bounds_and_have_no_slope_outside() {
    record();
    let x = Tensor::new(&[-2.0f32, 0.1, 0.5, 0.9, f32::INFINITY, f32::NAN], &Device::Cpu).unwrap();
    let y = values(&ops::clip(&x, 0.25, 0.75).unwrap());
    assert_eq!(y[..5], [0.25, 0.25, 0.5, 0.75, 0.75]);
    assert!(y[5].is_nan());
    let x = Var::from_slice(&[0.2f32, 0.25, 0.5, 0.75, 0.8], 5, &Device::Cpu).unwrap();
    let store = backward(&ops::clip(&x, 0.25, 0.75).unwrap().sum_all().unwrap());
    assert_eq!(values(store.get(&x).unwrap()), [0.0, 1.0, 1.0, 1.0, 0.0]);
    // All numbers are 0.1 away from the bounds.
    let x = ((noise(&[40], 1) * 5.0).unwrap().round().unwrap() / 5.0).unwrap();
    let x = (x + 0.1).unwrap();
    differences(vec![x.clone()], |t| ops::clip(&t[0], -0.4, 0.6).unwrap());
    assert!(ops::clip(&x, 1.0, 0.5).is_err());
    assert!(ops::clip(&x, f32::NAN, 0.5).is_err());
}

#[test]
fn activations_and_their_slopes_equal_their_formulas_fused_or_not() {
    record();
    // Numbers are not so near to 0 that a difference crosses the bend of a relu.
    let away = |shape: &[usize], seed| {
        let x = noise(shape, seed);
        (&x + x.sign().unwrap() * 0.1).unwrap()
    };
    for activation in ACTIVATIONS {
        let want = |x: f64| match activation {
            Activation::None => x,
            Activation::Relu => x.max(0.0),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Activation::Tanh => x.tanh(),
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::Gelu => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + u.tanh())
            }
            Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Activation::SquaredRelu => x.max(0.0).powi(2),
            Activation::GeluErf => x * normal(x),
        };
        let x = (away(&[5, 33], 1) * 4.0).unwrap();
        let y = values(&ops::activate(&x, activation).unwrap());
        for (x, y) in values(&x).into_iter().map(f64::from).zip(y) {
            let off = (f64::from(y) - want(x)).abs();
            assert!(off <= 2e-6 * want(x).abs() + 1e-9, "{activation:?}({x}) is off by {off}");
        }
        differences(vec![away(&[3, 5], 1)], |t| ops::activate(&t[0], activation).unwrap());
        differences(vec![noise(&[3, 5], 2), away(&[3, 5], 1)], |t| {
            ops::gated(&t[0], &t[1], activation).unwrap()
        });
        let (x, w) = (noise(&[5, 4], 3), Weight::from(noise(&[6, 4], 4)));
        let fused = ops::linear(&x, &w, None, activation).unwrap();
        let plain = ops::linear(&x, &w, None, Activation::None).unwrap();
        assert_eq!(values(&fused), values(&ops::activate(&plain, activation).unwrap()));
        let gradients = |fused: bool| {
            let (x, w) = (Var::from_tensor(&x).unwrap().into_inner(), noise(&[6, 4], 4));
            let w = Weight::from(Var::from_tensor(&w).unwrap().into_inner());
            let y = match fused {
                true => ops::linear(&x, &w, None, activation).unwrap(),
                false => {
                    let y = ops::linear(&x, &w, None, Activation::None).unwrap();
                    ops::activate(&y, activation).unwrap()
                }
            };
            let store = backward(&(&y * noise(&[5, 6], 5)).unwrap().sum_all().unwrap());
            (store.get(&x).unwrap().clone(), crate::common::gradient("w", &w, &store))
        };
        let ((x1, w1), (x2, w2)) = (gradients(true), gradients(false));
        assert!(apart(&x1, &x2) < 1e-5 && apart(&w1, &w2) < 1e-5, "{activation:?}");
    }
}

#[test]
fn errors_of_wrong_shapes_give_both_shapes() {
    let message = |e: sconce_tensor::Error| e.to_string();
    let x = noise(&[2, 5], 1);
    let wrong = ops::linear(&x, &noise(&[3, 4], 1).into(), None, Activation::None).unwrap_err();
    assert_eq!(message(wrong), "input of a linear layer: expected [.., 4], got [2, 5]");
    let wrong = ops::gather(&noise(&[3, 4], 1), vec![3].into(), "action").unwrap_err();
    assert_eq!(message(wrong), "id of table action: 3 is outside 0..2");
}

#[test]
fn a_layer_repeats_its_gradients_and_keeps_no_old_weights() {
    record();
    let variable = |shape: &[usize], seed| {
        Weight::from(Var::from_tensor(&noise(shape, seed)).unwrap().into_inner())
    };
    let gates = Gates::new(
        variable(&[9, 5], 1),
        variable(&[9, 3], 2),
        variable(&[9], 3),
        variable(&[9], 4),
    );
    // There are enough rows that the weights are packed.
    let (x, h0) = (noise(&[3, 20, 5], 5), noise(&[3, 3], 6));
    let forward = || ops::gru(&x, &gates, &h0, None).unwrap().0;
    let y = forward();
    let gradients = |y: &Tensor| {
        let store = backward(&y.sqr().unwrap().sum_all().unwrap());
        let all = [&gates.weight_ih, &gates.weight_hh, &gates.bias_ih, &gates.bias_hh];
        all.map(|w| values(&crate::common::gradient("a weight", w, &store)))
    };
    let first = gradients(&y);
    assert_eq!(first, gradients(&forward()));
    sconce_tensor::tensor::update(&gates.weight_hh, |w| w.iter_mut().for_each(|w| *w *= 0.5))
        .unwrap();
    let changed = forward();
    assert!(apart(&changed, &y) > 1e-3);
    let fixed = |w: &Weight| Weight::from(w.detach());
    let Gates { weight_ih, weight_hh, bias_ih, bias_hh, .. } = &gates;
    let alone = Gates::new(fixed(weight_ih), fixed(weight_hh), fixed(bias_ih), fixed(bias_hh));
    let want = ops::gru(&x, &alone, &h0, None).unwrap().0;
    assert_eq!(values(&changed), values(&want));
    assert_eq!(values(&changed), values(&ops::gru(&x, &alone, &h0, None).unwrap().0));
}

#[test]
fn nan_stays_nan_in_an_activation_a_softmax_and_a_gate() {
    let nan = |shape: &[usize]| {
        let count = shape.iter().product();
        Tensor::from_vec(vec![f32::NAN; count], shape, &Device::Cpu).unwrap()
    };
    let is_nan = |t: &Tensor| values(t).iter().all(|v| v.is_nan());
    use Activation::{Gelu, GeluErf, Relu, Sigmoid, Silu, Softplus, SquaredRelu, Tanh};
    for activation in [Relu, Sigmoid, Tanh, Silu, Gelu, Softplus, SquaredRelu, GeluErf] {
        assert!(is_nan(&ops::activate(&nan(&[1, 40]), activation).unwrap()), "{activation:?}");
    }
    assert!(is_nan(&ops::softmax(&nan(&[2, 19])).unwrap()));
    assert!(is_nan(&ops::matrix_state::decay::log_sigmoid(&nan(&[2, 19]), 1.0).unwrap()));
    let first = Tensor::zeros((1, 2), candle_core::DType::F32, &Device::Cpu).unwrap();
    let gates =
        ops::matrix_state::decay::mlstm_gates(&nan(&[1, 3, 4]), &first, &None).unwrap().gates;
    assert!(is_nan(&gates));
}
