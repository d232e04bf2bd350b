//! Two dense layers as one op equal the separate layers, with and without norm, dropout and
//! residual sum.

use candle_core::{Tensor, Var};
use sconce_ops::dropout::{Dropout, Origin};
use sconce_ops::weights::Weight;
use sconce_ops::{self as ops, Activation, Affine, Norm, Residual};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Result, pool};

use crate::common::{ACTIVATIONS, apart, backward, differences, gradient, noise, record, values};

/// The parts around the layers: a norm, with or without a bias, and dropout or none.
const AROUND: [Option<(bool, bool)>; 5] =
    [None, Some((true, false)), Some((true, true)), Some((false, false)), Some((false, true))];

fn dropout() -> Dropout {
    Dropout::new(0.3, Rng::new(7, "residual", 1), Origin::default())
}

struct Layers {
    x: Tensor,
    up: Affine,
    down: Affine,
    residual: Option<Residual>,
}

impl Layers {
    fn new(
        rows: usize,
        [k, hidden, n]: [usize; 3],
        bias: bool,
        around: Option<(bool, bool)>,
    ) -> Self {
        let variable = |t: Tensor| Var::from_tensor(&t).unwrap().into_inner();
        let layer = |n: usize, k: usize, seed| Affine {
            weight: variable((noise(&[n, k], seed) / (k as f64).sqrt()).unwrap()).into(),
            bias: bias.then(|| variable(noise(&[n], seed + 1)).into()),
        };
        let residual = around.map(|(shift, drops)| Residual {
            norm: Norm {
                weight: variable((noise(&[k], 6) + 1.0).unwrap()).into(),
                bias: shift.then(|| variable(noise(&[k], 7)).into()),
                eps: 1e-5,
            },
            dropout: drops.then(dropout),
        });
        let x = variable(noise(&[rows, k], 1));
        Layers { x, up: layer(hidden, k, 2), down: layer(n, hidden, 4), residual }
    }

    fn fused(&self, activation: Activation) -> Result<Tensor> {
        let Layers { x, up, down, residual } = self;
        match residual {
            None => ops::feed_forward(x, up, activation, down),
            Some(residual) => ops::feed_forward_residual(x, residual, up, activation, down),
        }
    }

    fn apart(&self, activation: Activation) -> Result<Tensor> {
        let x = match &self.residual {
            Some(residual) => ops::row_norm(&self.x, &residual.norm)?,
            None => self.x.clone(),
        };
        let h = ops::linear(&x, &self.up.weight, self.up.bias.as_ref(), activation)?;
        let none = Activation::None;
        let y = ops::linear(&h, &self.down.weight, self.down.bias.as_ref(), none)?;
        match &self.residual {
            Some(Residual { dropout: Some(dropout), .. }) => Ok((dropout.apply(&y)? + &self.x)?),
            Some(_) => Ok((y + &self.x)?),
            None => Ok(y),
        }
    }

    fn weights(&self) -> impl Iterator<Item = &Weight> {
        let norm = self.residual.as_ref().map(|residual| &residual.norm);
        let layers = [&self.up, &self.down].map(|layer| [Some(&layer.weight), layer.bias.as_ref()]);
        let of_norm = [norm.map(|norm| &norm.weight), norm.and_then(|norm| norm.bias.as_ref())];
        layers.into_iter().flatten().chain(of_norm).flatten()
    }

    /// Gradients of x and of all weights.
    fn gradients(&self, y: &Tensor) -> Vec<Tensor> {
        let y = (y * noise(y.dims(), 9)).unwrap();
        let store = backward(&y.sum_all().unwrap());
        let x = store.get(&self.x).unwrap().clone();
        let weights = self.weights().map(|w| gradient("a weight", w, &store));
        std::iter::once(x).chain(weights).collect()
    }
}

#[test]
fn one_op_equals_the_two_layers_norm_dropout_and_sum() {
    record();
    for activation in ACTIVATIONS {
        for (rows, sizes, bias) in [
            (3, [5, 4, 5], true),
            (150, [20, 100, 20], true),
            (70, [16, 48, 16], false),
            (1100, [6, 9, 6], true),
        ] {
            for around in AROUND {
                let layers = || Layers::new(rows, sizes, bias, around);
                let (one, two) = (layers(), layers());
                let y = one.fused(activation).unwrap();
                let got = one.gradients(&y);
                let want = two.apart(activation).unwrap();
                assert_eq!(values(&y), values(&want), "{activation:?} {around:?}");
                for (got, want) in got.iter().zip(&two.gradients(&want)) {
                    let scale = values(want).iter().fold(1.0f32, |m, v| m.max(v.abs()));
                    let off = apart(got, want) / scale;
                    assert!(off < 1e-5, "{activation:?} {rows} {sizes:?} {around:?}: {off}");
                }
            }
        }
        let (one, two) = [(); 2].map(|()| Layers::new(9, [5, 4, 6], true, None)).into();
        let (y, want) = (one.fused(activation).unwrap(), two.apart(activation).unwrap());
        assert_eq!(values(&y), values(&want), "{activation:?}");
    }
}

#[test]
fn gradients_equal_finite_differences() {
    let n = |shape: &[usize], seed| (noise(shape, seed) * 0.7).unwrap();
    let affine = |weight: &Weight, bias: Option<&Weight>| Affine {
        weight: weight.clone(),
        bias: bias.cloned(),
    };
    for activation in [Activation::Gelu, Activation::Tanh] {
        let mut all = vec![n(&[2, 3, 5], 1), n(&[7, 5], 2), n(&[4, 7], 3)];
        differences(all.clone(), |t| {
            let (up, down) = (affine(&t[1], None), affine(&t[2], None));
            ops::feed_forward(&t[0], &up, activation, &down).unwrap()
        });
        all.extend([n(&[7], 4), n(&[4], 5)]);
        differences(all, |t| {
            let (up, down) = (affine(&t[1], Some(&t[3])), affine(&t[2], Some(&t[4])));
            ops::feed_forward(&t[0], &up, activation, &down).unwrap()
        });
    }
    for (shift, drops) in AROUND.into_iter().flatten() {
        let mut all = vec![n(&[2, 3, 5], 1), n(&[7, 5], 2), n(&[5, 7], 3)];
        all.extend([n(&[7], 4), n(&[5], 5), n(&[5], 6)]);
        all.extend(shift.then(|| n(&[5], 7)));
        differences(all, |t| {
            let (up, down) = (affine(&t[1], Some(&t[3])), affine(&t[2], Some(&t[4])));
            let norm = Norm { weight: t[5].clone(), bias: t.get(6).cloned(), eps: 1e-5 };
            let around = Residual { norm, dropout: drops.then(dropout) };
            ops::feed_forward_residual(&t[0], &around, &up, Activation::Gelu, &down).unwrap()
        });
    }
}

#[test]
fn bits_depend_neither_on_threads_nor_on_earlier_passes() {
    record();
    for around in AROUND {
        let run = |threads: usize| {
            pool::set_threads(threads).unwrap();
            let layers = Layers::new(600, [24, 70, 24], true, around);
            let y = layers.fused(Activation::Gelu).unwrap();
            let mut all = vec![values(&y)];
            all.extend(layers.gradients(&y).iter().map(values));
            (all, layers)
        };
        let ((one, _), (three, layers)) = (run(1), run(3));
        assert_eq!(one, three);
        let again = layers.gradients(&layers.fused(Activation::Gelu).unwrap());
        for (at, again) in again.iter().enumerate() {
            assert_eq!(values(again), one[1 + at], "gradient {at}");
        }
    }
}

#[test]
fn weights_of_a_norm_learn_if_its_input_wants_no_gradient() {
    record();
    let layers = Layers::new(6, [5, 4, 5], true, Some((true, false)));
    let want = layers.gradients(&layers.fused(Activation::Gelu).unwrap());
    let fixed = Layers { x: layers.x.detach(), ..layers };
    let y = fixed.fused(Activation::Gelu).unwrap();
    let store = backward(&(&y * noise(y.dims(), 9)).unwrap().sum_all().unwrap());
    assert!(store.get(&fixed.x).is_none());
    for (weight, want) in fixed.weights().zip(&want[1..]) {
        assert_eq!(values(&gradient("a weight", weight, &store)), values(want));
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let affine = |n, k, bias: usize| Affine {
        weight: noise(&[n, k], 1).into(),
        bias: Some(noise(&[bias], 2).into()),
    };
    let x = noise(&[2, 3], 3);
    for (up, down, text) in [
        (affine(4, 5, 4), affine(2, 4, 2), "first"),
        (affine(4, 3, 5), affine(2, 4, 2), "first"),
        (affine(4, 3, 4), affine(2, 5, 2), "second"),
        (affine(4, 3, 4), affine(2, 4, 3), "second"),
    ] {
        let error = ops::feed_forward(&x, &up, Activation::Relu, &down).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let around = |k: usize| Residual {
        norm: Norm { weight: noise(&[k], 4).into(), bias: None, eps: 1e-5 },
        dropout: None,
    };
    let up = affine(4, 3, 4);
    for (k, down, text) in [(5, affine(3, 4, 3), "norm"), (3, affine(2, 4, 2), "residual")] {
        let error = ops::feed_forward_residual(&x, &around(k), &up, Activation::Relu, &down);
        let error = error.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}
