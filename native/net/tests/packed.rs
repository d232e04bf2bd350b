//! The packed form beside a slow network in f64.

mod support;

use proptest::prelude::*;
use sconce_net::{Function, Input, Layer, Net, NetSpec, Packed, Storage};
use support::{assert_close, noise, packed, run};

fn function() -> impl Strategy<Value = Function> {
    use Function::*;
    prop::sample::select(vec![None, Relu, Relu6, Sigmoid, Tanh, Silu, Gelu, HardSwish])
}

/// Compares both forms of a network. Running statistics get values of their own.
fn compare(spec: &NetSpec, seed: u64) {
    let form = Net::init(spec, seed).unwrap();
    let weights = form.weights().iter().enumerate().map(|(i, own)| {
        let mut values = own.values.clone();
        if own.shape.len() == 1 {
            let noise = noise(seed ^ (i as u64 + 1), values.len());
            values.iter_mut().zip(noise).for_each(|(v, n)| *v += 0.4 * n);
        }
        (own.name.clone(), values, own.shape.clone())
    });
    let net = Net::from_weights(spec, weights).unwrap();
    let inputs: Vec<Vec<f32>> =
        spec.inputs.iter().enumerate().map(|(i, x)| input(x, seed + i as u64)).collect();
    assert_close(&format!("{spec:?}"), &packed(&net, &inputs), &run(&net, &inputs));
}

fn input(input: &Input, seed: u64) -> Vec<f32> {
    let values = noise(seed, input.shape.iter().product());
    match input.vocabulary {
        Some(n) => values.iter().map(|v| ((v + 1.0) / 2.0 * n as f32).floor()).collect(),
        None => values,
    }
}

fn image(shape: &[usize], layers: Vec<Layer>) -> NetSpec {
    let input = Input { name: "x".into(), shape: shape.to_vec(), vocabulary: None };
    NetSpec { inputs: vec![input], layers }
}

fn norm(activation: Function) -> Layer {
    Layer::BatchNorm { epsilon: 1e-5, momentum: 0.1, activation }
}

fn dense(size: usize, activation: Function) -> Layer {
    Layer::Dense { size, bias: true, activation }
}

/// A convolution that keeps the size.
fn same(filters: usize, rank: usize, groups: usize, activation: Function) -> Layer {
    let ones = || vec![1; rank];
    let (kernel, stride, padding, dilation) = (vec![3; rank], ones(), ones(), ones());
    Layer::Conv { filters, kernel, stride, padding, dilation, groups, bias: false, activation }
}

prop_compose! {
    fn conv(rank: usize)(
        filters in 1usize..40, depthwise in 0usize..4,
        kernel in prop::collection::vec(1usize..5, rank), stride in prop::collection::vec(1usize..4, rank),
        padding in prop::collection::vec(0usize..4, rank), dilation in prop::collection::vec(1usize..4, rank),
        bias: bool, activation in function(),
    ) -> (Layer, usize) {
        (Layer::Conv { filters, kernel, stride, padding, dilation, groups: 1, bias, activation }, depthwise)
    }
}

prop_compose! {
    fn transposed(rank: usize)(
        inner in 1usize..12, groups in 1usize..4,
        kernel in prop::collection::vec(1usize..6, rank), stride in prop::collection::vec(1usize..5, rank),
        padding in prop::collection::vec(0usize..5, rank), dilation in prop::collection::vec(1usize..4, rank),
        more in prop::collection::vec(0usize..4, rank), bias: bool, activation in function(),
    ) -> Layer {
        let output_padding = more.iter().zip(&stride).map(|(more, stride)| more % stride).collect();
        Layer::ConvTranspose {
            filters: inner * groups, kernel, stride, padding, output_padding, dilation, groups, bias, activation,
        }
    }
}

/// The layers that fit behind each other, of those drawn.
fn fitting(shape: &[usize], layers: Vec<Layer>) -> NetSpec {
    let mut spec = image(shape, vec![]);
    for layer in layers {
        spec.layers.push(layer);
        if spec.check().is_err() {
            spec.layers.pop();
        }
    }
    spec
}

fn layer(rank: usize) -> impl Strategy<Value = Layer> {
    let pool = move || {
        let lists = (
            prop::collection::vec(1usize..4, rank),
            prop::collection::vec(1usize..4, rank),
            prop::collection::vec(0usize..2, rank),
        );
        lists.prop_map(|(kernel, stride, padding)| {
            let padding = kernel.iter().zip(padding).map(|(k, p)| p.min(k / 2)).collect();
            (kernel, stride, padding)
        })
    };
    let inner = move || prop::collection::vec((1usize..20, function()), 1..3);
    prop_oneof![
        4 => conv(rank).prop_map(|(layer, _)| layer),
        2 => transposed(rank),
        2 => function().prop_map(norm),
        1 => function().prop_map(|function| Layer::Activation { function }),
        1 => pool().prop_map(|(kernel, stride, padding)| Layer::MaxPool { kernel, stride, padding }),
        1 => (pool(), any::<bool>()).prop_map(|((kernel, stride, padding), count_padding)| {
            Layer::MeanPool { kernel, stride, padding, count_padding }
        }),
        1 => prop::collection::vec(1usize..3, rank).prop_map(|factor| Layer::Upsample { factor }),
        1 => inner().prop_map(move |all| {
            let branch = |(n, f)| vec![same(n, rank, 1, f), norm(Function::None)];
            Layer::Concat { branches: all.into_iter().map(branch).chain([vec![]]).collect() }
        }),
        1 => function().prop_map(|f| Layer::Residual { layers: vec![norm(f)] }),
        1 => function().prop_map(|f| Layer::Residual {
            layers: vec![Layer::Concat { branches: vec![vec![Layer::Activation { function: f }]] }],
        }),
    ]
}

fn end() -> impl Strategy<Value = Vec<Layer>> {
    prop_oneof![
        Just(vec![]),
        Just(vec![Layer::GlobalMean]),
        Just(vec![Layer::GlobalMax]),
        Just(vec![Layer::Flatten]),
        (1usize..40, function()).prop_map(|(n, f)| vec![Layer::Flatten, dense(n, f), dense(3, f)]),
        function().prop_map(|f| vec![Layer::GlobalMean, dense(7, Function::None), norm(f)]),
        function().prop_map(|f| vec![Layer::Flatten, norm(f), dense(5, f)]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_images_agree(
        shape in prop::collection::vec(1usize..12, 3), seed: u32,
        layers in prop::collection::vec(layer(2), 1..6), end in end(),
    ) {
        compare(&fitting(&shape, layers.into_iter().chain(end).collect()), seed.into());
    }

    #[test]
    fn random_signals_agree(
        c in 1usize..20, t in 1usize..40, seed: u32,
        layers in prop::collection::vec(layer(1), 1..6), end in end(),
    ) {
        compare(&fitting(&[c, t], layers.into_iter().chain(end).collect()), seed.into());
    }

    #[test]
    fn transposed_convolutions_agree(
        groups in 1usize..4, inner in 1usize..4, size in prop::collection::vec(1usize..8, 2), seed: u32,
        layer in transposed(2), last in transposed(1), f in function(),
    ) {
        // Groups that do not divide the channels do not fit, and others are tried.
        let shape = |rank: usize| [&[groups * inner * 6][..], &size[..rank]].concat();
        compare(&fitting(&shape(2), vec![layer, norm(f)]), seed.into());
        compare(&fitting(&shape(1), vec![last, norm(f)]), seed.into());
    }

    #[test]
    fn groups_of_channels_agree(
        groups in 1usize..20, inner in 1usize..4, outer in 1usize..4, stride in 1usize..3,
        size in 3usize..10, f in function(), seed: u32,
    ) {
        let mut layer = same(groups * outer, 2, groups, f);
        if let Layer::Conv { stride: strides, .. } = &mut layer {
            *strides = vec![stride; 2];
        }
        compare(&image(&[groups * inner, size, size + 1], vec![layer, norm(f)]), seed.into());
    }
}

#[test]
fn tokens_attention_recurrent_layers_and_several_inputs_agree() {
    let attention = |heads| Layer::Attention { heads };
    let text = Input { name: "text".into(), shape: vec![9], vocabulary: Some(11) };
    let layers =
        vec![Layer::Embed { size: 12 }, attention(3), same(8, 1, 1, Function::Relu), attention(1)];
    compare(&NetSpec { inputs: vec![text.clone()], layers: layers.clone() }, 5);
    let recurrent = vec![
        Layer::Embed { size: 12 },
        Layer::Gru { size: 7, sequence: true },
        Layer::Lstm { size: 5, sequence: true },
        Layer::Gru { size: 20, sequence: false },
        dense(3, Function::None),
    ];
    compare(&NetSpec { inputs: vec![text.clone()], layers: recurrent.clone() }, 7);
    compare(&NetSpec { inputs: vec![text.clone()], layers: recurrent[..3].to_vec() }, 8);
    let other = Input { name: "sensors".into(), shape: vec![6], vocabulary: None };
    let signal = Input { name: "signal".into(), shape: vec![2, 20], vocabulary: None };
    let text_branch = [layers, vec![Layer::GlobalMean]].concat();
    let branches = vec![
        ("signal".into(), vec![same(5, 1, 1, Function::Gelu), Layer::Flatten]),
        ("sensors".into(), vec![]),
        ("text".into(), text_branch),
    ];
    let layers = vec![Layer::Inputs { branches }, dense(10, Function::Tanh)];
    compare(&NetSpec { inputs: vec![text, other, signal], layers }, 6);
}

#[test]
fn a_transposed_convolution_of_each_channel_and_of_one_place_agrees() {
    let layer = |filters, groups, stride, padding| Layer::ConvTranspose {
        filters,
        kernel: vec![3, 4],
        stride,
        padding,
        output_padding: vec![1, 0],
        dilation: vec![1, 2],
        groups,
        bias: true,
        activation: Function::Tanh,
    };
    compare(&image(&[20, 5, 4], vec![layer(20, 20, vec![2, 1], vec![1, 2])]), 1);
    compare(&image(&[9, 5, 4], vec![layer(18, 9, vec![3, 2], vec![0, 5])]), 2);
    // The stride is beyond the reach of the kernel.
    compare(&image(&[3, 1, 1], vec![layer(2, 1, vec![65536, 65536], vec![0, 0])]), 3);
    compare(&image(&[3, 1, 2], vec![layer(2, 1, vec![65536, 300], vec![1, 3])]), 4);
    compare(&image(&[40, 9, 7], vec![layer(33, 1, vec![2, 3], vec![2, 2])]), 5);
}

#[test]
fn wide_layers_agree() {
    let deep =
        vec![same(64, 2, 1, Function::Relu), same(70, 2, 1, Function::None), norm(Function::Relu)];
    compare(&image(&[48, 13, 11], deep), 1);
    compare(
        &image(
            &[700],
            vec![dense(130, Function::None), norm(Function::Silu), dense(33, Function::None)],
        ),
        2,
    );
}

#[test]
fn wrong_inputs_are_named() {
    let net =
        Net::init(&image(&[2, 3], vec![Layer::Flatten, dense(2, Function::None)]), 1).unwrap();
    let mut packed = Packed::new(&net, Storage::F32).unwrap();
    let mut said = |inputs: &[&[f32]], n: usize| {
        packed.run(inputs, &mut vec![0.0; n]).map_err(|e| e.to_string())
    };
    assert_eq!(said(&[&[0.0; 6]], 2), Ok(()));
    assert!(said(&[&[0.0; 5]], 2).unwrap_err().contains("[2, 3]"));
    assert!(said(&[&[0.0; 6]], 3).unwrap_err().contains("output"));
    assert!(said(&[], 2).unwrap_err().contains("inputs"));
    assert!(said(&[&[0.0, 0.0, f32::NAN, 0.0, 0.0, 0.0]], 2).unwrap_err().contains("not finite"));
    let text = Input { name: "text".into(), shape: vec![2], vocabulary: Some(4) };
    let spec = NetSpec { inputs: vec![text], layers: vec![Layer::Embed { size: 3 }] };
    let mut packed = Packed::new(&Net::init(&spec, 1).unwrap(), Storage::F32).unwrap();
    for (token, fits) in
        [(0.0, true), (3.0, true), (4.0, false), (-1.0, false), (0.5, false), (1e30, false)]
    {
        assert_eq!(packed.run(&[&[0.0, token]], &mut [0.0; 6]).is_ok(), fits, "{token}");
    }
}
