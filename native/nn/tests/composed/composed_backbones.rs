//! Backbones with composed ops against the same backbones with fused ops.
//!
//! Composed ops run in f64. No fused op accepts f64, and candle does not mix f64 with f32. A pass must therefore
//! create every tensor beside its inputs, as on another device.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use sconce_nn::backbone::{self, Backbone, Context, State};
use sconce_nn::spec;
use sconce_ops::weights::{Builder, Source, Weight, Weights};
use sconce_tensor::tape;
use sconce_tensor::tensor::moved;

use crate::backbones::{INPUT, build, configs};
use crate::common::composed::elsewhere;
use crate::common::{backward, noise, values};

const HERE: Place = (&Device::Cpu, DType::F32);

const BATCH: usize = 3;
const TIME: usize = 44;

/// Relative to the largest number.
const TOLERANCE: f32 = 1e-4;

/// A device and a type of numbers.
type Place<'a> = (&'a Device, DType);

/// The backbone with weights of this type on this device.
fn of_type(config: &spec::Backbone, place: Place) -> (Box<dyn Backbone>, Weights) {
    let typed = |(name, weight): (String, Weight)| (name, cast(&weight, place).into());
    let stored = build(config, 5).1.into_iter().map(typed).collect();
    let b = Builder::new(Source::Stored(stored), true);
    (backbone::new(config, INPUT, &b).unwrap(), b.finish().unwrap())
}

fn cast(t: &Tensor, (device, dtype): Place) -> Tensor {
    t.detach().to_device(device).unwrap().to_dtype(dtype).unwrap()
}

fn variable(t: &Tensor) -> Tensor {
    Var::from_tensor(t).unwrap().into_inner()
}

/// In all rows but one, every third frame is missing.
fn mask() -> Arc<[bool]> {
    (0..BATCH * TIME).map(|i| i / TIME == 1 || i % 3 != 0).collect()
}

fn contexts() -> [(&'static str, Context); 4] {
    [
        ("play", Context::default()),
        ("training", Context::training(3, 7)),
        ("missing frames", Context::masked(Some(mask()))),
        ("the last frame", Context::default().of_last()),
    ]
}

/// Outputs, the state after them, and the gradients of input, state and weights. The pass begins from a non-zero
/// state.
fn run(config: &spec::Backbone, place: Place, context: &Context) -> Vec<(String, Tensor)> {
    let (net, weights) = of_type(config, place);
    let x = variable(&cast(&noise(&[BATCH, TIME, INPUT], 1), place));
    let before = cast(&noise(&[BATCH, 9, INPUT], 2), place);
    let zero = net.zero_state(BATCH).unwrap().beside(&x).unwrap();
    let state = net.forward(&before, &zero, &Context::default()).unwrap().1.detach();
    let state = State(state.0.iter().map(variable).collect());
    let _tape = tape::record();
    let (y, after) = net.forward(&x, &state, context).unwrap();
    let mut outputs = vec![("y".to_string(), y)];
    outputs.extend(after.0.into_iter().enumerate().map(|(i, part)| (format!("state {i}"), part)));
    let weighted = outputs.iter().enumerate().map(|(i, (_, y))| {
        (y * moved(&noise(y.dims(), 70 + i as u64), y).unwrap()).unwrap().sum_all().unwrap()
    });
    let store = backward(&weighted.reduce(|a, b| (a + b).unwrap()).unwrap());
    let inputs = std::iter::once(&x).chain(&state.0).enumerate();
    let inputs =
        inputs.filter_map(|(i, x)| Some((format!("gradient of input {i}"), store.get(x)?)));
    let mut all: Vec<_> = outputs.clone();
    all.extend(inputs.map(|(name, gradient)| (name, gradient.clone())));
    for (name, weight) in &weights {
        if weight.gather(&store).unwrap() {
            let gradient = weight.read_gradient(|g| Tensor::new(g, weight.device())).unwrap();
            all.push((format!("gradient of {name}"), gradient.unwrap()));
        }
    }
    all.into_iter().map(|(name, t)| (name, cast(&t, HERE))).collect()
}

#[test]
fn a_backbone_of_composed_ops_has_the_numbers_and_gradients_of_fused_ops() {
    for config in &configs() {
        for (pass, context) in contexts() {
            let want = run(config, HERE, &context);
            for (device, dtype) in elsewhere() {
                let got = run(config, (&device, dtype), &context);
                let what =
                    format!("{}, {pass}, {dtype:?} on {:?}", config.name(), device.location());
                let names = |all: &[(String, Tensor)]| {
                    all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
                };
                assert_eq!(names(&got), names(&want), "{what}");
                for ((name, got), (_, want)) in got.iter().zip(&want) {
                    assert_eq!(got.dims(), want.dims(), "{what}, {name}");
                    let (got, want) = (values(got), values(want));
                    let scale = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
                    for (got, want) in got.iter().zip(&want) {
                        let near = (got - want).abs() <= TOLERANCE * scale;
                        assert!(near, "{what}, {name}: got {got}, want {want} (scale {scale})");
                    }
                }
            }
        }
    }
}
