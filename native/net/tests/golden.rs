//! The packed form against golden data: convolutions, pools, upsampling, batch norm and its fold.

#[path = "../../train/tests/support/mod.rs"]
mod golden;
mod support;

use golden::Golden;
use sconce_net::{Net, NetSpec};
use serde_json::{Value, json};

fn sizes(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

/// One number for each axis.
fn each(value: &Value, rank: usize) -> Vec<usize> {
    match value.as_u64() {
        Some(n) => vec![n as usize; rank],
        None => sizes(value),
    }
}

/// A network of one input. The weights have their golden names, after a layer's name.
fn net(shape: &[usize], layers: Value, weights: &[(&str, Vec<f32>)]) -> Net {
    let inputs = json!([{ "name": "x", "shape": shape }]);
    let spec: NetSpec =
        serde_json::from_value(json!({ "inputs": inputs, "layers": layers })).unwrap();
    let form = Net::init(&spec, 0).unwrap();
    assert_eq!(form.weights().len(), weights.len());
    let all = form.weights().iter().map(|own| {
        let (_, values) = weights.iter().find(|(name, _)| *name == own.name).unwrap();
        (own.name.clone(), values.clone(), own.shape.clone())
    });
    Net::from_weights(&spec, all).unwrap()
}

/// Checks each sample of the golden input `[b, c, ..]`.
fn check(golden: &Golden, net: &Net) {
    let x = golden.f32("input.x");
    let each = net.spec().inputs[0].shape.iter().product();
    let y: Vec<f32> = x.chunks(each).flat_map(|x| support::packed(net, &[x.to_vec()])).collect();
    golden.check("output.y", y.into_iter().map(f64::from));
}

#[test]
fn convolutions_are_those_of_pytorch() {
    for name in [
        "conv1d",
        "conv1d_stride",
        "conv1d_dilation",
        "conv1d_groups",
        "conv1d_depthwise",
        "conv2d",
        "conv2d_stride",
        "conv2d_dilation",
        "conv2d_groups",
        "conv2d_depthwise",
        "conv2d_1x1",
    ] {
        let golden = Golden::open(&format!("nets_{name}"));
        let config = &golden.config;
        let (size, channels) = (sizes(&config["size"]), sizes(&config["channels"]));
        let list = |field: &str| each(&config[field], size.len());
        let layer = json!({
            "kind": "conv", "filters": channels[1], "kernel": list("kernel"), "stride": list("stride"),
            "padding": list("padding"), "dilation": list("dilation"), "groups": config["groups"],
            "bias": true, "activation": "none",
        });
        let shape = [&[channels[0]][..], &size].concat();
        let weights = [
            ("layers.0.weight", golden.f32("param.weight")),
            ("layers.0.bias", golden.f32("param.bias")),
        ];
        check(&golden, &net(&shape, json!([layer]), &weights));
    }
}

#[test]
fn transposed_convolutions_are_those_of_pytorch() {
    for name in ["transposed1d", "transposed2d"] {
        let golden = Golden::open(&format!("nets_{name}"));
        let config = &golden.config;
        let (size, channels) = (sizes(&config["size"]), sizes(&config["channels"]));
        let list = |field: &str| each(&config[field], size.len());
        let layer = json!({
            "kind": "conv_transpose", "filters": channels[1], "kernel": list("kernel"),
            "stride": list("stride"), "padding": list("padding"),
            "output_padding": list("output_padding"), "dilation": vec![1; size.len()], "groups": 1,
            "bias": true, "activation": "none",
        });
        let shape = [&[channels[0]][..], &size].concat();
        let weights = [
            ("layers.0.weight", golden.f32("param.weight")),
            ("layers.0.bias", golden.f32("param.bias")),
        ];
        check(&golden, &net(&shape, json!([layer]), &weights));
    }
}

#[test]
fn pools_and_upsampling_are_those_of_pytorch() {
    for name in ["max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "avg_pool2d_uncounted"] {
        let golden = Golden::open(&format!("nets_{name}"));
        let config = &golden.config;
        let size = sizes(&config["size"]);
        let list = |field: &str| each(&config[field], size.len());
        let mut layer = json!({
            "kind": if name.starts_with("max") { "max_pool" } else { "mean_pool" },
            "kernel": list("kernel"), "stride": list("stride"), "padding": list("padding"),
        });
        if name.starts_with("avg") {
            layer["count_padding"] = json!(!name.ends_with("uncounted"));
        }
        check(&golden, &net(&[&[3][..], &size].concat(), json!([layer]), &[]));
    }
    for name in ["upsample1d", "upsample2d"] {
        let golden = Golden::open(&format!("nets_{name}"));
        let size = sizes(&golden.config["size"]);
        let factor = each(&golden.config["factor"], size.len());
        let layer = json!({ "kind": "upsample", "factor": factor });
        check(&golden, &net(&[&[3][..], &size].concat(), json!([layer]), &[]));
    }
}

#[test]
fn a_batch_norm_folded_into_a_convolution_is_that_of_pytorch() {
    for (name, rank) in [("fold1d", 1), ("fold2d", 2)] {
        let golden = Golden::open(&format!("nets_batch_norm_{name}"));
        let config = &golden.config;
        let ones = vec![1; rank];
        let conv = json!({
            "kind": "conv", "filters": 6, "kernel": vec![3; rank], "stride": ones, "padding": ones,
            "dilation": ones, "groups": config["groups"], "bias": true, "activation": "none",
        });
        let norm = json!({
            "kind": "batch_norm", "epsilon": config["eps"], "momentum": 0.1, "activation": "none",
        });
        let weights = |conv: &str, norm: &str| {
            [
                (format!("{conv}.weight"), "param.conv.weight"),
                (format!("{conv}.bias"), "param.conv.bias"),
                (format!("{norm}.weight"), "param.norm.weight"),
                (format!("{norm}.bias"), "param.norm.bias"),
                (format!("{norm}.running_mean"), "input.running_mean"),
                (format!("{norm}.running_var"), "input.running_var"),
            ]
            .map(|(name, key)| (name, golden.f32(key)))
        };
        let shape = [&[4][..], &vec![7; rank]].concat();
        let named = |all: &[(String, Vec<f32>); 6]| -> Vec<(String, Vec<f32>)> { all.to_vec() };
        let of = |layers: Value, all: [(String, Vec<f32>); 6]| {
            let all = named(&all);
            let all: Vec<_> = all.iter().map(|(name, v)| (&**name, v.clone())).collect();
            check(&golden, &net(&shape, layers, &all));
        };
        of(json!([conv, norm]), weights("layers.0", "layers.1"));
        // A norm that is not directly behind a convolution stays a scale and a shift.
        let pool = json!({
            "kind": "max_pool", "kernel": ones, "stride": ones, "padding": vec![0; rank],
        });
        of(json!([conv, pool, norm]), weights("layers.0", "layers.2"));
    }
}
