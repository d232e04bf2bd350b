//! Activations, gates, dropout and skips equal their composed forms.

use candle_core::{DType, Device, Tensor, Var};
use sconce_ops as ops;
use sconce_tensor::rng::Rng;

use crate::common::composed::check;
use crate::common::{ACTIVATIONS, backward, noise, record, values};

#[test]
fn activations_and_gates_equal_their_composed_forms() {
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
fn clipped_numbers_equal_their_composed_form() {
    check("clip", &[noise(&[2, 43, 6], 1)], |t| Ok(vec![ops::clip(&t[0], -0.5, 0.7)?]));
}

#[test]
fn values_and_slopes_agree_at_zero_and_far_from_it() {
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
                assert!(near, "{activation:?} at {at}: got {got}, expected {want}");
            }
        }
    }
}

#[test]
fn nan_stays_nan() {
    let nan = Tensor::new(&[f64::NAN; 3], &Device::Cpu).unwrap();
    for activation in ACTIVATIONS {
        let y = ops::activate(&nan, activation).unwrap();
        assert!(values(&y).iter().all(|v| v.is_nan()), "{activation:?}");
    }
}

#[test]
fn the_composed_form_drops_the_same_numbers() {
    let (x, rng) = (noise(&[3, 43, 10], 1), Rng::new(1, "dropout", 5));
    check("dropout", std::slice::from_ref(&x), |t| Ok(vec![ops::dropout(&t[0], 0.4, rng)?]));
    check("dropout of columns", std::slice::from_ref(&x), |t| {
        Ok(vec![ops::dropout_columns(&t[0], 0.4, rng, 7)?])
    });
}

#[test]
fn a_skip_equals_its_composed_form() {
    let all = [noise(&[2, 43, 6], 1), noise(&[2, 43, 6], 2), noise(&[6], 3)];
    check("skip", &all, |t| Ok(vec![ops::skip(&t[0], &t[1], &t[2])?]));
}
