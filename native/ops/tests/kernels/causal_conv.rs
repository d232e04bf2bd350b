//! `causal_conv.cu` compared with `ops::causal_conv`.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::causal_conv;
use sconce_tensor::rng::Rng;
use sconce_tensor::{tape, tensor};

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Element, Memory, NULL};
use crate::{Kernels, Shape, assert_near};

/// Sizes `(batch, time, channels, taps)`: one of each, fewer frames than taps, the most taps, more channels than a
/// block has threads.
const SIZES: [[usize; 4]; 6] =
    [[1, 1, 1, 1], [3, 2, 5, 4], [1, 1, 3, 8], [2, 23, 3, 8], [3, 20, 40, 4], [2, 9, 6, 1]];

struct Case {
    sizes: [usize; 4],
    lengths: Vec<usize>,
    silu: bool,
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    state: Vec<f32>,
    dy: Vec<f32>,
    /// The gradient of the state after the sequence; `None` if that state is not used.
    d_next: Option<Vec<f32>>,
}

/// Results by name.
type Results = Vec<(&'static str, Vec<f32>)>;

impl Case {
    /// Inputs are rounded to T, so that both sides read the same numbers. Without an activation there is no bias, and
    /// no gradient of the state after the sequence.
    fn new<T: Element>(sizes: [usize; 4], silu: bool) -> Self {
        let [batch, time, channels, taps] = sizes;
        let numbers = |name: &str, count: usize| {
            let rng = Rng::new(1, name, count as u64);
            (0..count as u64).map(|i| T::of(rng.normal(i)).value()).collect::<Vec<_>>()
        };
        let past = batch * channels * (taps - 1);
        Case {
            sizes,
            lengths: (0..batch)
                .map(|row| time * (row + 1 - usize::from(batch > 1 && row == 0)) / batch)
                .collect(),
            silu,
            x: numbers("x", batch * time * channels),
            weight: numbers("weight", channels * taps),
            bias: silu.then(|| numbers("bias", channels)),
            state: numbers("state", past),
            dy: numbers("dy", batch * time * channels),
            d_next: silu.then(|| numbers("d_next", past)),
        }
    }

    fn on_cpu(&self) -> Results {
        let _tape = tape::record();
        let [batch, time, channels, taps] = self.sizes;
        let variable = |v: &[f32], dims: &[usize]| {
            Var::from_slice(v, dims, &Device::Cpu).unwrap().into_inner()
        };
        let x = variable(&self.x, &[batch, time, channels]);
        let weight = variable(&self.weight, &[channels, 1, taps]);
        let bias = self.bias.as_ref().map(|bias| variable(bias, &[channels]));
        let state = variable(&self.state, &[batch, channels, taps - 1]);
        let lengths = Some(self.lengths.clone().into());
        let (y, next) =
            causal_conv(&x, &weight, bias.as_ref(), &state, self.silu, lengths).unwrap();
        let given = |v: &[f32], like: &Tensor| {
            let d = Tensor::from_slice(v, like.dims(), &Device::Cpu).unwrap();
            (like * d).unwrap().sum_all().unwrap()
        };
        let mut loss = given(&self.dy, &y);
        if let Some(d_next) = &self.d_next {
            loss = (loss + given(d_next, &next)).unwrap();
        }
        let store = tape::backward(&loss, loss.ones_like().unwrap()).unwrap();
        let numbers = |t: &Tensor| tensor::to_vec(t).unwrap();
        let gradient = |t: &Tensor| numbers(store.get(t).unwrap());
        let mut results = vec![("y", numbers(&y)), ("next", numbers(&next))];
        results.extend([("dx", gradient(&x)), ("dstate", gradient(&state))]);
        results.push(("dweight", gradient(&weight)));
        results.extend(bias.map(|bias| ("dbias", gradient(&bias))));
        results
    }

    /// A sequence with NaN in frames that do not exist.
    fn sequence<T: Element>(&self, all: &[f32]) -> Memory<T> {
        let [_, time, channels, _] = self.sizes;
        let there = |i: usize| i / channels % time < self.lengths[i / channels / time];
        let all = all.iter().enumerate();
        Memory::of(&all.map(|(i, v)| if there(i) { *v } else { f32::NAN }).collect::<Vec<_>>())
    }

    /// Runs the kernels with stretches of `frames` frames, and several stretches in a part.
    fn launched<T: Element>(
        &self,
        kernels: &impl Kernels,
        threads: u32,
        frames: usize,
        per_part: usize,
    ) -> Results {
        let [batch, time, channels, taps] = self.sizes;
        let stretches = batch * time.div_ceil(frames);
        let parts = stretches.div_ceil(per_part);
        let lengths: Vec<f32> = self.lengths.iter().map(|n| *n as f32).collect();
        let mut lengths = Memory::<i32>::of(&lengths);
        let (mut x, mut state) = (self.sequence::<T>(&self.x), Memory::<T>::of(&self.state));
        let mut weight = Memory::<f32>::of(&self.weight);
        let mut bias = self.bias.as_ref().map(|bias| Memory::<f32>::of(bias));
        let (mut y, mut next) =
            (Memory::<T>::unwritten(self.x.len()), Memory::<T>::unwritten(self.state.len()));
        let mut dy = self.sequence::<T>(&self.dy);
        let mut d_next = self.d_next.as_ref().map(|d| Memory::<T>::of(d));
        let (mut dx, mut dstate) =
            (Memory::<T>::unwritten(self.x.len()), Memory::<T>::unwritten(self.state.len()));
        let mut of_parts = Memory::<f32>::unwritten(parts * channels * (taps + 1));

        let name = |way: &str| format!("causal_conv_{}_{way}", T::NAME);
        let by_channel = |y: usize| -> Shape { [(channels as u32).div_ceil(threads), y as u32, 1] };
        let sizes = || {
            [
                Int(taps as i32),
                Int(i32::from(self.silu)),
                Long(stretches as i64),
                Int(frames as i32),
                Int(time as i32),
                Int(channels as i32),
            ]
        };
        let mut arguments = vec![x.argument(), state.argument(), weight.argument()];
        arguments.push(bias.as_mut().map_or(NULL, Memory::argument));
        arguments.extend([lengths.argument(), y.argument(), next.argument()]);
        arguments.extend(sizes());
        // Each block walks over several stretches.
        let grid = by_channel(stretches.div_ceil(2));
        kernels.launch(&name("forward"), grid, [threads, 1, 1], &mut arguments);

        let mut arguments = vec![x.argument(), state.argument(), weight.argument()];
        arguments.push(bias.as_mut().map_or(NULL, Memory::argument));
        arguments.extend([lengths.argument(), dy.argument()]);
        arguments.push(d_next.as_mut().map_or(NULL, Memory::argument));
        arguments.extend([dx.argument(), dstate.argument(), of_parts.argument()]);
        arguments.extend(sizes());
        arguments.push(Int(per_part as i32));
        kernels.launch(&name("backward"), by_channel(parts), [threads, 1, 1], &mut arguments);

        let mut sums = vec![0.0; channels * (taps + 1)];
        let of_parts = of_parts.read();
        let parts = of_parts.chunks(sums.len());
        parts.for_each(|part| sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part));
        let dbias = sums.split_off(channels * taps);
        let mut results = vec![("y", y.read()), ("next", next.read())];
        results.extend([("dx", dx.read()), ("dstate", dstate.read()), ("dweight", sums)]);
        results.extend(self.bias.as_ref().map(|_| ("dbias", dbias)));
        results
    }
}

/// `rounding` is the rounding error of results in T; gradients of weights are f32 on both sides.
fn kernels_are_the_op<T: Element>(kernels: &impl Kernels, rounding: f32) {
    for (sizes, silu) in SIZES.into_iter().flat_map(|sizes| [(sizes, false), (sizes, true)]) {
        let case = Case::new::<T>(sizes, silu);
        let want = case.on_cpu();
        for (threads, frames, per_part) in [(32, 16, 1), (128, 3, 4), (32, 1, 7)] {
            let got = case.launched::<T>(kernels, threads, frames, per_part);
            assert_eq!(got.len(), want.len());
            for ((name, got), (also, want)) in got.iter().zip(&want) {
                assert_eq!(name, also);
                let what = format!("{name} of {sizes:?}, {silu}, stretches of {frames}");
                let tolerance = if name.starts_with("dw") { 2e-5 } else { rounding };
                assert_near(&what, got, want, tolerance);
            }
        }
    }
}

#[test]
fn convolutions_in_f32_equal_the_cpu() {
    kernels_are_the_op::<f32>(&Emulated::compile("causal_conv"), 2e-5);
}

#[test]
fn convolutions_in_bf16_equal_the_cpu_rounded_once() {
    kernels_are_the_op::<bf16>(&Emulated::compile("causal_conv"), 1.0 / 256.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn convolutions_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::CAUSAL_CONV.ptx;
    let kernels = crate::card::Card::open("causal_conv", ptx);
    kernels_are_the_op::<f32>(&kernels, 2e-5);
    kernels_are_the_op::<bf16>(&kernels, 1.0 / 256.0);
}
