//! Comparison of ops with their composed form, also on a card if tests run on one.

use candle_core::{DType, Device, Tensor, Var};
use sconce_ops::weights::Weight;
use sconce_tensor::{Precision, Result, tape};

use super::{backward, card, gradient, noise, values};

/// Tolerance relative to the largest number; `ROUNDED` is that of 16-bit numbers, whose precision is 2^-9.
const TOLERANCE: f32 = 1e-4;
const ROUNDED: f32 = 2e-2;

/// Checks that `op` gives the same outputs, and the same gradients of all inputs, in f64, which only the composed form
/// accepts. On a card this also checks the kernels.
pub fn check(name: &str, inputs: &[Tensor], op: impl Fn(&[Weight]) -> Result<Vec<Tensor>>) {
    let want = run(inputs, (&Device::Cpu, DType::F32), &op);
    for (device, dtype) in elsewhere() {
        let got = run(inputs, (&device, dtype), &op);
        let name = format!("{name} of {dtype:?} on {:?}", device.location());
        compare_all(&name, &got, &want, TOLERANCE);
    }
    let Some(card) = card() else { return };
    // Inputs without gradient take other code paths.
    let there: Vec<Weight> =
        inputs.iter().map(|t| Weight::from(t.to_device(&card).unwrap())).collect();
    for (i, y) in op(&there).unwrap().into_iter().enumerate() {
        let y = y.to_device(&Device::Cpu).unwrap();
        compare(&format!("{name} without gradients, output {i}"), &y, &want[i].1, TOLERANCE);
    }
}

/// On a card, if tests run on one, checks that `op` gives the same up to rounding errors with operands of products in
/// bf16, and with all numbers in bf16.
pub fn check_in_bf16(name: &str, inputs: &[Tensor], op: impl Fn(&[Weight]) -> Result<Vec<Tensor>>) {
    let ways = [(Precision::Bf16, DType::F32), (Precision::F32, DType::BF16)];
    rounded(name, inputs, op, &ways);
}

fn compare_all(name: &str, got: &[(String, Tensor)], want: &[(String, Tensor)], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    for ((what, got), (_, want)) in got.iter().zip(want) {
        compare(&format!("{name}, {what}"), got, want, tolerance);
    }
}

/// [`check`], and on a card also in 16 bits, where kernels compute everything.
pub fn check_kernels(name: &str, inputs: &[Tensor], op: impl Fn(&[Weight]) -> Result<Vec<Tensor>>) {
    check(name, inputs, &op);
    rounded(name, inputs, &op, &[(Precision::F32, DType::BF16)]);
}

fn rounded(
    name: &str,
    inputs: &[Tensor],
    op: impl Fn(&[Weight]) -> Result<Vec<Tensor>>,
    ways: &[(Precision, DType)],
) {
    let Some(card) = card() else { return };
    let to = |t: &Tensor, dtype| t.to_dtype(dtype).unwrap();
    let inputs: Vec<_> = inputs.iter().map(|t| to(&to(t, DType::BF16), DType::F32)).collect();
    let want = run(&inputs, (&Device::Cpu, DType::F32), &op);
    for &(precision, dtype) in ways {
        let got = precision.during(|| run(&inputs, (&card, dtype), &op));
        compare_all(&format!("{name} of {dtype:?} in {precision}"), &got, &want, ROUNDED);
    }
}

/// The devices and types in which ops have another form than on the CPU.
pub fn elsewhere() -> Vec<(Device, DType)> {
    let on_card = card().map(|card| (card, DType::F32));
    std::iter::once((Device::Cpu, DType::F64)).chain(on_card).collect()
}

fn compare(what: &str, got: &Tensor, want: &Tensor, tolerance: f32) {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let (got, want) = (values(got), values(want));
    let scale = want.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(scale > 0.0, "{what}: all numbers are zero");
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        // False if one of the numbers is NaN.
        let near = (got - want).abs() <= tolerance * scale;
        assert!(near, "{what}, number {i}: got {got}, expected {want}, scale {scale}");
    }
}

/// The outputs, then the gradients of the inputs under a loss with a weight for every number.
fn run(
    inputs: &[Tensor],
    (device, dtype): (&Device, DType),
    op: impl Fn(&[Weight]) -> Result<Vec<Tensor>>,
) -> Vec<(String, Tensor)> {
    let there = |t: &Tensor| t.to_device(device).unwrap().to_dtype(dtype).unwrap();
    let variable = |t: &Tensor| Var::from_tensor(&there(t)).unwrap().into_inner();
    let variables: Vec<Weight> = inputs.iter().map(|t| variable(t).into()).collect();
    let _tape = tape::record();
    let outputs = op(&variables).unwrap();
    let parts = outputs.iter().enumerate().map(|(i, y)| {
        let cotangent = there(&noise(y.dims(), 77 + i as u64));
        (y * cotangent).unwrap().sum_all().unwrap()
    });
    let loss = parts.reduce(|a, b| (a + b).unwrap()).expect("an output");
    let store = backward(&loss);
    let gradients = variables.iter().enumerate().map(|(i, variable)| {
        let name = format!("gradient of input {i}");
        let gradient = match dtype {
            DType::F32 if device.is_cpu() => gradient(&name, variable, &store),
            _ => store.get(variable).unwrap_or_else(|| panic!("{name}: no gradient")).clone(),
        };
        (name, gradient)
    });
    let outputs = outputs.iter().enumerate().map(|(i, y)| (format!("output {i}"), y.detach()));
    let here = |t: Tensor| t.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    let single = |(name, t): (String, Tensor)| (name, here(t));
    outputs.chain(gradients).map(single).collect()
}
