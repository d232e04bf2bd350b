//! `attention.cu` compared with `ops::attention`.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::attention;
use sconce_ops::attention::{Cache, Pairing, THETA, Window};
use sconce_tensor::rng::Rng;
use sconce_tensor::{tape, tensor};

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Argument, Element, Memory};
use crate::{Kernels, Shape, assert_near};

/// Frames seen by the rows of a batch: none, some, and more than any window holds.
const SEEN: [usize; 3] = [0, 3, 997];

/// Sizes of a case: heads, head_dim, window, frames of the sequence, and frames of each row.
type Sizes = (usize, usize, usize, usize, [usize; 3]);

/// Fewer frames than a tile has, as many, and more; head sizes of all kernels, and between them.
const SIZES: [Sizes; 8] = [
    (2, 6, 5, 70, [70, 2, 0]),
    (1, 32, 40, 33, [33, 32, 1]),
    (3, 4, 60, 43, [43, 43, 43]),
    (2, 8, 1, 7, [7, 3, 0]),
    (2, 40, 4, 1, [1, 1, 0]),
    (1, 64, 33, 40, [40, 17, 40]),
    (2, 100, 9, 20, [20, 20, 3]),
    (1, 128, 18, 33, [33, 1, 20]),
];

/// Threads of a block; `tile` is the number of its queries or keys.
const THREADS: u32 = 128;

fn tile(head_dim: usize) -> usize {
    if head_dim <= 64 { 32 } else { 16 }
}

struct Case {
    sizes: Sizes,
    window: Arc<Window>,
    pairing: Pairing,
    /// Frames seen, as a cache counts them.
    seen: [f32; 3],
    /// Queries, keys and values `[b, t, 3 * width]`, then the cached keys and values `[b, window, width]`.
    qkv: Vec<f32>,
    rings: [Vec<f32>; 2],
    /// Gradients of `y [b, t, width]`; `dnext` are those of the rings after the sequence.
    dy: Vec<f32>,
    dnext: [Vec<f32>; 2],
}

/// Results by name.
type Results = Vec<(&'static str, Vec<f32>)>;

impl Case {
    /// Inputs are rounded to T, so that both sides read the same numbers.
    fn new<T: Element>(sizes: Sizes, pairing: Pairing) -> Self {
        let (heads, head_dim, size, time, _) = sizes;
        let width = heads * head_dim;
        let numbers = |name: &str, count: usize| {
            let rng = Rng::new(1, name, count as u64);
            (0..count as u64).map(|i| T::of(rng.normal(i)).value()).collect::<Vec<_>>()
        };
        let ring = |name| numbers(name, 3 * size * width);
        Case {
            sizes,
            window: Arc::new(Window::new(heads, head_dim, size, pairing, THETA).unwrap()),
            pairing,
            seen: SEEN.map(|n| if n < size { n } else { size + n % size } as f32),
            qkv: numbers("qkv", 3 * time * 3 * width),
            rings: [ring("keys"), ring("values")],
            dy: numbers("dy", 3 * time * width),
            dnext: [ring("dkeys"), ring("dvalues")],
        }
    }

    fn on_cpu(&self) -> Results {
        let (_, _, size, time, lengths) = self.sizes;
        let width = self.window.width();
        let variable = |v: &[f32], dims: (usize, usize, usize)| {
            Var::from_slice(v, dims, &Device::Cpu).unwrap().into_inner()
        };
        let qkv = variable(&self.qkv, (3, time, 3 * width));
        let [keys, values] = self.rings.each_ref().map(|ring| variable(ring, (3, size, width)));
        let seen = Tensor::from_slice(&self.seen, (3, 1), &Device::Cpu).unwrap();
        let cache = Cache { keys: keys.clone(), values: values.clone(), seen };
        let pass = || attention(&qkv, &cache, &self.window, Some(lengths.to_vec().into())).unwrap();
        let back = |output: fn((Tensor, Cache)) -> Tensor, dy: &[f32]| {
            let _tape = tape::record();
            let y = output(pass());
            let dy = Tensor::from_slice(dy, y.shape(), &Device::Cpu).unwrap();
            tape::backward(&y, dy).unwrap()
        };
        let (y, next) = pass();
        let store = back(|(y, _)| y, &self.dy);
        let of_keys = back(|(_, next)| next.keys, &self.dnext[0]);
        let of_values = back(|(_, next)| next.values, &self.dnext[1]);
        let numbers = |t: &Tensor| tensor::to_vec(t).unwrap();
        let dappended = (of_keys.get(&qkv).unwrap() + of_values.get(&qkv).unwrap()).unwrap();
        vec![
            ("y", numbers(&y)),
            ("dqkv", numbers(store.get(&qkv).unwrap())),
            ("dkeys", numbers(store.get(&keys).unwrap())),
            ("dvalues", numbers(store.get(&values).unwrap())),
            ("last", self.last_of(&numbers(&y))),
            ("next keys", numbers(&next.keys)),
            ("next values", numbers(&next.values)),
            ("seen", numbers(&next.seen)),
            ("dqkv of the cache", numbers(&dappended)),
            ("dkeys of the cache", numbers(of_keys.get(&keys).unwrap())),
            ("dvalues of the cache", numbers(of_values.get(&values).unwrap())),
        ]
    }

    /// The last frame of each row's `y`; 0 for a row without frames.
    fn last_of(&self, y: &[f32]) -> Vec<f32> {
        let (width, (_, _, _, time, lengths)) = (self.window.width(), self.sizes);
        let rows = y.chunks(time * width).zip(lengths);
        let last = |(y, length): (&[f32], usize)| match length {
            0 => vec![0.0; width],
            n => y[(n - 1) * width..n * width].to_vec(),
        };
        rows.flat_map(last).collect()
    }

    fn launched<T: Element>(&self, kernels: &impl Kernels) -> Results {
        let (heads, head_dim, size, time, lengths) = self.sizes;
        let widest = [32, 64, 128].into_iter().find(|d| head_dim <= *d).unwrap();
        let kernel = |step: &str| format!("attention_{}_{widest}_{step}", T::NAME);
        let tiles = |frames: usize| frames.div_ceil(tile(head_dim)) * heads * 3;
        let by_tile = |frames: usize| -> Shape { [tiles(frames) as u32, 1, 1] };
        let block = [THREADS, 1, 1];

        let half = head_dim / 2;
        let positions = Window::table(head_dim, size)[0];
        let rotations = (0..positions).map(|position| self.window.rotation(position));
        let (cos, sin): (Vec<_>, Vec<_>) = rotations.unzip();
        let (mut cos, mut sin) =
            (Memory::<f32>::of(&cos.concat()), Memory::<f32>::of(&sin.concat()));
        assert_eq!(cos.read().len(), positions * half);

        let unwritten = |v: &[f32]| Memory::<T>::unwritten(v.len());
        let mut qkv = Memory::<T>::of(&self.qkv);
        let [mut keys, mut values] = self.rings.each_ref().map(|ring| Memory::<T>::of(ring));
        let mut seen = Memory::<f32>::of(&self.seen);
        let mut lengths = Memory::<i32>::of(&lengths.map(|n| n as f32));
        let mut dy = Memory::<T>::of(&self.dy);
        let (mut y, mut dqkv) = (unwritten(&self.dy), unwritten(&self.qkv));
        let [mut dkeys, mut dvalues] = self.rings.each_ref().map(|ring| unwritten(ring));
        let mut log_sums = Memory::<f32>::unwritten(3 * heads * time);
        let mut along = Memory::<f32>::unwritten(3 * heads * time);
        let mut last = Memory::<T>::unwritten(3 * heads * head_dim);

        let interleaved = i32::from(self.pairing == Pairing::Interleaved);
        let plain = || [time, heads, head_dim, size].map(|n| Int(n as i32));
        let sizes = || plain().into_iter().chain([Int(interleaved)]);
        macro_rules! given {
            () => {
                vec![
                    qkv.argument(),
                    keys.argument(),
                    values.argument(),
                    seen.argument(),
                    lengths.argument(),
                    cos.argument(),
                    sin.argument(),
                ]
            };
        }

        let mut arguments: Vec<Argument> = given!();
        arguments.extend([y.argument(), log_sums.argument()]);
        arguments.extend(sizes());
        kernels.launch(&kernel("forward"), by_tile(time), block, &mut arguments);

        let mut arguments: Vec<Argument> = given!();
        arguments.extend([y.argument(), dy.argument(), log_sums.argument(), dqkv.argument()]);
        arguments.push(along.argument());
        arguments.extend(sizes());
        kernels.launch(&kernel("backward_queries"), by_tile(time), block, &mut arguments);

        let mut arguments: Vec<Argument> = given!();
        arguments.extend([dy.argument(), log_sums.argument(), along.argument(), dqkv.argument()]);
        arguments.extend([dkeys.argument(), dvalues.argument()]);
        arguments.extend(sizes().chain([Int(1)]));
        kernels.launch(&kernel("backward_keys"), by_tile(size + time), block, &mut arguments);

        let mut arguments: Vec<Argument> = given!();
        arguments.push(last.argument());
        arguments.extend(sizes());
        kernels.launch(&kernel("last"), [3 * heads as u32, 1, 1], block, &mut arguments);

        // Without the gradients of the cache, those of the sequence are the same.
        let mut alone = unwritten(&self.qkv);
        let mut arguments: Vec<Argument> = given!();
        arguments.extend([y.argument(), dy.argument(), log_sums.argument(), alone.argument()]);
        arguments.push(along.argument());
        arguments.extend(sizes());
        kernels.launch(&kernel("backward_queries"), by_tile(time), block, &mut arguments);
        let [mut nothing, mut no] = [(); 2].map(|()| Memory::<T>::unwritten(0));
        let mut arguments: Vec<Argument> = given!();
        arguments.extend([dy.argument(), log_sums.argument(), along.argument(), alone.argument()]);
        arguments.extend([nothing.argument(), no.argument()]);
        arguments.extend(sizes().chain([Int(0)]));
        kernels.launch(&kernel("backward_keys"), by_tile(time), block, &mut arguments);
        assert_near("dqkv alone", &alone.read(), &dqkv.read(), 1.0 / 128.0);

        let ring = self.rings[0].len();
        let (grid, block) = ([(ring as u32).div_ceil(64), 2, 1], [64, 1, 1]);
        let kernel = |step: &str| format!("attention_{}_{step}", T::NAME);
        let [mut next_keys, mut next_values] = self.rings.each_ref().map(|ring| unwritten(ring));
        let mut after = Memory::<f32>::unwritten(3);
        let mut arguments = vec![qkv.argument(), seen.argument(), lengths.argument()];
        arguments.extend([keys.argument(), values.argument()]);
        arguments.extend([next_keys.argument(), next_values.argument(), after.argument(), Long(3)]);
        arguments.extend(plain());
        kernels.launch(&kernel("append"), grid, block, &mut arguments);

        let mut dappended = Memory::<T>::of(&vec![0.0; self.qkv.len()]);
        let [mut dnext_keys, mut dnext_values] = self.dnext.each_ref().map(|d| Memory::<T>::of(d));
        let [mut dkeys_before, mut dvalues_before] =
            self.rings.each_ref().map(|ring| unwritten(ring));
        let mut arguments = vec![seen.argument(), lengths.argument()];
        arguments.extend([dnext_keys.argument(), dnext_values.argument()]);
        arguments.extend([dkeys_before.argument(), dvalues_before.argument()]);
        arguments.extend([dappended.argument(), Long(3)]);
        arguments.extend(plain());
        kernels.launch(&kernel("append_backward"), grid, block, &mut arguments);

        vec![
            ("y", y.read()),
            ("dqkv", dqkv.read()),
            ("dkeys", dkeys.read()),
            ("dvalues", dvalues.read()),
            ("last", last.read()),
            ("next keys", next_keys.read()),
            ("next values", next_values.read()),
            ("seen", after.read()),
            ("dqkv of the cache", dappended.read()),
            ("dkeys of the cache", dkeys_before.read()),
            ("dvalues of the cache", dvalues_before.read()),
        ]
    }
}

/// `rounding` is the rounding error of results in T, including the output that the backward pass reads.
fn kernels_are_the_op<T: Element>(kernels: &impl Kernels, rounding: f32) {
    for (i, sizes) in SIZES.into_iter().enumerate() {
        let pairing = if i % 2 == 0 { Pairing::Half } else { Pairing::Interleaved };
        let case = Case::new::<T>(sizes, pairing);
        let pairs = case.launched::<T>(kernels).into_iter().zip(case.on_cpu());
        for ((name, got), (_, want)) in pairs {
            assert_near(&format!("{name} of {sizes:?}, {pairing:?}"), &got, &want, rounding);
        }
    }
}

#[test]
fn attention_in_f32_equals_the_cpu() {
    kernels_are_the_op::<f32>(&Emulated::compile("attention"), 2e-5);
}

#[test]
fn attention_in_bf16_equals_the_cpu_up_to_rounding() {
    kernels_are_the_op::<bf16>(&Emulated::compile("attention"), 1.0 / 128.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn attention_on_a_card_equals_the_cpu() {
    let ptx = sconce_cuda::kernels::ATTENTION.ptx;
    let kernels = crate::card::Card::open("attention", ptx);
    kernels_are_the_op::<f32>(&kernels, 2e-5);
    kernels_are_the_op::<bf16>(&kernels, 1.0 / 128.0);
}
