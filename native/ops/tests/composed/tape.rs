//! Gradients through alternating ops of Sconce and candle.

use candle_core::{Tensor, Var};
use sconce_ops::weights::Weight;
use sconce_ops::{self as ops, Activation, arrange};
use sconce_tensor::{Precision, tape};

use crate::common::composed::check;
use crate::common::{backward, noise, values};

fn inputs() -> Vec<Tensor> {
    vec![noise(&[2, 43, 12], 1), noise(&[12, 12], 2), noise(&[12], 3)]
}

#[test]
fn a_tensor_that_ops_and_candle_read_has_both_gradients() {
    check("an output, read by both", &inputs(), |t| {
        let (x, w, b) = (&t[0], &t[1], &t[2]);
        let y = ops::linear(x, w, Some(b), Activation::Tanh)?;
        // The weight is read again by ops of candle with two outputs, one of which depends on the
        // other.
        let first = (&y * &**x)?;
        let second = (&first + b.broadcast_as(x.shape())?.sin()?)?;
        let read = arrange::add(&first, &ops::linear(&second, w, None, Activation::Silu)?)?;
        Ok(vec![(&read * &first)?, y])
    });
}

#[test]
fn a_tensor_that_an_op_reads_twice_has_both_gradients() {
    check("twice the same", &inputs(), |t| {
        let y = ops::linear(&t[0], &t[1], Some(&t[2]), Activation::None)?;
        let gated = ops::gated(&y, &y, Activation::Sigmoid)?;
        Ok(vec![arrange::add(&gated, &gated)?, arrange::join(&[&y, &t[0], &y])?])
    });
}

#[test]
fn views_of_views_have_gradients_in_ops_and_in_candle() {
    check("views", &inputs(), |t| {
        let y = ops::linear(&t[0], &t[1], Some(&t[2]), Activation::Tanh)?;
        let view = arrange::reshape(&y, [43, 2, 12])?;
        let turned = arrange::reshape(&view.transpose(0, 1)?, [2, 43, 12])?;
        let far = arrange::reshape(&arrange::reshape(&turned, [86, 12])?, [43, 24])?;
        let products = ops::linear(&turned.transpose(0, 1)?, &t[1], None, Activation::None)?;
        let weight = arrange::reshape(&t[1], [144])?;
        Ok(vec![ops::activate(&far, Activation::Gelu)?, view.sqr()?, products, weight.exp()?])
    });
}

#[test]
fn a_nested_pass_has_its_own_gradients() {
    check("a pass within a pass", &inputs(), |t| {
        let linear = |x: &Tensor| ops::linear(x, &t[1], Some(&t[2]), Activation::Tanh);
        let y = linear(&t[0])?;
        let own: Weight = Var::from_tensor(&t[1])?.into_inner().into();
        {
            let _within = tape::record();
            let within = ops::linear(&t[0].detach(), &own, None, Activation::Tanh)?;
            assert!(own.gather(&backward(&within.sum_all()?))?);
        }
        Ok(vec![linear(&y)?])
    });
}

#[test]
fn a_backward_pass_has_the_precision_of_its_forward_pass() {
    let pass = |forward: Precision, back: Precision| {
        let x = Var::from_tensor(&noise(&[40, 96], 1)).unwrap().into_inner();
        let w: Weight = Var::from_tensor(&noise(&[96, 96], 2)).unwrap().into_inner().into();
        let _tape = tape::record();
        let y = forward.during(|| ops::linear(&x, &w, None, Activation::Tanh)).unwrap();
        let sum = back.during(|| backward(&y.sum_all().unwrap()));
        [&y, sum.get(&x).unwrap()].map(values)
    };
    let [rounded, exact] = [Precision::Bf16, Precision::F32].map(|p| pass(p, p));
    assert_eq!(pass(Precision::Bf16, Precision::F32), rounded);
    assert_eq!(pass(Precision::F32, Precision::Bf16), exact);
    assert!(rounded[0] != exact[0] && rounded[1] != exact[1]);
}
