//! Times networks at batch 1 on one thread, beside the peak of this core:
//!
//!     cargo run --release -p sconce-net --example speed

use std::hint::black_box;
use std::time::Instant;

use sconce_net::{Function, Input, Layer, Net, NetSpec, Packed, Storage};

fn conv(filters: usize, kernel: usize, stride: usize, padding: usize) -> Layer {
    Layer::Conv {
        filters,
        kernel: vec![kernel; 2],
        stride: vec![stride; 2],
        padding: vec![padding; 2],
        dilation: vec![1; 2],
        groups: 1,
        bias: true,
        activation: Function::Relu,
    }
}

/// Fused multiply-adds per second of one core, times two.
fn peak() -> f64 {
    let mut best = 0.0_f64;
    for _ in 0..20 {
        let start = Instant::now();
        let mut sums = [[0.1_f32; 16]; 6];
        fma(&mut sums, 100_000);
        black_box(&sums);
        let flops = 2.0 * 96.0 * 100_000.0;
        best = best.max(flops / start.elapsed().as_secs_f64());
    }
    best
}

sconce_tensor::simd::dispatch! {
    fn fma(sums: &mut [[f32; 16]; 6], times: usize) {
        let mut own = *sums;
        for _ in 0..times {
            for sums in &mut own {
                for sum in sums {
                    *sum = sconce_tensor::simd::mul_add::<FMA>(*sum, 0.999, 0.001);
                }
            }
        }
        *sums = own;
    }
}

fn main() {
    let peak = peak();
    println!("peak of a core: {:.0} GFLOP/s", peak / 1e9);
    let pool = || Layer::MaxPool { kernel: vec![2; 2], stride: vec![2; 2], padding: vec![0; 2] };
    let nets: Vec<(&str, Vec<usize>, Vec<Layer>)> = vec![
        (
            "3x96x96, stride 2",
            vec![3, 96, 96],
            vec![conv(16, 3, 2, 1), conv(32, 3, 2, 1), conv(64, 3, 2, 1), Layer::GlobalMean],
        ),
        (
            "1x32x128, pools",
            vec![1, 32, 128],
            vec![
                conv(16, 3, 1, 1),
                pool(),
                conv(32, 3, 1, 1),
                pool(),
                conv(64, 3, 1, 1),
                pool(),
                Layer::Flatten,
                Layer::Dense { size: 64, bias: true, activation: Function::None },
            ],
        ),
        ("32x32x32, one 3x3 of 64", vec![32, 32, 32], vec![conv(64, 3, 1, 1)]),
        ("3x64x64, one 3x3 of 16", vec![3, 64, 64], vec![conv(16, 3, 1, 1)]),
        ("64x16x16, one 1x1 of 64", vec![64, 16, 16], vec![conv(64, 1, 1, 0)]),
        (
            "4096 to 128 dense",
            vec![4096],
            vec![Layer::Dense { size: 128, bias: true, activation: Function::None }],
        ),
    ];
    for (name, shape, layers) in nets {
        let x = vec![0.5; shape.iter().product()];
        let spec =
            NetSpec { inputs: vec![Input { name: "x".into(), shape, vocabulary: None }], layers };
        let net = Net::init(&spec, 1).expect("a valid network");
        let mut packed = Packed::new(&net, Storage::F32).expect("a packed network");
        let mut y = vec![0.0; net.outline().output.iter().product()];
        let mut times = vec![];
        for _ in 0..400 {
            let start = Instant::now();
            packed.run(&[&x], &mut y).expect("a pass");
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let (median, flops) = (times[200], net.outline().flops as f64);
        println!(
            "{name}: {:.1} us, {:.2} MFLOP, {:.0} GFLOP/s, {:.2} times the limit of its flops",
            median * 1e6,
            flops / 1e6,
            flops / median / 1e9,
            median * peak / flops
        );
    }
}
