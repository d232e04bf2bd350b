//! `mamba_step.cu` compared with the ops of which a Mamba layer is composed.

use candle_core::{Device, Tensor};
use sconce_ops::{
    self as ops, Activation, Norm, Selective, causal_conv, linear, linear_parts, row_norm,
};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor;

use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int};
use crate::memory::Memory;
use crate::{Kernels, assert_near};

/// Rows, numbers of x, channels, taps, rank and states: one of each, no multiple of a warp, the most that lanes hold,
/// and more rows than a block has.
const SIZES: [[usize; 6]; 5] = [
    [1; 6],
    [1, 40, 33, 4, 3, 16],
    [3, 300, 7, 2, 40, 33],
    [7, 33, 5, 32, 1, 64],
    [19, 9, 6, 3, 2, 4],
];
const EPS: f32 = 1e-5;
const THREADS: u32 = 64;

fn numbers(name: &str, count: usize, scale: f32) -> Vec<f32> {
    let rng = Rng::new(1, name, count as u64);
    (0..count as u64).map(|i| scale * rng.normal(i)).collect()
}

fn there(v: &[f32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(v, dims, &Device::Cpu).unwrap()
}

fn grid(warps: usize, blocks: usize) -> [u32; 3] {
    [(warps as u32 * 32).div_ceil(THREADS), blocks as u32, 1]
}

fn inward(kernels: &impl Kernels, [rows, h, c, taps, ..]: [usize; 6]) {
    let [x, norm] = [("x", rows * h), ("norm", h)].map(|(name, n)| numbers(name, n, 1.0));
    let w = numbers("w", 2 * c * h, 1.0 / (h as f32).sqrt());
    let [conv, bias] = [("conv", c * taps), ("bias", c)].map(|(name, n)| numbers(name, n, 0.5));
    let state = numbers("state", rows * c * (taps - 1), 1.0);

    let normed = Norm { weight: there(&norm, &[h]).into(), bias: None, eps: EPS };
    let normed = row_norm(&there(&x, &[rows, 1, h]), &normed).unwrap();
    let [u, z] = linear_parts(&normed, &there(&w, &[2 * c, h]).into(), [c; 2]).unwrap();
    let (weight, before) = (there(&conv, &[c, 1, taps]), there(&state, &[rows, c, taps - 1]));
    let own = there(&bias, &[c]);
    let (u, next) = causal_conv(&u, &weight, Some(&own), &before, true, None).unwrap();

    let [mut x, mut norm, mut w] = [x, norm, w].map(|v| Memory::<f32>::of(&v));
    let [mut conv, mut bias, mut state] = [conv, bias, state].map(|v| Memory::<f32>::of(&v));
    let [mut got_u, mut got_z] = [(); 2].map(|()| Memory::<f32>::unwritten(rows * c));
    let mut got_next = Memory::<f32>::unwritten(rows * c * (taps - 1));
    let mut arguments = vec![x.argument(), norm.argument(), w.argument(), conv.argument()];
    arguments.extend([bias.argument(), state.argument(), got_u.argument(), got_z.argument()]);
    arguments.push(got_next.argument());
    arguments.extend([rows, h, c, taps].map(|size| Int(size as i32)));
    arguments.push(Float(EPS));
    kernels.launch(
        "mamba_step_inward",
        grid(2 * c, rows.div_ceil(8)),
        [THREADS, 1, 1],
        &mut arguments,
    );
    for (name, got, want) in [("u", got_u, u), ("z", got_z, z), ("next", got_next, next)] {
        assert_near(name, &got.read(), &tensor::to_vec(&want).unwrap(), 1e-5);
    }
}

fn scan(kernels: &impl Kernels, [rows, _, c, _, rank, n]: [usize; 6]) {
    let low = numbers("low", rows * (rank + 2 * n), 1.0);
    let w = numbers("w_dt", c * rank, 1.0 / (rank as f32).sqrt());
    let [bias, d] = ["bias", "d"].map(|name| numbers(name, c, 1.0));
    let a_log = numbers("a_log", c * n, 0.5);
    let [u, z] = ["u", "z"].map(|name| numbers(name, rows * c, 1.0));
    let h = numbers("h", rows * c * n, 1.0);

    let all = there(&low, &[rows, 1, rank + 2 * n]);
    let part = |first, width| all.narrow(2, first, width).unwrap().contiguous().unwrap();
    let dt = linear(&part(0, rank), &there(&w, &[c, rank]).into(), None, Activation::None).unwrap();
    let wide = |v: &[f32]| there(v, &[rows, 1, c]);
    let inputs = Selective {
        u: &wide(&u),
        dt: &dt,
        dt_bias: Some(&there(&bias, &[c])),
        dt_softplus: true,
        a: &there(&a_log, &[c, n]),
        a_log: true,
        b: &part(rank, n),
        c: &part(rank + n, n),
        d: Some(&there(&d, &[c])),
        z: Some(&wide(&z)),
        h: &there(&h, &[rows, c, n]),
    };
    let (y, next) = ops::selective_scan(inputs, None).unwrap();

    let [mut low, mut w, mut bias] = [low, w, bias].map(|v| Memory::<f32>::of(&v));
    let [mut a_log, mut d, mut u] = [a_log, d, u].map(|v| Memory::<f32>::of(&v));
    let [mut z, mut h] = [z, h].map(|v| Memory::<f32>::of(&v));
    let mut got_y = Memory::<f32>::unwritten(rows * c);
    let mut got_next = Memory::<f32>::unwritten(rows * c * n);
    let mut arguments = vec![low.argument(), w.argument(), bias.argument(), a_log.argument()];
    arguments.extend([d.argument(), u.argument(), z.argument(), h.argument()]);
    arguments.extend([got_y.argument(), got_next.argument()]);
    arguments.extend([rows, c, rank, n].map(|size| Int(size as i32)));
    kernels.launch("mamba_step_scan", grid(rows * c, 1), [THREADS, 1, 1], &mut arguments);
    for (name, got, want) in [("y", got_y, y), ("next", got_next, next)] {
        assert_near(name, &got.read(), &tensor::to_vec(&want).unwrap(), 2e-5);
    }
}

fn kernels_are_the_ops(kernels: &impl Kernels) {
    for sizes in SIZES {
        inward(kernels, sizes);
        scan(kernels, sizes);
    }
}

#[test]
fn a_frame_of_a_layer_equals_the_cpu() {
    kernels_are_the_ops(&Emulated::compile("mamba_step"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn a_frame_of_a_layer_on_a_card_equals_the_cpu() {
    let ptx = sconce_cuda::kernels::MAMBA_STEP.ptx;
    kernels_are_the_ops(&crate::card::Card::open("mamba_step", ptx));
}
