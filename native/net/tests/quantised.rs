//! Networks of 8 bits beside a plain reference, and beside their form in f32.

#[path = "../../train/tests/support/mod.rs"]
mod golden;
mod support;

use golden::Golden;
use sconce_net::{Function, Input, Layer, Net, NetSpec, Packed, Storage};
use support::noise;

fn spec(shape: &[usize], layers: Vec<Layer>) -> NetSpec {
    let input = Input { name: "x".into(), shape: shape.to_vec(), vocabulary: None };
    NetSpec { inputs: vec![input], layers }
}

fn run(net: &Net, storage: Storage, x: &[f32]) -> Vec<f32> {
    let mut packed = Packed::new(net, storage).unwrap();
    let mut y = vec![f32::NAN; net.outline().output.iter().product()];
    packed.run(&[x], &mut y).unwrap();
    let mut again = vec![f32::NAN; y.len()];
    packed.run(&[x], &mut again).unwrap();
    assert_eq!(y, again, "the second run has other numbers");
    y
}

/// Codes and their scale, by the definition.
fn codes(x: &[f32]) -> (Vec<i64>, f32) {
    let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = most / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    (x.iter().map(|x| (x * inverse).round_ties_even() as i64).collect(), scale)
}

fn weight_codes(w: &[f32]) -> (Vec<i64>, f32) {
    let most = w.iter().fold(0.0f32, |most, w| most.max(w.abs()));
    let scale = if most > 0.0 { most / 127.0 } else { 1.0 };
    (w.iter().map(|w| (w / scale).round_ties_even() as i64).collect(), scale)
}

/// A convolution of 8 bits, channels first.
struct Conv {
    /// Channels, height and width of the input.
    input: [usize; 3],
    filters: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Conv {
    fn layer(&self, activation: Function) -> Layer {
        let two = |n| vec![n; 2];
        Layer::Conv {
            filters: self.filters,
            kernel: two(self.kernel),
            stride: two(self.stride),
            padding: two(self.padding),
            dilation: two(self.dilation),
            groups: 1,
            bias: true,
            activation,
        }
    }

    fn side(&self, size: usize) -> usize {
        (size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) / self.stride + 1
    }

    fn reference(&self, weights: &[f32], bias: &[f32], x: &[f32]) -> Vec<f32> {
        let [channels, h, w] = self.input;
        let (x, scale) = codes(x);
        let each = channels * self.kernel * self.kernel;
        let mut all = vec![];
        for (own, bias) in weights.chunks(each).zip(bias) {
            let (own, own_scale) = weight_codes(own);
            for (oy, ox) in (0..self.side(h)).flat_map(|y| (0..self.side(w)).map(move |x| (y, x))) {
                let mut sum = 0;
                for (i, code) in own.iter().enumerate() {
                    let (c, tap) = (i / self.kernel.pow(2), i % self.kernel.pow(2));
                    let y = oy * self.stride + tap / self.kernel * self.dilation;
                    let at = ox * self.stride + tap % self.kernel * self.dilation;
                    let p = self.padding;
                    if (p..p + h).contains(&y) && (p..p + w).contains(&at) {
                        sum += code * x[(c * h + y - p) * w + at - p];
                    }
                }
                all.push((sum as f32 * (scale * own_scale) + bias).max(0.0));
            }
        }
        all
    }
}

#[test]
fn convolutions_have_the_integers_of_a_plain_reference() {
    let conv = |input, filters, kernel, stride, padding, dilation| Conv {
        input,
        filters,
        kernel,
        stride,
        padding,
        dilation,
    };
    let all = [
        conv([1, 7, 9], 5, 3, 1, 1, 1),
        conv([3, 11, 10], 17, 3, 2, 1, 1),
        conv([5, 9, 8], 40, 3, 1, 2, 2),
        conv([16, 6, 5], 70, 1, 1, 0, 1),
        conv([33, 4, 4], 64, 4, 1, 0, 1),
        conv([2, 5, 6], 8, 5, 1, 2, 1),
        conv([9, 1, 1], 20, 1, 1, 0, 1),
        conv([9, 1, 2], 50, 1, 1, 0, 1),
    ];
    for (i, conv) in all.iter().enumerate() {
        let net =
            Net::init(&spec(&conv.input, vec![conv.layer(Function::Relu)]), i as u64).unwrap();
        let x: Vec<f32> = noise(i as u64, conv.input.iter().product());
        let weight = |name| net.weight(name).unwrap();
        let want = conv.reference(weight("layers.0.weight"), weight("layers.0.bias"), &x);
        assert_eq!(run(&net, Storage::Int8, &x), want, "convolution {i}");
    }
}

#[test]
fn transposed_convolutions_of_8_bits_are_near_those_of_32() {
    for (kernel, stride, padding, more) in [(4, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 0), (5, 3, 0, 2)]
    {
        let two = |n| vec![n; 2];
        let layer = Layer::ConvTranspose {
            filters: 5,
            kernel: two(kernel),
            stride: two(stride),
            padding: two(padding),
            output_padding: two(more),
            dilation: two(1),
            groups: 1,
            bias: true,
            activation: Function::Relu,
        };
        let net = Net::init(&spec(&[12, 6, 7], vec![layer]), 1).unwrap();
        let x = noise(2, 12 * 42);
        let (wide, own) = (run(&net, Storage::F32, &x), run(&net, Storage::Int8, &x));
        let most = wide.iter().fold(0.0f32, |most, y| most.max(y.abs()));
        let off = wide.iter().zip(&own).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        assert!(off > 0.0 && off < 0.02 * most, "{off} of {most}");
    }
}

#[test]
fn dense_layers_have_the_codes_of_golden_data() {
    let golden = Golden::open("quant_int8_channel");
    let (weights, x) = (golden.f32("input.weight"), golden.f32("input.x"));
    let dense = Layer::Dense { size: 24, bias: false, activation: Function::None };
    let weight = ("layers.0.weight".to_owned(), weights, vec![24, 40]);
    let net = Net::from_weights(&spec(&[40], vec![dense]), [weight]).unwrap();
    let dequantised = golden.f32("output.dequantised");
    for x in x.chunks(40) {
        let (codes, scale) = codes(x);
        let got = run(&net, Storage::Int8, x);
        for (got, row) in got.iter().zip(dequantised.chunks(40)) {
            let sum: f64 = row.iter().zip(&codes).map(|(w, x)| f64::from(*w) * *x as f64).sum();
            let want = sum * f64::from(scale);
            assert!((f64::from(*got) - want).abs() <= 1e-5 * want.abs().max(0.01), "{got}, {want}");
        }
    }
}

#[test]
fn weights_of_8_bits_have_about_a_quarter_of_the_bytes() {
    let dense = Layer::Dense { size: 256, bias: true, activation: Function::Relu };
    let net = Net::init(&spec(&[512], vec![dense]), 1).unwrap();
    let bytes = |storage| Packed::new(&net, storage).unwrap().weight_bytes() as f64;
    let ratio = bytes(Storage::Int8) / bytes(Storage::F32);
    assert!((0.25..0.26).contains(&ratio), "{ratio}");
}

#[test]
fn zeros_and_numbers_beyond_f32_keep_their_meaning() {
    let dense = |activation| Layer::Dense { size: 3, bias: false, activation };
    let net = Net::init(&spec(&[4], vec![dense(Function::None)]), 1).unwrap();
    assert_eq!(run(&net, Storage::Int8, &[0.0; 4]), [0.0; 3]);
    let huge = [f32::MAX; 12];
    let given = |name: &str, n| (name.to_owned(), huge[..4 * n].to_vec(), vec![n, 4]);
    let net =
        Net::from_weights(&spec(&[4], vec![dense(Function::None)]), [given("layers.0.weight", 3)]);
    let mut packed = Packed::new(&net.unwrap(), Storage::Int8).unwrap();
    let error = packed.run(&[&[f32::MAX; 4]], &mut [0.0; 3]).unwrap_err().to_string();
    assert!(error.contains("not finite"), "{error}");
}
