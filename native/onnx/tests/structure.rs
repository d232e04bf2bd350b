//! The bytes of exported models, read back.
#![allow(clippy::disallowed_methods)]

mod support;

use std::collections::HashSet;

use sconce_nn::Spec;
use sconce_nn::checkpoint::bytes;
use sconce_nn::spec::{Backbone, Embedding, HeadKind, Heads};
use sconce_onnx::{BACKBONES, Dim, Form, Format, Model};
use sconce_tensor::Kind;
use sconce_tensor::tensor::to_vec;
use serde_json::json;
use support::reader::{self, Graph};
use support::{backbone, cases, policy};

const FORMS: [Form; 3] = [Form::Step, Form::Window { state: false }, Form::Window { state: true }];

/// Every op and the opset in which its present form began. All are at most 17.
const OPS: [(&str, u32); 46] = [
    ("Add", 14),
    ("And", 7),
    ("Cast", 13),
    ("Clip", 13),
    ("Concat", 13),
    ("ConstantOfShape", 9),
    ("Cos", 7),
    ("DequantizeLinear", 13),
    ("Div", 14),
    ("Equal", 13),
    ("Expand", 13),
    ("Floor", 13),
    ("GRU", 14),
    ("Gather", 13),
    ("GatherElements", 13),
    ("GatherND", 13),
    ("Gemm", 13),
    ("Greater", 13),
    ("GreaterOrEqual", 16),
    ("Identity", 16),
    ("IsInf", 10),
    ("LSTM", 14),
    ("LayerNormalization", 17),
    ("Less", 13),
    ("LessOrEqual", 16),
    ("Log", 13),
    ("MatMul", 13),
    ("Mod", 13),
    ("Mul", 14),
    ("OneHot", 11),
    ("Range", 11),
    ("Relu", 14),
    ("Reshape", 14),
    ("Scan", 16),
    ("Shape", 15),
    ("Sigmoid", 13),
    ("Sin", 7),
    ("Slice", 13),
    ("Softmax", 13),
    ("Split", 13),
    ("Squeeze", 13),
    ("Sub", 14),
    ("Tanh", 13),
    ("Transpose", 13),
    ("Unsqueeze", 13),
    ("Where", 16),
];

/// Checks that every value is made once, and before it is read, in the graphs around this one as well.
fn check_values(graph: &Graph, around: &HashSet<String>, about: &str) {
    let mut known = around.clone();
    let mut add = |name: &String| assert!(known.insert(name.clone()), "{about}: {name} twice");
    graph.inputs.iter().for_each(|input| add(&input.name));
    graph.tensors.iter().for_each(|tensor| add(&tensor.name));
    for node in &graph.nodes {
        assert!(OPS.iter().any(|(op, opset)| *op == node.op && *opset <= 17), "{}", node.op);
        for input in node.inputs.iter().filter(|name| !name.is_empty()) {
            assert!(known.contains(input), "{about}: {} reads {input}", node.name);
        }
        node.graphs.iter().for_each(|graph| check_values(graph, &known, about));
        for output in &node.outputs {
            assert!(known.insert(output.clone()), "{about}: {output} twice");
        }
    }
    let reads = |name: &String| graph.nodes.iter().any(|node| node.inputs.contains(name));
    for tensor in &graph.tensors {
        assert!(reads(&tensor.name), "{about}: nothing reads {}", tensor.name);
    }
    for output in &graph.outputs {
        assert!(known.contains(&output.name), "{about}: {} is not made", output.name);
    }
}

#[test]
fn every_value_is_made_once_and_before_it_is_read() {
    for case in cases() {
        for form in FORMS {
            let about = format!("{} {form:?}", case.name);
            let model = reader::model(Model::new(&case.policy, form, Format::F32).unwrap().bytes());
            assert_eq!((model.ir_version, &*model.producer), (8, "sconce"), "{about}");
            assert_eq!(model.opsets, [(String::new(), 17)], "{about}");
            check_values(&model.graph, &HashSet::new(), &about);
            let names: HashSet<_> = model.graph.nodes.iter().map(|node| &node.name).collect();
            assert_eq!(names.len(), model.graph.nodes.len(), "{about}");
        }
    }
}

#[test]
fn tensors_are_the_weights_of_the_checkpoint() {
    for case in cases() {
        let model =
            reader::model(Model::new(&case.policy, Form::Step, Format::F32).unwrap().bytes());
        for tensor in &model.graph.tensors {
            let size = [(1, 4), (7, 8), (11, 8)].into_iter().find(|(kind, _)| *kind == tensor.kind);
            let numbers = tensor.dims.iter().product::<i64>();
            assert_eq!(tensor.elements.len() as i64, numbers * size.unwrap().1, "{}", tensor.name);
        }
        for (name, weight) in case.policy.weights() {
            let tensor = model.graph.tensors.iter().find(|tensor| tensor.name == *name).unwrap();
            let dims: Vec<i64> = weight.dims().iter().map(|dim| *dim as i64).collect();
            assert_eq!((tensor.kind, &tensor.dims), (1, &dims), "{} {name}", case.name);
            assert_eq!(tensor.elements, bytes(&to_vec(weight).unwrap()), "{} {name}", case.name);
        }
    }
}

#[test]
fn the_metadata_holds_the_spec() {
    for case in cases() {
        let model =
            reader::model(Model::new(&case.policy, Form::Step, Format::F32).unwrap().bytes());
        let [(key, text)] = &model.metadata[..] else { panic!("{:?}", model.metadata) };
        let spec: Spec = serde_json::from_str(text).unwrap();
        assert_eq!((key.as_str(), &spec), ("sconce.spec", case.policy.spec()), "{}", case.name);
    }
}

#[test]
fn inputs_and_outputs_are_those_of_the_file() {
    for case in cases() {
        for form in FORMS {
            let model = Model::new(&case.policy, form, Format::F32).unwrap();
            let file = reader::model(model.bytes()).graph;
            for (ports, read) in [(&model.inputs, &file.inputs), (&model.outputs, &file.outputs)] {
                assert_eq!(ports.len(), read.len());
                for (port, read) in ports.iter().zip(read) {
                    let kind = if port.kind == "i64" { 7 } else { 1 };
                    let dim = |dim: &Dim| match dim {
                        Dim::Any(name) => Err((*name).to_owned()),
                        Dim::Size(size) => Ok(*size as i64),
                    };
                    let shape: Vec<_> = port.shape.iter().map(dim).collect();
                    assert_eq!((&port.name, kind, &shape), (&read.name, read.kind, &read.shape));
                }
            }
            // A part of the next state has the shape of the part before it.
            let states = |ports: &[reader::Port], prefix: &str| -> Vec<_> {
                let own = ports.iter().filter(|port| port.name.starts_with(prefix));
                own.map(|port| (port.name.replace("next_", ""), port.shape.clone())).collect()
            };
            assert_eq!(states(&file.inputs, "state."), states(&file.outputs, "next_state."));
            let zero = case.policy.zero_state(1).unwrap();
            let parts = if form == FORMS[1] { 0 } else { zero.0.len() };
            assert_eq!(states(&file.inputs, "state.").len(), parts, "{}", case.name);
        }
    }
}

#[test]
fn a_window_without_a_state_has_only_frames_as_inputs() {
    let names = |form| -> Vec<String> {
        let spec = spec(backbone("lstm", json!({ "num_layers": 1 })));
        let model = Model::new(&policy(&spec), form, Format::F32).unwrap();
        model.inputs.into_iter().chain(model.outputs).map(|port| port.name).collect()
    };
    assert_eq!(names(Form::Window { state: false }), ["continuous", "logits"]);
    let all = [
        "continuous",
        "state.backbone.h_l0",
        "state.backbone.c_l0",
        "logits",
        "next_state.backbone.h_l0",
        "next_state.backbone.c_l0",
    ];
    assert_eq!(names(Form::Step), all);
    assert_eq!(names(Form::Window { state: true }), all);
}

fn spec(backbone: Backbone) -> Spec {
    let heads = Heads::of_kinds(&[("go".into(), HeadKind::Bernoulli(1))]);
    Spec { embedding: Embedding::vector(3), backbone, heads, critic: None }
}

#[test]
fn an_unsupported_backbone_is_an_error_that_lists_the_supported_ones() {
    let mamba = backbone("mamba", json!({ "state_size": 4, "conv_size": 4 }));
    let error = Model::new(&policy(&spec(mamba)), Form::Step, Format::F32).unwrap_err();
    assert_eq!(error.kind(), Kind::Mismatch);
    let said = error.to_string();
    assert!(said.starts_with("backbone of a model in ONNX: expected one of mlp, lstm, "), "{said}");
    assert!(said.ends_with("got mamba"), "{said}");
    for name in BACKBONES {
        assert!(said.contains(name), "{said}");
        assert!(
            Model::new(&policy(&spec(backbone(name, json!({})))), Form::Step, Format::F32).is_ok(),
            "{name}"
        );
    }
}

#[test]
fn a_model_of_codes_takes_a_quarter_of_the_bytes() {
    let wide = policy(&spec(backbone("gru", json!({ "hidden_size": 256 }))));
    let bytes = |format| Model::new(&wide, Form::Step, format).unwrap().bytes().len() as f64;
    let share = bytes(Format::Int8) / bytes(Format::F32);
    assert!((0.25..0.27).contains(&share), "{share}");
}

#[test]
fn a_file_is_whole_and_a_path_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let model =
        Model::new(&policy(&spec(backbone("mlp", json!({})))), Form::Step, Format::F32).unwrap();
    let path = folder.path().join("model.onnx");
    for _ in 0..2 {
        model.write(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), model.bytes());
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let missing = folder.path().join("no/model.onnx");
    assert_eq!(model.write(&missing).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(model.write(folder.path()).unwrap_err().kind(), Kind::Mismatch);
}
