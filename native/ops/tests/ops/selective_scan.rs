//! The selective scan compared with golden vectors and with plain loops in f64.

use candle_core::{Device, Tensor, Var};
use sconce_ops::weights::Weights;
use sconce_ops::{Selective, selective_scan};
use sconce_tensor::rng::Rng;

use crate::common::{Golden, backward, record};

#[test]
fn the_scan_agrees_with_pytorch_also_where_the_decay_underflows() {
    record();
    for case in ["selective_scan_w60", "selective_scan_w512_strong"] {
        let golden = Golden::open(case);
        let input = |name: &str| golden.variable(&format!("input.{name}"));
        let (u, dt, a, b, c) = (input("u"), input("dt"), input("A"), input("B"), input("C"));
        let (d, h0) = (input("D"), input("h0"));
        let inputs = Selective {
            u: &u,
            dt: &dt,
            dt_bias: None,
            dt_softplus: false,
            a: &a,
            a_log: false,
            b: &b,
            c: &c,
            d: Some(&d),
            z: None,
            h: &h0,
        };
        let (y, h) = selective_scan(inputs, None).unwrap();
        golden.check("output.y", &y);
        golden.check("output.h", &h);
        let named =
            [("u", &u), ("dt", &dt), ("A", &a), ("B", &b), ("C", &c), ("D", &d), ("h0", &h0)];
        let loss = golden.loss(&[("y", &y), ("h", &h)]);
        golden.check_gradients(&loss, &Weights::new(), &named);
    }
}

fn noise(shape: &[usize], seed: u64) -> Tensor {
    let rng = Rng::new(seed, "noise", 0);
    let data: Vec<f32> =
        (0..shape.iter().product::<usize>() as u64).map(|i| rng.normal(i) * 0.7).collect();
    Var::from_vec(data, shape, &Device::Cpu).unwrap().into_inner()
}

fn values(t: &Tensor) -> Vec<f64> {
    let t: Vec<f32> = t.flatten_all().unwrap().to_vec1().unwrap();
    t.into_iter().map(f64::from).collect()
}

fn apart(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
}

/// The tensors u, dt, A, B, C, h, D, z and dt_bias, in this order; the last three are optional.
struct Case {
    tensors: Vec<Tensor>,
    softplus: bool,
    skip: bool,
    gate: bool,
    lengths: Option<Vec<usize>>,
    /// Whether one `dt` applies to all frames, with a bias, and A is given as its logarithm.
    steady: bool,
}

impl Case {
    fn new([b, t, c, n]: [usize; 4], options: [bool; 3], lengths: Option<&[usize]>) -> Self {
        let [softplus, skip, gate] = options;
        let dt = noise(&[b, t, c], 2);
        let dt = if softplus { dt } else { (dt.abs().unwrap() * 0.5).unwrap() };
        let a = noise(&[c, n], 3).abs().unwrap().neg().unwrap();
        let variable = |t: Tensor| Var::from_tensor(&t).unwrap().into_inner();
        let tensors = vec![
            noise(&[b, t, c], 1),
            variable(dt),
            variable(a),
            noise(&[b, t, n], 4),
            noise(&[b, t, n], 5),
            noise(&[b, c, n], 6),
            noise(&[c], 7),
            noise(&[b, t, c], 8),
            variable(noise(&[c], 10).abs().unwrap()),
        ];
        let lengths = lengths.map(<[usize]>::to_vec);
        Case { tensors, softplus, skip, gate, lengths, steady: false }
    }

    fn steady(mut self) -> Self {
        let c = self.tensors[6].dim(0).unwrap();
        let dt = (noise(&[c], 9).abs().unwrap() + 0.5).unwrap();
        self.tensors[1] = Var::from_tensor(&dt).unwrap().into_inner();
        self.steady = true;
        self
    }

    fn run_on(&self, t: &[Tensor]) -> (Tensor, Tensor) {
        let inputs = Selective {
            u: &t[0],
            dt: &t[1],
            dt_bias: self.steady.then_some(&t[8]),
            dt_softplus: self.softplus,
            a: &t[2],
            a_log: self.steady,
            b: &t[3],
            c: &t[4],
            h: &t[5],
            d: self.skip.then_some(&t[6]),
            z: self.gate.then_some(&t[7]),
        };
        selective_scan(inputs, self.lengths.clone().map(Into::into)).unwrap()
    }

    fn slow(&self, v: &[Vec<f64>]) -> (Vec<f64>, Vec<f64>) {
        let (b, t, c) = self.tensors[0].dims3().unwrap();
        let n = self.tensors[2].dim(1).unwrap();
        let (mut y, mut h) = (vec![0.0; b * t * c], v[5].clone());
        for row in 0..b {
            for frame in 0..self.lengths.as_ref().map_or(t, |l| l[row]) {
                for ch in 0..c {
                    let at = (row * t + frame) * c + ch;
                    let u = v[0][at];
                    let raw = if self.steady { v[1][ch] + v[8][ch] } else { v[1][at] };
                    let dt = if self.softplus { raw.exp().ln_1p() } else { raw };
                    let mut out = if self.skip { v[6][ch] * u } else { 0.0 };
                    for j in 0..n {
                        let a = v[2][ch * n + j];
                        let a = if self.steady { -a.exp() } else { a };
                        let h = &mut h[(row * c + ch) * n + j];
                        *h = (dt * a).exp() * *h + dt * v[3][(row * t + frame) * n + j] * u;
                        out += v[4][(row * t + frame) * n + j] * *h;
                    }
                    let z = v[7][at];
                    y[at] = if self.gate { out * z / (1.0 + (-z).exp()) } else { out };
                }
            }
        }
        (y, h)
    }

    fn check(&self) {
        let numbers: Vec<_> = self.tensors.iter().map(values).collect();
        let (want_y, want_h) = self.slow(&numbers);
        let untracked: Vec<_> = self.tensors.iter().map(Tensor::detach).collect();
        for tensors in [&self.tensors, &untracked] {
            let (y, h) = self.run_on(tensors);
            assert!(apart(&values(&y), &want_y) < 1e-5 && apart(&values(&h), &want_h) < 1e-5);
        }
        let (y, h) = self.run_on(&self.tensors);
        let (cy, ch) = (noise(y.dims(), 17), noise(h.dims(), 18));
        let part = |a: &Tensor, b: &Tensor| (a * b).unwrap().sum_all().unwrap();
        let gradients = backward(&(part(&y, &cy) + part(&h, &ch)).unwrap());
        let (cy, ch) = (values(&cy), values(&ch));
        let at = |numbers: &[Vec<f64>]| {
            let (y, h) = self.slow(numbers);
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            dot(&y, &cy) + dot(&h, &ch)
        };
        let used = [true, true, true, true, true, true, self.skip, self.gate, self.steady];
        for (k, tensor) in self.tensors.iter().enumerate().filter(|(k, _)| used[*k]) {
            let got = values(gradients.get(tensor).expect("a gradient"));
            for i in (0..got.len()).step_by(1 + got.len() / 40) {
                let moved = |by: f64| {
                    let mut numbers = numbers.clone();
                    numbers[k][i] += by;
                    at(&numbers)
                };
                let slope = (moved(1e-4) - moved(-1e-4)) / 2e-4;
                let off = (slope - got[i]).abs();
                assert!(off < 2e-4 * slope.abs().max(1.0), "{k}, {i}: {slope}, got {}", got[i]);
            }
        }
    }
}

#[test]
fn values_and_gradients_agree_with_the_definition() {
    record();
    for bits in 0..8 {
        let options = [bits & 1 > 0, bits & 2 > 0, bits & 4 > 0];
        Case::new([2, 19, 21, 5], options, None).check();
        Case::new([1, 2, 16, 16], options, None).check();
        Case::new([3, 11, 5, 18], options, Some(&[11, 0, 9])).check();
        Case::new([3, 2, 5, 18], options, Some(&[1, 0, 2])).check();
        Case::new([3, 11, 20, 3], options, Some(&[11, 0, 9])).steady().check();
        Case::new([1, 2, 20, 3], options, None).steady().check();
    }
}

#[test]
fn chunks_and_steps_equal_the_whole() {
    let case = Case::new([2, 21, 24, 16], [true; 3], None);
    let (whole, last) = case.run_on(&case.tensors);
    for chunk in [1, 2, 8, 10] {
        let (mut state, mut parts) = (case.tensors[5].clone(), vec![]);
        for at in (0..21).step_by(chunk) {
            let mut tensors: Vec<_> = case.tensors.iter().map(Tensor::detach).collect();
            for k in [0, 1, 3, 4, 7] {
                tensors[k] = tensors[k].narrow(1, at, chunk.min(21 - at)).unwrap();
            }
            tensors[5] = state;
            let (y, next) = case.run_on(&tensors);
            parts.push(y);
            state = next;
        }
        assert!(apart(&values(&Tensor::cat(&parts, 1).unwrap()), &values(&whole)) < 1e-5);
        assert!(apart(&values(&state), &values(&last)) < 1e-5);
    }
}

#[test]
fn one_thread_and_three_give_the_same_bits() {
    record();
    let case = Case::new([40, 33, 40, 4], [true; 3], None);
    let mut seen = None;
    for threads in [1, 2, 3] {
        sconce_tensor::pool::set_threads(threads).unwrap();
        let (y, _) = case.run_on(&case.tensors);
        let gradients = backward(&y.sqr().unwrap().sum_all().unwrap());
        let mut all = vec![values(&y)];
        all.extend(case.tensors[..8].iter().map(|t| values(gradients.get(t).unwrap())));
        assert_eq!(*seen.get_or_insert(all.clone()), all);
    }
}

#[test]
fn errors_of_wrong_shapes_give_both_shapes() {
    let mut case = Case::new([2, 3, 5, 4], [false; 3], None);
    case.tensors[3] = noise(&[2, 3, 3], 1);
    let t = &case.tensors;
    let inputs = Selective {
        u: &t[0],
        dt: &t[1],
        dt_bias: None,
        dt_softplus: false,
        a: &t[2],
        a_log: false,
        b: &t[3],
        c: &t[4],
        h: &t[5],
        d: None,
        z: None,
    };
    let wrong = selective_scan(inputs, None).unwrap_err();
    assert_eq!(wrong.to_string(), "B of a selective scan: expected [2, 3, 4], got [2, 3, 3]");
}
