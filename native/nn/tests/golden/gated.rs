//! Backbones over the gated linear recurrence against PyTorch's float64 vectors.

use candle_core::{Device, Tensor};
use sconce_nn::backbone::{self, Backbone, Context, GatedMlp, RecurrentBlock, State};
use sconce_nn::layer::Norm;
use sconce_nn::spec::{
    Backbone as Config, ExpandConfig, GriffinConfig, HawkConfig, StackConfig, StateConfig,
};
use sconce_ops::weights::Weights;
use sconce_ops::{self as ops, Activation, Wkv};

use crate::common::{Golden, apart, backward, differences, noise, record, values};

fn plain(hidden_size: usize, num_layers: usize) -> StackConfig {
    StackConfig { hidden_size, num_layers, input_norm: false, dropout: 0.0, input_dropout: 0.0 }
}

fn expand(hidden_size: usize, num_layers: usize, expand_factor: usize) -> ExpandConfig {
    let StackConfig { input_norm, dropout, input_dropout, .. } = plain(1, 1);
    ExpandConfig { hidden_size, num_layers, expand_factor, input_norm, dropout, input_dropout }
}

fn hawk(hidden_size: usize, num_layers: usize) -> Config {
    Config::Hawk(HawkConfig {
        hidden_size,
        num_layers,
        expand_factor: 3,
        conv_size: 4,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    })
}

fn griffin(hidden_size: usize, window_size: usize) -> Config {
    Config::Griffin(GriffinConfig {
        hidden_size,
        num_layers: 3,
        expand_factor: 3,
        conv_size: 4,
        attention_every: 3,
        num_heads: 2,
        window_size,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    })
}

fn s5(hidden_size: usize, num_layers: usize, state_size: usize) -> Config {
    let StackConfig { input_norm, dropout, input_dropout, .. } = plain(1, 1);
    Config::S5(StateConfig {
        hidden_size,
        num_layers,
        state_size,
        input_norm,
        dropout,
        input_dropout,
    })
}

/// A net and the parts of its initial state, by their golden names.
struct Case {
    golden: Golden,
    net: Box<dyn Backbone>,
    weights: Weights,
    first: Vec<(String, Tensor)>,
}

impl Case {
    fn open(golden: Golden, config: &Config) -> Self {
        let b = golden.builder();
        let net = backbone::new(config, golden.shape("input.x")[2], &b).unwrap();
        let parts = net.zero_state(1).unwrap().0.len();
        let part = |i| (format!("state.{i}"), golden.variable(&format!("input.state.{i}")));
        let first = (0..parts).map(part).collect();
        Case { net, weights: b.finish().unwrap(), golden, first }
    }

    fn check(&self) {
        let Case { golden, net, weights, first } = self;
        let x = golden.variable("input.x");
        let start = State(first.iter().map(|(_, value)| value.clone()).collect());
        let (y, end) = net.forward(&x, &start, &Context::default()).unwrap();
        golden.check("output.y", &y);
        let mut outputs = vec![("y", &y)];
        let mut inputs = vec![("x", &x)];
        for ((name, before), after) in first.iter().zip(&end.0) {
            golden.check(&format!("output.{name}"), after);
            // The number of frames that a cache has seen has no gradient.
            if golden.has(&format!("grad.input.{name}")) {
                outputs.push((name, after));
                inputs.push((name, before));
            }
        }
        golden.check_gradients(&golden.loss(&outputs), weights, &inputs);
        let mut now = start.detach();
        for t in 0..x.dim(1).unwrap() {
            let frame = x.narrow(1, t, 1).unwrap().squeeze(1).unwrap().detach();
            let (stepped, next) = net.step(&frame, &now, &Context::default()).unwrap();
            let want = y.narrow(1, t, 1).unwrap().squeeze(1).unwrap();
            assert!(apart(&stepped, &want) < 2e-5, "frame {t}");
            now = next;
        }
    }
}

fn stack(case: &str, config: &Config) {
    Golden::everywhere(case).for_each(|golden| Case::open(golden, config).check());
}

#[test]
fn stacks_agree_with_float64_over_60_frames_and_over_512_of_strong_decay() {
    stack("hawk_stack_w60", &hawk(16, 2));
    stack("hawk_stack_w512", &hawk(8, 1));
    stack("griffin_stack_w60", &griffin(16, 20));
    stack("griffin_stack_w512", &griffin(8, 7));
    stack("hgrn_stack_w60", &Config::Hgrn(expand(12, 2, 2)));
    stack("hgrn_stack_w512", &Config::Hgrn(expand(8, 2, 2)));
    stack("rwkv_stack_w60", &Config::Rwkv(expand(16, 2, 4)));
    stack("rwkv_stack_w512", &Config::Rwkv(expand(8, 1, 4)));
    stack("s5_stack_w60", &s5(16, 2, 12));
    stack("s5_stack_w512", &s5(8, 1, 24));
}

#[test]
fn stacks_of_min_cells_agree_with_float64() {
    record();
    for (case, config) in [
        ("min_gru_stack", Config::MinGru(plain(24, 2))),
        ("min_lstm_stack", Config::MinLstm(plain(24, 2))),
    ] {
        for golden in Golden::everywhere(case) {
            let b = golden.builder();
            let net = backbone::new(&config, 24, &b).unwrap();
            let weights = b.finish().unwrap();
            let [x, h0] = ["x", "h0"].map(|n| golden.variable(&format!("input.{n}")));
            let start = State((0..2).map(|i| h0.get(i).unwrap()).collect());
            let (y, end) = net.forward(&x, &start, &Context::default()).unwrap();
            let h = Tensor::stack(&end.0, 0).unwrap();
            golden.check("output.y", &y);
            golden.check("output.h_n", &h);
            golden.check_gradients(
                &golden.loss(&[("y", &y), ("h_n", &h)]),
                &weights,
                &[("x", &x), ("h0", &h0)],
            );
        }
    }
}

#[test]
fn a_block_of_griffin_agrees_with_float64() {
    record();
    for golden in Golden::everywhere("griffin_block") {
        let b = golden.builder();
        let block = RecurrentBlock::new(24, 40, 4, &b.under("mixer")).unwrap();
        let mlp = GatedMlp::new(24, 72, &b).unwrap();
        let [norm1, norm2] = ["norm1", "norm2"].map(|n| Norm::rms(24, &b.under(n)).unwrap());
        let weights = b.finish().unwrap();
        let [x, conv, h0] =
            ["x", "conv_state", "h0"].map(|n| golden.variable(&format!("input.{n}")));
        let (play, state) = (Context::default(), State(vec![conv.clone(), h0.clone()]));
        let (y, end) = block.forward(&norm1.forward(&x).unwrap(), &state, &play).unwrap();
        let middle = (&x + y).unwrap();
        let (y, _) = mlp.forward(&norm2.forward(&middle).unwrap(), &State(vec![]), &play).unwrap();
        let y = (middle + y).unwrap();
        let outputs = [("y", &y), ("conv_state", &end.0[0]), ("h", &end.0[1])];
        for (name, value) in outputs {
            golden.check(&format!("output.{name}"), value);
        }
        let inputs = [("x", &x), ("conv_state", &conv), ("h0", &h0)];
        golden.check_gradients(&golden.loss(&outputs), &weights, &inputs);
    }
}

#[test]
fn gradients_equal_finite_differences_even_with_lengths() {
    let n = |shape: &[usize], seed| (noise(shape, seed) * 0.7).unwrap();
    for lengths in [None, Some(std::sync::Arc::from([4usize, 0, 2]))] {
        let own: ops::lengths::Lengths = lengths.clone();
        let mut inputs = vec![n(&[3, 4, 5], 1), n(&[3, 4, 5], 2), n(&[5], 3), n(&[5], 4)];
        inputs.extend([n(&[3, 5], 5), n(&[3, 5], 6)]);
        differences(inputs, move |t| {
            let inputs = Wkv { k: &t[0], v: &t[1], w: &t[2], u: &t[3], mean: &t[4], weight: &t[5] };
            let [y, m, s] = ops::wkv(inputs, own.clone()).unwrap();
            Tensor::cat(&[y, m.unsqueeze(1).unwrap(), s.unsqueeze(1).unwrap()], 1).unwrap()
        });
        differences(vec![n(&[3, 4, 5], 1), n(&[3, 5], 2), n(&[2, 5], 3)], move |t| {
            Tensor::cat(&ops::token_shift(&t[0], &t[1], &t[2], lengths.clone()).unwrap(), 2)
                .unwrap()
        });
    }
    differences(vec![n(&[3, 5], 1), n(&[4, 5], 2), n(&[4], 3), n(&[2, 5], 4)], |t| {
        ops::project(&t[0], &[(&t[1], Some(&t[2])), (&t[3], None)]).unwrap()
    });
    differences(vec![n(&[3, 4, 5], 1), n(&[3, 5], 2)], |t| {
        ops::last(&t[0], &t[1], &Some([4, 0, 2].into())).unwrap()
    });
    differences(vec![n(&[3, 6], 1)], |t| ops::glu(&t[0], Activation::Gelu).unwrap());
    differences(vec![n(&[3, 5], 1), n(&[3, 5], 2), n(&[5], 3)], |t| {
        ops::skip(&t[0], &t[1], &t[2]).unwrap()
    });
    differences(vec![n(&[4, 5], 1)], |t| ops::lower_bound(&t[0], 2).unwrap());
}

#[test]
fn the_average_of_rwkv_is_stable_for_any_key() {
    let full = |v: f32| Tensor::full(v, (1, 3, 20), &Device::Cpu).unwrap();
    let part = |v: f32| Tensor::full(v, (1, 20), &Device::Cpu).unwrap();
    let v = noise(&[1, 3, 20], 1);
    let (most, w) = (
        values(&v.abs().unwrap().max_all().unwrap().reshape(1).unwrap())[0],
        part(0.0).get(0).unwrap(),
    );
    for k in [-1e30, -1e4, -100.0, 0.0, 100.0, 1e4, 1e30] {
        let inputs =
            Wkv { k: &full(k), v: &v, w: &w, u: &w, mean: &part(0.0), weight: &part(-1e30) };
        let [y, mean, _] = ops::wkv(inputs, None).unwrap();
        for y in values(&y).into_iter().chain(values(&mean)) {
            assert!(y.abs() <= most, "{y} at k = {k}");
        }
    }
}

#[test]
fn layers_side_by_side_equal_separate_layers() {
    let [x, w1, w2, b1] = [&[7, 9][..], &[5, 9], &[20, 9], &[5]].map(|s| noise(s, s[0] as u64));
    let [w1, w2, b1] = [w1, w2, b1].map(sconce_ops::weights::Weight::from);
    let both = ops::project(&x, &[(&w1, Some(&b1)), (&w2, None)]).unwrap();
    let one = ops::linear(&x, &w1, Some(&b1), Activation::None).unwrap();
    let two = ops::linear(&x, &w2, None, Activation::None).unwrap();
    assert!(apart(&both, &Tensor::cat(&[one, two], 1).unwrap()) < 1e-6);
}

#[test]
#[ignore = "a measurement"]
fn timings() {
    record();
    sconce_tensor::pool::keep_libraries_single_threaded();
    sconce_tensor::pool::set_threads(1).unwrap();
    let least = |times: usize, mut run: Box<dyn FnMut() + '_>| {
        let time = |_| {
            let start = std::time::Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e3
        };
        (0..times).map(time).fold(f64::INFINITY, f64::min)
    };
    let configs = [
        Config::MinGru(plain(256, 2)),
        Config::MinLstm(plain(256, 2)),
        hawk(256, 2),
        Config::Hgrn(expand(256, 2, 2)),
        Config::Rwkv(expand(256, 2, 4)),
        s5(256, 2, 64),
    ];
    let only = std::env::var("BACKBONE").ok();
    for config in configs.into_iter().filter(|c| only.as_deref().is_none_or(|o| o == c.name())) {
        let build = |trainable| {
            let b =
                sconce_ops::weights::Builder::new(sconce_ops::weights::Source::Seed(1), trainable);
            let net = backbone::new(&config, 288, &b).unwrap();
            (net, b.finish().unwrap())
        };
        let (net, weights) = build(true);
        let x = noise(&[32, 60, 288], 1);
        let zero = net.zero_state(32).unwrap();
        // Two operations per weight and frame, three times: forward, and backward for inputs and weights.
        let products: usize =
            weights.values().map(|w| if w.dims().len() == 2 { w.elem_count() } else { 0 }).sum();
        let flops = 2.0 * 3.0 * products as f64 * 1920.0;
        let forward =
            least(10, Box::new(|| drop(net.forward(&x, &zero, &Context::default()).unwrap())));
        let step = least(
            10,
            Box::new(|| {
                let (y, _) = net.forward(&x, &zero, &Context::default()).unwrap();
                drop(backward(&y.sum_all().unwrap()));
                weights.values().for_each(|w| w.forget());
            }),
        );
        let (net, _) = build(false);
        let (frame, zero) = (noise(&[1, 288], 1), net.zero_state(1).unwrap());
        let play =
            least(200, Box::new(|| drop(net.step(&frame, &zero, &Context::default()).unwrap())));
        println!(
            "{:10} forward {forward:.1} ms, with backward {step:.1} ms ({:.0} GFLOP/s of products), frame {:.0} us",
            config.name(),
            flops / step / 1e6,
            play * 1e3
        );
    }
}
