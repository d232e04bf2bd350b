//! A perceptron as one op equals its layers one after the other.

use std::sync::Arc;

use candle_core::{Tensor, Var};
use sconce_ops::weights::Weight;
use sconce_ops::{self as ops, Activated, Activation, Affine};
use sconce_tensor::{Kind, Result, pool};

use crate::common::{ACTIVATIONS, apart, backward, differences, gradient, noise, record, values};

struct Net {
    x: Tensor,
    layers: Arc<[Activated]>,
}

fn variable(t: Tensor) -> Tensor {
    Var::from_tensor(&t).unwrap().into_inner()
}

impl Net {
    /// A net of these widths; every second layer has a bias.
    fn new(rows: usize, widths: &[usize], activation: Activation) -> Self {
        let layer = |(i, pair): (usize, &[usize])| {
            let [k, n] = [pair[0], pair[1]];
            let seed = 2 * i as u64 + 2;
            let weight = variable((noise(&[n, k], seed) / (k as f64).sqrt()).unwrap()).into();
            let bias = (i % 2 == 0).then(|| variable(noise(&[n], seed + 1)).into());
            Activated { affine: Affine { weight, bias }, activation }
        };
        let layers = widths.windows(2).enumerate().map(layer).collect();
        Net { x: variable(noise(&[rows, widths[0]], 1)), layers }
    }

    fn apart(&self) -> Result<Tensor> {
        self.layers.iter().try_fold(self.x.clone(), |x, Activated { affine, activation }| {
            ops::linear(&x, &affine.weight, affine.bias.as_ref(), *activation)
        })
    }

    fn weights(&self) -> impl Iterator<Item = &Weight> {
        self.layers.iter().flat_map(|layer| {
            std::iter::once(&layer.affine.weight).chain(layer.affine.bias.as_ref())
        })
    }

    /// Gradients of x and of all weights.
    fn gradients(&self, y: &Tensor) -> Vec<Tensor> {
        let store = backward(&(y * noise(y.dims(), 9)).unwrap().sum_all().unwrap());
        let x = store.get(&self.x).unwrap().clone();
        let weights = self.weights().map(|w| gradient("a weight", w, &store));
        std::iter::once(x).chain(weights).collect()
    }
}

#[test]
fn one_op_equals_its_layers() {
    record();
    for activation in ACTIVATIONS {
        for (rows, widths) in [
            (3, vec![5, 4]),
            (300, vec![4, 64, 64]),
            (150, vec![20, 100, 30, 7]),
            (70, vec![16, 48, 1]),
        ] {
            let nets = || Net::new(rows, &widths, activation);
            let (one, two) = (nets(), nets());
            let y = ops::perceptron(&one.x, &one.layers).unwrap();
            let got = one.gradients(&y);
            let want = two.apart().unwrap();
            assert_eq!(values(&y), values(&want), "{activation:?} {widths:?}");
            for (got, want) in got.iter().zip(&two.gradients(&want)) {
                let scale = values(want).iter().fold(1.0f32, |m, v| m.max(v.abs()));
                let off = apart(got, want) / scale;
                assert!(off < 1e-5, "{activation:?} {rows} {widths:?}: {off}");
            }
        }
    }
}

#[test]
fn gradients_equal_finite_differences() {
    let n = |shape: &[usize], seed| (noise(shape, seed) * 0.7).unwrap();
    for activation in [Activation::Gelu, Activation::Tanh] {
        let all = vec![n(&[2, 3, 5], 1), n(&[17, 5], 2), n(&[17], 3), n(&[4, 17], 4)];
        differences(all, |t| {
            let first = Affine { weight: t[1].clone(), bias: Some(t[2].clone()) };
            let second = Affine { weight: t[3].clone(), bias: None };
            let layers = [first, second].map(|affine| Activated { affine, activation });
            ops::perceptron(&t[0], &layers.into()).unwrap()
        });
    }
}

#[test]
fn bits_depend_neither_on_threads_nor_on_earlier_passes() {
    record();
    let run = |threads: usize| {
        pool::set_threads(threads).unwrap();
        let net = Net::new(600, &[24, 70, 24], Activation::Tanh);
        let y = ops::perceptron(&net.x, &net.layers).unwrap();
        let mut all = vec![values(&y)];
        all.extend(net.gradients(&y).iter().map(values));
        (all, net)
    };
    let ((one, _), (three, net)) = (run(1), run(3));
    assert_eq!(one, three);
    let again = net.gradients(&ops::perceptron(&net.x, &net.layers).unwrap());
    for (at, again) in again.iter().enumerate() {
        assert_eq!(values(again), one[1 + at], "gradient {at}");
    }
}

#[test]
fn layers_learn_below_an_input_and_a_layer_that_do_not() {
    record();
    let net = || Net::new(40, &[5, 20, 3], Activation::Tanh);
    let learned = net();
    let want = learned.gradients(&ops::perceptron(&learned.x, &learned.layers).unwrap());
    let Net { x, layers } = net();
    let mut layers = layers.to_vec();
    let fixed = &mut layers[0].affine;
    fixed.weight = fixed.weight.detach().into();
    fixed.bias = fixed.bias.as_ref().map(|bias| bias.detach().into());
    let second = layers[1].affine.weight.clone();
    let y = ops::perceptron(&x.detach(), &layers.into()).unwrap();
    let store = backward(&(&y * noise(y.dims(), 9)).unwrap().sum_all().unwrap());
    assert!(store.get(&x).is_none());
    // The gradients are those of x, the first weight, its bias, and the second weight.
    assert_eq!(values(&gradient("the second weight", &second, &store)), values(&want[3]));
}

#[test]
fn no_rows_have_gradients_of_zero() {
    record();
    let net = Net::new(0, &[5, 20, 3], Activation::Relu);
    let y = ops::perceptron(&net.x, &net.layers).unwrap();
    assert_eq!(y.dims(), [0, 3]);
}

#[test]
fn wrong_sizes_are_errors() {
    let layer = |n: usize, k: usize, bias: usize| Activated {
        affine: Affine { weight: noise(&[n, k], 1).into(), bias: Some(noise(&[bias], 2).into()) },
        activation: Activation::Relu,
    };
    let x = noise(&[2, 3], 3);
    for (layers, text) in [
        ([layer(4, 5, 4), layer(2, 4, 2)], "dense 0"),
        ([layer(4, 3, 5), layer(2, 4, 2)], "dense 0"),
        ([layer(4, 3, 4), layer(2, 5, 2)], "dense 1"),
        ([layer(4, 3, 4), layer(2, 4, 3)], "dense 1"),
    ] {
        let error = ops::perceptron(&x, &layers.into()).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let error = ops::perceptron(&x, &[].into()).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}
