//! Activations, gates, dropout and skips are the same composed of candle's ops.

use candle_core::{DType, Device, Tensor, Var};
use sconce_ops::{self as ops, Activation};
use sconce_tensor::rng::Rng;

use crate::common::composed::check;
use crate::common::{backward, noise, record, values};

const ACTIVATIONS: [Activation; 8] = [
    Activation::None,
    Activation::Relu,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Silu,
    Activation::Gelu,
    Activation::Softplus,
    Activation::SquaredRelu,
];

#[test]
fn activations_and_gates_are_what_they_are() {
    let wide = |seed| (noise(&[2, 43, 6], seed) * 4.0).unwrap();
    for activation in ACTIVATIONS {
        check(&format!("{activation:?}"), &[wide(1)], |t| {
            Ok(vec![ops::activate(&t[0], activation)?])
        });
        check(&format!("gated, {activation:?}"), &[noise(&[2, 43, 6], 2), wide(3)], |t| {
            Ok(vec![ops::gated(&t[0], &t[1], activation)?])
        });
        check(&format!("glu, {activation:?}"), &[wide(4)], |t| {
            Ok(vec![ops::glu(&t[0], activation)?])
        });
    }
}

#[test]
fn values_and_slopes_far_out_and_at_zero_are_what_they_are() {
    record();
    for activation in ACTIVATIONS {
        for at in [-1e3f32, -100.0, -20.0, 0.0, 20.0, 100.0, 1e3] {
            let run = |dtype| {
                let x = Tensor::new(&[at], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
                let x = Var::from_tensor(&x).unwrap().into_inner();
                let y = ops::activate(&x, activation).unwrap();
                let slope = backward(&y.sum_all().unwrap()).get(&x).unwrap().clone();
                [values(&y)[0], values(&slope)[0]]
            };
            for (got, want) in run(DType::F64).into_iter().zip(run(DType::F32)) {
                let near = (got - want).abs() <= 1e-5 * want.abs() + 1e-7;
                assert!(near, "{activation:?} at {at}: {got} for {want}");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    let nan = Tensor::new(&[f64::NAN; 3], &Device::Cpu).unwrap();
    for activation in ACTIVATIONS {
        let y = ops::activate(&nan, activation).unwrap();
        assert!(values(&y).iter().all(|v| v.is_nan()), "{activation:?}");
    }
}

#[test]
fn the_same_numbers_are_dropped() {
    let (x, rng) = (noise(&[3, 43, 10], 1), Rng::new(1, "dropout", 5));
    check("dropout", std::slice::from_ref(&x), |t| Ok(vec![ops::dropout(&t[0], 0.4, rng)?]));
    check("dropout of columns", std::slice::from_ref(&x), |t| {
        Ok(vec![ops::dropout_columns(&t[0], 0.4, rng, 7)?])
    });
}

#[test]
fn a_skip_is_what_it_is() {
    let all = [noise(&[2, 43, 6], 1), noise(&[2, 43, 6], 2), noise(&[6], 3)];
    check("skip", &all, |t| Ok(vec![ops::skip(&t[0], &t[1], &t[2])?]));
}
