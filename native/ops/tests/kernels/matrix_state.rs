//! `matrix_state.cu` compared with `ops::matrix_state`.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::attention::THETA;
use sconce_ops::matrix_state::{Decay, Options, Readout, matrix_state};
use sconce_ops::rotary::Rotary;
use sconce_tensor::rng::Rng;
use sconce_tensor::{tape, tensor};

use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int, Long};
use crate::memory::{Argument, Element, Memory};
use crate::{Kernels, assert_near, sum};

/// Frames of a chunk, values of a block, keys of a warp.
const FRAMES: usize = 8;
const VALUES: usize = 32;
const KEYS: usize = 16;
/// Numbers of the state in a thread.
const TILE: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Shape {
    batch: usize,
    time: usize,
    heads: usize,
    shared: usize,
    key: usize,
    value: usize,
}

/// One of each; keys and values that are no multiple of a warp or block; parts of chunks; heads that share keys; and
/// more keys than the smaller kernels have.
const SHAPES: [Shape; 4] = [
    Shape { batch: 1, time: 1, heads: 1, shared: 1, key: 1, value: 1 },
    Shape { batch: 2, time: 11, heads: 2, shared: 1, key: 18, value: 35 },
    Shape { batch: 3, time: 16, heads: 4, shared: 2, key: 5, value: 3 },
    Shape { batch: 1, time: 9, heads: 1, shared: 1, key: 70, value: 8 },
];

const SCALE: f32 = 0.7;

/// The kernel's number for a decay of each number of a key.
const KEY: usize = 3;

struct Case {
    shape: Shape,
    /// The kernel's number for the decay.
    kind: usize,
    /// Whether keys are rotated.
    turns: bool,
    lengths: Vec<usize>,
    constant: Vec<f32>,
    streams: Vec<f32>,
    gates: Vec<f32>,
    state: Vec<f32>,
    dy: Vec<f32>,
    d_last: Vec<f32>,
}

type Results = Vec<(&'static str, Vec<f32>)>;

impl Case {
    /// Inputs that a kernel reads in T are rounded to T. The last row has all frames, the others fewer; if there are
    /// two rows, the first has none. Decays are near 1, middling, and near 0.
    fn new<T: Element>(shape: Shape, kind: usize, turns: bool) -> Self {
        let Shape { batch, time, heads, shared, key, value } = shape;
        let numbers = |name: &str, count: usize, number: &dyn Fn(f32) -> f32| {
            let rng = Rng::new(1, name, count as u64);
            (0..count as u64).map(|i| number(rng.normal(i))).collect::<Vec<_>>()
        };
        let in_type = |v: f32| T::of(0.7 * v).value();
        let logarithm = |v: f32| T::of(-v.abs().powi(5)).value();
        let width = 2 * heads / shared * key + heads * value + 1;
        let (frames, states) = (batch * time, batch * heads * value * key);
        let mut case = Case {
            shape,
            kind,
            turns,
            lengths: (0..batch)
                .map(|row| time * (row + 1 - usize::from(batch > 1 && row == 0)) / batch)
                .collect(),
            constant: numbers("constant", heads, &|v| -v.abs()),
            streams: numbers("streams", frames * width, &in_type),
            gates: vec![],
            state: numbers("state", states, &|v| v),
            dy: numbers("dy", frames * heads * value, &in_type),
            d_last: numbers("d_last", states, &|v| v),
        };
        let logs = numbers("logs", frames * case.gates(), &logarithm);
        let factors = numbers("factors", frames * case.gates(), &|v| in_type(v.exp()));
        case.gates = (0..frames * case.gates())
            .map(|i| if kind == 2 && i % (2 * heads) >= heads { factors[i] } else { logs[i] })
            .collect();
        case
    }

    /// Gates of a frame.
    fn gates(&self) -> usize {
        let Shape { heads, key, .. } = self.shape;
        [0, heads, 2 * heads, heads * key][self.kind]
    }

    /// The streams have an unused column between keys and values.
    fn options(&self) -> Options {
        let Shape { heads, shared, key, value, .. } = self.shape;
        let decays = [
            Decay::Constant(self.constant.clone().into()),
            Decay::Head,
            Decay::HeadAndInput,
            Decay::Key,
        ];
        let decay = decays[self.kind].clone();
        let keys = heads / shared * key;
        Options {
            heads_per_group: shared,
            q: keys,
            k: 0,
            v: 2 * keys + 1,
            rotary: self.turns.then(|| Rotary::new(key, 32, THETA).unwrap().into()),
            scale: SCALE,
            lengths: Some(self.lengths.clone().into()),
            ..Options::side_by_side(heads, key, value, decay)
        }
    }

    /// Cosines and sines of the frames of a chunk and of the frame after it, if keys are rotated.
    fn angles(&self) -> Vec<f32> {
        let half = self.shape.key / 2;
        let angle = |i: usize| {
            let (position, pair) = ((i / half / 2) as f64, (i % half) as f64);
            let (sin, cos) = (position * THETA.powf(-pair / half as f64)).sin_cos();
            if (i / half).is_multiple_of(2) { cos as f32 } else { sin as f32 }
        };
        (0..(FRAMES + 1) * 2 * half * usize::from(self.turns)).map(angle).collect()
    }

    fn width(&self) -> usize {
        let Shape { heads, value, .. } = self.shape;
        self.options().v + heads * value
    }

    fn on_cpu(&self) -> Results {
        let _tape = tape::record();
        let Shape { batch, time, heads, key, value, .. } = self.shape;
        let variable = |v: &[f32], dims: &[usize]| {
            Var::from_slice(v, dims, &Device::Cpu).unwrap().into_inner()
        };
        let streams = variable(&self.streams, &[batch, time, self.width()]);
        let gates = (self.kind > 0).then(|| variable(&self.gates, &[batch, time, self.gates()]));
        let state = variable(&self.state, &[batch, heads, value, key]);
        let (y, last) =
            matrix_state(&streams, gates.as_ref(), &state, Readout::Plain, &self.options())
                .unwrap();
        let weighed = |x: &Tensor, by: &[f32]| {
            let by = Tensor::from_slice(by, x.dims(), &Device::Cpu).unwrap();
            (x * by).unwrap().sum_all().unwrap()
        };
        let loss = (weighed(&y, &self.dy) + weighed(&last, &self.d_last)).unwrap();
        let store = tape::backward(&loss, loss.ones_like().unwrap()).unwrap();
        let numbers = |t: &Tensor| tensor::to_vec(t).unwrap();
        let gradient = |t: &Tensor| numbers(store.get(t).unwrap());
        let mut results = vec![("y", numbers(&y)), ("last", numbers(&last))];
        results.extend([("d_streams", gradient(&streams)), ("d_first", gradient(&state))]);
        results.extend(gates.map(|gates| ("d_gates", gradient(&gates))));
        results
    }

    fn launched<T: Element>(&self, kernels: &impl Kernels) -> Results {
        let Shape { batch, time, heads, shared, key, value } = self.shape;
        let Options { q, k, v, .. } = self.options();
        let (width, gate_count) = (self.width(), self.gates());
        let (slices, warps) = (value.div_ceil(VALUES), key.div_ceil(KEYS));
        let (frames, keys, threads) = (batch * time, heads / shared * key, 32 * warps);
        let lengths: Vec<f32> = self.lengths.iter().map(|n| *n as f32).collect();
        let mut lengths = Memory::<i32>::of(&lengths);
        let [mut streams, mut gates, mut dy] =
            [&self.streams, &self.gates, &self.dy].map(|x| Memory::<T>::of(x));
        let [mut constant, mut state, mut d_last, mut angles] =
            [&self.constant, &self.state, &self.d_last, &self.angles()]
                .map(|x| Memory::<f32>::of(x));
        let (mut y, mut d_streams) =
            (Memory::<T>::unwritten(self.dy.len()), Memory::<T>::unwritten(self.streams.len()));
        let [mut last, mut d_first] = [(); 2].map(|()| Memory::<f32>::unwritten(self.state.len()));
        let kept = batch * time.div_ceil(FRAMES) * heads * slices * TILE * threads;
        let mut kept = Memory::<f32>::unwritten(kept);
        let mut d_keys = Memory::<f32>::unwritten(shared * slices * frames * 2 * keys);
        let mut d_gates = Memory::<f32>::unwritten(slices * frames * gate_count);

        let (grid, block) = ([batch as u32, (heads * slices) as u32, 1], [threads as u32, 1, 1]);
        let size = if key > 64 { 128 } else { 64 };
        let kernel = |way: &str| format!("matrix_state_{}_{way}_{size}", T::NAME);
        let sizes = [batch, time, width, heads, shared, key, value, value, q, k, v, self.kind];
        fn given<T: Element>(x: &mut Memory<T>, is: bool) -> Argument<'_> {
            if is { x.argument() } else { Long(0) }
        }

        let mut arguments = vec![
            streams.argument(),
            given(&mut gates, self.kind > 0),
            given(&mut constant, self.kind == 0),
            lengths.argument(),
            given(&mut angles, self.turns),
            state.argument(),
            y.argument(),
            last.argument(),
            kept.argument(),
        ];
        arguments.extend(sizes.map(|v| Int(v as i32)));
        arguments.push(Float(SCALE));
        kernels.launch(&kernel("forward"), grid, block, &mut arguments);

        let mut arguments = vec![
            streams.argument(),
            given(&mut gates, self.kind > 0),
            given(&mut constant, self.kind == 0),
            lengths.argument(),
            given(&mut angles, self.turns),
            kept.argument(),
            dy.argument(),
            d_last.argument(),
            d_streams.argument(),
            d_first.argument(),
            d_keys.argument(),
            given(&mut d_gates, self.kind > 0),
        ];
        arguments.extend(sizes.map(|v| Int(v as i32)));
        arguments.push(Float(SCALE));
        kernels.launch(&kernel("backward"), grid, block, &mut arguments);

        let mut arguments = vec![d_keys.argument(), d_streams.argument(), Long(frames as i64)];
        let sizes = [width, q, k, v, keys, heads * value, shared * slices];
        arguments.extend(sizes.map(|v| Int(v as i32)));
        let grid = [((frames * width) as u32).div_ceil(128), 1, 1];
        let kernel = format!("matrix_state_{}_gather", T::NAME);
        kernels.launch(&kernel, grid, [128, 1, 1], &mut arguments);

        kept.read();
        let mut results = vec![("y", y.read()), ("last", last.read())];
        results.extend([("d_streams", d_streams.read()), ("d_first", d_first.read())]);
        if self.kind > 0 {
            results.push(("d_gates", sum(&d_gates.read(), frames * gate_count)));
        }
        results
    }
}

/// `rounding` is the rounding error of results in T.
fn kernels_are_the_op<T: Element>(kernels: &impl Kernels, rounding: f32) {
    for (shape, kind) in SHAPES.into_iter().flat_map(|shape| (0..4).map(move |kind| (shape, kind)))
    {
        if kind == KEY && shape.shared > 1 {
            continue;
        }
        for turns in [false, true] {
            if turns && (kind == KEY || shape.key % 2 == 1) {
                continue;
            }
            let case = Case::new::<T>(shape, kind, turns);
            let (got, want) = (case.launched::<T>(kernels), case.on_cpu());
            assert_eq!(got.len(), want.len());
            for ((name, got), (_, want)) in got.into_iter().zip(want) {
                let what = format!("{name} of {shape:?}, decay {kind}, rotated: {turns}");
                assert_near(&what, &got, &want, rounding);
            }
        }
    }
}

#[test]
fn states_in_f32_equal_the_cpu() {
    kernels_are_the_op::<f32>(&Emulated::compile("matrix_state"), 2e-5);
}

#[test]
fn states_in_bf16_equal_the_cpu_rounded_once() {
    kernels_are_the_op::<bf16>(&Emulated::compile("matrix_state"), 1.0 / 256.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn states_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::MATRIX_STATE.ptx;
    let kernels = crate::card::Card::open("matrix_state", ptx);
    kernels_are_the_op::<f32>(&kernels, 2e-5);
    kernels_are_the_op::<bf16>(&kernels, 1.0 / 256.0);
}
