//! `activation.cu` compared with `ops::{activate, gated, glu}`.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::{Activation, activate, gated, glu};
use sconce_tensor::rng::Rng;
use sconce_tensor::{tape, tensor};

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Element, Memory};
use crate::{Kernels, assert_near};

/// As in the kernels.
const EACH: usize = 2;
const ROWS: usize = 256;

/// In the order of the kernels.
const ACTIVATIONS: [Activation; 9] = [
    Activation::None,
    Activation::Relu,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Silu,
    Activation::Gelu,
    Activation::Softplus,
    Activation::SquaredRelu,
    Activation::GeluErf,
];

/// Rows and columns: one of each, more columns than a block has, more rows than a part has.
const SIZES: [(usize, usize); 3] = [(1, 1), (7, 45), (ROWS + 3, 9)];

fn numbers<T: Element>(name: &str, count: usize) -> Vec<f32> {
    let rng = Rng::new(1, name, count as u64);
    (0..count as u64).map(|i| T::of(2.0 * rng.normal(i)).value()).collect()
}

/// The value of `op` for variables of these shapes, and the gradients.
fn on_cpu(
    inputs: &[(&[f32], Vec<usize>)],
    dy: &[f32],
    op: impl Fn(&[Tensor]) -> Tensor,
) -> Vec<Vec<f32>> {
    let variable = |(values, dims): &(&[f32], Vec<usize>)| {
        Var::from_slice(values, dims.as_slice(), &Device::Cpu).unwrap().into_inner()
    };
    let inputs: Vec<Tensor> = inputs.iter().map(variable).collect();
    let _tape = tape::record();
    let y = op(&inputs);
    let dy = Tensor::from_slice(dy, y.shape(), &Device::Cpu).unwrap();
    let store = tape::backward(&y, dy).unwrap();
    let all = [&y].into_iter().chain(inputs.iter().map(|x| store.get(x).unwrap()));
    all.map(|t| tensor::to_vec(t).unwrap()).collect()
}

fn grid(n: usize) -> [u32; 3] {
    [n.div_ceil(64 * EACH) as u32, 1, 1]
}

const BLOCK: [u32; 3] = [64, 1, 1];

/// The value, and the gradient of x.
fn activated<T: Element>(kernels: &impl Kernels, a: usize, x: &[f32], dy: &[f32]) -> Vec<Vec<f32>> {
    let (n, kernel) = (x.len(), |step: &str| format!("activation_{}_{step}", T::NAME));
    let (mut x, mut dy) = (Memory::<T>::of(x), Memory::<T>::of(dy));
    let (mut y, mut dx) = (Memory::<T>::unwritten(n), Memory::<T>::unwritten(n));
    let (count, a) = (n as i64, a as i32);
    let forward = &mut [x.argument(), Long(0), Long(0), y.argument(), Long(count), Int(1), Int(a)];
    kernels.launch(&kernel("forward"), grid(n), BLOCK, forward);
    let backward = &mut [x.argument(), dy.argument(), dx.argument(), Long(count), Int(a)];
    kernels.launch(&kernel("backward"), grid(n), BLOCK, backward);
    vec![y.read(), dx.read()]
}

/// Checks `relu(x) + rest`.
fn a_rest_is_added<T: Element>(kernels: &impl Kernels) {
    let n = 300;
    let (x, rest) = (numbers::<T>("x", n), numbers::<T>("rest", n));
    let want: Vec<f32> = x.iter().zip(&rest).map(|(x, rest)| x.max(0.0) + rest).collect();
    let (mut x, mut rest) = (Memory::<T>::of(&x), Memory::<T>::of(&rest));
    let mut y = Memory::<T>::unwritten(n);
    let arguments =
        &mut [x.argument(), Long(0), rest.argument(), y.argument(), Long(n as i64), Int(1), Int(1)];
    kernels.launch(&format!("activation_{}_forward", T::NAME), grid(n), BLOCK, arguments);
    assert_near("relu and a rest", &y.read(), &want, 1.0 / 256.0);
}

/// The value and gradients with a bias; the last one is that of the bias, summed here.
fn biased<T: Element>(
    kernels: &impl Kernels,
    a: usize,
    [x, bias, dy]: [&[f32]; 3],
) -> Vec<Vec<f32>> {
    let (n, d, kernel) = (x.len(), bias.len(), |s: &str| format!("activation_{}_{s}", T::NAME));
    let (mut x, mut bias) = (Memory::<T>::of(x), Memory::<T>::of(bias));
    let (mut y, mut dx) = (Memory::<T>::unwritten(n), Memory::<T>::unwritten(n));
    let mut dy = Memory::<T>::of(dy);
    let sizes = || [Int(d as i32), Int(a as i32)];
    let [width, function] = sizes();
    let arguments = &mut [
        x.argument(),
        bias.argument(),
        Long(0),
        y.argument(),
        Long(n as i64),
        width,
        function,
    ];
    kernels.launch(&kernel("forward"), grid(n), BLOCK, arguments);

    let parts = (n / d).div_ceil(ROWS);
    let mut sums = Memory::<f32>::unwritten(parts * d);
    let [width, function] = sizes();
    let plain = ACTIVATIONS[a] == Activation::None;
    let arguments = &mut [
        x.argument(),
        bias.argument(),
        dy.argument(),
        if plain { Long(0) } else { dx.argument() },
        sums.argument(),
        Long((n / d) as i64),
        width,
        function,
    ];
    let blocks = [d.div_ceil(32) as u32, parts as u32, 1];
    kernels.launch(&kernel("bias_parts"), blocks, [32, 8, 1], arguments);
    let sums = sums.read();
    let sum = |column| sums.chunks(d).map(|part| part[column]).sum();
    let dx = if plain { dy.read() } else { dx.read() };
    vec![y.read(), dx, (0..d).map(sum).collect()]
}

fn gated_by<T: Element>(
    kernels: &impl Kernels,
    a: usize,
    [x, gate, dy]: [&[f32]; 3],
) -> Vec<Vec<f32>> {
    let (n, kernel) = (x.len(), |step: &str| format!("gated_{}_{step}", T::NAME));
    let [mut x, mut gate, mut dy] = [x, gate, dy].map(Memory::<T>::of);
    let [mut y, mut dx, mut dgate] = [n; 3].map(Memory::<T>::unwritten);
    let (count, a) = (n as i64, a as i32);
    let arguments = &mut [x.argument(), gate.argument(), y.argument(), Long(count), Int(a)];
    kernels.launch(&kernel("forward"), grid(n), BLOCK, arguments);
    let arguments = &mut [
        x.argument(),
        gate.argument(),
        dy.argument(),
        dx.argument(),
        dgate.argument(),
        Long(count),
        Int(a),
    ];
    kernels.launch(&kernel("backward"), grid(n), BLOCK, arguments);
    vec![y.read(), dx.read(), dgate.read()]
}

fn halves<T: Element>(
    kernels: &impl Kernels,
    a: usize,
    [x, dy]: [&[f32]; 2],
    d: usize,
) -> Vec<Vec<f32>> {
    let (n, kernel) = (dy.len(), |step: &str| format!("glu_{}_{step}", T::NAME));
    let [mut x, mut dy] = [x, dy].map(Memory::<T>::of);
    let [mut y, mut dx] = [n, 2 * n].map(Memory::<T>::unwritten);
    let (count, d, a) = (n as i64, d as i32, a as i32);
    let arguments = &mut [x.argument(), y.argument(), Long(count), Int(d), Int(a)];
    kernels.launch(&kernel("forward"), grid(n), BLOCK, arguments);
    let arguments = &mut [x.argument(), dy.argument(), dx.argument(), Long(count), Int(d), Int(a)];
    kernels.launch(&kernel("backward"), grid(n), BLOCK, arguments);
    vec![y.read(), dx.read()]
}

fn assert_all_near(what: &str, got: Vec<Vec<f32>>, want: Vec<Vec<f32>>, rounding: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_near(&format!("{what}, {i}"), got, want, rounding);
    }
}

fn functions_are_the_ops<T: Element>(kernels: &impl Kernels, rounding: f32) {
    a_rest_is_added::<T>(kernels);
    for (a, activation) in ACTIVATIONS.into_iter().enumerate() {
        for (rows, d) in SIZES {
            let n = rows * d;
            let what = |of: &str| format!("{of}, {activation:?} of {rows} x {d}");
            let (x, dy) = (numbers::<T>("x", n), numbers::<T>("dy", n));
            let (gate, bias) = (numbers::<T>("gate", n), numbers::<T>("bias", d));
            let both = numbers::<T>("both", 2 * n);
            let all = vec![rows, d];

            let want = on_cpu(&[(&x, all.clone())], &dy, |t| activate(&t[0], activation).unwrap());
            assert_all_near(&what("value"), activated::<T>(kernels, a, &x, &dy), want, rounding);

            let want = on_cpu(&[(&x, all.clone()), (&bias, vec![d])], &dy, |t| {
                activate(&t[0].broadcast_add(&t[1]).unwrap(), activation).unwrap()
            });
            let got = biased::<T>(kernels, a, [&x, &bias, &dy]);
            assert_all_near(&what("with a bias"), got, want, rounding);

            let want = on_cpu(&[(&x, all.clone()), (&gate, all)], &dy, |t| {
                gated(&t[0], &t[1], activation).unwrap()
            });
            let got = gated_by::<T>(kernels, a, [&x, &gate, &dy]);
            assert_all_near(&what("gated"), got, want, rounding);

            let want =
                on_cpu(&[(&both, vec![rows, 2 * d])], &dy, |t| glu(&t[0], activation).unwrap());
            let got = halves::<T>(kernels, a, [&both, &dy], d);
            assert_all_near(&what("glu"), got, want, rounding);
        }
    }
}

#[test]
fn functions_in_f32_equal_the_cpu() {
    functions_are_the_ops::<f32>(&Emulated::compile("activation"), 2e-6);
}

#[test]
fn functions_in_bf16_equal_the_cpu_rounded_once() {
    functions_are_the_ops::<bf16>(&Emulated::compile("activation"), 1.0 / 256.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn functions_on_a_card_equal_the_cpu() {
    let module = sconce_cuda::kernels::ACTIVATION;
    let kernels = crate::card::Card::open(module.name, module.ptx);
    functions_are_the_ops::<f32>(&kernels, 2e-6);
    functions_are_the_ops::<bf16>(&kernels, 1.0 / 256.0);
}
