//! The matrix state compared with plain f64 loops: values, and gradients by differences of these loops.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use sconce_ops::attention::THETA;
use sconce_ops::matrix_state::{Decay, Options, Readout, matrix_state, matrix_state_of};
use sconce_ops::rotary::Rotary;
use sconce_ops::weights::Weight;
use sconce_tensor::rng::Rng;

use crate::common::{Golden, backward, record};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Read {
    Plain,
    Skip,
    Normalised,
}

#[derive(Clone)]
struct Problem {
    batch: usize,
    time: usize,
    options: Options,
    read: Read,
    streams: Vec<f64>,
    gates: Vec<f64>,
    state: Vec<f64>,
    skip: Vec<f64>,
    m: Vec<f64>,
}

fn draws(seed: u64, name: &str, count: usize, draw: impl Fn(&Rng, u64) -> f32) -> Vec<f64> {
    let rng = Rng::new(seed, name, 0);
    (0..count as u64).map(|i| f64::from(draw(&rng, i))).collect()
}

/// A third each of the decays is near 1, middling, and down to e^-100.
fn logarithm(rng: &Rng, i: u64) -> f32 {
    let u = rng.uniform(2 * i);
    -match (rng.uniform(2 * i + 1) * 3.0) as u32 {
        0 => 1e-3 * u,
        1 => 2.0 * u,
        _ => 100.0 * u,
    }
}

/// The first position of the reference.
const START: f64 = 1234.0;

/// Su et al. 2021, eq. 34, for the pairs (i, i + dim / 2) of every `dim` numbers.
fn rotate(x: &mut [f64], dim: usize, position: f64) {
    for x in x.chunks_mut(dim) {
        for i in 0..dim / 2 {
            let (sin, cos) = (position * THETA.powf(-2.0 * i as f64 / dim as f64)).sin_cos();
            let (a, b) = (x[i], x[i + dim / 2]);
            (x[i], x[i + dim / 2]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }
}

impl Problem {
    fn new(batch: usize, time: usize, options: Options, read: Read, seed: u64) -> Self {
        let Options { heads, key, value, .. } = options;
        let width = options.q.max(options.k) + heads * key + heads * value + 2;
        let wide = value + usize::from(read == Read::Normalised);
        let (count, inputs) = match options.decay {
            Decay::Constant(_) => (0, 0),
            Decay::Head => (heads, 0),
            Decay::HeadAndInput => (heads, heads),
            Decay::Key => (heads * key, 0),
        };
        let mut gates = vec![];
        for i in 0..(batch * time) as u64 {
            gates.extend(draws(seed + i, "logs", count, logarithm));
            gates.extend(draws(seed + i, "inputs", inputs, Rng::uniform));
        }
        Problem {
            streams: draws(seed, "streams", batch * time * width, Rng::normal),
            gates,
            state: draws(seed, "state", batch * heads * wide * key, Rng::normal),
            skip: draws(seed, "skip", heads, Rng::normal),
            m: draws(seed, "m", batch * time * heads, Rng::normal),
            batch,
            time,
            options,
            read,
        }
    }

    fn wide(&self) -> usize {
        self.options.value + usize::from(self.read == Read::Normalised)
    }

    /// The recurrence with queries and keys rotated by absolute positions from [`START`] on; states have the rotation
    /// of a query at position 0.
    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        if self.options.rotary.is_none() {
            return self.recurrence();
        }
        let Options { heads, heads_per_group, key, q, k, .. } = self.options;
        let mut absolute = self.clone();
        let width = self.streams.len() / (self.batch * self.time);
        for (at, frame) in absolute.streams.chunks_mut(width).enumerate() {
            let position = START + (at % self.time) as f64;
            let keys = heads / heads_per_group * key;
            for first in [q, k] {
                rotate(&mut frame[first..first + keys], key, position);
            }
        }
        rotate(&mut absolute.state, key, START);
        let (y, mut state) = absolute.recurrence();
        for (b, state) in state.chunks_mut(self.state.len() / self.batch).enumerate() {
            let length = self.options.lengths.as_ref().map_or(self.time, |l| l[b]);
            rotate(state, key, -(START + length as f64));
        }
        (y, state)
    }

    /// The pair `(y, state)` by the recurrence itself.
    fn recurrence(&self) -> (Vec<f64>, Vec<f64>) {
        let Options { heads, heads_per_group, key, value, q, k, v, .. } = self.options;
        let frames = self.batch * self.time;
        let (width, gates) = (self.streams.len() / frames, self.gates.len() / frames);
        let wide = self.wide();
        let mut state = self.state.clone();
        let mut y = vec![0.0; frames * heads * value];
        for b in 0..self.batch {
            let length = self.options.lengths.as_ref().map_or(self.time, |l| l[b]);
            for t in 0..length {
                let at = b * self.time + t;
                let (x, g) = (&self.streams[at * width..], &self.gates[at * gates..]);
                for h in 0..heads {
                    let group = h / heads_per_group;
                    let mut read = vec![0.0; wide];
                    for i in 0..wide {
                        for j in 0..key {
                            let (fade, input) = match &self.options.decay {
                                Decay::Constant(logs) => (f64::from(logs[h]).exp(), 1.0),
                                Decay::Head => (g[h].exp(), 1.0),
                                Decay::HeadAndInput => (g[h].exp(), g[heads + h]),
                                Decay::Key => (g[h * key + j].exp(), 1.0),
                            };
                            let v = if i < value { x[v + h * value + i] } else { 1.0 };
                            let s = &mut state[((b * heads + h) * wide + i) * key + j];
                            *s = fade * *s + input * v * x[k + group * key + j];
                            read[i] += *s * x[q + group * key + j];
                        }
                    }
                    for i in 0..value {
                        y[(at * heads + h) * value + i] = match self.read {
                            Read::Plain => read[i],
                            Read::Skip => read[i] + self.skip[h] * x[v + h * value + i],
                            Read::Normalised => {
                                read[i] / read[value].abs().max((-self.m[at * heads + h]).exp())
                            }
                        };
                    }
                }
            }
        }
        (y, state)
    }

    fn tensors(&self) -> [Tensor; 3] {
        let frames = self.batch * self.time;
        let make = |data: &[f64], shape: &[usize]| {
            let data: Vec<f32> = data.iter().map(|&v| v as f32).collect();
            let t = Tensor::from_vec(data, shape, &Device::Cpu).unwrap();
            Var::from_tensor(&t).unwrap().into_inner()
        };
        let Options { heads, key, .. } = self.options;
        let (b, t) = (self.batch, self.time);
        [
            make(&self.streams, &[b, t, self.streams.len() / frames]),
            make(&self.gates, &[b, t, self.gates.len() / frames]),
            make(&self.state, &[b, heads, self.wide(), key]),
        ]
    }

    fn readout(&self) -> Readout {
        let tensor = |data: &[f64], shape: &[usize]| {
            let data: Vec<f32> = data.iter().map(|&v| v as f32).collect();
            Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
        };
        let heads = self.options.heads;
        match self.read {
            Read::Plain => Readout::Plain,
            Read::Skip => Readout::Skip(Weight::from(
                Var::from_tensor(&tensor(&self.skip, &[heads])).unwrap().into_inner(),
            )),
            Read::Normalised => {
                Readout::Normalised(tensor(&self.m, &[self.batch, self.time, heads]))
            }
        }
    }

    fn run(&self, inputs: &[Tensor; 3], readout: Readout) -> (Tensor, Tensor) {
        let [streams, gates, state] = inputs;
        let gates = (!self.gates.is_empty()).then_some(gates);
        matrix_state(streams, gates, state, readout, &self.options).unwrap()
    }
}

fn values(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(*g) - w).abs();
        assert!(off <= tolerance * scale, "{what} {i}: {g} for {w}, scale {scale}");
    }
}

/// A part of a problem, for finite differences.
type Part = fn(&mut Problem) -> &mut Vec<f64>;

fn check(problem: &Problem, what: &str) {
    let inputs = problem.tensors();
    record();
    let readout = problem.readout();
    let (y, state) = problem.run(&inputs, readout.clone());
    let (want_y, want_state) = problem.reference();
    close(&format!("{what} y"), &values(&y), &want_y, 1e-5);
    close(&format!("{what} state"), &values(&state), &want_state, 1e-5);

    let cy = draws(1, "cy", want_y.len(), Rng::normal);
    let cs = draws(2, "cs", want_state.len(), Rng::normal);
    let loss = |p: &Problem| {
        let (y, s) = p.reference();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        dot(&y, &cy) + dot(&s, &cs)
    };
    let weigh = |t: &Tensor, c: &[f64]| {
        let c: Vec<f32> = c.iter().map(|&v| v as f32).collect();
        let c = Tensor::from_vec(c, t.shape(), &Device::Cpu).unwrap();
        (t * c).unwrap().sum_all().unwrap()
    };
    let total = (weigh(&y, &cy) + weigh(&state, &cs)).unwrap();
    let gradients = backward(&total);
    let mut all: Vec<(&str, Vec<f32>, Part)> = vec![
        ("streams", values(gradients.get(&inputs[0]).unwrap()), |p| &mut p.streams),
        ("state", values(gradients.get(&inputs[2]).unwrap()), |p| &mut p.state),
    ];
    if !problem.gates.is_empty() {
        all.push(("gates", values(gradients.get(&inputs[1]).unwrap()), |p| &mut p.gates));
    }
    if let Readout::Skip(skip) = &readout {
        all.push(("skip", skip.gradient(|g| g.to_vec()), |p| &mut p.skip));
    }
    for (name, got, part) in all {
        let mut moved = problem.clone();
        let count = part(&mut moved).len();
        let picks: Vec<usize> = (0..count).step_by(1 + count / 40).collect();
        let want: Vec<f64> = picks
            .iter()
            .map(|&i| {
                let before = part(&mut moved)[i];
                let mut at = |v: f64| {
                    part(&mut moved)[i] = v;
                    loss(&moved)
                };
                let slope = (at(before + 1e-5) - at(before - 1e-5)) / 2e-5;
                at(before);
                slope
            })
            .collect();
        let got: Vec<f32> = picks.iter().map(|&i| got[i]).collect();
        close(&format!("{what} gradient of {name}"), &got, &want, 1e-4);
    }
}

fn decays(heads: usize) -> [Decay; 4] {
    let constant: Vec<f32> = (0..heads).map(|h| (1.0 - 0.5f32.powi(5 + h as i32)).ln()).collect();
    [Decay::Head, Decay::HeadAndInput, Decay::Key, Decay::Constant(constant.into())]
}

#[test]
fn chunks_of_every_length_give_the_recurrence_and_its_gradients() {
    for chunk in [1, 2, 3, 4, 7, 16, 32, 60, 64] {
        for decay in decays(2) {
            let options = Options { chunk, ..Options::side_by_side(2, 5, 6, decay) };
            let what = format!("{:?} chunk {chunk}", options.decay);
            check(&Problem::new(2, 60, options, Read::Plain, 3), &what);
        }
    }
}

#[test]
fn wide_heads_and_other_columns_agree() {
    for decay in decays(2) {
        let base = Options::side_by_side(2, 33, 17, decay);
        let options = Options { q: 68, k: 1, v: 135, chunk: 16, ..base };
        check(&Problem::new(3, 37, options, Read::Plain, 5), "wide");
    }
}

#[test]
fn heads_that_share_keys_agree() {
    for (decay, chunk) in [(Decay::Head, 16), (Decay::HeadAndInput, 7)] {
        let base = Options::side_by_side(6, 5, 4, decay);
        let options = Options { heads_per_group: 3, chunk, ..base };
        check(&Problem::new(2, 20, options, Read::Skip, 7), "shared");
    }
}

#[test]
fn skip_and_normaliser_agree_with_every_decay() {
    for decay in decays(2) {
        for read in [Read::Skip, Read::Normalised] {
            let options = Options { chunk: 7, ..Options::side_by_side(2, 5, 6, decay.clone()) };
            check(&Problem::new(2, 18, options, read, 11), &format!("{read:?}"));
        }
    }
}

#[test]
fn shorter_rows_end_at_their_length() {
    for decay in decays(2) {
        for read in [Read::Plain, Read::Normalised] {
            let base = Options::side_by_side(2, 5, 6, decay.clone());
            let options = Options { lengths: Some([0, 9, 20, 1].into()), chunk: 8, ..base };
            check(&Problem::new(4, 20, options, read, 13), "lengths");
        }
    }
}

fn rotary(dim: usize, last: usize) -> Option<Arc<Rotary>> {
    Some(Arc::new(Rotary::new(dim, last, THETA).unwrap()))
}

/// The decays of whole heads, with which keys may be rotated.
fn decays_of_heads(heads: usize) -> impl Iterator<Item = Decay> {
    decays(heads).into_iter().filter(|decay| !matches!(decay, Decay::Key))
}

#[test]
fn rotated_keys_agree_with_absolute_positions_in_chunks_of_every_length() {
    for chunk in [1, 2, 3, 4, 7, 16, 32, 60, 64] {
        for decay in decays_of_heads(2) {
            let base = Options::side_by_side(2, 6, 5, decay);
            let options = Options { chunk, rotary: rotary(6, chunk), ..base };
            check(
                &Problem::new(2, 60, options, Read::Plain, 23),
                &format!("rotated, chunk {chunk}"),
            );
        }
    }
}

#[test]
fn rotated_keys_agree_in_other_columns_shared_and_in_shorter_rows() {
    for decay in decays_of_heads(6) {
        for read in [Read::Skip, Read::Normalised] {
            let base = Options::side_by_side(6, 4, 5, decay.clone());
            let options = Options {
                heads_per_group: 3,
                q: 9,
                k: 1,
                v: 17,
                chunk: 8,
                rotary: rotary(4, 11),
                lengths: Some([0, 9, 20, 1].into()),
                ..base
            };
            check(&Problem::new(4, 20, options, read, 29), "rotated, shared");
        }
    }
}

#[test]
fn a_long_window_of_rotated_keys_agrees() {
    for decay in decays_of_heads(1) {
        let base = Options::side_by_side(1, 16, 4, decay);
        let options = Options { rotary: rotary(16, 32), ..base };
        check(&Problem::new(1, 512, options, Read::Plain, 31), "rotated, long");
    }
}

#[test]
fn a_long_window_with_strong_decay_agrees() {
    for decay in decays(1) {
        let options = Options::side_by_side(1, 16, 4, decay);
        check(&Problem::new(1, 512, options, Read::Plain, 17), "long");
    }
}

#[test]
fn two_chunks_and_steps_equal_one_sequence() {
    let turning = decays_of_heads(2).map(|decay| (decay, rotary(16, 8)));
    for (decay, rotary) in decays(2).map(|decay| (decay, None)).into_iter().chain(turning) {
        let options = Options { chunk: 8, rotary, ..Options::side_by_side(2, 16, 8, decay) };
        let problem = Problem::new(2, 20, options, Read::Plain, 19);
        let [streams, gates, first] = problem.tensors();
        let run = |from: usize, count: usize, state: &Tensor| {
            let x = streams.narrow(1, from, count).unwrap();
            let gates = gates.narrow(1, from, count).unwrap();
            let gates = (!problem.gates.is_empty()).then_some(&gates);
            matrix_state(&x, gates, state, Readout::Plain, &problem.options).unwrap()
        };
        let (y, last) = run(0, 20, &first);
        for parts in [vec![13, 7], vec![1; 20]] {
            let (mut state, mut at, mut ys) = (first.clone(), 0, vec![]);
            for count in parts {
                let (y, next) = run(at, count, &state);
                (state, at) = (next, at + count);
                ys.push(y);
            }
            let apart = |a: &Tensor, b: &Tensor| {
                let (a, b) = (values(a), values(b));
                a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()))
            };
            assert!(apart(&Tensor::cat(&ys, 1).unwrap(), &y) < 1e-4);
            assert!(apart(&state, &last) < 1e-5);
        }
    }
}

fn ssd_scan(case: &str) {
    let golden = Golden::open(case);
    let [x, dt, a, b, c, h0] =
        ["x", "dt", "A", "B", "C", "h0"].map(|name| golden.variable(&format!("input.{name}")));
    let (_, _, heads, value) = x.dims4().unwrap();
    let key = b.dim(2).unwrap();
    for chunk in [1, 7, 16, 32, 64] {
        let streams = Tensor::cat(&[&x.flatten(2, 3).unwrap(), &b, &c], 2).unwrap();
        let gates = Tensor::cat(&[&dt.broadcast_mul(&a).unwrap(), &dt], 2).unwrap();
        let options = Options {
            heads_per_group: heads,
            v: 0,
            k: heads * value,
            q: heads * value + key,
            chunk,
            ..Options::side_by_side(heads, key, value, Decay::HeadAndInput)
        };
        let (y, h) = matrix_state(&streams, Some(&gates), &h0, Readout::Plain, &options).unwrap();
        let y = y.reshape(x.shape()).unwrap();
        golden.check("output.y", &y);
        golden.check("output.h", &h);
        let loss = golden.loss(&[("y", &y), ("h", &h)]);
        let inputs = [("x", &x), ("dt", &dt), ("A", &a), ("B", &b), ("C", &c), ("h0", &h0)];
        golden.check_gradients(&loss, &Default::default(), &inputs);
    }
}

#[test]
fn the_ssd_scan_agrees_with_golden() {
    ssd_scan("ssd_scan_w60");
    ssd_scan("ssd_scan_w512");
}

#[test]
fn separate_queries_keys_and_values_are_concatenated() {
    let noise = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
    let (q, k, v) = (noise(&[1, 4, 2, 3]), noise(&[1, 4, 2, 3]), noise(&[1, 4, 2, 5]));
    let zero = Tensor::zeros((1, 2, 5, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
    let decay = Decay::Constant([0.0, -1.0].into());
    let (y, _) = matrix_state_of(&q, &k, &v, None, &zero, decay, None).unwrap();
    // The first frame reads its own input: (q . k) v.
    let (q, k, v, y) = (values(&q), values(&k), values(&v), values(&y));
    let product: f32 = (0..3).map(|i| q[i] * k[i]).sum();
    assert!((y[0] - product * v[0]).abs() < 1e-5);
}

#[test]
fn errors_of_wrong_shapes_give_both_shapes() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu);
    let options = Options::side_by_side(2, 3, 4, Decay::Head);
    let run = |width: usize, gates: usize, state: usize| {
        let (x, g) = (zeros(&[1, 5, width]).unwrap(), zeros(&[1, 5, gates]).unwrap());
        let state = zeros(&[1, 2, state, 3]).unwrap();
        matrix_state(&x, Some(&g), &state, Readout::Plain, &options).map(|_| ()).unwrap_err()
    };
    let columns = "columns of a matrix state: expected >= 20, got 19";
    assert_eq!(run(19, 2, 4).to_string(), columns);
    let gates = "gates of a matrix state: expected [1, 5, 2], got [1, 5, 3]";
    assert_eq!(run(20, 3, 4).to_string(), gates);
    let state = "first matrix state: expected [1, 2, 4, 3], got [1, 2, 5, 3]";
    assert_eq!(run(20, 2, 5).to_string(), state);
}

#[test]
fn errors_of_wrong_rotations_give_the_reason() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu);
    let run = |decay, rotary| {
        let options = Options { rotary, ..Options::side_by_side(2, 4, 3, decay) };
        let (x, g) = (zeros(&[1, 9, 22]).unwrap(), zeros(&[1, 9, 8]).unwrap());
        let state = zeros(&[1, 2, 3, 4]).unwrap();
        let said = matrix_state(&x, Some(&g), &state, Readout::Plain, &options).map(|_| ());
        said.unwrap_err().to_string()
    };
    let constant = Decay::Constant([0.0, 0.0].into());
    let said = run(Decay::Key, rotary(4, 9));
    assert_eq!(said, "rotated keys: expected a decay for the whole head, got one by channel");
    let said = run(constant.clone(), rotary(6, 9));
    assert_eq!(said, "numbers of a rotation: expected 4, got 6");
    let said = run(constant, rotary(4, 8));
    assert_eq!(said, "positions of a rotation: expected >= 9, got 8");
}
