//! Two dense layers as one op are those two layers.

mod common;

use candle_core::{Tensor, Var};
use common::{apart, differences, gradient, noise, values};
use sconce_core::ops::{self, Activation, Affine};
use sconce_core::weights::Weight;
use sconce_core::{Result, pool};

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

struct Layers {
    x: Tensor,
    up: Affine,
    down: Affine,
}

impl Layers {
    fn new(rows: usize, [k, hidden, n]: [usize; 3], bias: bool) -> Self {
        let variable = |t: Tensor| Var::from_tensor(&t).unwrap().into_inner();
        let layer = |n: usize, k: usize, seed| Affine {
            weight: variable((noise(&[n, k], seed) / (k as f64).sqrt()).unwrap()).into(),
            bias: bias.then(|| variable(noise(&[n], seed + 1)).into()),
        };
        let x = variable(noise(&[rows, k], 1));
        Layers { x, up: layer(hidden, k, 2), down: layer(n, hidden, 4) }
    }

    fn fused(&self, activation: Activation) -> Result<Tensor> {
        ops::feed_forward(&self.x, &self.up, activation, &self.down)
    }

    fn apart(&self, activation: Activation) -> Result<Tensor> {
        let h = ops::linear(&self.x, &self.up.weight, self.up.bias.as_ref(), activation)?;
        ops::linear(&h, &self.down.weight, self.down.bias.as_ref(), Activation::None)
    }

    /// Gradients of x and of all weights.
    fn gradients(&self, y: &Tensor) -> Vec<Tensor> {
        let y = (y * noise(y.dims(), 9)).unwrap();
        let store = y.sum_all().unwrap().backward().unwrap();
        let weights = [Some(&self.up.weight), self.up.bias.as_ref()]
            .into_iter()
            .chain([Some(&self.down.weight), self.down.bias.as_ref()])
            .flatten();
        let x = store.get(&self.x).unwrap().clone();
        std::iter::once(x).chain(weights.map(|w| gradient("a weight", w, &store))).collect()
    }
}

#[test]
fn one_op_is_the_two_layers() {
    for activation in ACTIVATIONS {
        for (rows, sizes, bias) in
            [(3, [5, 4, 6], true), (150, [20, 100, 33], true), (70, [16, 48, 16], false)]
        {
            let (one, two) = (Layers::new(rows, sizes, bias), Layers::new(rows, sizes, bias));
            let (y, want) = (one.fused(activation).unwrap(), two.apart(activation).unwrap());
            assert_eq!(values(&y), values(&want), "{activation:?}");
            for (got, want) in one.gradients(&y).iter().zip(&two.gradients(&want)) {
                let scale = values(want).iter().fold(1.0f32, |m, v| m.max(v.abs()));
                assert!(apart(got, want) < 1e-5 * scale, "{activation:?} {rows} {sizes:?}");
            }
        }
    }
}

#[test]
fn gradients_are_its_finite_differences() {
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
}

#[test]
fn bits_depend_neither_on_threads_nor_on_a_second_backward_pass() {
    let run = |threads: usize| {
        pool::set_threads(threads).unwrap();
        let layers = Layers::new(300, [24, 70, 24], true);
        let y = layers.fused(Activation::Gelu).unwrap();
        let mut all = vec![values(&y)];
        all.extend(layers.gradients(&y).iter().map(values));
        (all, layers, y)
    };
    let ((one, ..), (three, layers, y)) = (run(1), run(3));
    assert_eq!(one, three);
    for weight in [&layers.up.weight, &layers.down.weight] {
        weight.forget();
    }
    let again = layers.gradients(&y);
    for at in [0, 1, 3] {
        assert_eq!(values(&again[at]), one[1 + at], "gradient {at}");
    }
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
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
}
