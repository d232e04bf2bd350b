//! Files of policies whose bytes have changed since they were written.
#![allow(clippy::disallowed_methods)]

use std::path::Path;

use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, MlpConfig};
use sconce_nn::{Policy, Spec, checkpoint};
use sconce_tensor::Kind;
use serde_json::json;

fn policy() -> Policy {
    let config = MlpConfig {
        hidden_sizes: vec![5],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let go = Head { name: "go".into(), kind: HeadKind::Bernoulli(2), hidden_size: 0 };
    let (kind, parts) = (HeadsKind::Independent, vec![go]);
    let heads = Heads { kind, parts, stream_size: 4, prior: false };
    let spec = Spec {
        embedding: Embedding::vector(3),
        backbone: Backbone::Mlp(config),
        heads,
        critic: None,
    };
    Policy::init(&spec, 1).unwrap()
}

/// A saved policy, its bytes, and the offset of its numbers.
fn saved(path: &Path) -> (Vec<u8>, usize) {
    policy().save(path, json!({ "step": 10 })).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (bytes, 8 + header)
}

#[test]
fn a_changed_bit_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let (whole, numbers) = saved(&path);
    assert!(Policy::load(&path).is_ok());
    let note = whole.windows(10).position(|text| text == br#"step\":10}"#).unwrap();
    let name = whole.windows(10).position(|text| text == br#""backbone."#).unwrap();
    for at in (numbers..whole.len()).step_by(7).chain([note + 8, name + 9]) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        for error in [Policy::load(&path).err(), checkpoint::load(&path).err()] {
            let error = error.unwrap();
            assert_eq!(error.kind(), Kind::Corrupt, "{at}");
            assert!(error.to_string().ends_with("not those that were written"), "{error}");
        }
    }
}

#[test]
fn a_file_without_a_digest_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let (mut bytes, numbers) = saved(&path);
    let header = String::from_utf8(bytes[8..numbers].to_vec()).unwrap();
    let from = header.find(r#",\"sha256\""#).unwrap();
    let to = from + header[from..].find('}').unwrap();
    let older = format!("{}{}", &header[..from], &header[to..]);
    bytes[8..numbers].copy_from_slice(format!("{older:<0$}", header.len()).as_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let loaded = Policy::load(&path).unwrap();
    assert_eq!(loaded.notes(), &json!({ "step": 10 }));
}

/// A file with a header of `json`, followed by a hole of `body` bytes.
fn sparse(path: &Path, json: &str, body: u64) {
    let bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    std::fs::write(path, &bytes).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_len(bytes.len() as u64 + body).unwrap();
}

#[test]
fn numbers_are_read_only_after_the_header_accounts_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let refused = || {
        let errors = [
            Policy::load(&path).err(),
            checkpoint::load(&path).err(),
            checkpoint::manifest(&path).err(),
        ];
        for error in &errors {
            assert_eq!(error.as_ref().map(|e| e.kind()), Some(Kind::Corrupt));
        }
        errors[0].as_ref().unwrap().to_string()
    };
    // A hole of nine gigabytes, which would fill the memory if it were read.
    sparse(&path, "", 9 << 30);
    assert!(refused().contains("cut short, damaged, or no checkpoint"));
    sparse(&path, "{}", 9 << 30);
    assert!(refused().contains("its header describes 10"), "{}", refused());
    let bytes = 9u64 << 30;
    let tensor = format!(r#"{{"dtype":"F32","shape":[{}],"data_offsets":[0,{bytes}]}}"#, bytes / 4);
    sparse(&path, &format!(r#"{{"w":{tensor}}}"#), bytes);
    assert!(refused().contains("it has no manifest"), "{}", refused());
}

#[test]
fn a_manifest_is_read_without_the_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let (mut bytes, numbers) = saved(&path);
    let expected = checkpoint::manifest(&path).unwrap();
    bytes[numbers..].fill(0xFF);
    std::fs::write(&path, bytes).unwrap();
    let found = checkpoint::manifest(&path).unwrap();
    assert_eq!((found.spec, found.notes), (expected.spec, expected.notes));
    assert!(checkpoint::load(&path).is_err());
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_a_regular_file_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let zero = dir.path().join("zero");
    std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
    for path in [&zero, dir.path()] {
        assert_eq!(Policy::load(path).err().map(|e| e.kind()), Some(Kind::Mismatch));
        assert_eq!(checkpoint::manifest(path).err().map(|e| e.kind()), Some(Kind::Mismatch));
    }
}
