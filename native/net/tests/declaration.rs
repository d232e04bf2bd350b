//! Declarations that do not fit are errors that name the layer, before memory is asked for.

use std::time::{Duration, Instant};

use sconce_net::{Layer, NetSpec};
use serde_json::{Value, json};

fn conv(filters: usize, kernel: usize) -> Value {
    json!({
        "kind": "conv", "filters": filters, "kernel": [kernel, kernel], "stride": [1, 1],
        "padding": [0, 0], "dilation": [1, 1], "groups": 1, "bias": true, "activation": "relu",
    })
}

fn with(layer: &Value, fields: Value) -> Value {
    let mut layer = layer.clone();
    let fields = fields.as_object().unwrap();
    fields.iter().for_each(|(key, value)| layer[key] = value.clone());
    layer
}

fn spec(shape: Value, layers: Value) -> NetSpec {
    let inputs = json!([{ "name": "x", "shape": shape, "vocabulary": null }]);
    serde_json::from_value(json!({ "inputs": inputs, "layers": layers })).unwrap()
}

fn refused(shape: Value, layers: Value) -> String {
    spec(shape, layers).check().unwrap_err().to_string()
}

fn dense(size: usize) -> Value {
    json!({ "kind": "dense", "size": size, "bias": true, "activation": "none" })
}

#[test]
fn the_outline_has_shapes_weights_and_flops() {
    let layers = json!([conv(4, 3), { "kind": "flatten" }, dense(10)]);
    let outline = spec(json!([2, 5, 6]), layers).check().unwrap();
    assert_eq!(outline.output, [10]);
    let shapes: Vec<_> = outline.layers.iter().map(|l| (&*l.name, l.kind, &*l.output)).collect();
    assert_eq!(shapes[0], ("layers.0", "conv", &[4, 3, 4][..]));
    assert_eq!(shapes[1], ("layers.1", "flatten", &[48][..]));
    assert_eq!(outline.parameters, 4 * 2 * 9 + 4 + 480 + 10);
    assert_eq!(outline.flops, 2 * (4 * 2 * 9 * 12 + 480));
}

#[test]
fn layers_that_do_not_fit_are_named_with_both_shapes() {
    let image = json!([3, 8, 8]);
    for (layers, expected) in [
        (json!([conv(4, 3), dense(2)]), "layers.1 (dense): expected [n], got [4, 6, 6]"),
        (
            json!([conv(4, 9)]),
            "layers.0 (conv): expected a padded input of at least [9, 9], got [8, 8], padded [8, 8]",
        ),
        (
            json!([with(&conv(4, 1), json!({ "groups": 2 }))]),
            "layers.0 (conv): expected multiples of 2 groups, got 3 input channels and 4 filters",
        ),
        (
            json!([{ "kind": "residual", "layers": [conv(4, 1)] }]),
            "layers.0 (residual): expected [3, 8, 8], got [4, 8, 8]",
        ),
        (
            json!([{ "kind": "concat", "branches": [[conv(4, 1)], [conv(4, 3)]] }]),
            "layers.0 (concat): expected [4, 8, 8], got [4, 6, 6]",
        ),
        (
            json!([{ "kind": "residual", "layers": [conv(3, 9)] }]),
            "layers.0.layers.0 (conv): expected a padded input of at least [9, 9], got [8, 8], padded [8, 8]",
        ),
        (
            json!([{ "kind": "attention", "heads": 2 }]),
            "layers.0 (attention): expected [c, t], got [3, 8, 8]",
        ),
        (
            json!([with(&conv(4, 1), json!({ "stride": [1] }))]),
            "layers.0 (conv): expected stride of 2 numbers, got stride of 1 numbers for [3, 8, 8]",
        ),
        (
            json!([{ "kind": "embed", "size": 4 }]),
            "layers.0 (embed): expected tokens of shape [t], got [3, 8, 8]",
        ),
    ] {
        assert_eq!(refused(image.clone(), layers), expected);
    }
}

fn transposed(filters: usize, fields: Value) -> Value {
    let layer =
        with(&conv(filters, 3), json!({ "kind": "conv_transpose", "output_padding": [0, 0] }));
    with(&layer, fields)
}

#[test]
fn the_outline_of_a_transposed_convolution_counts_each_product_once() {
    let fields = json!({
        "stride": [2, 3], "padding": [1, 0], "output_padding": [1, 2], "dilation": [1, 2], "groups": 2,
    });
    let outline = spec(json!([4, 5, 6]), json!([transposed(6, fields)])).check().unwrap();
    assert_eq!(outline.output, [6, 10, 22]);
    assert_eq!(outline.layers[0].kind, "conv_transpose");
    assert_eq!(outline.parameters, 4 * 3 * 9 + 6);
    assert_eq!(outline.flops, 2 * 4 * 3 * 9 * 30);
}

#[test]
fn transposed_convolutions_that_do_not_fit_are_named() {
    let image = json!([4, 8, 8]);
    let at = "layers.0 (conv_transpose)";
    for (layer, expected) in [
        (
            transposed(5, json!({ "groups": 2 })),
            "{at}: expected multiples of 2 groups, got 4 input channels and 5 filters",
        ),
        (transposed(0, json!({})), "{at}.filters: 0 is outside 1..65536"),
        (transposed(4, json!({ "groups": 0 })), "{at}.groups: 0 is outside 1..65536"),
        (transposed(4, json!({ "kernel": [3, 0] })), "{at}.kernel: 0 is outside 1..65536"),
        (
            transposed(4, json!({ "stride": [2, 2], "output_padding": [0, 2] })),
            "{at}.output_padding: 2 is outside 0..1",
        ),
        (
            transposed(4, json!({ "output_padding": [0] })),
            "{at}: expected output_padding of 2 numbers, got output_padding of 1 numbers for [4, 8, 8]",
        ),
        (
            transposed(4, json!({ "padding": [4, 5] })),
            "{at}: expected padding of less than [10, 10] on both sides together, got [8, 10]",
        ),
        (
            transposed(4, json!({ "stride": [4096, 4096] })),
            "{at} (padded values): 4294967296 is outside 0..67108864",
        ),
        (
            transposed(4096, json!({ "kernel": [100, 100], "padding": [50, 50] })),
            "{at} (weights with the zeros between them): 163840000 is outside 0..67108864",
        ),
    ] {
        assert_eq!(refused(image.clone(), json!([layer])), expected.replace("{at}", at));
    }
    let said = refused(json!([4]), json!([transposed(4, json!({}))]));
    assert_eq!(said, format!("{at}: expected [c, t] or [c, h, w], got [4]"));
}

#[test]
fn numbers_out_of_range_are_named() {
    let image = json!([3, 8, 8]);
    for (layer, field) in [
        (conv(0, 3), "layers.0 (conv).filters: 0 is outside 1..65536"),
        (conv(1_000_000_000_000, 3), "layers.0 (conv).filters: 1000000000000 is outside"),
        (conv(usize::MAX, 3), "layers.0 (conv).filters"),
        (conv(4, 0), "layers.0 (conv).kernel: 0 is outside 1..65536"),
        (conv(4, usize::MAX), "layers.0 (conv).kernel"),
        (with(&conv(4, 3), json!({ "stride": [0, 1] })), "layers.0 (conv).stride: 0"),
        (with(&conv(4, 3), json!({ "dilation": [1, 0] })), "layers.0 (conv).dilation: 0"),
        (with(&conv(4, 3), json!({ "groups": 0 })), "layers.0 (conv).groups: 0"),
        (with(&conv(4, 3), json!({ "padding": [usize::MAX, 0] })), "layers.0 (conv).padding"),
        (
            with(&conv(4, 3), json!({ "padding": [65536, 65536] })),
            "layers.0 (conv) (padded values)",
        ),
        (json!({ "kind": "upsample", "factor": [65536, 1] }), "layers.0 (upsample) (output)"),
        (
            json!({ "kind": "max_pool", "kernel": [2, 2], "stride": [1, 1], "padding": [2, 0] }),
            "layers.0 (max_pool).padding: 2 is outside 0..1",
        ),
        (
            json!({ "kind": "batch_norm", "epsilon": 0.0, "momentum": 0.1, "activation": "none" }),
            "layers.0 (batch_norm).epsilon",
        ),
    ] {
        let said = refused(image.clone(), json!([layer]));
        assert!(said.starts_with(field), "{said}");
    }
    let large = json!([{ "kind": "flatten" }, dense(65536), dense(65536)]);
    let said = refused(image, large);
    assert!(said.starts_with("layers.2.weight: 4294967296 is outside"), "{said}");
}

#[test]
fn a_million_layers_and_deep_layers_are_refused_at_once() {
    let start = Instant::now();
    let x = spec(json!([4]), json!([]));
    let layers = vec![Layer::Flatten; 1_000_000];
    let said = NetSpec { layers, ..x.clone() }.check().unwrap_err().to_string();
    assert_eq!(said, "layers (number): 1000000 is outside 0..1024");
    let mut layers = vec![];
    for _ in 0..1000 {
        layers = vec![Layer::Residual { layers }];
    }
    let said = NetSpec { layers, ..x }.check().unwrap_err().to_string();
    assert!(said.ends_with(".layers (depth): 17 is outside 1..16"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn inputs_and_branches_have_to_name_each_other() {
    let inputs = json!([{ "name": "a", "shape": [2] }, { "name": "b", "shape": [3] }]);
    let said = |layers: Value| {
        let spec = json!({ "inputs": inputs, "layers": layers });
        serde_json::from_value::<NetSpec>(spec).unwrap().check().map_err(|e| e.to_string())
    };
    let of = |names: [&str; 2]| json!({ "kind": "inputs", "branches": names.map(|name| (name, [0; 0])) });
    assert_eq!(said(json!([of(["b", "a"])])).unwrap().output, [5]);
    let expected = "layers.0 (inputs): expected [a, b], got [a, a]";
    assert_eq!(said(json!([of(["a", "a"])])).unwrap_err(), expected);
    let expected = "layers.0: expected an `inputs` layer, or one input, got 2 inputs";
    assert_eq!(said(json!([dense(2)])).unwrap_err(), expected);
    let later = said(json!([of(["a", "b"]), of(["a", "b"])])).unwrap_err();
    assert!(later.starts_with("layers.1 (inputs)"), "{later}");
}

#[test]
fn unknown_kinds_and_fields_are_no_declarations() {
    for layer in [json!({ "kind": "convolve" }), with(&dense(2), json!({ "sise": 3 }))] {
        assert!(serde_json::from_value::<Layer>(layer).is_err());
    }
}
