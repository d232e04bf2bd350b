//! Every file that must be refused, the other forms of good ones, and the way back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sconce_compat::{Asked, Format, From, export, import};
use sconce_nn::Policy;
use sconce_tensor::tensor::to_vec;
use serde_json::json;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/golden/exphil").join(name)
}

fn weights(policy: &Policy) -> BTreeMap<String, Vec<f32>> {
    policy.weights().iter().map(|(name, own)| (name.clone(), to_vec(own).unwrap())).collect()
}

fn read(name: &str) -> Policy {
    let imported = import(&golden(name), &Asked::default());
    imported.unwrap_or_else(|error| panic!("{name}: {error}")).policy
}

/// The error's kind and text, without the folder of the file.
fn said(name: &str, asked: &Asked) -> String {
    let folder = golden("").display().to_string();
    match import(&golden(name), asked) {
        Ok(_) => panic!("{name} is accepted"),
        Err(error) => format!("{} {error}", error.kind().name()).replace(&folder, ""),
    }
}

/// The faults of the broken files, the first words of their errors.
const BROKEN: &[(&str, &str)] = &[
    ("activation_tanh.bin", "mismatch activation: expected :relu, got \"tanh\""),
    ("atoms.bin", "corrupt broken/atoms.bin: metadata without a config"),
    ("atoms.legacy.bin", "corrupt broken/atoms.legacy.bin: no map of parameters"),
    ("axis_buckets_20.bin", "mismatch axis_buckets: expected 16, got 20"),
    ("axis_buckets_beside_shape.bin", "mismatch axis_buckets: expected 16, got 20"),
    ("backbone_unknown.bin", "mismatch backbone: expected one of "),
    ("bomb_term.legacy.bin", "corrupt broken/bomb_term.legacy.bin: a zlib stream of more than"),
    ("bomb_zlib.bin", "corrupt broken/bomb_zlib.bin: a zlib stream of more than"),
    ("config_not_a_map.bin", "corrupt broken/config_not_a_map.bin: "),
    ("embed_size_beside_shape.bin", "mismatch embed_size: expected 288 "),
    ("empty.bin", "corrupt broken/empty.bin: an empty file"),
    ("first_byte_7.bin", "corrupt broken/first_byte_7.bin: no policy: it begins with the byte 7"),
    ("fun_closure.legacy.bin", "corrupt broken/fun_closure.legacy.bin: a fun in its term, which"),
    ("fun_export.legacy.bin", "corrupt broken/fun_export.legacy.bin: a fun in its term, which"),
    ("fun_only.legacy.bin", "corrupt broken/fun_only.legacy.bin: a fun in its term, which"),
    ("infinity.bin", "non_finite main_x_logits.bias is not finite (inf)"),
    ("kmeans.legacy.bin", "mismatch kmeans_centers: expected nil, got sticks of K-means"),
    ("kmeans_17.bin", "mismatch kmeans_centers: expected nil, got sticks of K-means"),
    (
        "length_metadata_huge.bin",
        "corrupt broken/length_metadata_huge.bin: cut off: 4294967295 bytes of ",
    ),
    ("length_metadata_short.bin", "corrupt broken/length_metadata_short.bin: metadata: "),
    (
        "length_term_huge.bin",
        "corrupt broken/length_term_huge.bin: cut off: 18446744073709551615 bytes ",
    ),
    ("length_term_short.bin", "corrupt broken/length_term_short.bin: containers: "),
    ("missing_layer.bin", "not_found main_y_hidden.kernel not found"),
    ("missing_layer.legacy.bin", "not_found main_y_hidden.kernel not found"),
    ("missing_leaf.bin", "not_found c_x_logits.bias not found"),
    ("nan.bin", "non_finite backbone_dense_0.kernel is not finite (NaN)"),
    (
        "nested.legacy.bin",
        "corrupt broken/nested.legacy.bin: a term that is more than 64 terms deep",
    ),
    ("not_zlib.bin", "corrupt broken/not_zlib.bin: an invalid zlib stream"),
    ("nx_magic.bin", "corrupt broken/nx_magic.bin: no parameters of Nx.serialize"),
    ("nx_version_2.bin", "corrupt broken/nx_version_2.bin: version 2 of Nx.serialize, expected 1"),
    ("offset_beyond_buffer.bin", "corrupt broken/offset_beyond_buffer.bin: "),
    ("offset_negative.bin", "corrupt broken/offset_negative.bin: "),
    ("params_missing.legacy.bin", "corrupt broken/params_missing.legacy.bin: no parameters"),
    ("pid.legacy.bin", "corrupt broken/pid.legacy.bin: a reference in its term, which"),
    (
        "shape_beyond_buffer.legacy.bin",
        "corrupt broken/shape_beyond_buffer.legacy.bin: buttons_hidden.kernel: ",
    ),
    ("shape_huge.legacy.bin", "corrupt broken/shape_huge.legacy.bin: buttons_hidden.kernel: "),
    ("shape_narrow.bin", "mismatch main_x_logits.kernel: expected [64, 17], got [64, 16]"),
    ("shape_narrow.legacy.bin", "mismatch main_x_logits.kernel: expected [64, 17], got [64, 16]"),
    ("shape_transposed.bin", "mismatch main_x_logits.kernel: expected [64, 17], got [17, 64]"),
    ("shoulder_buckets_8.bin", "mismatch shoulder_buckets: expected 4, got 8"),
    ("size_beside_shape.bin", "corrupt broken/size_beside_shape.bin: "),
    ("size_bignum.legacy.bin", "corrupt broken/size_bignum.legacy.bin: 2147483647 bytes at byte"),
    ("size_binary.legacy.bin", "corrupt broken/size_binary.legacy.bin: 4294967295 bytes at byte"),
    ("size_compressed.legacy.bin", "corrupt broken/size_compressed.legacy.bin: 1 bytes, of which "),
    ("size_list.legacy.bin", "corrupt broken/size_list.legacy.bin: 4294967295 terms at byte"),
    ("size_map.legacy.bin", "corrupt broken/size_map.legacy.bin: 8589934590 terms at byte"),
    ("size_tuple.legacy.bin", "corrupt broken/size_tuple.legacy.bin: 4294967295 terms at byte"),
    ("truncated_1.bin", "corrupt broken/truncated_1.bin: the end of the file"),
    ("truncated_1.legacy.bin", "corrupt broken/truncated_1.legacy.bin: "),
    ("truncated_2.bin", "corrupt broken/truncated_2.bin: "),
    ("truncated_2.legacy.bin", "corrupt broken/truncated_2.legacy.bin: "),
    ("truncated_3.bin", "corrupt broken/truncated_3.bin: "),
    ("truncated_3.legacy.bin", "corrupt broken/truncated_3.legacy.bin: "),
    ("truncated_4.bin", "corrupt broken/truncated_4.bin: "),
    ("truncated_4.legacy.bin", "corrupt broken/truncated_4.legacy.bin: "),
    ("truncated_5.bin", "corrupt broken/truncated_5.bin: "),
    ("truncated_5.legacy.bin", "corrupt broken/truncated_5.legacy.bin: "),
    ("type_unknown.bin", "corrupt broken/type_unknown.bin: "),
    ("unknown_layer.bin", "mismatch backbone_attention_7: expected a layer of the policy"),
];

#[test]
fn every_broken_file_is_refused_with_its_fault() {
    let trust = Asked { trust: true, ..Asked::default() };
    let mut wrong = vec![];
    for (name, fault) in BROKEN {
        let name = format!("broken/{name}");
        let error = said(&name, &Asked::default());
        if !error.starts_with(fault) {
            wrong.push(format!("{name}: {error}"));
        }
        // Code in a file stays refused: trust only skips it.
        said(&name, &trust);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let all = std::fs::read_dir(golden("broken")).unwrap().count();
    assert_eq!(all, BROKEN.len() + 2, "the list lacks a broken file");
    assert_eq!(weights(&read("broken/good.bin")), weights(&read("broken/good.legacy.bin")));
}

#[test]
fn heads_that_read_earlier_choices_are_refused() {
    let error = said("autoregressive.bin", &Asked::default());
    assert_eq!(
        error,
        "mismatch heads: expected independent heads, got autoregressive heads of ExPhil"
    );
}

#[test]
fn the_forms_of_a_file_have_the_same_weights() {
    let own = weights(&read("mlp_small.bin"));
    assert_eq!(own, weights(&read("mlp_small.legacy.bin")));
    assert_eq!(own, weights(&read("mlp_small.zlib.bin")));
    assert_eq!(
        weights(&read("mlp_small_trained.bin")),
        weights(&read("mlp_small_checkpoint.axon"))
    );
    for name in ["mlp", "gru", "lstm"] {
        let (new, old) = (format!("{name}.bin"), format!("{name}.legacy.bin"));
        assert_eq!(weights(&read(&new)), weights(&read(&old)));
    }
    // Parameters alone need a config, which may be that of another file.
    let alone = said("gru.weights.safetensors", &Asked::default());
    assert!(alone.ends_with("the config of a safetensors file not found"), "{alone}");
    let of = Asked { config_of: Some(golden("gru.bin")), ..Asked::default() };
    let policy = import(&golden("gru.weights.safetensors"), &of).unwrap().policy;
    assert_eq!(weights(&policy), weights(&read("gru.bin")));
    let config =
        json!({ "temporal": true, "backbone": "mlp", "hidden_sizes": [8], "window_size": 4 });
    let given = Asked { config: serde_json::from_value(config).unwrap(), ..Asked::default() };
    let average = import(&golden("mlp_small_ema.bin"), &given).unwrap().policy;
    assert_eq!(average.num_weights(), read("mlp_small.bin").num_weights());
    let other = Asked { from: Some(From::Safetensors), ..Asked::default() };
    let error = said("mlp_small.bin", &other);
    assert_eq!(error, "mismatch mlp_small.bin: expected a file of Safetensors, got policy export");
}

/// Policies that an export gives back.
const BOTH_WAYS: &[&str] = &[
    "mlp",
    "mlp_ln_res",
    "mlp_small",
    "lstm",
    "gru",
    "lstm_fused",
    "gru_fused",
    "min_gru",
    "min_lstm",
    "mamba",
    "mamba_2",
    "mamba_ssd",
    "attention",
    "lstm_hybrid",
    "jamba",
    "gated_ssm",
    "deep_res_lstm",
];

#[test]
fn an_export_gives_back_what_was_imported() {
    let dir = tempfile::tempdir().unwrap();
    for name in BOTH_WAYS {
        let policy = read(&format!("{name}.bin"));
        let own = weights(&policy);
        for format in [Format::Axon, Format::Safetensors] {
            let (bytes, notes) = export(&policy, format).unwrap();
            assert_eq!(notes, Vec::<String>::new(), "{name}");
            let path = dir.path().join("again");
            std::fs::write(&path, bytes).unwrap();
            let asked =
                Asked { config_of: Some(golden(&format!("{name}.bin"))), ..Asked::default() };
            let asked = if format == Format::Axon { Asked::default() } else { asked };
            let again = weights(&import(&path, &asked).unwrap().policy);
            assert_eq!(again.keys().collect::<Vec<_>>(), own.keys().collect::<Vec<_>>());
            for (weight, own) in &own {
                let gap =
                    own.iter().zip(&again[weight]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(gap <= 1e-6, "{name} {weight}: {gap:e}");
            }
        }
    }
}

/// The policy with every weight changed, but for stored states, which have a key, and without the notes of its import.
fn changed(policy: &Policy, notes: serde_json::Value) -> Policy {
    let mut weights = sconce_ops::weights::Weights::new();
    for (i, (name, own)) in policy.weights().iter().enumerate() {
        let mut numbers = to_vec(own).unwrap();
        if !name.contains("initial_state") {
            let change = |(j, x): (usize, &mut f32)| *x += ((i + 3 * j) as f32).sin() / 8.0;
            numbers.iter_mut().enumerate().for_each(change);
        }
        let tensor = sconce_tensor::tensor::tensor(numbers, own.dims()).unwrap();
        weights.insert(name.clone(), tensor.into());
    }
    Policy::from_weights(policy.spec(), weights).unwrap().noting(notes)
}

#[test]
fn a_policy_that_was_trained_on_goes_back_too() {
    let dir = tempfile::tempdir().unwrap();
    for name in BOTH_WAYS {
        let first = read(&format!("{name}.bin"));
        for notes in [first.notes().clone(), json!({ "window_size": 20 })] {
            let policy = changed(&first, notes);
            let exported = export(&policy, Format::Axon);
            if *name == "mamba_ssd" && policy.notes().get("imported").is_none() {
                // Without its notes it is a Mamba with the names of one.
                assert!(exported.is_ok());
                continue;
            }
            let (bytes, _notes) = exported.unwrap_or_else(|error| panic!("{name}: {error}"));
            let path = dir.path().join("again");
            std::fs::write(&path, bytes).unwrap();
            let again = import(&path, &Asked::default());
            let again = again.unwrap_or_else(|error| panic!("{name}: {error}")).policy;
            let (own, again) = (weights(&policy), weights(&again));
            for (weight, own) in own.iter().filter(|(weight, _)| !weight.contains("initial_state"))
            {
                // Both biases of a gate are one parameter.
                if weight.contains("bias_hh_") {
                    continue;
                }
                let both = |all: &BTreeMap<String, Vec<f32>>, i: usize| {
                    let hidden = all.get(&weight.replace("bias_ih_", "bias_hh_"));
                    hidden.map_or(
                        0.0,
                        |hidden| if weight.contains("bias_ih_") { hidden[i] } else { 0.0 },
                    )
                };
                for (i, x) in own.iter().enumerate() {
                    let sums = (x + both(&weights(&policy), i), again[weight][i] + both(&again, i));
                    assert!((sums.0 - sums.1).abs() <= 1e-6, "{name} {weight}[{i}]: {sums:?}");
                    if i > 40 {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn what_exphil_does_not_have_is_refused() {
    let other = |backbone: serde_json::Value, embedding: serde_json::Value| {
        let spec = json!({ "embedding": embedding, "backbone": backbone, "heads": read("mlp.bin").spec().heads });
        let policy = Policy::init(&serde_json::from_value(spec).unwrap(), 1).unwrap();
        export(&policy, Format::Axon).unwrap_err().to_string()
    };
    let melee = serde_json::to_value(&read("mlp.bin").spec().embedding).unwrap();
    let sizes = json!({
        "hidden_size": 8, "num_layers": 1, "state_size": 2, "expand_factor": 2, "conv_size": 4, "decays_input": false,
        "input_norm": true, "dropout": 0.0, "input_dropout": 0.0,
    });
    let said = other(json!({ "exphil_mamba": sizes }), melee);
    assert!(
        said.starts_with("backbone.input_norm.bias: expected a weight that ExPhil has"),
        "{said}"
    );
    let mlp = serde_json::to_value(&read("mlp.bin").spec().backbone).unwrap();
    let said = other(mlp, json!({ "vector": 288 }));
    assert!(said.starts_with("embedding: expected {:melee, layout: :packed}"), "{said}");
}
