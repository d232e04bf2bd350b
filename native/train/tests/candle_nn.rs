//! Layers, losses and AdamW compared with those of candle-nn, which only tests and benchmarks use.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::optim::ParamsAdamW;
use candle_nn::{AdamW, GRUConfig, LSTMConfig, Module, Optimizer, RNN, VarBuilder};
use sconce_nn::spec::{Head, HeadKind, Heads, HeadsKind};
use sconce_ops::recurrent::Gates;
use sconce_ops::weights::Weight;
use sconce_ops::{self as ops, Norm};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::to_vec;
use sconce_train::objective::imitation::{LossOptions, Reduction, imitation};
use sconce_train::optimiser::{Kind, Optimiser, OptimiserConfig, Parameter};

const INPUTS: usize = 24;
const WIDTH: usize = 16;

fn noise(shape: &[usize], seed: u64) -> Tensor {
    let rng = Rng::new(seed, "candle-nn", 0);
    let numbers = (0..shape.iter().product::<usize>() as u64).map(|i| rng.normal(i) * 0.3);
    Tensor::from_vec(numbers.collect::<Vec<f32>>(), shape, &Device::Cpu).unwrap()
}

fn check(what: &str, ours: &Tensor, theirs: &Tensor) {
    assert_eq!(ours.dims(), theirs.dims(), "{what}");
    check_numbers(what, &to_vec(ours).unwrap(), &to_vec(theirs).unwrap());
}

fn check_numbers(what: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let apart = (ours - theirs).abs();
        assert!(apart <= 2e-5 * (1.0 + theirs.abs()), "{what}[{i}]: {ours}, theirs {theirs}");
    }
}

#[test]
fn norms() {
    let (x, weight, bias) = (noise(&[5, 7, WIDTH], 1), noise(&[WIDTH], 2), noise(&[WIDTH], 3));
    let norm = |bias: Option<&Tensor>| Norm {
        weight: Weight::from(weight.clone()),
        bias: bias.cloned().map(Weight::from),
        eps: 1e-5,
    };
    let theirs = candle_nn::LayerNorm::new(weight.clone(), bias.clone(), 1e-5);
    let ours = ops::row_norm(&x, &norm(Some(&bias))).unwrap();
    check("layer norm", &ours, &theirs.forward(&x).unwrap());
    let theirs = candle_nn::RmsNorm::new(weight.clone(), 1e-5);
    check("RMS norm", &ops::row_norm(&x, &norm(None)).unwrap(), &theirs.forward(&x).unwrap());
}

/// The weights of a recurrent layer: in Sconce's form, and by candle-nn's names.
fn recurrent(gates: usize) -> (Gates, VarBuilder<'static>) {
    let all = [
        ("weight_ih_l0", noise(&[gates * WIDTH, INPUTS], 4)),
        ("weight_hh_l0", noise(&[gates * WIDTH, WIDTH], 5)),
        ("bias_ih_l0", noise(&[gates * WIDTH], 6)),
        ("bias_hh_l0", noise(&[gates * WIDTH], 7)),
    ];
    let [a, b, c, d] = all.each_ref().map(|(_, tensor)| Weight::from(tensor.clone()));
    let named: HashMap<String, Tensor> = all.map(|(name, tensor)| (name.to_owned(), tensor)).into();
    (Gates::new(a, b, c, d), VarBuilder::from_tensors(named, DType::F32, &Device::Cpu))
}

#[test]
fn recurrent_layers() {
    let (x, zero) = (noise(&[3, 11, INPUTS], 8), noise(&[3, WIDTH], 9).zeros_like().unwrap());
    let (gates, weights) = recurrent(4);
    let theirs = candle_nn::lstm(INPUTS, WIDTH, LSTMConfig::default(), weights).unwrap();
    let states = theirs.seq(&x).unwrap();
    let (y, _, c) = ops::lstm(&x, &gates, &zero, &zero, None).unwrap();
    check("LSTM", &y, &theirs.states_to_tensor(&states).unwrap());
    check("cell of an LSTM", &c, states.last().unwrap().c());

    let (gates, weights) = recurrent(3);
    let theirs = candle_nn::gru(INPUTS, WIDTH, GRUConfig::default(), weights).unwrap();
    let (y, _) = ops::gru(&x, &gates, &zero, None).unwrap();
    // The states of candle-nn lie side by side.
    let states = theirs.states_to_tensor(&theirs.seq(&x).unwrap()).unwrap();
    check("GRU", &y, &states.reshape((3, 11, WIDTH)).unwrap());
}

#[test]
fn losses_and_their_gradients() {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
    let (rows, bits, classes) = (9, 3, 5);
    let parts =
        vec![head("fire", HeadKind::Bernoulli(bits)), head("move", HeadKind::Categorical(classes))];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 1, prior: false };
    let logits = Var::from_tensor(&noise(&[rows, bits + classes], 10)).unwrap();
    let pressed = |row: usize, bit: usize| ((row + bit) % 2) as f32;
    let chosen = |row: usize| (row * 2 % classes) as f32;
    let labels: Vec<f32> = (0..rows)
        .flat_map(|row| (0..bits).map(move |bit| pressed(row, bit)).chain([chosen(row)]))
        .collect();
    let targets: Vec<f32> =
        (0..rows).flat_map(|row| (0..bits).map(move |bit| pressed(row, bit))).collect();
    let targets = Tensor::from_vec(targets, (rows, bits), &Device::Cpu).unwrap();
    let classes_of: Vec<u32> = (0..rows).map(|row| chosen(row) as u32).collect();
    let classes_of = Tensor::new(classes_of, &Device::Cpu).unwrap();

    let fire = logits.narrow(1, 0, bits).unwrap();
    let fire = candle_nn::loss::binary_cross_entropy_with_logit(&fire, &targets).unwrap();
    let moved = logits.narrow(1, bits, classes).unwrap();
    let moved = candle_nn::loss::cross_entropy(&moved, &classes_of).unwrap();
    let total = (fire + moved).unwrap();
    let gradients = total.backward().unwrap();

    let options = LossOptions { bernoulli_reduction: Reduction::Mean, ..LossOptions::plain() };
    let (x, mut gradient) = (to_vec(&logits).unwrap(), vec![0.0; rows * (bits + classes)]);
    let loss = imitation(&heads, &x, &labels, None, &options, Some(&mut gradient)).unwrap();
    check_numbers("loss", &[loss.value as f32], &[total.to_scalar::<f32>().unwrap()]);
    check_numbers("gradient", &gradient, &to_vec(gradients.get(&logits).unwrap()).unwrap());
}

#[test]
fn adam_with_decay() {
    let start = noise(&[6, 4], 11);
    let (lr, weight_decay) = (3e-3, 0.05);
    let theirs = Var::from_tensor(&start).unwrap();
    let params = ParamsAdamW { lr, weight_decay, ..ParamsAdamW::default() };
    let mut adam = AdamW::new(vec![theirs.clone()], params).unwrap();
    let config = OptimiserConfig { weight_decay, ..OptimiserConfig::new(Kind::AdamW) };
    let parameter = Parameter { name: "w".into(), len: 24, decay: true };
    let (mut ours, mut numbers) =
        (Optimiser::new(config, vec![parameter]), to_vec(&start).unwrap());
    for step in 0..20 {
        let target = noise(&[6, 4], 12 + step);
        let error = (theirs.as_tensor() - &target).unwrap();
        adam.backward_step(&error.sqr().unwrap().sum_all().unwrap()).unwrap();
        let target = to_vec(&target).unwrap();
        let gradient: Vec<f32> = numbers.iter().zip(&target).map(|(w, t)| 2.0 * (w - t)).collect();
        ours.step(&mut [&mut numbers], &[&gradient], lr).unwrap();
        check_numbers(&format!("step {step}"), &numbers, &to_vec(&theirs).unwrap());
    }
}
