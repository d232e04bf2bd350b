//! The causal convolution compared with plain loops in f64, in chunks, at every length.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use sconce_ops::causal_conv;
use sconce_tensor::rng::Rng;

use crate::common::{backward, record};

fn noise(shape: &[usize], seed: u64) -> Tensor {
    let rng = Rng::new(seed, "noise", 0);
    let data: Vec<f32> =
        (0..shape.iter().product::<usize>() as u64).map(|i| rng.normal(i)).collect();
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

struct Case {
    x: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    state: Tensor,
    silu: bool,
    lengths: Option<Arc<[usize]>>,
}

impl Case {
    fn new([b, t, c, k]: [usize; 4], bias: bool, silu: bool, lengths: Option<&[usize]>) -> Self {
        Case {
            x: noise(&[b, t, c], 1),
            weight: noise(&[c, 1, k], 2),
            bias: bias.then(|| noise(&[c], 3)),
            state: noise(&[b, c, k - 1], 4),
            silu,
            lengths: lengths.map(Into::into),
        }
    }

    fn run(&self) -> (Tensor, Tensor) {
        let Case { x, weight, bias, state, silu, lengths } = self;
        causal_conv(x, weight, bias.as_ref(), state, *silu, lengths.clone()).unwrap()
    }

    /// Outputs and last state by the definition, for given inputs.
    fn slow(&self, numbers: &[Vec<f64>; 4]) -> (Vec<f64>, Vec<f64>) {
        let [x, weight, bias, state] = numbers;
        let (b, t, c) = self.x.dims3().unwrap();
        let k = self.weight.dim(2).unwrap();
        let (mut y, mut last) = (vec![0.0; b * t * c], vec![0.0; b * c * (k - 1)]);
        for row in 0..b {
            let length = self.lengths.as_ref().map_or(t, |l| l[row]);
            for ch in 0..c {
                let full = |i: usize| match i.checked_sub(k - 1) {
                    Some(frame) => x[(row * t + frame) * c + ch],
                    None => state[(row * c + ch) * (k - 1) + i],
                };
                for frame in 0..length {
                    let sum = (0..k).map(|j| weight[ch * k + j] * full(frame + j)).sum::<f64>();
                    let s = sum + bias.get(ch).copied().unwrap_or(0.0);
                    y[(row * t + frame) * c + ch] =
                        if self.silu { s / (1.0 + (-s).exp()) } else { s };
                }
                for i in 0..k - 1 {
                    last[(row * c + ch) * (k - 1) + i] = full(length + i);
                }
            }
        }
        (y, last)
    }

    fn numbers(&self) -> [Vec<f64>; 4] {
        let bias = self.bias.as_ref().map(values).unwrap_or_default();
        [values(&self.x), values(&self.weight), bias, values(&self.state)]
    }

    fn check(&self) {
        let (y, last) = self.run();
        let (want_y, want_last) = self.slow(&self.numbers());
        assert!(apart(&values(&y), &want_y) < 1e-5);
        assert!(apart(&values(&last), &want_last) == 0.0);

        let (cy, cl) = (noise(y.dims(), 7), noise(last.dims(), 8));
        let loss = ((&y * &cy).unwrap().sum_all().unwrap()
            + (last * &cl).unwrap().sum_all().unwrap())
        .unwrap();
        let gradients = backward(&loss);
        let (cy, cl) = (values(&cy), values(&cl));
        let at = |numbers: &[Vec<f64>; 4]| {
            let (y, last) = self.slow(numbers);
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            dot(&y, &cy) + dot(&last, &cl)
        };
        let tensors = [Some(&self.x), Some(&self.weight), self.bias.as_ref(), Some(&self.state)];
        for (n, tensor) in tensors.into_iter().enumerate() {
            let Some(tensor) = tensor else { continue };
            let got = values(gradients.get(tensor).expect("a gradient"));
            for (i, got) in got.iter().enumerate() {
                let moved = |by: f64| {
                    let mut numbers = self.numbers();
                    numbers[n][i] += by;
                    at(&numbers)
                };
                let slope = (moved(1e-4) - moved(-1e-4)) / 2e-4;
                assert!((slope - got).abs() < 1e-4, "input {n}, number {i}: {slope}, got {got}");
            }
        }
    }
}

#[test]
fn values_and_gradients_agree_with_the_definition() {
    record();
    for silu in [false, true] {
        Case::new([2, 7, 19, 4], true, silu, None).check();
        Case::new([2, 2, 5, 4], false, silu, None).check();
        Case::new([1, 5, 16, 2], true, silu, None).check();
        Case::new([3, 3, 3, 1], true, silu, None).check();
        Case::new([4, 6, 17, 4], true, silu, Some(&[6, 0, 2, 5])).check();
    }
}

#[test]
fn chunks_and_steps_equal_the_whole() {
    record();
    let case = Case::new([3, 9, 33, 4], true, true, None);
    let (whole, last) = case.run();
    for chunk in [1, 2, 5] {
        let (mut state, mut parts) = (case.state.clone(), vec![]);
        for at in (0..9).step_by(chunk) {
            let x = case.x.narrow(1, at, chunk.min(9 - at)).unwrap();
            let (y, next) =
                causal_conv(&x, &case.weight, case.bias.as_ref(), &state, true, None).unwrap();
            parts.push(y);
            state = next;
        }
        let parts = Tensor::cat(&parts, 1).unwrap();
        assert!(apart(&values(&parts), &values(&whole)) < 1e-6);
        assert_eq!(values(&state), values(&last));
    }
}

#[test]
fn one_thread_and_three_give_the_same_bits() {
    record();
    let case = Case::new([40, 33, 40, 4], true, true, None);
    let mut seen = None;
    for threads in [1, 2, 3] {
        sconce_tensor::pool::set_threads(threads).unwrap();
        let (y, _) = case.run();
        let gradients = backward(&y.sqr().unwrap().sum_all().unwrap());
        let of = |t: &Tensor| values(gradients.get(t).unwrap());
        let all = [values(&y), of(&case.x), of(&case.weight), of(&case.state)];
        assert_eq!(*seen.get_or_insert(all.clone()), all);
    }
}

#[test]
fn errors_of_wrong_shapes_give_both_shapes() {
    let (x, weight) = (noise(&[2, 3, 5], 1), noise(&[5, 1, 4], 2));
    let wrong = causal_conv(&x, &weight, None, &noise(&[2, 5, 2], 3), false, None).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "state of a causal convolution: expected [2, 5, 3], got [2, 5, 2]"
    );
    let narrow = noise(&[4, 1, 4], 2);
    let wrong = causal_conv(&x, &narrow, None, &noise(&[2, 5, 3], 3), false, None).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "weight of a causal convolution: expected [5, 1, 4], got [4, 1, 4]"
    );
}
