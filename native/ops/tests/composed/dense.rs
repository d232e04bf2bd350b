//! Linear layers and tables of rows equal their composed forms.

use candle_core::Tensor;
use sconce_ops::dropout::{Dropout, Origin};
use sconce_ops::weights::Weight;
use sconce_ops::{self as ops, Activated, Activation, Affine, Branch, Dense, Norm, Residual};
use sconce_tensor::rng::Rng;

use crate::common::composed::{check, check_kernels};
use crate::common::{ACTIVATIONS, noise, wide};

/// Two windows of 43 frames of 12 numbers, then tensors of the given shapes.
fn inputs(shapes: &[&[usize]]) -> Vec<Tensor> {
    let rest = shapes.iter().zip(2..).map(|(shape, seed)| (noise(shape, seed) * 0.5).unwrap());
    std::iter::once(noise(&[2, 43, 12], 1)).chain(rest).collect()
}

fn affine(weight: &Weight, bias: Option<&Weight>) -> Affine {
    Affine { weight: weight.clone(), bias: bias.cloned() }
}

fn norm(weight: &Weight, bias: Option<&Weight>) -> Norm {
    Norm { weight: weight.clone(), bias: bias.cloned(), eps: 1e-5 }
}

#[test]
fn linear_layers_of_all_activations_equal_their_composed_forms() {
    for activation in ACTIVATIONS {
        check(&format!("linear, {activation:?}"), &inputs(&[&[7, 12], &[7]]), |t| {
            Ok(vec![ops::linear(&t[0], &t[1], Some(&t[2]), activation)?])
        });
    }
    check("linear without a bias", &inputs(&[&[7, 12]]), |t| {
        Ok(vec![ops::linear(&t[0], &t[1], None, Activation::None)?])
    });
    check("linear of one vector", &[noise(&[12], 1), noise(&[7, 12], 2)], |t| {
        Ok(vec![ops::linear(&t[0], &t[1], None, Activation::Tanh)?])
    });
    check("linear of columns", &inputs(&[&[7, 43]]), |t| {
        Ok(vec![ops::linear(&t[0].transpose(1, 2)?, &t[1], None, Activation::None)?])
    });
}

#[test]
fn linear_layers_with_a_norm_equal_their_composed_forms() {
    for activation in [Activation::Gelu, Activation::Tanh] {
        check("linear with a LayerNorm", &inputs(&[&[7, 12], &[7], &[7], &[7]]), |t| {
            let norm = norm(&t[3], Some(&t[4]));
            Ok(vec![ops::linear_norm(&t[0], &t[1], Some(&t[2]), &norm, activation)?])
        });
        check("linear with an RMSNorm", &inputs(&[&[7, 12], &[7]]), |t| {
            Ok(vec![ops::linear_norm(&t[0], &t[1], None, &norm(&t[2], None), activation)?])
        });
    }
}

#[test]
fn products_of_several_weights_equal_their_composed_forms() {
    check("parts", &inputs(&[&[10, 12]]), |t| {
        Ok(ops::linear_parts(&t[0], &t[1], [5, 2, 3])?.into())
    });
    check("wide parts", &inputs(&[&[150, 12]]), |t| {
        Ok(ops::linear_parts(&t[0], &t[1], [64, 86])?.into())
    });
    check("wide parts, one unused", &inputs(&[&[150, 12]]), |t| {
        let [first, _] = ops::linear_parts(&t[0], &t[1], [64, 86])?;
        Ok(vec![first])
    });
    check("a projection", &inputs(&[&[5, 12], &[5], &[3, 12]]), |t| {
        Ok(vec![ops::project(&t[0], &[(&t[1], Some(&t[2])), (&t[3], None)])?])
    });
    let two = [[6, 12].as_slice(), &[6], &[4, 6], &[4], &[9, 12], &[9], &[2, 9], &[2]];
    check("branches", &inputs(&two), |t| {
        let dense = |i: usize| Dense { weight: t[i].clone(), bias: t[i + 1].clone() };
        let branch = |i: usize| Branch { hidden: dense(i), out: dense(i + 2) };
        Ok(vec![ops::branches(&t[0], &[branch(1), branch(5)])?])
    });
}

#[test]
fn perceptrons_equal_their_composed_form() {
    for activation in ACTIVATIONS {
        let shapes = [[20, 12].as_slice(), &[20], &[5, 20], &[7, 5], &[7]];
        check(&format!("perceptron, {activation:?}"), &inputs(&shapes), |t| {
            let affine = [(1, Some(2)), (3, None), (4, Some(5))]
                .map(|(weight, bias)| affine(&t[weight], bias.map(|bias: usize| &t[bias])));
            let layers = affine.map(|affine| Activated { affine, activation });
            Ok(vec![ops::perceptron(&t[0], &layers.into())?])
        });
    }
}

#[test]
fn feed_forward_and_its_residual_form_equal_their_composed_forms() {
    for activation in ACTIVATIONS {
        let name = format!("feed-forward, {activation:?}");
        check(&name, &inputs(&[&[20, 12], &[20], &[5, 20], &[5]]), |t| {
            let (up, down) = (affine(&t[1], Some(&t[2])), affine(&t[3], Some(&t[4])));
            Ok(vec![ops::feed_forward(&t[0], &up, activation, &down)?])
        });
    }
    let dropout = Dropout::new(0.3, Rng::new(7, "residual", 1), Origin::default());
    for (shift, dropout) in
        [(true, None), (true, Some(dropout)), (false, None), (false, Some(dropout))]
    {
        let mut all = inputs(&[&[20, 12], &[12, 20], &[12]]);
        all.extend(shift.then(|| noise(&[12], 5)));
        let name = format!("residual, shift {shift}, dropout {}", dropout.is_some());
        check(&name, &all, |t| {
            let (up, down) = (affine(&t[1], None), affine(&t[2], None));
            let residual = Residual { norm: norm(&t[3], t.get(4)), dropout };
            let y = ops::feed_forward_residual(&t[0], &residual, &up, Activation::Gelu, &down)?;
            Ok(vec![y])
        });
    }
}

#[test]
fn rows_of_a_table_and_the_sums_of_their_gradients_equal_the_composed_form() {
    let gather = |t: &[Weight]| Ok(vec![ops::gather(&t[0], vec![1, 5, 1, 0, 1].into(), "ids")?]);
    check("gather", &[noise(&[6, 3], 1)], gather);
    check_kernels("gather", &[noise(&[6, 3], 1)], gather);
}

#[test]
fn wrong_sizes_give_the_same_errors() {
    let x = noise(&[2, 5], 1);
    let linear = |x: &Tensor| ops::linear(x, &noise(&[3, 4], 1).into(), None, Activation::None);
    let gather = |x: &Tensor| ops::gather(x, vec![2].into(), "action");
    let said = |e: sconce_tensor::Error| e.to_string();
    assert_eq!(said(linear(&wide(&x)).unwrap_err()), said(linear(&x).unwrap_err()));
    assert_eq!(said(gather(&wide(&x)).unwrap_err()), said(gather(&x).unwrap_err()));
}
