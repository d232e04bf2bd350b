//! The training form: shapes, values beside the packed form, gradients beside finite differences.

use candle_core::{Device, Tensor};
use proptest::prelude::*;
use sconce_net::training::{Mode, Training};
use sconce_net::{Function, Input, Layer, Net, NetSpec, Packed, Storage};
use sconce_tensor::rng::Rng;
use sconce_tensor::tape;

fn input(name: &str, shape: &[usize], vocabulary: Option<usize>) -> Input {
    Input { name: name.into(), shape: shape.to_vec(), vocabulary }
}

fn conv(
    filters: usize,
    kernel: &[usize],
    stride: usize,
    groups: usize,
    activation: Function,
) -> Layer {
    Layer::Conv {
        filters,
        stride: vec![stride; kernel.len()],
        padding: kernel.iter().map(|k| k / 2).collect(),
        dilation: vec![1; kernel.len()],
        kernel: kernel.to_vec(),
        groups,
        bias: groups == 1,
        activation,
    }
}

fn norm(activation: Function) -> Layer {
    Layer::BatchNorm { epsilon: 1e-5, momentum: 0.1, activation }
}

fn dense(size: usize, activation: Function) -> Layer {
    Layer::Dense { size, bias: true, activation }
}

fn values(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

/// Inputs of a batch; tokens are whole numbers.
fn inputs(spec: &NetSpec, batch: usize, seed: u64) -> Vec<Tensor> {
    let of = |(i, input): (usize, &Input)| {
        let rng = Rng::new(seed, "inputs", i as u64);
        let shape = [&[batch], &input.shape[..]].concat();
        let number = |at: u64| match input.vocabulary {
            Some(vocabulary) => (rng.normal(at).abs() * 1e3) as u64 as f32 % vocabulary as f32,
            None => rng.normal(at),
        };
        let count = shape.iter().product::<usize>() as u64;
        Tensor::from_vec((0..count).map(number).collect(), shape, &Device::Cpu).unwrap()
    };
    spec.inputs.iter().enumerate().map(of).collect()
}

/// The network with other running statistics, so that they matter.
fn shaken(spec: &NetSpec, seed: u64) -> Net {
    let net = Net::init(spec, seed).unwrap();
    let weights = net.weights().iter().enumerate().map(|(i, weight)| {
        let rng = Rng::new(seed, "weights", i as u64);
        let change = |(at, value): (usize, &f32)| match weight.name.rsplit('.').next() {
            Some("running_var") => value + rng.normal(at as u64).abs(),
            _ => value + 0.1 * rng.normal(at as u64),
        };
        let values = weight.values.iter().enumerate().map(change).collect();
        (weight.name.clone(), values, weight.shape.clone())
    });
    Net::from_weights(spec, weights.collect::<Vec<_>>()).unwrap()
}

/// A network with every kind of layer.
fn every_kind() -> NetSpec {
    let list = |n: usize| vec![n; 2];
    NetSpec {
        inputs: vec![
            input("image", &[2, 9, 8], None),
            input("sound", &[3, 12], None),
            input("words", &[5], Some(7)),
        ],
        layers: vec![
            Layer::Inputs {
                branches: vec![
                    (
                        "image".into(),
                        vec![
                            conv(6, &[3, 3], 1, 1, Function::Silu),
                            norm(Function::HardSwish),
                            Layer::MeanPool {
                                kernel: list(2),
                                stride: list(2),
                                padding: list(1),
                                count_padding: false,
                            },
                            conv(6, &[3, 3], 1, 6, Function::None),
                            Layer::Upsample { factor: list(2) },
                            Layer::ConvTranspose {
                                filters: 4,
                                kernel: vec![3, 4],
                                stride: vec![2, 1],
                                padding: vec![1, 0],
                                output_padding: vec![1, 0],
                                dilation: vec![1, 2],
                                groups: 2,
                                bias: true,
                                activation: Function::Silu,
                            },
                            Layer::GlobalMean,
                        ],
                    ),
                    (
                        "sound".into(),
                        vec![
                            conv(4, &[5], 2, 1, Function::Tanh),
                            Layer::Attention { heads: 2 },
                            Layer::Residual {
                                layers: vec![
                                    norm(Function::Gelu),
                                    conv(4, &[3], 1, 2, Function::Relu6),
                                ],
                            },
                            Layer::MaxPool { kernel: vec![2], stride: vec![2], padding: vec![0] },
                            Layer::Flatten,
                        ],
                    ),
                    (
                        "words".into(),
                        vec![
                            Layer::Embed { size: 4 },
                            Layer::Attention { heads: 1 },
                            Layer::GlobalMax,
                        ],
                    ),
                ],
            },
            Layer::Concat {
                branches: vec![vec![dense(5, Function::Sigmoid)], vec![dense(3, Function::Tanh)]],
            },
            Layer::Activation { function: Function::Silu },
            dense(4, Function::None),
        ],
    }
}

fn loss(y: &Tensor) -> f64 {
    let weights = (1..).map(|i| f64::from(i % 7) - 3.0);
    values(y).into_iter().zip(weights).map(|(y, c)| f64::from(y) * c).sum()
}

#[test]
fn gradients_of_a_whole_network_are_finite_differences() {
    let spec = every_kind();
    let net = shaken(&spec, 3);
    let x = inputs(&spec, 4, 5);
    for mode in [Mode::Training, Mode::Inference] {
        let training = Training::new(&net).unwrap();
        let tape = tape::record();
        let y = training.forward(&x, mode).unwrap();
        let c = (1..=y.elem_count()).map(|i| (i % 7) as f32 - 3.0).collect();
        let gradients = tape::backward(&y, Tensor::from_vec(c, y.shape(), &Device::Cpu).unwrap());
        let gradients = gradients.unwrap();
        drop(tape);
        let mut kinks = 0;
        for (name, weight) in training.weights() {
            assert!(weight.gather(&gradients).unwrap(), "{name} has no gradient");
            let found = weight.read_gradient(|g| g.to_vec()).unwrap();
            let scale = found.iter().fold(0.3f32, |most, g| most.max(g.abs()));
            let i = found.len() / 2;
            let moved = |by: f32| {
                let weights = net.weights().iter().map(|weight| {
                    let mut values = weight.values.clone();
                    if weight.name == *name {
                        values[i] += by;
                    }
                    (weight.name.clone(), values, weight.shape.clone())
                });
                let net = Net::from_weights(&spec, weights.collect::<Vec<_>>()).unwrap();
                loss(&Training::new(&net).unwrap().forward(&x, mode).unwrap())
            };
            let by = 1e-3;
            let (below, here, above) = (moved(-by), moved(0.0), moved(by));
            let [left, right] = [here - below, above - here].map(|d| d / f64::from(by));
            let most = 2e-2 * f64::from(scale);
            // A kink of a maximum or of a piecewise linear function lies between.
            if (left - right).abs() > most {
                kinks += 1;
                continue;
            }
            let (slope, found) = ((left + right) / 2.0, f64::from(found[i]));
            assert!((slope - found).abs() < most, "{name} {i}, {mode:?}: {found} not {slope}");
        }
        assert!(4 * kinks < training.weights().len(), "{kinks} kinks");
    }
}

#[test]
fn running_statistics_move_in_training_only_and_are_saved() {
    let spec = every_kind();
    let net = shaken(&spec, 3);
    let training = Training::new(&net).unwrap();
    let x = inputs(&spec, 4, 5);
    training.forward(&x, Mode::Inference).unwrap();
    assert_eq!(training.net().unwrap().weights(), net.weights());
    training.forward(&x, Mode::Training).unwrap();
    let after = training.net().unwrap();
    for (before, after) in net.weights().iter().zip(after.weights()) {
        assert_eq!(before == after, before.trainable, "{}", before.name);
    }
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let spec = every_kind();
    let training = Training::new(&Net::init(&spec, 1).unwrap()).unwrap();
    let mut x = inputs(&spec, 2, 5);
    let text = |x: &[Tensor]| training.forward(x, Mode::Inference).unwrap_err().to_string();
    assert_eq!(text(&x[..2]), "inputs: expected 3, got 2");
    x[2] = Tensor::from_slice(
        &[0f32, 1.0, 2.0, 3.0, 7.0, 0.0, 1.0, 2.0, 3.0, 4.0],
        (2, 5),
        &Device::Cpu,
    )
    .unwrap();
    assert!(
        text(&x).starts_with("token of layers.0.branches.2.0: 7 is outside 0..6"),
        "{}",
        text(&x)
    );
    x[1] = x[1].narrow(2, 0, 5).unwrap();
    assert_eq!(text(&x), "input sound: expected [2, 3, 12], got [2, 3, 5]");
}

/// Layers that may follow each other; those that do not fit are left out.
fn layers() -> impl Strategy<Value = (bool, Vec<Layer>)> {
    let function = prop_oneof![
        Just(Function::None),
        Just(Function::Relu),
        Just(Function::Relu6),
        Just(Function::Sigmoid),
        Just(Function::Tanh),
        Just(Function::Silu),
        Just(Function::Gelu),
        Just(Function::HardSwish),
    ];
    let layer = (0..18u8, 1..4usize, 1..4usize, 1..20usize, 1..3usize, 0..2usize, function);
    (any::<bool>(), proptest::collection::vec(layer, 1..9)).prop_map(|(is_image, choices)| {
        let rank = if is_image { 2 } else { 1 };
        let layers = choices.into_iter().map(|(kind, k, s, n, d, p, activation)| {
            let list = |n: usize| vec![n; rank];
            let conv = |filters, groups, bias| Layer::Conv {
                filters,
                kernel: list(k),
                stride: list(s),
                padding: list(p),
                dilation: list(d),
                groups,
                bias,
                activation,
            };
            match kind {
                0..=2 => conv(n, 1, p == 1),
                3 => conv(4 * n, 4, true),
                4 => Layer::Residual { layers: vec![norm(activation)] },
                5 => norm(activation),
                6 => Layer::MaxPool { kernel: list(k), stride: list(s), padding: list(p) },
                7 => Layer::MeanPool {
                    kernel: list(k),
                    stride: list(s),
                    padding: list(p),
                    count_padding: d == 1,
                },
                15 | 16 => Layer::ConvTranspose {
                    filters: 2 * n,
                    kernel: list(k),
                    stride: list(s),
                    padding: list(p),
                    output_padding: list(p * (s - 1)),
                    dilation: list(d),
                    groups: kind as usize - 14,
                    bias: d == 1,
                    activation,
                },
                8 => Layer::Upsample { factor: list(s.min(2)) },
                9 => Layer::Attention { heads: s },
                13 => Layer::Gru { size: n, sequence: p == 1 },
                14 => Layer::Lstm { size: n, sequence: p == 1 },
                10 => Layer::Concat {
                    branches: vec![
                        vec![Layer::Activation { function: activation }],
                        vec![norm(Function::None)],
                    ],
                },
                11 => Layer::Flatten,
                12 => {
                    if p == 0 {
                        Layer::GlobalMean
                    } else {
                        Layer::GlobalMax
                    }
                }
                _ => dense(n, activation),
            }
        });
        (is_image, layers.collect())
    })
}

/// A declaration of the layers that fit.
fn fitting(is_image: bool, layers: Vec<Layer>) -> NetSpec {
    let shape: &[usize] = if is_image { &[4, 11, 9] } else { &[4, 19] };
    let mut spec = NetSpec { inputs: vec![input("x", shape, None)], layers: vec![] };
    for layer in layers {
        spec.layers.push(layer);
        if spec.check().is_err() {
            spec.layers.pop();
        }
    }
    spec
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn outputs_have_the_shape_of_the_outline((is_image, layers) in layers()) {
        let spec = fitting(is_image, layers);
        let net = shaken(&spec, 7);
        let y = Training::new(&net).unwrap().forward(&inputs(&spec, 3, 9), Mode::Inference).unwrap();
        prop_assert_eq!(&y.dims()[1..], &net.outline().output[..]);
    }

    #[test]
    fn the_packed_form_of_random_layers_equals_the_training_form((is_image, layers) in layers()) {
        let spec = fitting(is_image, layers);
        compare_with_packed(&spec, 7);
    }
}

/// Compares the packed form, item by item, with the training form.
fn compare_with_packed(spec: &NetSpec, seed: u64) {
    let (net, x, batch) = (shaken(spec, seed), inputs(spec, 3, seed), 3);
    let want = values(&Training::new(&net).unwrap().forward(&x, Mode::Inference).unwrap());
    let mut packed = Packed::new(&net, Storage::F32).unwrap();
    let mut got = vec![0.0; want.len()];
    for (i, y) in got.chunks_mut(want.len() / batch).enumerate() {
        let item: Vec<Vec<f32>> = x.iter().map(|x| values(&x.get(i).unwrap())).collect();
        packed.run(&item.iter().map(|x| &x[..]).collect::<Vec<_>>(), y).unwrap();
    }
    let scale = want.iter().fold(1.0f32, |most, y| most.max(y.abs()));
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() <= 1e-5 * scale, "{got} instead of {want} in {spec:?}");
    }
}

#[test]
fn the_packed_form_of_every_kind_of_layer_equals_the_training_form() {
    (1..9).for_each(|seed| compare_with_packed(&every_kind(), seed));
}
