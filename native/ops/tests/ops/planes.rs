//! Convolutions, pooling, batch normalisation and upsampling against golden data, plain loops and finite differences.

use candle_core::{Device, Tensor, Var};
use proptest::prelude::*;
use sconce_ops::weights::{Weight, Weights};
use sconce_ops::{
    BatchNorm, Kernel, Pooling, batch_norm, batch_norm_of, convolution, global_pooling, pooling,
    transposed_convolution, upsample,
};
use sconce_tensor::error::Kind;
use sconce_tensor::pool;

use crate::common::{Golden, backward, differences, gradient, noise, record, values, wide};

fn tensor(numbers: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(numbers, shape, &Device::Cpu).unwrap()
}

fn variable(tensor: &Tensor) -> Tensor {
    Var::from_tensor(tensor).unwrap().into_inner()
}

fn norm(weight: Weight, bias: Weight, mean: &Tensor, var: &Tensor) -> BatchNorm {
    let copy = |t: &Tensor| t.copy().unwrap();
    let (running_mean, running_var) = (copy(mean), copy(var));
    BatchNorm { weight, bias, running_mean, running_var, eps: 1e-5, momentum: 0.1 }
}

/// Checks `output.y` and the gradients of the inputs and of these weights.
fn check(golden: &Golden, y: &Tensor, x: &Tensor, weights: &[(&str, &Weight)]) {
    golden.check("output.y", y);
    let loss = golden.loss(&[("y", y)]);
    let weights: Weights =
        weights.iter().map(|(name, weight)| ((*name).into(), (*weight).clone())).collect();
    golden.check_gradients(&loss, &weights, &[("x", x)]);
}

#[test]
fn convolutions_reproduce_the_reference() {
    type Named = (&'static str, &'static [usize], &'static [usize], &'static [usize], usize);
    let cases: [Named; 11] = [
        ("conv1d", &[1], &[0], &[1], 1),
        ("conv1d_stride", &[3], &[2], &[1], 1),
        ("conv1d_dilation", &[1], &[4], &[4], 1),
        ("conv1d_groups", &[1], &[1], &[1], 3),
        ("conv1d_depthwise", &[1], &[3], &[1], 6),
        ("conv2d", &[1, 1], &[0, 0], &[1, 1], 1),
        ("conv2d_stride", &[2, 3], &[1, 2], &[1, 1], 1),
        ("conv2d_dilation", &[1, 1], &[2, 3], &[2, 3], 1),
        ("conv2d_groups", &[1, 1], &[1, 1], &[1, 1], 2),
        ("conv2d_depthwise", &[2, 2], &[1, 1], &[1, 1], 5),
        ("conv2d_1x1", &[1, 1], &[0, 0], &[1, 1], 1),
    ];
    for (name, stride, padding, dilation, groups) in cases {
        let golden = Golden::open(&format!("nets_{name}"));
        let x = golden.variable("input.x");
        let [weight, bias] =
            ["weight", "bias"].map(|key| Weight::from(golden.variable(&format!("param.{key}"))));
        let kernel = Kernel::new(&weight.dims()[2..], stride, padding, dilation).unwrap();
        let y = convolution(&x, &weight, Some(&bias), kernel, groups).unwrap();
        check(&golden, &y, &x, &[("weight", &weight), ("bias", &bias)]);
    }
}

#[test]
fn transposed_convolutions_reproduce_the_reference() {
    type Named = (&'static str, &'static [usize], &'static [usize], &'static [usize]);
    let cases: [Named; 2] =
        [("transposed1d", &[2], &[1], &[0]), ("transposed2d", &[2, 3], &[1, 2], &[1, 0])];
    for (name, stride, padding, more) in cases {
        let golden = Golden::open(&format!("nets_{name}"));
        let x = golden.variable("input.x");
        let [weight, bias] =
            ["weight", "bias"].map(|key| Weight::from(golden.variable(&format!("param.{key}"))));
        let ones = vec![1; stride.len()];
        let kernel = Kernel::new(&weight.dims()[2..], stride, padding, &ones).unwrap();
        let y = transposed_convolution(&x, &weight, Some(&bias), kernel, more, 1).unwrap();
        check(&golden, &y, &x, &[("weight", &weight), ("bias", &bias)]);
    }
}

#[test]
fn pooling_reproduces_the_reference() {
    let mean = |counted| Pooling::Mean { counted };
    let cases = [
        ("max_pool1d", Pooling::Max, 4, 3),
        ("max_pool2d", Pooling::Max, 3, 2),
        ("avg_pool1d", mean(true), 4, 3),
        ("avg_pool2d", mean(true), 3, 2),
        ("avg_pool2d_uncounted", mean(false), 3, 2),
    ];
    for (name, kind, size, stride) in cases {
        let golden = Golden::open(&format!("nets_{name}"));
        let x = golden.variable("input.x");
        let axes = x.rank() - 2;
        let [size, stride, padding, one] = [size, stride, 1, 1].map(|n| vec![n; axes]);
        let kernel = Kernel::new(&size, &stride, &padding, &one).unwrap();
        check(&golden, &pooling(&x, kind, kernel).unwrap(), &x, &[]);
    }
}

#[test]
fn upsampling_reproduces_the_reference() {
    for (name, factors) in [("upsample1d", &[3][..]), ("upsample2d", &[2, 2])] {
        let golden = Golden::open(&format!("nets_{name}"));
        let x = golden.variable("input.x");
        check(&golden, &upsample(&x, factors).unwrap(), &x, &[]);
    }
}

#[test]
fn batch_norm_of_a_batch_reproduces_the_reference_and_moves_the_running_statistics() {
    for name in ["batch_norm", "batch_norm1d", "batch_norm2d"] {
        let golden = Golden::open(&format!("nets_{name}"));
        let x = golden.variable("input.x");
        let [weight, bias] =
            ["weight", "bias"].map(|key| Weight::from(golden.variable(&format!("param.{key}"))));
        let [mean, var] =
            ["running_mean", "running_var"].map(|key| golden.tensor(&format!("input.{key}")));
        let norm = norm(weight.clone(), bias.clone(), &mean, &var);
        let y = batch_norm(&x, &norm).unwrap();
        golden.check("output.running_mean", &norm.running_mean);
        golden.check("output.running_var", &norm.running_var);
        check(&golden, &y, &x, &[("weight", &weight), ("bias", &bias)]);
    }
}

#[test]
fn batch_norm_of_running_statistics_reproduces_the_reference() {
    for (name, groups) in [("batch_norm_fold1d", 1), ("batch_norm_fold2d", 2)] {
        let golden = Golden::open(&format!("nets_{name}"));
        let x = golden.variable("input.x");
        let names = ["conv.weight", "conv.bias", "norm.weight", "norm.bias"];
        let weights = names.map(|key| Weight::from(golden.variable(&format!("param.{key}"))));
        let [w, b, scale, shift] = &weights;
        let [mean, var] =
            ["running_mean", "running_var"].map(|key| golden.tensor(&format!("input.{key}")));
        let axes = x.rank() - 2;
        let [size, one] = [3, 1].map(|n| vec![n; axes]);
        let kernel = Kernel::new(&size, &one, &one, &one).unwrap();
        let h = convolution(&x, w, Some(b), kernel, groups).unwrap();
        golden.check("output.conv", &h);
        let norm = norm(scale.clone(), shift.clone(), &mean, &var);
        let y = batch_norm_of(&h, &norm).unwrap();
        assert_eq!(values(&norm.running_mean), values(&mean));
        let weights: Vec<_> = names.into_iter().zip(&weights).collect();
        check(&golden, &y, &x, &weights);
    }
}

/// Sizes of a layer on planes.
#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    groups: usize,
    /// Channels and filters of a group.
    widths: [usize; 2],
    input: Vec<usize>,
    size: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
}

impl Case {
    fn kernel(&self) -> Kernel {
        Kernel::new(&self.size, &self.stride, &self.padding, &self.dilation).unwrap()
    }

    fn x(&self) -> Tensor {
        let lead = [self.batch, self.groups * self.widths[0]];
        noise(&[&lead[..], &self.input].concat(), 1)
    }

    fn weight(&self) -> Tensor {
        let lead = [self.groups * self.widths[1], self.widths[0]];
        noise(&[&lead[..], &self.size].concat(), 2)
    }

    fn bias(&self) -> Tensor {
        noise(&[self.groups * self.widths[1]], 3)
    }

    /// Both axes of a list; `first` is the missing one.
    fn both(list: &[usize], first: usize) -> [usize; 2] {
        if list.len() == 1 { [first, list[0]] } else { [list[0], list[1]] }
    }

    fn output(&self) -> [usize; 2] {
        self.kernel().output(Self::both(&self.input, 1)).unwrap()
    }

    /// Calls `each(output, input, tap)` with the indices in their planes of all that each position covers; `None` for
    /// padding.
    fn walk(&self, mut each: impl FnMut(usize, Option<usize>, usize)) {
        let ([h, w], [rows, columns]) = (Self::both(&self.input, 1), self.output());
        let (size, stride) = (Self::both(&self.size, 1), Self::both(&self.stride, 1));
        let (padding, dilation) = (Self::both(&self.padding, 0), Self::both(&self.dilation, 1));
        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            for (a, b) in (0..size[0]).flat_map(|a| (0..size[1]).map(move |b| (a, b))) {
                let row = (i * stride[0] + a * dilation[0]).checked_sub(padding[0]);
                let column = (j * stride[1] + b * dilation[1]).checked_sub(padding[1]);
                let inside = row.zip(column).filter(|&(row, column)| row < h && column < w);
                let from = inside.map(|(row, column)| row * w + column);
                each(i * columns + j, from, a * size[1] + b);
            }
        }
    }

    /// Outputs, and the gradients of input, weight and bias for the output gradient `dy`, by plain loops in f64.
    fn slow(&self, dy: impl Fn(usize) -> f64) -> [Vec<f64>; 4] {
        let [x, w, b] = [self.x(), self.weight(), self.bias()]
            .map(|t| values(&t).into_iter().map(f64::from).collect::<Vec<_>>());
        let ([inputs, filters], n) = (self.widths, self.output().iter().product::<usize>());
        let (plane, taps) =
            (self.input.iter().product::<usize>(), self.size.iter().product::<usize>());
        let mut y = vec![0.0; self.batch * b.len() * n];
        let (mut dx, mut dw, mut db) = (vec![0.0; x.len()], vec![0.0; w.len()], vec![0.0; b.len()]);
        for (item, f) in (0..self.batch).flat_map(|i| (0..b.len()).map(move |f| (i, f))) {
            let out = (item * b.len() + f) * n;
            for i in 0..n {
                y[out + i] = b[f];
                db[f] += dy(out + i);
            }
            for c in 0..inputs {
                let channel = item * self.groups * inputs + f / filters * inputs + c;
                self.walk(|to, from, tap| {
                    let Some(from) = from.map(|from| channel * plane + from) else { return };
                    let tap = (f * inputs + c) * taps + tap;
                    y[out + to] += w[tap] * x[from];
                    dw[tap] += dy(out + to) * x[from];
                    dx[from] += dy(out + to) * w[tap];
                });
            }
        }
        [y, dx, dw, db]
    }

    /// The results of [`slow`](Self::slow), computed by the op.
    fn fast(&self, dy: &dyn Fn(&Tensor) -> Tensor) -> [Tensor; 4] {
        record();
        let [x, w, b] = [self.x(), self.weight(), self.bias()].map(|t| Weight::from(variable(&t)));
        let y = convolution(&x, &w, Some(&b), self.kernel(), self.groups).unwrap();
        let gradients = backward(&(&y * dy(&y)).unwrap().sum_all().unwrap());
        let [dx, dw, db] = [&x, &w, &b].map(|t| gradient("an input", t, &gradients));
        [y.detach(), dx, dw, db]
    }
}

/// A transposed convolution of a [`Case`], with `more` positions at the end of each axis.
struct Transposed {
    case: Case,
    more: Vec<usize>,
}

impl Transposed {
    fn weight(&self) -> Tensor {
        let Case { groups, widths: [c, f], size, .. } = &self.case;
        noise(&[&[groups * c, *f][..], size].concat(), 2)
    }

    fn output(&self) -> Option<[usize; 2]> {
        self.case.kernel().transposed(Case::both(&self.case.input, 1), &self.more).ok()
    }

    /// Outputs, and the gradients of input, weight and bias for the output gradient `dy`, by plain loops in f64.
    fn slow(&self, dy: &[f32]) -> [Vec<f64>; 4] {
        let case = &self.case;
        let [x, w, b] = [case.x(), self.weight(), case.bias()]
            .map(|t| values(&t).into_iter().map(f64::from).collect::<Vec<_>>());
        let [rows, columns] = self.output().unwrap();
        let ([h, wide], [kh, kw]) = (Case::both(&case.input, 1), Case::both(&case.size, 1));
        let (stride, dilation) = (Case::both(&case.stride, 1), Case::both(&case.dilation, 1));
        let ([channels, filters], padding) = (case.widths, Case::both(&case.padding, 0));
        let n = rows * columns;
        let mut y: Vec<f64> = (0..case.batch * b.len() * n).map(|i| b[i / n % b.len()]).collect();
        let (mut dx, mut dw, mut db) = (vec![0.0; x.len()], vec![0.0; w.len()], vec![0.0; b.len()]);
        dy.iter().enumerate().for_each(|(i, d)| db[i / n % b.len()] += f64::from(*d));
        for from in 0..x.len() {
            let (channel, place) = (from / (h * wide), from % (h * wide));
            let (item, channel) =
                (channel / (case.groups * channels), channel % (case.groups * channels));
            for (f, tap) in (0..filters).flat_map(|f| (0..kh * kw).map(move |tap| (f, tap))) {
                let at = |axis: usize, i: usize, k: usize| {
                    (i * stride[axis] + k * dilation[axis]).checked_sub(padding[axis])
                };
                let (row, column) = (at(0, place / wide, tap / kw), at(1, place % wide, tap % kw));
                let inside =
                    row.zip(column).filter(|(row, column)| *row < rows && *column < columns);
                let Some((row, column)) = inside else { continue };
                let filter = channel / channels * filters + f;
                let to = (item * b.len() + filter) * n + row * columns + column;
                let weight = (channel * filters + f) * kh * kw + tap;
                y[to] += x[from] * w[weight];
                dw[weight] += x[from] * f64::from(dy[to]);
                dx[from] += w[weight] * f64::from(dy[to]);
            }
        }
        [y, dx, dw, db]
    }

    fn compare(&self) {
        record();
        let case = &self.case;
        let [x, w, b] = [case.x(), self.weight(), case.bias()].map(|t| Weight::from(variable(&t)));
        let op = |bias| {
            transposed_convolution(&x, &w, bias, case.kernel(), &self.more, case.groups).unwrap()
        };
        let y = op(Some(&b));
        let dy = noise(y.dims(), 4);
        let gradients = backward(&(&y * &dy).unwrap().sum_all().unwrap());
        let [dx, dw, db] = [&x, &w, &b].map(|t| gradient("an input", t, &gradients));
        let want = self.slow(&values(&dy));
        for ((name, got), want) in
            ["y", "dx", "dw", "db"].iter().zip([&y, &dx, &dw, &db]).zip(&want)
        {
            near(name, got, want);
        }
        let bias = b.reshape([[1, b.elem_count()], [1, 1]].concat()).unwrap();
        let bias = if case.input.len() == 1 { bias.squeeze(3).unwrap() } else { bias };
        let without = values(&op(None).broadcast_add(&bias).unwrap());
        near("y without a bias", &tensor(&without, y.dims()), &want[0]);
    }
}

fn axes(rank: usize) -> impl Strategy<Value = [Vec<usize>; 5]> {
    let list = |range: std::ops::Range<usize>| proptest::collection::vec(range, rank);
    let size = list(1..5);
    (size, list(1..4), list(0..4), list(1..3), list(0..9)).prop_map(|(size, s, p, d, more)| {
        // The input is large enough for the kernel.
        let least =
            size.iter().zip(&d).zip(&p).map(|((k, d), p)| ((k - 1) * d + 1).saturating_sub(2 * p));
        let input = least.zip(&more).map(|(least, more)| least.max(1) + more).collect();
        [size, s, p, d, input]
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let lists = prop_oneof![axes(1), axes(2)];
    (lists, 1..12usize, 1..4usize, 1..6usize, 1..6usize).prop_map(|(lists, batch, groups, c, f)| {
        let [size, stride, padding, dilation, input] = lists;
        Case { batch, groups, widths: [c, f], input, size, stride, padding, dilation }
    })
}

fn near(name: &str, got: &Tensor, want: &[f64]) {
    let scale = want.iter().fold(1.0f64, |most, v| most.max(v.abs()));
    let got = values(got);
    assert_eq!(got.len(), want.len(), "{name}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(*got) - want).abs();
        assert!(off <= 2e-5 * scale, "{name} {i}: {got} instead of {want}");
    }
}

fn compare(case: &Case) {
    let dy = |y: &Tensor| noise(y.dims(), 4);
    let got = case.fast(&dy);
    let dy = values(&dy(&got[0]));
    let want = case.slow(|i| f64::from(dy[i]));
    for ((name, got), want) in ["y", "dx", "dw", "db"].iter().zip(&got).zip(&want) {
        near(name, got, want);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn convolutions_equal_plain_loops(case in cases()) {
        compare(&case);
    }

    #[test]
    fn transposed_convolutions_equal_plain_loops(
        case in cases(), more in proptest::collection::vec(0..3usize, 2),
    ) {
        let more = more.iter().zip(&case.stride).map(|(more, stride)| more % stride).collect();
        let transposed = Transposed { case, more };
        if transposed.output().is_some() {
            transposed.compare();
        }
    }

    #[test]
    fn pooling_equals_plain_loops(case in cases()) {
        let half = case.size.iter().zip(&case.padding).map(|(size, p)| *p.min(&(size / 2)));
        let padding: Vec<usize> = half.collect();
        let input = case.input.iter().zip(&case.size).map(|(n, size)| *n.max(size)).collect();
        let dilation = vec![1; padding.len()];
        let case = Case { padding, input, dilation, ..case };
        for kind in [Pooling::Max, Pooling::Mean { counted: true }, Pooling::Mean { counted: false }] {
            pooled(&case, kind);
        }
    }
}

/// Compares pooling with plain loops.
fn pooled(case: &Case, kind: Pooling) {
    record();
    let x = variable(&case.x());
    let y = pooling(&x, kind, case.kernel()).unwrap();
    let dy = noise(y.dims(), 4);
    let gradients = backward(&(&y * &dy).unwrap().sum_all().unwrap());
    let (plane, n) = (case.input.iter().product(), case.output().iter().product());
    let (numbers, dy) = (values(&x), values(&dy));
    let (mut want, mut dx) = (vec![], vec![0.0; numbers.len()]);
    for (p, x) in numbers.chunks(plane).enumerate() {
        let mut windows: Vec<Vec<usize>> = vec![vec![]; n];
        case.walk(|to, from, _| windows[to].extend(from));
        for (to, window) in windows.iter().enumerate() {
            let d = f64::from(dy[p * n + to]);
            match kind {
                Pooling::Max => {
                    let most = window.iter().max_by(|a, b| x[**a].total_cmp(&x[**b])).unwrap();
                    want.push(f64::from(x[*most]));
                    dx[p * plane + most] += d;
                }
                Pooling::Mean { counted } => {
                    let all = if counted { case.size.iter().product() } else { window.len() };
                    let total: f64 = window.iter().map(|from| f64::from(x[*from])).sum();
                    want.push(total / all as f64);
                    window.iter().for_each(|from| dx[p * plane + from] += d / all as f64);
                }
            }
        }
    }
    near("y", &y, &want);
    near("dx", gradients.get(&x).unwrap(), &dx);
    // Without a backward pass another loop computes the maxima.
    assert_eq!(values(&pooling(&x.detach(), kind, case.kernel()).unwrap()), values(&y));
}

/// A layer of 36 inputs at each of `n` positions.
fn layer(batch: usize, n: usize, kernel: usize) -> Case {
    let [one, none] = [1, 0].map(|n| vec![n]);
    Case {
        batch,
        groups: 1,
        widths: [36, 5],
        input: vec![n + kernel - 1],
        size: vec![kernel],
        stride: one.clone(),
        padding: none,
        dilation: one,
    }
}

/// Matrices of more than 65,536 values: pieces of one item, pieces of several items, and pointwise kernels.
#[test]
fn convolutions_in_several_pieces_equal_plain_loops() {
    let image = Case {
        input: vec![40, 61],
        size: vec![3, 3],
        stride: vec![1, 1],
        padding: vec![1, 1],
        dilation: vec![1, 1],
        ..layer(2, 1, 1)
    };
    for case in [layer(2, 1500, 3), layer(24, 300, 3), layer(3, 700, 1), image] {
        compare(&case);
    }
}

#[test]
fn one_and_two_threads_give_the_same_bits() {
    let depthwise = Case { groups: 36, widths: [1, 2], ..layer(9, 100, 5) };
    for case in [layer(9, 100, 3), depthwise] {
        let run = |threads| {
            pool::set_threads(threads).unwrap();
            let got = case.fast(&|y| noise(y.dims(), 4));
            record();
            let x = variable(&case.x());
            let channels = x.dims()[1];
            let [scale, shift] =
                [5, 6].map(|seed| Weight::from(variable(&noise(&[channels], seed))));
            let norm = norm(scale.clone(), shift, &noise(&[channels], 7), &noise(&[channels], 8));
            let kernel = Kernel::new(&[3], &[2], &[1], &[1]).unwrap();
            let y = batch_norm(&x, &norm).unwrap();
            let y = pooling(&y, Pooling::Max, kernel).unwrap();
            let y = upsample(&y, &[2]).unwrap();
            let y = pooling(&y, Pooling::Mean { counted: false }, kernel).unwrap();
            let gradients = backward(&(&y * noise(y.dims(), 4)).unwrap().sum_all().unwrap());
            let dx = gradients.get(&x).unwrap();
            let all = got.iter().chain([&y, dx, &norm.running_var]).map(values);
            all.chain([values(&gradient("scale", &scale, &gradients))]).collect::<Vec<_>>()
        };
        let (one, two) = (run(1), run(2));
        pool::set_threads(pool::available()).unwrap();
        assert_eq!(one, two);
    }
}

#[test]
fn gradients_are_finite_differences() {
    let inputs = vec![noise(&[3, 4, 7, 6], 1), noise(&[6, 2, 3, 2], 2), noise(&[6], 3)];
    let kernel = Kernel::new(&[3, 2], &[2, 1], &[1, 1], &[1, 2]).unwrap();
    differences(inputs, |t| convolution(&t[0], &t[1], Some(&t[2]), kernel, 2).unwrap());
    let inputs = vec![noise(&[3, 4, 3, 2], 1), noise(&[4, 3, 3, 2], 2), noise(&[6], 3)];
    let wide = Kernel::new(&[3, 2], &[2, 3], &[1, 0], &[1, 2]).unwrap();
    differences(inputs, |t| {
        transposed_convolution(&t[0], &t[1], Some(&t[2]), wide, &[1, 2], 2).unwrap()
    });
    let inputs = vec![noise(&[3, 4, 5], 1), noise(&[4, 1, 3], 2)];
    let wide = Kernel::new(&[3], &[2], &[1], &[1]).unwrap();
    differences(inputs, |t| transposed_convolution(&t[0], &t[1], None, wide, &[0], 4).unwrap());
    let inputs = vec![noise(&[3, 4, 9], 1), noise(&[8, 1, 3], 2)];
    let kernel = Kernel::new(&[3], &[2], &[1], &[1]).unwrap();
    differences(inputs, |t| convolution(&t[0], &t[1], None, kernel, 4).unwrap());
    let inputs = || vec![noise(&[5, 3, 4], 1), noise(&[3], 2), noise(&[3], 3)];
    let running = [noise(&[3], 4), noise(&[3], 5).abs().unwrap()];
    let norm = |t: &[Weight]| norm(t[1].clone(), t[2].clone(), &running[0], &running[1]);
    differences(inputs(), |t| batch_norm(&t[0], &norm(t)).unwrap());
    differences(inputs(), |t| batch_norm_of(&t[0], &norm(t)).unwrap());
    let pooled = [Pooling::Max, Pooling::Mean { counted: true }];
    for kind in pooled {
        differences(vec![noise(&[2, 3, 6], 1)], |t| pooling(&t[0], kind, kernel).unwrap());
        differences(vec![noise(&[2, 3, 4, 3], 1)], |t| global_pooling(&t[0], kind).unwrap());
    }
    differences(vec![noise(&[2, 3, 3, 2], 1)], |t| upsample(&t[0], &[2, 3]).unwrap());
}

#[test]
fn a_layer_without_bias_or_gradient_has_the_values_of_one_with_a_bias_of_zero() {
    let case = layer(3, 20, 3);
    let (x, w) = (case.x(), Weight::from(case.weight()));
    let zero = Weight::from(case.bias().zeros_like().unwrap());
    let [plain, biased] = [None, Some(&zero)]
        .map(|bias| values(&convolution(&x, &w, bias, case.kernel(), 1).unwrap()));
    assert_eq!(plain, biased);
}

#[test]
fn not_a_number_stays_in_a_maximum() {
    let x = tensor(&[1.0, f32::NAN, 3.0, 0.5], &[1, 1, 4]);
    let kernel = Kernel::new(&[2], &[2], &[0], &[1]).unwrap();
    let y = values(&pooling(&x, Pooling::Max, kernel).unwrap());
    assert!(y[0].is_nan() && y[1] == 3.0, "{y:?}");
}

#[test]
fn wrong_shapes_are_named() {
    let (x, kernel) = (noise(&[2, 4, 9], 1), Kernel::plain(&[3]).unwrap());
    let text = |x: &Tensor, shape: &[usize], kernel: Kernel, groups: usize| {
        let weight = Weight::from(noise(shape, 2));
        convolution(x, &weight, None, kernel, groups).unwrap_err().to_string()
    };
    let expected = [
        (
            text(&noise(&[4, 9], 1), &[6, 4, 3], kernel, 1),
            "input of a convolution: expected [b, c, t], got [4, 9]",
        ),
        (
            text(&x, &[6, 3, 3], kernel, 1),
            "weight of a convolution: expected [6, 4, 3], got [6, 3, 3]",
        ),
        (
            text(&x, &[6, 4, 3], kernel, 3),
            "groups of a convolution: expected divisors of the channels and the filters, got 3 of 4 channels and 6 filters",
        ),
        (
            text(&x, &[6, 4, 10], Kernel::plain(&[10]).unwrap(), 1),
            "kernel on its padded input: expected at most 9, got a kernel of 10",
        ),
        (
            text(&x, &[6, 4, 3], kernel, 0),
            "groups of a convolution: expected divisors of the channels and the filters, got 0 of 4 channels and 6 filters",
        ),
    ];
    for (got, want) in expected {
        assert_eq!(got, want);
    }
    let transposed = |shape: &[usize], kernel: Kernel, more: &[usize], groups: usize| {
        let weight = Weight::from(noise(shape, 2));
        transposed_convolution(&x, &weight, None, kernel, more, groups).unwrap_err().to_string()
    };
    let cut = Kernel::new(&[3], &[1], &[6], &[1]).unwrap();
    for (got, want) in [
        (
            transposed(&[3, 6, 3], kernel, &[0], 1),
            "weight of a transposed convolution: expected [4, 6, 3], got [3, 6, 3]",
        ),
        (
            transposed(&[4, 6, 3], kernel, &[0], 3),
            "groups of a transposed convolution: expected divisors of the channels, got 3 of 4 channels and 6 filters each",
        ),
        (transposed(&[4, 6, 3], kernel, &[1], 1), "output padding: 1 is outside 0..0"),
        (
            transposed(&[4, 6, 3], kernel, &[0, 0], 1),
            "axes of the output padding: expected 1, got 2",
        ),
        (
            transposed(&[4, 6, 3], cut, &[0], 1),
            "padding of an output: expected less than all, got 12 of 11",
        ),
    ] {
        assert_eq!(got, want);
    }
    let padded = Kernel::new(&[3], &[1], &[2], &[1]).unwrap();
    let error = pooling(&x, Pooling::Max, padded).unwrap_err().to_string();
    assert_eq!(error, "padding of pooling: expected at most 1, half of the kernel, got 2");
    let dilated = Kernel::new(&[3], &[1], &[1], &[2]).unwrap();
    assert!(pooling(&x, Pooling::Max, dilated).is_err());
    assert!(upsample(&x, &[2, 2]).is_err() && upsample(&x, &[0]).is_err());
    assert!(upsample(&x, &[usize::MAX]).is_err());
    let one = noise(&[4], 3);
    let norm = norm(one.clone().into(), one.clone().into(), &one, &one);
    let error = batch_norm(&noise(&[1, 4], 1), &norm).unwrap_err().to_string();
    assert_eq!(error, "values of a channel in a batch: expected at least 2, got 1");
    assert!(batch_norm(&noise(&[2, 3], 1), &norm).is_err());
}

#[test]
fn tensors_that_are_not_f32_on_a_cpu_are_refused_by_name() {
    let (x, kernel) = (wide(&noise(&[2, 4, 9], 1)), Kernel::plain(&[3]).unwrap());
    let weight = Weight::from(noise(&[6, 4, 3], 2));
    let one = noise(&[4], 3);
    let norm = norm(one.clone().into(), one.clone().into(), &one, &one);
    let refused = [
        ("a convolution", convolution(&x, &weight, None, kernel, 1)),
        (
            "a transposed convolution",
            transposed_convolution(&x, &Weight::from(noise(&[4, 6, 3], 2)), None, kernel, &[0], 1),
        ),
        ("pooling", pooling(&x, Pooling::Max, kernel)),
        ("global pooling", global_pooling(&x, Pooling::Max)),
        ("upsampling", upsample(&x, &[2])),
        ("batch normalisation", batch_norm(&x, &norm)),
        ("batch normalisation", batch_norm_of(&x, &norm)),
    ];
    for (name, got) in refused {
        let error = got.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert_eq!(error.to_string(), format!("{name}: it runs on CPUs in f32 only"));
    }
}
