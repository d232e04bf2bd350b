//! The gated linear recurrence and its cells compared with PyTorch's float64 results, with plain loops in f64, and with
//! finite differences; with lengths, and with any number of threads.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use sconce_ops::weights::{Weight, Weights};
use sconce_ops::{self as ops, Activation};

use crate::common::{Golden, backward, noise, record, values};

fn variable(t: &Tensor) -> Tensor {
    Var::from_tensor(t).unwrap().into_inner()
}

#[test]
fn the_plain_recurrence_agrees_with_float64_also_over_512_frames_of_strong_decay() {
    record();
    for case in ["scan_w7", "scan_w60", "scan_w512"] {
        let golden = Golden::open(case);
        let [a, b, h0] = ["a", "b", "h0"].map(|n| golden.variable(&format!("input.{n}")));
        let h = ops::linear_recurrence(&a, &b, &h0, None).unwrap();
        golden.check("output.h", &h);
        let inputs = [("a", &a), ("b", &b), ("h0", &h0)];
        golden.check_gradients(&golden.loss(&[("h", &h)]), &Default::default(), &inputs);
    }
}

#[test]
fn constant_gates_reach_their_closed_form() {
    for case in ["scan_ones_w60", "scan_ones_w512"] {
        let golden = Golden::open(case);
        let [a, b] = ["a", "b"].map(|n| golden.tensor(&format!("input.{n}")));
        let h0 = Tensor::zeros((1, 5), candle_core::DType::F32, &Device::Cpu).unwrap();
        let constant = a.narrow(1, 0, 1).unwrap().flatten_all().unwrap();
        for a in [a, constant] {
            let h = values(&ops::linear_recurrence(&a, &b, &h0, None).unwrap());
            for (got, want) in h.iter().zip(golden.numbers("output.h")) {
                assert!((f64::from(*got) - want).abs() <= 1e-5 * want.abs().max(1.0), "{case}");
            }
        }
    }
}

fn project(golden: &Golden, x: &Tensor, names: &[&str]) -> (Tensor, Weights) {
    let mut weights = Weights::new();
    let mut parts = vec![];
    for name in names {
        let [w, b] = ["weight", "bias"].map(|kind| {
            let name = format!("{name}.{kind}");
            let w = Weight::from(golden.variable(&format!("param.{name}")));
            weights.insert(name, w.clone());
            w
        });
        parts.push(ops::linear(x, &w, Some(&b), Activation::None).unwrap());
    }
    (Tensor::cat(&parts, 2).unwrap(), weights)
}

fn cell(
    case: &str,
    names: &[&str],
    run: impl Fn(&Golden, &Tensor, &Tensor, &Tensor) -> (Tensor, Option<Tensor>),
) {
    let golden = Golden::open(case);
    let [x, h0] = ["x", "h0"].map(|n| golden.variable(&format!("input.{n}")));
    let (projected, mut weights) = project(&golden, &x, names);
    let (h, lambda) = run(&golden, &projected, &x, &h0);
    golden.check("output.h", &h);
    weights.extend(lambda.map(|l| ("Lambda".to_string(), l.into())));
    golden.check_gradients(&golden.loss(&[("h", &h)]), &weights, &[("x", &x), ("h0", &h0)]);
}

#[test]
fn the_cells_agree_with_float64() {
    for window in ["w7", "w60"] {
        cell(&format!("min_gru_cell_{window}"), &["linear_z", "linear_h"], |_, p, _, h0| {
            (ops::min_gru(p, h0, None).unwrap(), None)
        });
        let names = ["linear_f", "linear_i", "linear_h"];
        cell(&format!("min_lstm_cell_{window}"), &names, |_, p, _, h0| {
            (ops::min_lstm(p, h0, 0.0, None).unwrap(), None)
        });
        cell(&format!("rg_lru_{window}"), &["gate_a", "gate_x"], |golden, p, x, h0| {
            let lambda = golden.variable("param.Lambda");
            (ops::rg_lru(p, x, &lambda, h0, None).unwrap(), Some(lambda))
        });
    }
}

/// A cell as a function of a tensor with N inputs per frame, weights, and the first state.
type Op = Box<dyn Fn(&[Tensor], Option<Arc<[usize]>>) -> Tensor>;
/// The gate and addend of one channel, from its inputs of a frame and its weights.
type Gates = fn(&[f64], &[f64]) -> (f64, f64);

struct Form {
    name: &'static str,
    inputs: usize,
    weights: usize,
    op: Op,
    gates: Gates,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn forms() -> Vec<Form> {
    let split = |x: &Tensor, at: usize| {
        let (_, _, w) = x.dims3().unwrap();
        let c = w / (at + 1);
        [x.narrow(2, 0, at * c).unwrap(), x.narrow(2, at * c, c).unwrap()]
    };
    vec![
        Form {
            name: "plain",
            inputs: 2,
            weights: 0,
            op: Box::new(move |t, l| {
                let [a, b] = split(&t[0], 1);
                ops::linear_recurrence(&a, &b, &t[1], l).unwrap()
            }),
            gates: |x, _| (x[0], x[1]),
        },
        Form {
            name: "constant",
            inputs: 1,
            weights: 1,
            op: Box::new(|t, l| ops::linear_recurrence(&t[1], &t[0], &t[2], l).unwrap()),
            gates: |x, p| (p[0], x[0]),
        },
        Form {
            name: "min_gru",
            inputs: 2,
            weights: 0,
            op: Box::new(|t, l| ops::min_gru(&t[0], &t[1], l).unwrap()),
            gates: |x, _| (1.0 - sigmoid(x[0]), sigmoid(x[0]) * x[1]),
        },
        Form {
            name: "min_lstm",
            inputs: 3,
            weights: 0,
            op: Box::new(|t, l| ops::min_lstm(&t[0], &t[1], 1e-6, l).unwrap()),
            gates: |x, _| {
                let (f, i) = (sigmoid(x[0]), sigmoid(x[1]));
                (f / (f + i + 1e-6), i / (f + i + 1e-6) * x[2])
            },
        },
        Form {
            name: "rg_lru",
            inputs: 3,
            weights: 1,
            op: Box::new(move |t, l| {
                let [gates, x] = split(&t[0], 2);
                ops::rg_lru(&gates, &x, &t[1], &t[2], l).unwrap()
            }),
            gates: |x, p| {
                let log_a = -8.0 * sigmoid(x[0]) * (-p[0]).exp().ln_1p();
                (log_a.exp(), (-(2.0 * log_a).exp_m1()).sqrt() * sigmoid(x[1]) * x[2])
            },
        },
        Form {
            name: "hgrn",
            inputs: 3,
            weights: 1,
            op: Box::new(|t, l| ops::hgrn(&t[0], &t[1], &t[2], l).unwrap()),
            gates: |x, p| {
                (p[0] + (1.0 - p[0]) * sigmoid(x[0]), sigmoid(x[1]) * x[2] * sigmoid(x[2]))
            },
        },
        Form {
            name: "diagonal_ssm",
            inputs: 1,
            weights: 2,
            op: Box::new(|t, l| ops::diagonal_ssm(&t[0], &t[1], &t[2], &t[3], l).unwrap()),
            gates: |x, p| {
                let (rate, dt) = (p[0].exp(), p[1].exp());
                ((-rate * dt).exp(), -(-rate * dt).exp_m1() / rate * x[0])
            },
        },
    ]
}

impl Form {
    /// Inputs, weights and a first state; the gates of the plain form include 0 and negative numbers.
    fn example(&self, batch: usize, time: usize, channels: usize, scale: f64) -> Vec<Tensor> {
        let scaled = |t: Tensor| (t * scale).unwrap();
        let mut all = vec![scaled(noise(&[batch, time, self.inputs * channels], 1))];
        for k in 0..self.weights {
            let weight = noise(&[channels], 2 + k as u64);
            all.push(match self.name {
                "hgrn" => ((weight * 0.1).unwrap() + 0.5).unwrap(),
                // A constant gate above 1 would make the state grow without bound.
                "constant" => weight.tanh().unwrap(),
                _ => (weight * 0.7).unwrap(),
            });
        }
        all.push(noise(&[batch, channels], 9));
        all
    }

    /// The states by plain loops in f64.
    fn slow(&self, t: &[Tensor], lengths: Option<&[usize]>) -> Vec<f64> {
        let (batch, time, width) = t[0].dims3().unwrap();
        let c = width / self.inputs;
        let numbers: Vec<Vec<f64>> =
            t.iter().map(|t| values(t).into_iter().map(f64::from).collect()).collect();
        let mut y = vec![0.0; batch * time * c];
        for r in 0..batch {
            for i in 0..c {
                let p: Vec<f64> = (0..self.weights).map(|k| numbers[1 + k][i]).collect();
                let mut h = numbers[1 + self.weights][r * c + i];
                for t in 0..lengths.map_or(time, |l| l[r]) {
                    let at = (r * time + t) * width;
                    let x: Vec<f64> =
                        (0..self.inputs).map(|n| numbers[0][at + n * c + i]).collect();
                    let (a, b) = (self.gates)(&x, &p);
                    h = a * h + b;
                    y[(r * time + t) * c + i] = h;
                }
            }
        }
        y
    }

    fn check(&self, t: &[Tensor], lengths: Option<Vec<usize>>) {
        let want = self.slow(t, lengths.as_deref());
        let got = values(&(self.op)(t, lengths.map(Into::into)));
        let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let off = got.iter().zip(&want).fold(0.0f64, |m, (g, w)| m.max((f64::from(*g) - w).abs()));
        assert!(off <= 3e-6 * scale, "{}: off by {off:e} at {scale:e}", self.name);
    }
}

#[test]
fn every_cell_equals_its_plain_loop_at_any_shape_length_and_saturation() {
    record();
    for form in forms() {
        for (batch, time, channels) in
            [(1, 1, 1), (3, 7, 17), (1, 70, 300), (9, 40, 33), (2, 512, 40)]
        {
            // Plain gates above 1 would make the state grow without bound.
            let scale = if form.name == "plain" && time > 60 { 0.3 } else { 1.0 };
            form.check(&form.example(batch, time, channels, scale), None);
        }
        if !matches!(form.name, "plain" | "constant") {
            form.check(&form.example(2, 512, 20, 30.0), None);
        }
        form.check(&form.example(3, 6, 20, 1.0), Some(vec![6, 0, 4]));
    }
}

#[test]
fn gradients_equal_finite_differences_also_with_lengths() {
    record();
    for form in forms() {
        for lengths in [None, Some(Arc::from([5usize, 0, 2]))] {
            let inputs = form.example(3, 5, 3, 0.8);
            let variables: Vec<Tensor> = inputs.iter().map(variable).collect();
            let y = (form.op)(&variables, lengths.clone());
            let c = noise(y.dims(), 77);
            let gradients = backward(&(&y * &c).unwrap().sum_all().unwrap());
            let c = values(&c);
            let slow = |t: &[Tensor]| -> f64 {
                let y = form.slow(t, lengths.as_deref());
                y.iter().zip(&c).map(|(y, c)| y * f64::from(*c)).sum()
            };
            for (k, input) in inputs.iter().enumerate() {
                let gradient = values(gradients.get(&variables[k]).expect("a gradient"));
                for i in 0..input.elem_count() {
                    let moved = |by: f32| {
                        let mut data = values(input);
                        data[i] += by;
                        let at = f64::from(data[i]);
                        let mut moved = inputs.clone();
                        moved[k] = Tensor::from_vec(data, input.shape(), &Device::Cpu).unwrap();
                        (slow(&moved), at)
                    };
                    let ((up, above), (down, below)) = (moved(1e-3), moved(-1e-3));
                    let slope = (up - down) / (above - below);
                    let off = (slope - f64::from(gradient[i])).abs();
                    let name = form.name;
                    assert!(
                        off < 2e-5 * slope.abs().max(1.0),
                        "{name} {k} {i}: {slope} {}",
                        gradient[i]
                    );
                }
            }
        }
    }
}

#[test]
fn a_decay_of_exactly_one_and_saturated_gates_keep_gradients_finite() {
    record();
    let x = variable(&noise(&[1, 4, 3], 1));
    for (gate, lambda) in [(-200.0f32, 0.0f32), (200.0, 200.0), (200.0, -200.0), (0.0, 100.0)] {
        let gates = variable(&Tensor::full(gate, (1, 4, 6), &Device::Cpu).unwrap());
        let lambda = variable(&Tensor::full(lambda, 3, &Device::Cpu).unwrap());
        let h = ops::rg_lru(&gates, &x, &lambda, &noise(&[1, 3], 2), None).unwrap();
        let gradients = backward(&h.sum_all().unwrap());
        for t in [&gates, &x, &lambda] {
            assert!(values(gradients.get(t).unwrap()).iter().all(|v| v.is_finite()));
        }
        let h = ops::min_lstm(
            &Tensor::full(gate, (1, 4, 9), &Device::Cpu).unwrap(),
            &noise(&[1, 3], 2),
            0.0,
            None,
        );
        assert!(values(&h.unwrap()).iter().all(|v| v.is_finite()));
    }
}

#[test]
fn one_thread_and_three_give_the_same_bits() {
    record();
    for form in forms() {
        for (batch, time, channels) in [(33, 20, 70), (1, 300, 200)] {
            let inputs = form.example(batch, time, channels, 0.3);
            let mut seen: Option<Vec<Vec<u32>>> = None;
            for threads in [1, 2, 3] {
                sconce_tensor::pool::set_threads(threads).unwrap();
                let variables: Vec<Tensor> = inputs.iter().map(variable).collect();
                let y = (form.op)(&variables, None);
                let gradients = backward(&y.sqr().unwrap().sum_all().unwrap());
                let bits = |t: &Tensor| values(t).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let mut all = vec![bits(&y)];
                all.extend(variables.iter().map(|v| bits(gradients.get(v).unwrap())));
                match &seen {
                    Some(first) => assert!(*first == all, "{} with {threads} threads", form.name),
                    None => seen = Some(all),
                }
            }
        }
    }
}

#[test]
fn errors_of_wrong_shapes_give_both_shapes() {
    let message = |r: sconce_tensor::Result<Tensor>| r.unwrap_err().to_string();
    let h0 = noise(&[2, 3], 1);
    let wrong = message(ops::min_gru(&noise(&[2, 5, 7], 1), &h0, None));
    assert_eq!(wrong, "input of min-gru: expected [2, 5, 6], got [2, 5, 7]");
    let wrong = message(ops::rg_lru(
        &noise(&[2, 5, 6], 1),
        &noise(&[2, 5, 3], 1),
        &noise(&[4], 1),
        &h0,
        None,
    ));
    assert_eq!(wrong, "weight of rg-lru: expected [3], got [4]");
    let wrong = message(ops::min_gru(&noise(&[2, 5, 6], 1), &h0, Some([5, 6].into())));
    assert_eq!(wrong, "length of a row: 6 is outside 0..5");
    let wrong = message(ops::min_gru(&noise(&[2, 5, 6], 1), &h0, Some([5].into())));
    assert_eq!(wrong, "lengths of a batch: expected 2, got 1");
}

#[test]
#[ignore = "a measurement"]
fn timings() {
    record();
    sconce_tensor::pool::keep_libraries_single_threaded();
    sconce_tensor::pool::set_threads(1).unwrap();
    for form in forms() {
        let inputs = form.example(32, 60, 256, 0.3);
        let variables: Vec<Tensor> = inputs.iter().map(variable).collect();
        let least = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            all[0]
        };
        let (mut forward, mut both) = (vec![], vec![]);
        for _ in 0..30 {
            let start = std::time::Instant::now();
            let y = (form.op)(&inputs, None);
            forward.push(start.elapsed().as_secs_f64() * 1e3);
            drop(y);
            let start = std::time::Instant::now();
            let y = (form.op)(&variables, None);
            let _ = backward(&y.sum_all().unwrap());
            both.push(start.elapsed().as_secs_f64() * 1e3);
        }
        println!(
            "{:14} forward {:.2} ms, with backward {:.2} ms",
            form.name,
            least(forward),
            least(both)
        );
    }
}
