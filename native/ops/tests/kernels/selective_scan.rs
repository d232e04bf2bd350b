//! `selective_scan.cu` compared with `ops::selective_scan`.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::{Selective, selective_scan};
use sconce_tensor::rng::Rng;
use sconce_tensor::{tape, tensor};

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Argument, Element, Memory};
use crate::{Kernels, assert_near, sum};

/// Sizes `(batch, time, channels, state)`: one of each, chunks that end early, channels and states that are no multiple
/// of a block or thread, and each of the kernels.
const SIZES: [[usize; 4]; 5] =
    [[1, 1, 1, 1], [2, 9, 5, 3], [3, 20, 40, 16], [2, 16, 17, 29], [2, 11, 9, 64]];

/// Frames of a chunk, threads of a block, and numbers of a state in a thread.
const FRAMES: usize = 8;
const THREADS: usize = 64;
const STATES: usize = 8;

/// The optional inputs of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// Step sizes and A directly, no skip, no gate.
    Least,
    /// A bias and a softplus of the step sizes, the logarithm of -A, skip and gate.
    All,
    /// The form `All` with one step size for all frames.
    Steady,
}

const FORMS: [Form; 3] = [Form::Least, Form::All, Form::Steady];

struct Case {
    form: Form,
    sizes: [usize; 4],
    lengths: Vec<usize>,
    u: Vec<f32>,
    dt: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    h: Vec<f32>,
    dt_bias: Vec<f32>,
    d: Vec<f32>,
    z: Vec<f32>,
    dy: Vec<f32>,
    d_last: Vec<f32>,
}

/// Results by name.
type Results = Vec<(&'static str, Vec<f32>)>;

impl Case {
    /// Inputs that a kernel reads in T are rounded to T. The last row has all frames, the others fewer; if there are
    /// two rows, the first has none.
    fn new<T: Element>(form: Form, sizes: [usize; 4]) -> Self {
        let [batch, time, channels, state] = sizes;
        let normal = |name: &str, count: usize| {
            let rng = Rng::new(1, name, count as u64);
            (0..count as u64).map(|i| 0.7 * rng.normal(i)).collect::<Vec<_>>()
        };
        let in_type = |name, count| -> Vec<f32> {
            normal(name, count).into_iter().map(|v| T::of(v).value()).collect()
        };
        let (wide, narrow) = (batch * time * channels, batch * time * state);
        let positive = |v: f32| if form == Form::Least { v.abs() } else { v };
        let dt = match form {
            Form::Steady => normal("dt", channels),
            _ => in_type("dt", wide),
        };
        let a = normal("a", channels * state).into_iter();
        Case {
            form,
            sizes,
            lengths: (0..batch)
                .map(|row| time * (row + 1 - usize::from(batch > 1 && row == 0)) / batch)
                .collect(),
            u: in_type("u", wide),
            dt: dt.into_iter().map(positive).collect(),
            a: a.map(|v| if form == Form::Least { -v.exp() } else { v }).collect(),
            b: in_type("b", narrow),
            c: in_type("c", narrow),
            h: normal("h", batch * channels * state),
            dt_bias: normal("dt_bias", channels),
            d: normal("d", channels),
            z: in_type("z", wide),
            dy: in_type("dy", wide),
            d_last: normal("d_last", batch * channels * state),
        }
    }

    fn steady(&self) -> bool {
        self.form == Form::Steady
    }

    fn least(&self) -> bool {
        self.form == Form::Least
    }

    fn on_cpu(&self) -> Results {
        let _tape = tape::record();
        let [batch, time, channels, state] = self.sizes;
        let (wide, narrow) = ([batch, time, channels], [batch, time, state]);
        let variable = |v: &[f32], dims: &[usize]| {
            Var::from_slice(v, dims, &Device::Cpu).unwrap().into_inner()
        };
        let dt_dims = if self.steady() { &wide[2..] } else { &wide };
        let (u, dt) = (variable(&self.u, &wide), variable(&self.dt, dt_dims));
        let (a, h) =
            (variable(&self.a, &[channels, state]), variable(&self.h, &[batch, channels, state]));
        let (b, c) = (variable(&self.b, &narrow), variable(&self.c, &narrow));
        let [bias, d] = [&self.dt_bias, &self.d].map(|v| variable(v, &[channels]));
        let z = variable(&self.z, &wide);
        let more = !self.least();
        let inputs = Selective {
            u: &u,
            dt: &dt,
            dt_bias: more.then_some(&bias),
            dt_softplus: more,
            a: &a,
            a_log: more,
            b: &b,
            c: &c,
            d: more.then_some(&d),
            z: more.then_some(&z),
            h: &h,
        };
        let (y, last) = selective_scan(inputs, Some(self.lengths.clone().into())).unwrap();
        let weighed = |x: &Tensor, by: &[f32]| {
            let by = Tensor::from_slice(by, x.dims(), &Device::Cpu).unwrap();
            (x * by).unwrap().sum_all().unwrap()
        };
        let loss = (weighed(&y, &self.dy) + weighed(&last, &self.d_last)).unwrap();
        let store = tape::backward(&loss, loss.ones_like().unwrap()).unwrap();
        let numbers = |t: &Tensor| tensor::to_vec(t).unwrap();
        let mut results = vec![("y", numbers(&y)), ("last", numbers(&last))];
        let mut variables =
            vec![("du", &u), ("d_dt", &dt), ("da", &a), ("db", &b), ("dc", &c), ("dh", &h)];
        if more {
            variables.extend([("d_bias", &bias), ("dd", &d), ("dz", &z)]);
        }
        results
            .extend(variables.into_iter().map(|(name, x)| (name, numbers(store.get(x).unwrap()))));
        results
    }

    fn launched<T: Element>(&self, kernels: &impl Kernels) -> Results {
        let [batch, time, channels, n] = self.sizes;
        let size = n.next_power_of_two().max(16);
        let blocks = channels.div_ceil(THREADS * STATES / size);
        let lengths: Vec<f32> = self.lengths.iter().map(|n| *n as f32).collect();
        let mut lengths = Memory::<i32>::of(&lengths);
        let [mut u, mut b, mut c, mut z, mut dy] =
            [&self.u, &self.b, &self.c, &self.z, &self.dy].map(|x| Memory::<T>::of(x));
        let [mut a, mut h, mut dt_bias, mut d, mut d_last, mut steady] =
            [&self.a, &self.h, &self.dt_bias, &self.d, &self.d_last, &self.dt]
                .map(|x| Memory::<f32>::of(x));
        let mut dt = Memory::<T>::of(&self.dt);
        let [mut y, mut du, mut d_dt, mut dz] =
            [(); 4].map(|()| Memory::<T>::unwritten(self.u.len()));
        let [mut last, mut dh] = [(); 2].map(|()| Memory::<f32>::unwritten(self.h.len()));
        let kept = batch * time.div_ceil(FRAMES) * blocks * STATES * THREADS;
        let mut kept = Memory::<f32>::unwritten(kept);
        let mut d_bc = Memory::<f32>::unwritten(blocks * 2 * self.b.len());
        let mut parts = Memory::<f32>::unwritten(batch * (n + 2) * channels);

        let (grid, block) = ([batch as u32, blocks as u32, 1], [THREADS as u32, 1, 1]);
        let kernel = |way: &str| format!("selective_scan_{}_{way}_{size}", T::NAME);
        let (more, is_steady) = (!self.least(), self.steady());
        let sizes = || {
            let sizes = [batch, time, channels, n].map(|v| Int(v as i32));
            sizes.into_iter().chain([is_steady, more, more].map(|flag| Int(i32::from(flag))))
        };
        fn given<T: Element>(x: &mut Memory<T>, is: bool) -> Argument<'_> {
            if is { x.argument() } else { Long(0) }
        }

        let mut arguments = vec![
            u.argument(),
            if is_steady { steady.argument() } else { dt.argument() },
            given(&mut dt_bias, more),
            a.argument(),
            b.argument(),
            c.argument(),
            given(&mut d, more),
            given(&mut z, more),
            lengths.argument(),
            h.argument(),
            y.argument(),
            last.argument(),
            kept.argument(),
        ];
        arguments.extend(sizes());
        kernels.launch(&kernel("forward"), grid, block, &mut arguments);

        let mut arguments = vec![
            u.argument(),
            if is_steady { steady.argument() } else { dt.argument() },
            given(&mut dt_bias, more),
            a.argument(),
            b.argument(),
            c.argument(),
            given(&mut d, more),
            given(&mut z, more),
            lengths.argument(),
            kept.argument(),
            dy.argument(),
            d_last.argument(),
            du.argument(),
            given(&mut d_dt, !is_steady),
            given(&mut dz, more),
            dh.argument(),
            d_bc.argument(),
            parts.argument(),
        ];
        arguments.extend(sizes());
        kernels.launch(&kernel("backward"), grid, block, &mut arguments);

        let (d_bc, parts) =
            (sum(&d_bc.read(), 2 * self.b.len()), sum(&parts.read(), (n + 2) * channels));
        let (db, dc) = d_bc.split_at(self.b.len());
        let (da, rest) = parts.split_at(n * channels);
        let (d_bias, dd) = rest.split_at(channels);
        let d_dt = if is_steady { d_bias.to_vec() } else { d_dt.read() };
        let mut results =
            vec![("y", y.read()), ("last", last.read()), ("du", du.read()), ("d_dt", d_dt)];
        results.extend([("da", da.to_vec()), ("db", db.to_vec()), ("dc", dc.to_vec())]);
        results.push(("dh", dh.read()));
        if more {
            results.extend([("d_bias", d_bias.to_vec()), ("dd", dd.to_vec()), ("dz", dz.read())]);
        }
        kept.read();
        results
    }
}

/// `rounding` is the rounding error of results in T.
fn kernels_are_the_op<T: Element>(kernels: &impl Kernels, rounding: f32) {
    for (form, sizes) in FORMS.into_iter().flat_map(|form| SIZES.map(|sizes| (form, sizes))) {
        let case = Case::new::<T>(form, sizes);
        let (got, want) = (case.launched::<T>(kernels), case.on_cpu());
        assert_eq!(got.len(), want.len());
        for ((name, got), (_, want)) in got.into_iter().zip(want) {
            assert_near(&format!("{name} of {form:?} {sizes:?}"), &got, &want, rounding);
        }
    }
}

#[test]
fn scans_in_f32_equal_the_cpu() {
    kernels_are_the_op::<f32>(&Emulated::compile("selective_scan"), 2e-5);
}

#[test]
fn scans_in_bf16_equal_the_cpu_rounded_once() {
    kernels_are_the_op::<bf16>(&Emulated::compile("selective_scan"), 1.0 / 256.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn scans_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::SELECTIVE_SCAN.ptx;
    let kernels = crate::card::Card::open("selective_scan", ptx);
    kernels_are_the_op::<f32>(&kernels, 2e-5);
    kernels_are_the_op::<bf16>(&kernels, 1.0 / 256.0);
}
