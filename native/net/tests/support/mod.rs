//! A slow network in f64, written from the definitions of the layers.
#![allow(dead_code)] // each test binary uses a part

use sconce_net::{Function, Layer, Net, NetSpec};

/// Values of a shape, channels first.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

impl Value {
    fn channels(&self) -> usize {
        self.shape[0]
    }

    /// Height and width; the height of a signal is 1.
    fn area(&self) -> [usize; 2] {
        match self.shape[1..] {
            [h, w] => [h, w],
            [t] => [1, t],
            _ => [1, 1],
        }
    }

    fn at(&self, c: usize, y: usize, x: usize) -> f64 {
        let [h, w] = self.area();
        self.values[(c * h + y) * w + x]
    }
}

/// The list of a layer as height and width.
fn two(list: &[usize], missing: usize) -> [usize; 2] {
    match *list {
        [h, w] => [h, w],
        [t] => [missing, t],
        _ => panic!("an axis too many"),
    }
}

fn apply(function: Function, x: f64) -> f64 {
    match function {
        Function::None => x,
        Function::Relu => x.max(0.0),
        Function::Relu6 => x.clamp(0.0, 6.0),
        Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Function::Tanh => x.tanh(),
        Function::Silu => x / (1.0 + (-x).exp()),
        Function::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Function::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
    }
}

/// Runs a network on its inputs.
pub(crate) fn run(net: &Net, inputs: &[Vec<f32>]) -> Vec<f64> {
    let spec: &NetSpec = net.spec();
    let value = |i: usize| Value {
        shape: spec.inputs[i].shape.clone(),
        values: inputs[i].iter().map(|v| f64::from(*v)).collect(),
    };
    let reference = Reference { net };
    let Some(Layer::Inputs { branches }) = spec.layers.first() else {
        return reference.list("layers", 0, &spec.layers, value(0)).values;
    };
    let outputs = branches.iter().enumerate().map(|(i, (name, layers))| {
        let input = spec.inputs.iter().position(|input| input.name == *name).unwrap();
        reference.list(&format!("layers.0.branches.{i}"), 0, layers, value(input))
    });
    let x = concatenate(outputs.collect());
    reference.list("layers", 1, &spec.layers[1..], x).values
}

fn concatenate(values: Vec<Value>) -> Value {
    let mut shape = values[0].shape.clone();
    shape[0] = values.iter().map(|value| value.shape[0]).sum();
    Value { shape, values: values.into_iter().flat_map(|value| value.values).collect() }
}

struct Reference<'a> {
    net: &'a Net,
}

impl Reference<'_> {
    fn list(&self, prefix: &str, first: usize, layers: &[Layer], x: Value) -> Value {
        let indexed = layers.iter().enumerate();
        indexed.fold(x, |x, (i, layer)| self.layer(&format!("{prefix}.{}", first + i), layer, x))
    }

    fn weight(&self, name: &str) -> Vec<f64> {
        self.net.weight(name).unwrap().iter().map(|v| f64::from(*v)).collect()
    }

    /// A bias, or zeros.
    fn bias(&self, name: &str, has: bool, n: usize) -> Vec<f64> {
        if has { self.weight(&format!("{name}.bias")) } else { vec![0.0; n] }
    }

    fn layer(&self, name: &str, layer: &Layer, x: Value) -> Value {
        match layer {
            Layer::Conv { .. } => self.conv(name, layer, &x),
            Layer::ConvTranspose { .. } => self.conv_transpose(name, layer, &x),
            Layer::BatchNorm { epsilon, activation, .. } => {
                let [g, b, mean, var] = ["weight", "bias", "running_mean", "running_var"]
                    .map(|field| self.weight(&format!("{name}.{field}")));
                let each = x.values.len() / x.channels();
                let norm = |(i, v): (usize, &f64)| {
                    let c = i / each;
                    let v = (v - mean[c]) / (var[c] + f64::from(*epsilon)).sqrt() * g[c] + b[c];
                    apply(*activation, v)
                };
                let values = x.values.iter().enumerate().map(norm).collect();
                Value { values, ..x }
            }
            Layer::Activation { function } => map(x, *function),
            Layer::MaxPool { kernel, stride, padding } => {
                let largest = |seen: &[f64], _| seen.iter().copied().fold(f64::MIN, f64::max);
                pool(&x, [kernel, stride, padding], largest)
            }
            Layer::MeanPool { kernel, stride, padding, count_padding } => {
                let mean = |seen: &[f64], all: usize| {
                    let n = if *count_padding { all } else { seen.len() };
                    seen.iter().sum::<f64>() / n as f64
                };
                pool(&x, [kernel, stride, padding], mean)
            }
            Layer::GlobalMean | Layer::GlobalMax => {
                let each = x.values.len() / x.channels();
                let one = |values: &[f64]| match layer {
                    Layer::GlobalMean => values.iter().sum::<f64>() / each as f64,
                    _ => values.iter().copied().fold(f64::MIN, f64::max),
                };
                let values = x.values.chunks(each).map(one).collect();
                Value { shape: vec![x.channels()], values }
            }
            Layer::Upsample { factor } => upsample(&x, factor),
            Layer::Flatten => Value { shape: vec![x.values.len()], ..x },
            Layer::Dense { size, bias, activation } => {
                let (w, b) =
                    (self.weight(&format!("{name}.weight")), self.bias(name, *bias, *size));
                map(linear(&w, &b, &x.values), *activation)
            }
            Layer::Embed { size } => {
                let table = self.weight(&format!("{name}.weight"));
                let t = x.values.len();
                let at = |i: usize| table[x.values[i % t] as usize * size + i / t];
                Value { shape: vec![*size, t], values: (0..size * t).map(at).collect() }
            }
            Layer::Attention { heads } => self.attention(name, *heads, &x),
            Layer::Gru { size, sequence } => self.recurrent(name, (3, *size, *sequence), &x),
            Layer::Lstm { size, sequence } => self.recurrent(name, (4, *size, *sequence), &x),
            Layer::Residual { layers } => {
                let y = self.list(&format!("{name}.layers"), 0, layers, x.clone());
                let values = x.values.iter().zip(&y.values).map(|(x, y)| x + y).collect();
                Value { values, ..x }
            }
            Layer::Concat { branches } => {
                let branch = |(i, layers): (usize, &Vec<Layer>)| {
                    self.list(&format!("{name}.branches.{i}"), 0, layers, x.clone())
                };
                concatenate(branches.iter().enumerate().map(branch).collect())
            }
            Layer::Inputs { .. } => panic!("not the first layer"),
        }
    }

    fn conv(&self, name: &str, layer: &Layer, x: &Value) -> Value {
        let Layer::Conv { filters, kernel, stride, padding, dilation, groups, bias, activation } =
            layer
        else {
            panic!("no convolution")
        };
        let (w, b) = (self.weight(&format!("{name}.weight")), self.bias(name, *bias, *filters));
        let [kh, kw] = two(kernel, 1);
        let ([sh, sw], [ph, pw], [dh, dw]) = (two(stride, 1), two(padding, 0), two(dilation, 1));
        let [h, wide] = x.area();
        let oh = (h + 2 * ph - dh * (kh - 1) - 1) / sh + 1;
        let ow = (wide + 2 * pw - dw * (kw - 1) - 1) / sw + 1;
        let inner = x.channels() / groups;
        let mut values = Vec::new();
        for o in 0..*filters {
            let first = o / (filters / groups) * inner;
            for (oy, ox) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
                let mut sum = b[o];
                for i in 0..inner {
                    for (ky, kx) in (0..kh).flat_map(|y| (0..kw).map(move |x| (y, x))) {
                        let (y, at) = (oy * sh + ky * dh, ox * sw + kx * dw);
                        if (ph..ph + h).contains(&y) && (pw..pw + wide).contains(&at) {
                            let weight = w[((o * inner + i) * kh + ky) * kw + kx];
                            sum += weight * x.at(first + i, y - ph, at - pw);
                        }
                    }
                }
                values.push(apply(*activation, sum));
            }
        }
        Value { shape: shape_like(x, *filters, [oh, ow]), values }
    }

    fn conv_transpose(&self, name: &str, layer: &Layer, x: &Value) -> Value {
        let Layer::ConvTranspose {
            filters,
            kernel,
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            bias,
            activation,
        } = layer
        else {
            panic!("no transposed convolution")
        };
        let (w, b) = (self.weight(&format!("{name}.weight")), self.bias(name, *bias, *filters));
        let [kh, kw] = two(kernel, 1);
        let ([sh, sw], [ph, pw], [dh, dw]) = (two(stride, 1), two(padding, 0), two(dilation, 1));
        let ([h, wide], [mh, mw]) = (x.area(), two(output_padding, 0));
        let oh = (h - 1) * sh + dh * (kh - 1) + 1 + mh - 2 * ph;
        let ow = (wide - 1) * sw + dw * (kw - 1) + 1 + mw - 2 * pw;
        let (inner, own) = (x.channels() / groups, filters / groups);
        let mut values: Vec<f64> = b.iter().flat_map(|b| vec![*b; oh * ow]).collect();
        for (c, f) in (0..x.channels()).flat_map(|c| (0..own).map(move |f| (c, f))) {
            let to = (c / inner * own + f) * oh * ow;
            for (y, at) in (0..h).flat_map(|y| (0..wide).map(move |x| (y, x))) {
                for (ky, kx) in (0..kh).flat_map(|y| (0..kw).map(move |x| (y, x))) {
                    let (oy, ox) = (y * sh + ky * dh, at * sw + kx * dw);
                    if (ph..ph + oh).contains(&oy) && (pw..pw + ow).contains(&ox) {
                        let weight = w[((c * own + f) * kh + ky) * kw + kx];
                        values[to + (oy - ph) * ow + ox - pw] += weight * x.at(c, y, at);
                    }
                }
            }
        }
        values.iter_mut().for_each(|v| *v = apply(*activation, *v));
        Value { shape: shape_like(x, *filters, [oh, ow]), values }
    }

    /// A GRU (three gates) or an LSTM (four).
    fn recurrent(
        &self,
        name: &str,
        (gates, size, sequence): (usize, usize, bool),
        x: &Value,
    ) -> Value {
        let [w_in, w, b_in, b] = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
            .map(|field| self.weight(&format!("{name}.{field}")));
        let (c, t) = (x.shape[0], x.shape[1]);
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let (mut h, mut cell) = (vec![0.0; size], vec![0.0; size]);
        let mut states = vec![];
        for at in 0..t {
            let column: Vec<f64> = (0..c).map(|i| x.values[i * t + at]).collect();
            let (own, past) = (linear(&w_in, &b_in, &column).values, linear(&w, &b, &h).values);
            for k in 0..size {
                let (own, past) =
                    (|gate: usize| own[gate * size + k], |gate: usize| past[gate * size + k]);
                let gate = |gate: usize| sigmoid(own(gate) + past(gate));
                if gates == 3 {
                    let new = (own(2) + gate(0) * past(2)).tanh();
                    h[k] = (1.0 - gate(1)) * new + gate(1) * h[k];
                } else {
                    cell[k] = gate(1) * cell[k] + gate(0) * (own(2) + past(2)).tanh();
                    h[k] = gate(3) * cell[k].tanh();
                }
            }
            states.push(h.clone());
        }
        match sequence {
            false => Value { shape: vec![size], values: h },
            true => {
                let values = (0..size).flat_map(|k| states.iter().map(move |h| h[k])).collect();
                Value { shape: vec![size, t], values }
            }
        }
    }

    fn attention(&self, name: &str, heads: usize, x: &Value) -> Value {
        let (c, t) = (x.shape[0], x.shape[1]);
        let [w_in, b_in, w_out, b_out] =
            ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
                .map(|field| self.weight(&format!("{name}.{field}")));
        let column = |s: usize| -> Vec<f64> { (0..c).map(|i| x.values[i * t + s]).collect() };
        let qkv: Vec<Vec<f64>> = (0..t).map(|s| linear(&w_in, &b_in, &column(s)).values).collect();
        let d = c / heads;
        let mut y = x.clone();
        for query in 0..t {
            let mut mixed = vec![0.0; c];
            for head in 0..heads {
                let part = |s: usize, which: usize, i: usize| qkv[s][which * c + head * d + i];
                let score = |s: usize| {
                    let dot: f64 = (0..d).map(|i| part(query, 0, i) * part(s, 1, i)).sum();
                    (dot / (d as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = (0..t).map(score).collect();
                let all: f64 = scores.iter().sum();
                for i in 0..d {
                    let value = (0..t).map(|s| scores[s] / all * part(s, 2, i)).sum();
                    mixed[head * d + i] = value;
                }
            }
            let out = linear(&w_out, &b_out, &mixed).values;
            (0..c).for_each(|i| y.values[i * t + query] += out[i]);
        }
        y
    }
}

fn map(x: Value, function: Function) -> Value {
    let values = x.values.iter().map(|v| apply(function, *v)).collect();
    Value { values, ..x }
}

fn linear(w: &[f64], b: &[f64], x: &[f64]) -> Value {
    let dot = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
    let values: Vec<f64> = w.chunks(x.len()).zip(b).map(|(row, b)| dot(row) + b).collect();
    Value { shape: vec![values.len()], values }
}

fn shape_like(x: &Value, channels: usize, [h, w]: [usize; 2]) -> Vec<usize> {
    if x.shape.len() == 3 { vec![channels, h, w] } else { vec![channels, w] }
}

/// `of` gets the values in a window that are no padding, and the size of the window.
fn pool(x: &Value, lists: [&[usize]; 3], of: impl Fn(&[f64], usize) -> f64) -> Value {
    let [kh, kw] = two(lists[0], 1);
    let ([sh, sw], [ph, pw]) = (two(lists[1], 1), two(lists[2], 0));
    let [h, w] = x.area();
    let (oh, ow) = ((h + 2 * ph - kh) / sh + 1, (w + 2 * pw - kw) / sw + 1);
    let mut values = Vec::new();
    for c in 0..x.channels() {
        for (oy, ox) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
            let rows = (oy * sh..oy * sh + kh).filter(|y| (ph..ph + h).contains(y));
            let columns = |y: usize| {
                let inside = (ox * sw..ox * sw + kw).filter(|at| (pw..pw + w).contains(at));
                inside.map(move |at| (y, at))
            };
            let seen: Vec<f64> =
                rows.flat_map(columns).map(|(y, at)| x.at(c, y - ph, at - pw)).collect();
            values.push(of(&seen, kh * kw));
        }
    }
    Value { shape: shape_like(x, x.channels(), [oh, ow]), values }
}

fn upsample(x: &Value, factor: &[usize]) -> Value {
    let [fh, fw] = two(factor, 1);
    let [h, w] = x.area();
    let mut values = Vec::new();
    for c in 0..x.channels() {
        for y in 0..h * fh {
            values.extend((0..w * fw).map(|at| x.at(c, y / fh, at / fw)));
        }
    }
    Value { shape: shape_like(x, x.channels(), [h * fh, w * fw]), values }
}

/// Numbers between -1 and 1.
pub(crate) fn noise(seed: u64, n: usize) -> Vec<f32> {
    let rng = sconce_tensor::rng::Rng::new(seed, "test", 0);
    (0..n as u64).map(|i| 2.0 * rng.uniform(i) - 1.0).collect()
}

/// Asserts that all values agree within `1e-5` of the largest.
pub(crate) fn assert_close(what: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= 1e-5 * scale + 1e-6, "{what} [{i}]: {got} is not {want}");
    }
}

/// The output of the packed form.
pub(crate) fn packed(net: &Net, inputs: &[Vec<f32>]) -> Vec<f32> {
    let mut packed = sconce_net::Packed::new(net, sconce_net::Storage::F32).unwrap();
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let run = |packed: &mut sconce_net::Packed| {
        let mut output = vec![f32::NAN; net.outline().output.iter().product()];
        packed.run(&inputs, &mut output).unwrap();
        output
    };
    let (first, again) = (run(&mut packed), run(&mut packed));
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&first), bits(&again), "the second run has other bits");
    first
}
