//! Times of single layers: the shortest of many passes, and the floating-point operations a second.

use std::time::Instant;

use sconce_net::{Net, NetSpec, Packed, Storage};
use serde_json::{Value, json};

fn conv(filters: usize, kernel: usize, stride: usize, groups: usize) -> Value {
    json!({"kind": "conv", "filters": filters, "kernel": [kernel, kernel], "stride": [stride, stride],
        "padding": [kernel / 2, kernel / 2], "dilation": [1, 1], "groups": groups, "bias": true,
        "activation": "relu"})
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (shape, layer) in [
        ([1, 80, 80], conv(16, 3, 1, 1)),
        ([1, 48, 48], conv(16, 5, 1, 1)),
        ([3, 96, 96], conv(16, 3, 2, 1)),
        ([2, 64, 64], conv(16, 8, 4, 1)),
        ([16, 40, 40], conv(32, 3, 1, 1)),
        ([32, 20, 20], conv(64, 3, 1, 1)),
        ([32, 12, 12], conv(32, 3, 1, 1)),
        ([16, 64, 64], conv(16, 3, 1, 16)),
        ([24, 32, 32], conv(24, 3, 1, 24)),
        ([16, 64, 64], conv(24, 1, 1, 1)),
    ] {
        let text = format!("{shape:?} {} filters {}", layer["filters"], layer["kernel"][0]);
        let pool = json!({"kind": "global_max"});
        let of = |layers: Vec<Value>| -> Result<(Net, Packed), Box<dyn std::error::Error>> {
            let spec = json!({"inputs": [{"name": "x", "shape": shape}], "layers": layers});
            let spec: NetSpec = serde_json::from_value(spec)?;
            let net = Net::init(&spec, 1)?;
            let packed = Packed::new(&net, Storage::F32)?;
            Ok((net, packed))
        };
        let (net, mut packed) = of(vec![layer.clone(), pool.clone()])?;
        let x: Vec<f32> =
            (0..shape.iter().product()).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
        let mut y = vec![0.0; net.outline().output.iter().product()];
        let mut best = f64::INFINITY;
        for _ in 0..400 {
            let begun = Instant::now();
            packed.run(&[&x], &mut y)?;
            best = best.min(begun.elapsed().as_secs_f64() * 1e6);
        }
        println!("{text}: {best:.1} us, {:.1} GF/s", net.outline().flops as f64 / best / 1e3);
    }
    Ok(())
}
