//! Policies whose matrices are integer codes or in 2:4: their files, and the steps that read them.
#![allow(clippy::disallowed_methods)]

use std::path::Path;

use sconce_nn::backbone::Context;
use sconce_nn::heads::NONE;
use sconce_nn::packed::{Frame, Game, PackedPolicy, Plan};
use sconce_nn::policy::{Frames, has_two_four};
use sconce_nn::sampling::Sampling;
use sconce_nn::{Policy, Spec, checkpoint};
use sconce_ops::weights::{Coded, Weight};
use sconce_realtime::{Encoding, Format, Scratch};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Device, Kind};
use serde_json::json;

const WIDTH: usize = 40;

fn spec() -> Spec {
    serde_json::from_value(json!({
        "embedding": {"vector": WIDTH},
        "backbone": {"gru": {"hidden_size": 48, "num_layers": 1, "layer_norm": false, "input_norm": false,
            "dropout": 0.0, "input_dropout": 0.0}},
        "heads": {"kind": "independent", "stream_size": 8, "prior": false, "parts": [
            {"name": "move", "kind": {"categorical": 7}, "hidden_size": 33},
            {"name": "go", "kind": {"bernoulli": 3}, "hidden_size": 20},
        ]},
    }))
    .unwrap()
}

/// Gives each matrix of at least 32 inputs codes of these bits and groups.
fn coded(policy: &Policy, bits: u32, group: usize) -> Policy {
    let own = |(name, weight): (&String, &Weight)| {
        let own = match weight.dims() {
            [_, inputs] if *inputs >= 32 => {
                let numbers = to_vec(weight).unwrap();
                let group = group.min(*inputs);
                Weight::coded(Coded::nearest(bits, &numbers, *inputs, group).unwrap()).unwrap()
            }
            _ => weight.clone(),
        };
        (name.clone(), own)
    };
    let weights = policy.weights().iter().map(own).collect();
    Policy::from_weights(policy.spec(), weights).unwrap()
}

/// Names, codes and values of all weights.
fn all(policy: &Policy) -> Vec<(String, Option<Coded>, Vec<f32>)> {
    let own = |(name, weight): (&String, &Weight)| {
        (name.clone(), weight.codes().map(|codes| Coded::clone(codes)), to_vec(weight).unwrap())
    };
    policy.weights().iter().map(own).collect()
}

fn version(path: &Path) -> u32 {
    checkpoint::manifest(path).unwrap().version
}

#[test]
fn a_file_holds_the_codes_in_an_eighth_and_a_quarter_of_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let policy = Policy::init(&spec(), 1).unwrap();
    policy.save(&path, json!({})).unwrap();
    let (plain, length) = (all(&policy), std::fs::metadata(&path).unwrap().len());
    assert_eq!(version(&path), 1);
    for (bits, group, most) in [(8, WIDTH * 9, 0.37), (4, 32, 0.3), (4, 128, 0.27)] {
        let small = coded(&policy, bits, group);
        assert_eq!(small.bits(), bits);
        small.save(&path, json!({"step": 3})).unwrap();
        assert_eq!(version(&path), 2);
        let bytes = std::fs::metadata(&path).unwrap().len() as f64;
        assert!(bytes < most * length as f64, "{bits}, {group}: {bytes} of {length}");
        let loaded = Policy::load(&path).unwrap();
        assert_eq!(all(&loaded), all(&small));
        assert_eq!(all(&checkpoint_policy(&path)), all(&small));
        // The codes are near the numbers, and a copy keeps them.
        for ((name, codes, numbers), (_, _, before)) in all(&loaded).iter().zip(&plain) {
            let most = codes.iter().flat_map(|codes| codes.scales()).fold(0.0f32, |a, b| a.max(*b));
            for (w, v) in numbers.iter().zip(before) {
                assert!((w - v).abs() <= 0.501 * most, "{name}");
            }
        }
        assert_eq!(all(&loaded.copy_on(&Device::Cpu).unwrap()), all(&small));
        // A policy that learns has none.
        let learns = loaded.trainable(None).unwrap();
        assert!(all(&learns).iter().all(|(_, codes, _)| codes.is_none()));
        assert_eq!(learns.bits(), 32);
    }
}

fn checkpoint_policy(path: &Path) -> Policy {
    let file = checkpoint::load(path).unwrap();
    Policy::from_checkpoint(file.manifest, file.weights).unwrap()
}

/// The bytes of a file of codes without its digest, and the offset of its numbers.
fn unsigned(path: &Path) -> (Vec<u8>, usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let numbers = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..numbers].to_vec()).unwrap();
    let from = header.find(r#",\"sha256\""#).unwrap();
    let to = from + header[from..].find('}').unwrap();
    let older = format!("{}{}", &header[..from], &header[to..]);
    bytes[8..numbers].copy_from_slice(format!("{older:<0$}", header.len()).as_bytes());
    (bytes, numbers)
}

#[test]
fn damaged_codes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    coded(&Policy::init(&spec(), 1).unwrap(), 8, 999).save(&path, json!({})).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Policy::load(&path).err().expect("an error")
    };
    for n in (0..whole.len()).step_by(211) {
        refused(&whole[..n]);
        let mut bytes = whole.clone();
        bytes[n] ^= 4;
        refused(&bytes);
    }
    std::fs::write(&path, &whole).unwrap();
    let (bytes, _) = unsigned(&path);
    std::fs::write(&path, &bytes).unwrap();
    assert!(Policy::load(&path).is_ok());
    // Codes are the last bytes: -128 is none.
    let mut other = bytes.clone();
    *other.last_mut().unwrap() = 128;
    let error = refused(&other);
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("weight.codes"), "{error}");
    let changed = |from: &str, to: &str| {
        let text = header_of(&bytes).replacen(from, to, 1);
        assert_ne!(text, header_of(&bytes), "{from}");
        let mut other = bytes.clone();
        other[8..8 + text.len()].copy_from_slice(text.as_bytes());
        refused(&other)
    };
    // Another form than that of the bytes.
    for (from, to) in [
        (r#"\"bits\":8"#, r#"\"bits\":4"#),
        (r#"\"bits\":8"#, r#"\"bits\":9"#),
        (r#"\"inputs\":40"#, r#"\"inputs\":41"#),
        (r#"\"group\":40"#, r#"\"group\":20"#),
        (r#"\"group\":40"#, r#"\"group\":00"#),
        (r#"\"version\":2"#, r#"\"version\":9"#),
        (r#"weight_ih_l0.codes"#, r#"weight_ih_l1.codes"#),
    ] {
        changed(from, to);
    }
}

/// The header of a file.
fn header_of(bytes: &[u8]) -> String {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    String::from_utf8(bytes[8..8 + length].to_vec()).unwrap()
}

/// Logits of some steps by a plan.
fn stepped(plan: &Plan, frames: &[Vec<f32>]) -> Vec<f32> {
    let (sampling, rng) = (Sampling::default(), Rng::new(1, "coded", 0));
    let (mut state, mut decision) = (plan.zero_state().to_vec(), plan.blank());
    let (mut scratch, mut all, previous) = (Scratch::default(), vec![], [NONE; 4]);
    for continuous in frames {
        let frame = Frame { continuous, ids: &[], previous: &previous };
        let mut game = Game::new(frame, &mut state, &sampling, rng, &mut decision);
        plan.step(std::slice::from_mut(&mut game), &mut scratch);
        game.outcome.unwrap();
        all.extend_from_slice(&decision.logits);
    }
    all
}

#[test]
fn a_step_reads_the_codes_of_a_policy() {
    let policy = Policy::init(&spec(), 1).unwrap();
    let rng = Rng::new(2, "coded", 0);
    let frames: Vec<Vec<f32>> =
        (0..20).map(|t| (0..WIDTH as u64).map(|i| rng.normal(t * 100 + i)).collect()).collect();
    let wide = cfg!(target_arch = "x86_64")
        && sconce_tensor::simd::level() > sconce_tensor::simd::Level::Portable;
    for (bits, group) in [(8, 999), (4, 32), (4, 999), (4, 20), (8, 32)] {
        let small = coded(&policy, bits, group);
        let whole = Frames {
            batch: 1,
            time: frames.len(),
            continuous: frames.concat(),
            ids: vec![],
            previous: vec![NONE; 4 * frames.len()],
        };
        let state = small.zero_state(1).unwrap();
        let (logits, _) = small.forward(&whole, None, &state, &Context::default()).unwrap();
        let expected: Vec<f32> = logits.flatten_all().unwrap().to_vec1().unwrap();
        let plan = Plan::of(&small, Format::Stored).unwrap().unwrap();
        let tolerance = match plan.encoding() {
            Encoding::F32 | Encoding::TwoFour => 1e-5,
            Encoding::Bf16 | Encoding::Int8 => 1e-3,
            Encoding::Int4(_) => 2e-2,
        };
        for (got, want) in stepped(&plan, &frames).iter().zip(&expected) {
            assert!((got - want).abs() <= tolerance, "{bits}, {group}: {got} is not {want}");
        }
        // Groups that no kernel reads are numbers.
        let as_codes = (bits == 4 && group != 20) && wide;
        if bits == 4 || group == 32 {
            let is_coded = plan.matrices().iter().any(|own| own.encoding != Encoding::F32);
            assert_eq!(is_coded, as_codes, "{bits}, {group}: {:?}", plan.matrices());
        }
        assert!(plan.matrices().iter().all(|own| own.error == 0.0));
        let numbers = Plan::of(&small, Format::F32).unwrap().unwrap();
        assert_eq!(numbers.encoding(), Encoding::F32);
        for (got, want) in stepped(&numbers, &frames).iter().zip(&expected) {
            assert!((got - want).abs() <= 1e-5, "{bits}, {group}: {got} is not {want}");
        }
        assert!(plan.bytes() <= numbers.bytes());
    }
    // Without codes, the stored format is f32.
    let plan = Plan::of(&policy, Format::Stored).unwrap().unwrap();
    assert_eq!(plan.encoding(), Encoding::F32);
    assert_eq!(
        stepped(&plan, &frames),
        stepped(&Plan::of(&policy, Format::F32).unwrap().unwrap(), &frames)
    );
}

/// Keeps the first and the last of each four inputs of matrices of at least 32 inputs that `chooses` names.
fn halved(policy: &Policy, chooses: impl Fn(&str) -> bool) -> Policy {
    let own = |(name, weight): (&String, &Weight)| {
        let own = match weight.dims() {
            [outputs, inputs] if *inputs >= 32 && chooses(name) => {
                let mut numbers = to_vec(weight).unwrap();
                let groups = numbers.chunks_mut(*inputs).flat_map(|row| row.chunks_mut(4));
                groups.flat_map(|group| group.iter_mut().skip(1).take(2)).for_each(|w| *w = 0.0);
                tensor(numbers, (*outputs, *inputs)).unwrap().into()
            }
            _ => weight.clone(),
        };
        (name.clone(), own)
    };
    let weights = policy.weights().iter().map(own).collect();
    Policy::from_weights(policy.spec(), weights).unwrap()
}

#[test]
fn a_step_reads_2_4_with_the_bits_of_f32() {
    let policy = Policy::init(&spec(), 1).unwrap();
    let rng = Rng::new(2, "two_four", 0);
    let frames: Vec<Vec<f32>> =
        (0..20).map(|t| (0..WIDTH as u64).map(|i| rng.normal(t * 100 + i)).collect()).collect();
    let plan = |policy: &Policy, format| Plan::of(policy, format).unwrap().unwrap();
    // One of the heads, which are read together, is not pruned.
    for chosen in ["", "backbone.", "heads.parts.go"] {
        let sparse = halved(&policy, |name| name.starts_with(chosen));
        assert_eq!(has_two_four(sparse.weights()), !chosen.starts_with("heads."));
        let stored = plan(&sparse, Format::Stored);
        let others = |encoding| encoding == Encoding::TwoFour || encoding == Encoding::F32;
        for own in stored.matrices() {
            assert!(own.error == 0.0 && others(own.encoding), "{own:?}");
            assert_eq!(own.bits, if own.encoding == Encoding::TwoFour { 17 } else { 32 });
            if !own.parts.iter().all(|name| name.starts_with(chosen)) {
                assert_eq!(own.encoding, Encoding::F32, "{own:?}");
            }
        }
        let exact = plan(&sparse, Format::F32);
        assert_eq!(exact.encoding(), Encoding::F32);
        assert_eq!(stepped(&stored, &frames), stepped(&exact, &frames), "{chosen}");
    }
    assert!(!has_two_four(policy.weights()));
}

#[test]
fn mapped_weights_in_2_4_decide_like_packed_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let rng = Rng::new(3, "two_four", 0);
    let few =
        |t: u64, i: u64| if t.is_multiple_of(2) || i == t { rng.normal(t * 100 + i) } else { 0.0 };
    let frames: Vec<Vec<f32>> =
        (0..20).map(|t| (0..WIDTH as u64).map(|i| few(t, i)).collect()).collect();
    let sparse = halved(&Policy::init(&spec(), 1).unwrap(), |_| true);
    let stored = Plan::of(&sparse, Format::Stored).unwrap().unwrap();
    for alone in [false, true] {
        stored.save(&sparse, &path, json!({}), alone).unwrap();
        assert_eq!(version(&path), 4);
        let mapped = PackedPolicy::open(&path).unwrap().unwrap();
        let encodings =
            |plan: &Plan| plan.matrices().iter().map(|own| own.encoding).collect::<Vec<_>>();
        assert_eq!(encodings(mapped.plan()), encodings(&stored));
        assert_eq!(mapped.plan().bytes(), stored.bytes());
        assert_eq!(stepped(mapped.plan(), &frames), stepped(&stored, &frames));
        match alone {
            true => assert!(Policy::load(&path).is_err()),
            false => assert_eq!(all(&Policy::load(&path).unwrap()), all(&sparse)),
        }
    }
}

#[test]
fn a_file_holds_2_4_in_half_of_the_bytes_and_a_damaged_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let policy = Policy::init(&spec(), 1).unwrap();
    policy.save(&path, json!({})).unwrap();
    let length = std::fs::metadata(&path).unwrap().len() as f64;
    let sparse = halved(&policy, |_| true);
    sparse.save(&path, json!({})).unwrap();
    assert_eq!(version(&path), 3);
    let bytes = std::fs::metadata(&path).unwrap().len() as f64;
    assert!(bytes < 0.64 * length, "{bytes} of {length}");
    assert_eq!(all(&Policy::load(&path).unwrap()), all(&sparse));
    assert_eq!(all(&checkpoint_policy(&path)), all(&sparse));
    // Codes of some, and 2:4 of others.
    let small = coded(&policy, 4, 32);
    let mixed = small.weights().iter().chain(sparse.weights());
    let mixed = mixed.filter(|(name, own)| name.starts_with("heads.") == own.codes().is_none());
    let mut weights = sparse.weights().clone();
    weights.extend(mixed.map(|(name, own)| (name.clone(), own.clone())));
    let mixed = Policy::from_weights(policy.spec(), weights).unwrap();
    mixed.save(&path, json!({})).unwrap();
    assert_eq!((version(&path), mixed.bits()), (3, 4));
    assert_eq!(all(&Policy::load(&path).unwrap()), all(&mixed));

    sparse.save(&path, json!({})).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Policy::load(&path).err().expect("an error")
    };
    for n in (0..whole.len()).step_by(199) {
        refused(&whole[..n]);
        let mut bytes = whole.clone();
        bytes[n] ^= 4;
        refused(&bytes);
    }
    std::fs::write(&path, &whole).unwrap();
    let (bytes, _) = unsigned(&path);
    std::fs::write(&path, &bytes).unwrap();
    assert!(Policy::load(&path).is_ok());
    // Places are the last bytes: the same input twice is none.
    let mut other = bytes.clone();
    *other.last_mut().unwrap() = 0;
    let error = refused(&other);
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("move_logits.weight.places"), "{error}");
    for (from, to) in [
        (r#"weight_ih_l0\":40"#, r#"weight_ih_l0\":44"#),
        (r#"weight_ih_l0\":40"#, r#"weight_ih_l0\":00"#),
        (r#"\"version\":3"#, r#"\"version\":5"#),
        (r#"weight_ih_l0.places"#, r#"weight_ih_l1.places"#),
        (r#"weight_ih_l0.values"#, r#"weight_ih_l1.values"#),
    ] {
        let text = header_of(&bytes).replacen(from, to, 1);
        assert_ne!(text, header_of(&bytes), "{from}");
        let mut other = bytes.clone();
        other[8..8 + text.len()].copy_from_slice(text.as_bytes());
        refused(&other);
    }
}
