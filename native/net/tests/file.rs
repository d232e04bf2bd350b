//! Weights: initial values, names, files.
#![allow(clippy::disallowed_methods)]

mod support;

use sconce_net::{Net, NetSpec};
use serde_json::json;

fn spec() -> NetSpec {
    let conv = json!({
        "kind": "conv", "filters": 4, "kernel": [3], "stride": [1], "padding": [1],
        "dilation": [1], "groups": 1, "bias": true, "activation": "none",
    });
    let norm =
        json!({ "kind": "batch_norm", "epsilon": 1e-5, "momentum": 0.1, "activation": "relu" });
    let residual = json!({ "kind": "residual", "layers": [conv, norm] });
    let attention = json!({ "kind": "attention", "heads": 2 });
    let layers = json!([{ "kind": "embed", "size": 4 }, residual, attention]);
    let inputs = json!([{ "name": "x", "shape": [6], "vocabulary": 9 }]);
    serde_json::from_value(json!({ "inputs": inputs, "layers": layers })).unwrap()
}

type Given = Vec<(String, Vec<f32>, Vec<usize>)>;

#[test]
fn weights_have_the_names_shapes_and_bounds_of_pytorch() {
    let net = Net::init(&spec(), 7).unwrap();
    let names: Vec<_> = net.weights().iter().map(|w| (&*w.name, &*w.shape)).collect();
    let expected: [(&str, &[usize]); 11] = [
        ("layers.0.weight", &[9, 4]),
        ("layers.1.layers.0.weight", &[4, 4, 3]),
        ("layers.1.layers.0.bias", &[4]),
        ("layers.1.layers.1.weight", &[4]),
        ("layers.1.layers.1.bias", &[4]),
        ("layers.1.layers.1.running_mean", &[4]),
        ("layers.1.layers.1.running_var", &[4]),
        ("layers.2.in_proj_weight", &[12, 4]),
        ("layers.2.in_proj_bias", &[12]),
        ("layers.2.out_proj.weight", &[4, 4]),
        ("layers.2.out_proj.bias", &[4]),
    ];
    assert_eq!(names, expected);
    let largest = |name: &str| net.weight(name).unwrap().iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let bound = 1.0 / 12f32.sqrt();
    assert!((0.8 * bound..=bound).contains(&largest("layers.1.layers.0.weight")));
    assert!(largest("layers.2.in_proj_weight") <= (6.0f32 / 16.0).sqrt());
    assert_eq!(net.weight("layers.1.layers.1.running_var").unwrap(), [1.0; 4]);
    assert_eq!(net.weights(), Net::init(&spec(), 7).unwrap().weights());
    assert_ne!(net.weights(), Net::init(&spec(), 8).unwrap().weights());
}

#[test]
fn a_saved_network_reads_back_and_a_damaged_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let net = Net::init(&spec(), 1).unwrap();
    net.save(&path).unwrap();
    let back = Net::load(&path).unwrap();
    assert_eq!((back.spec(), back.weights()), (net.spec(), net.weights()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let bytes = std::fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(13) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let said = Net::load(&path).unwrap_err().to_string();
        assert!(said.contains("net.safetensors"), "{at}: {said}");
        std::fs::write(&path, &bytes[..at]).unwrap();
        let said = Net::load(&path).unwrap_err().to_string();
        assert!(said.contains("net.safetensors"), "{at}: {said}");
    }
    assert!(Net::load(&folder.path().join("none")).unwrap_err().to_string().contains("not found"));
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let net = Net::init(&spec(), 1).unwrap();
    let weights =
        || net.weights().iter().map(|w| (w.name.clone(), w.values.clone(), w.shape.clone()));
    assert_eq!(Net::from_weights(&spec(), weights()).unwrap().weights(), net.weights());
    let said = |change: &dyn Fn(&mut Given)| {
        let mut weights: Vec<_> = weights().collect();
        change(&mut weights);
        Net::from_weights(&spec(), weights).unwrap_err().to_string()
    };
    assert_eq!(said(&|all| drop(all.remove(1))), "layers.1.layers.0.weight not found");
    let turned = said(&|all| all[0].2 = vec![4, 9]);
    assert_eq!(turned, "layers.0.weight: expected [9, 4], got [4, 9]");
    assert!(said(&|all| all[0].1.truncate(35)).contains("expected 36 values, got 35 values"));
    assert!(said(&|all| all[2].1[3] = f32::NAN).contains("layers.1.layers.0.bias is not finite"));
    assert!(said(&|all| all[6].1[0] = -1.0).contains("layers.1.layers.1.running_var: -1"));
    assert!(
        said(&|all| all.push(("layers.9.weight".into(), vec![], vec![0])))
            .contains("layers.9.weight")
    );
}
