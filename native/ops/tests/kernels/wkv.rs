//! `wkv.cu` compared with `ops::wkv`.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::wkv::{NOTHING, Wkv, wkv};
use sconce_tensor::rng::Rng;
use sconce_tensor::{tape, tensor};

use crate::emulated::Emulated;
use crate::memory::Argument::Int;
use crate::memory::{Element, Memory};
use crate::{Kernels, assert_near, sum};

/// Sizes `(batch, time, channels)`: one of each, and no multiple of a block's threads.
const SIZES: [[usize; 3]; 3] = [[1, 1, 1], [2, 7, 5], [3, 20, 40]];

/// Inputs k, v, w, u, mean and weight, and the gradients of y, of the last mean and of the last
/// weight.
struct Case {
    sizes: [usize; 3],
    lengths: Vec<usize>,
    inputs: [Vec<f32>; 6],
    d: [Vec<f32>; 3],
}

type Results = Vec<(&'static str, Vec<f32>)>;

impl Case {
    /// Inputs that a kernel reads in T are rounded to T. The last row has all frames and no earlier
    /// ones, the others have fewer; if there are two rows, the first has none.
    fn new<T: Element>(sizes: [usize; 3]) -> Self {
        let [batch, time, channels] = sizes;
        let normal = |name: &str, count: usize| {
            let rng = Rng::new(1, name, count as u64);
            (0..count as u64).map(|i| rng.normal(i)).collect::<Vec<_>>()
        };
        let in_type = |name, count| -> Vec<f32> {
            normal(name, count).into_iter().map(|v| T::of(v).value()).collect()
        };
        let (wide, state) = (batch * time * channels, batch * channels);
        let mut weight = normal("weight", state);
        weight[state - channels..].fill(NOTHING);
        Case {
            sizes,
            lengths: (0..batch)
                .map(|row| time * (row + 1 - usize::from(batch > 1 && row == 0)) / batch)
                .collect(),
            inputs: [
                in_type("k", wide),
                in_type("v", wide),
                normal("w", channels),
                normal("u", channels),
                normal("mean", state),
                weight,
            ],
            d: [in_type("dy", wide), normal("d_mean", state), normal("d_weight", state)],
        }
    }

    fn on_cpu(&self) -> Results {
        let _tape = tape::record();
        let [batch, time, channels] = self.sizes;
        let (wide, one, state) = ([batch, time, channels], [channels], [batch, channels]);
        let dims: [&[usize]; 6] = [&wide, &wide, &one, &one, &state, &state];
        let variables: [Tensor; 6] = std::array::from_fn(|i| {
            Var::from_slice(&self.inputs[i], dims[i], &Device::Cpu).unwrap().into_inner()
        });
        let [k, v, w, u, mean, weight] = &variables;
        let inputs = Wkv { k, v, w, u, mean, weight };
        let outputs = wkv(inputs, Some(self.lengths.clone().into())).unwrap();
        let loss = outputs.iter().zip(&self.d).map(|(y, d)| {
            let d = Tensor::from_slice(d, y.dims(), &Device::Cpu).unwrap();
            (y * d).unwrap().sum_all().unwrap()
        });
        let loss = loss.reduce(|a, b| (a + b).unwrap()).unwrap();
        let store = tape::backward(&loss, loss.ones_like().unwrap()).unwrap();
        let numbers = |t: &Tensor| tensor::to_vec(t).unwrap();
        let names = ["dk", "dv", "dw", "du", "d_mean", "d_weight"];
        let gradients = variables.iter().map(|x| numbers(store.get(x).unwrap()));
        let outputs = ["y", "mean", "weight"].into_iter().zip(outputs.iter().map(numbers));
        outputs.chain(names.into_iter().zip(gradients)).collect()
    }

    fn launched<T: Element>(&self, kernels: &impl Kernels, threads: u32) -> Results {
        let [batch, time, channels] = self.sizes;
        let lengths: Vec<f32> = self.lengths.iter().map(|n| *n as f32).collect();
        let mut lengths = Memory::<i32>::of(&lengths);
        let [k, v, w, u, mean, weight] = &self.inputs;
        let [mut k, mut v, mut dy] = [k, v, &self.d[0]].map(|x| Memory::<T>::of(x));
        let [mut w, mut u, mut mean, mut weight, mut d_last_mean, mut d_last_weight] =
            [w, u, mean, weight, &self.d[1], &self.d[2]].map(|x| Memory::<f32>::of(x));
        let (wide, state) = (batch * time * channels, batch * channels);
        let [mut y, mut dk, mut dv] = [(); 3].map(|()| Memory::<T>::unwritten(wide));
        let [mut kept_mean, mut kept_weight] = [(); 2].map(|()| Memory::<f32>::unwritten(wide));
        let [mut last_mean, mut last_weight, mut d_mean, mut d_weight] =
            [(); 4].map(|()| Memory::<f32>::unwritten(state));
        let mut parts = Memory::<f32>::unwritten(2 * state);

        let grid = [(channels as u32).div_ceil(threads) * batch as u32, 1, 1];
        let (time, width) = (|| Int(time as i32), || Int(channels as i32));
        kernels.launch(
            &format!("wkv_{}_forward", T::NAME),
            grid,
            [threads, 1, 1],
            &mut [
                k.argument(),
                v.argument(),
                w.argument(),
                u.argument(),
                mean.argument(),
                weight.argument(),
                lengths.argument(),
                y.argument(),
                last_mean.argument(),
                last_weight.argument(),
                kept_mean.argument(),
                kept_weight.argument(),
                time(),
                width(),
            ],
        );
        kernels.launch(
            &format!("wkv_{}_backward", T::NAME),
            grid,
            [threads, 1, 1],
            &mut [
                k.argument(),
                v.argument(),
                w.argument(),
                u.argument(),
                lengths.argument(),
                kept_mean.argument(),
                kept_weight.argument(),
                dy.argument(),
                d_last_mean.argument(),
                d_last_weight.argument(),
                dk.argument(),
                dv.argument(),
                d_mean.argument(),
                d_weight.argument(),
                parts.argument(),
                time(),
                width(),
            ],
        );
        kept_mean.read();
        kept_weight.read();
        let parts = sum(&parts.read(), 2 * channels);
        let (dw, du) = parts.split_at(channels);
        vec![
            ("y", y.read()),
            ("mean", last_mean.read()),
            ("weight", last_weight.read()),
            ("dk", dk.read()),
            ("dv", dv.read()),
            ("dw", dw.to_vec()),
            ("du", du.to_vec()),
            ("d_mean", d_mean.read()),
            ("d_weight", d_weight.read()),
        ]
    }
}

/// `rounding` is the rounding error of results in T.
fn kernels_are_the_op<T: Element>(kernels: &impl Kernels, rounding: f32) {
    for sizes in SIZES {
        let case = Case::new::<T>(sizes);
        for threads in [32, 128] {
            let pairs = case.launched::<T>(kernels, threads).into_iter().zip(case.on_cpu());
            for ((name, got), (_, want)) in pairs {
                assert_near(&format!("{name} of {sizes:?}"), &got, &want, rounding);
            }
        }
    }
}

#[test]
fn averages_in_f32_equal_the_cpu() {
    kernels_are_the_op::<f32>(&Emulated::compile("wkv"), 2e-5);
}

#[test]
fn averages_in_bf16_equal_the_cpu_rounded_once() {
    kernels_are_the_op::<bf16>(&Emulated::compile("wkv"), 1.0 / 256.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn averages_on_a_card_equal_the_cpu() {
    let kernels = crate::card::Card::open("wkv", sconce_cuda::kernels::WKV.ptx);
    kernels_are_the_op::<f32>(&kernels, 2e-5);
    kernels_are_the_op::<bf16>(&kernels, 1.0 / 256.0);
}
