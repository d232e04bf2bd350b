//! Policies whose matrices are products of two smaller ones: their files, and the steps that read both.
#![allow(clippy::disallowed_methods)]

use std::path::Path;

use sconce_nn::backbone::Context;
use sconce_nn::heads::NONE;
use sconce_nn::packed::{Frame, Game, PackedPolicy, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::Sampling;
use sconce_nn::{Policy, Spec, checkpoint};
use sconce_ops::weights::{Factors, Weight};
use sconce_realtime::{Encoding, Format, Scratch};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Device, Kind};
use serde_json::json;

const WIDTH: usize = 96;

fn spec(kind: &str) -> Spec {
    spec_of(kind, 80)
}

fn spec_of(kind: &str, hidden: usize) -> Spec {
    serde_json::from_value(json!({
        "embedding": {"vector": WIDTH},
        "backbone": {"gru": {"hidden_size": hidden, "num_layers": 1, "layer_norm": false, "input_norm": false,
            "dropout": 0.0, "input_dropout": 0.0}},
        "heads": {"kind": kind, "stream_size": 64, "prior": false, "parts": [
            {"name": "move", "kind": {"categorical": 7}, "hidden_size": 70},
            {"name": "go", "kind": {"bernoulli": 3}, "hidden_size": 66},
        ]},
    }))
    .unwrap()
}

/// Gives each matrix that `rank` has a rank for the product of random factors.
fn products(policy: &Policy, rank: impl Fn(&str) -> Option<usize>) -> Policy {
    let own = |(at, (name, weight)): (usize, (&String, &Weight))| {
        let own = match (weight.dims(), rank(name)) {
            ([outputs, inputs], Some(rank)) if *inputs >= 32 && *outputs >= 60 => {
                let rng = Rng::new(at as u64, "factors", 0);
                let random = |count: usize, first: usize, size: f32| {
                    (first..first + count).map(|i| size * rng.normal(i as u64)).collect()
                };
                let left = random(outputs * rank, 0, 0.2);
                let right = random(inputs * rank, 1 << 20, 0.2 / (rank as f32).sqrt());
                Weight::factored(Factors::new(rank, left, right).unwrap()).unwrap()
            }
            _ => weight.clone(),
        };
        (name.clone(), own)
    };
    let weights = policy.weights().iter().enumerate().map(own).collect();
    Policy::from_weights(policy.spec(), weights).unwrap()
}

/// Names, factors and values of all weights.
fn all(policy: &Policy) -> Vec<(String, Option<Factors>, Vec<f32>)> {
    let own = |(name, weight): (&String, &Weight)| {
        let factors = weight.factors().map(|own| Factors::clone(own));
        (name.clone(), factors, to_vec(weight).unwrap())
    };
    policy.weights().iter().map(own).collect()
}

/// Frames, half of whose values are 0.
fn frames() -> Vec<Vec<f32>> {
    let rng = Rng::new(2, "products", 0);
    let value = |i: u64| if rng.u32(i + 9000).is_multiple_of(2) { 0.0 } else { rng.normal(i) };
    (0..20).map(|t| (0..WIDTH as u64).map(|i| value(t * 100 + i)).collect()).collect()
}

/// The logits of a plan's decisions, of `count` games that step together.
fn stepped(plan: &Plan, frames: &[Vec<f32>], count: usize) -> Vec<Vec<f32>> {
    let (mut scratch, sampling) = (Scratch::default(), Sampling::default());
    let mut games: Vec<_> =
        (0..count).map(|_| (plan.zero_state().to_vec(), plan.blank(), vec![])).collect();
    for t in 0..frames.len() {
        let mut all: Vec<Game<'_>> = games
            .iter_mut()
            .enumerate()
            .map(|(i, (state, decision, _))| {
                // Each game reads other frames.
                let continuous = &frames[(t + i) % frames.len()];
                let frame = Frame { continuous, ids: &[], previous: &[NONE; 4] };
                let mut game =
                    Game::new(frame, state, &sampling, Rng::new(7, "act", t as u64), decision);
                game.given = Some(&[2.0, 1.0, 0.0, 1.0]);
                game
            })
            .collect();
        plan.step(&mut all, &mut scratch);
        all.into_iter().for_each(|game| game.outcome.unwrap());
        for (_, decision, logits) in &mut games {
            logits.extend_from_slice(&decision.logits);
        }
    }
    games.into_iter().map(|(_, _, logits)| logits).collect()
}

fn plan(policy: &Policy, format: Format) -> Plan {
    Plan::of(policy, format).unwrap().unwrap()
}

#[test]
fn steps_of_products_decide_like_the_policy_and_alike_in_any_company() {
    let frames = frames();
    for kind in ["independent", "autoregressive"] {
        let policy = Policy::init(&spec(kind), 1).unwrap();
        let small = products(&policy, |name| Some(if name.contains("heads") { 9 } else { 17 }));
        for (format, tolerance) in [
            (Format::F32, 1e-5),
            (Format::Stored, 1e-5),
            (Format::Bf16, 2e-2),
            (Format::Int8(1.0), 2e-2),
            (Format::Int4(1.0), 3e-1),
        ] {
            let about = format!("{kind}, {format:?}");
            let plan = plan(&small, format);
            let ranks: Vec<_> = plan.matrices().iter().filter_map(|own| own.rank).collect();
            assert!(ranks.contains(&17) && ranks.len() >= 3, "{about}: {ranks:?}");
            // Hidden layers of independent heads read the same input, so they share the right matrix.
            assert_eq!(ranks.contains(&18), kind == "independent", "{about}: {ranks:?}");
            let together = stepped(&plan, &frames, 9);
            assert_eq!(stepped(&plan, &frames, 1)[0], together[0], "{about}");
            if kind == "autoregressive" {
                continue;
            }
            let whole = Frames {
                batch: 1,
                time: frames.len(),
                continuous: frames.concat(),
                ids: vec![],
                previous: vec![NONE; 4 * frames.len()],
            };
            let state = small.zero_state(1).unwrap();
            let (logits, _) = small.forward(&whole, None, &state, &Context::default()).unwrap();
            let want: Vec<f32> = logits.flatten_all().unwrap().to_vec1().unwrap();
            assert_eq!(together[0].len(), want.len());
            for (got, want) in together[0].iter().zip(&want) {
                assert!((got - want).abs() <= tolerance, "{about}: {got} is not {want}");
            }
        }
    }
}

#[test]
fn a_product_that_is_hardly_smaller_is_read_whole() {
    let policy = Policy::init(&spec("independent"), 1).unwrap();
    let small = products(&policy, |name| name.contains("backbone").then_some(40));
    for own in plan(&small, Format::F32).matrices() {
        // 240 x 96 of rank 40 has 0.58 of the numbers, 240 x 80 of rank 40 0.67; 0.75 and more are read whole.
        assert_eq!(own.rank, own.name.starts_with("backbone").then_some(40), "{own:?}");
        assert_eq!((own.encoding, own.error), (Encoding::F32, 0.0));
    }
    let large = products(&policy, |_| Some(50));
    assert!(
        plan(&large, Format::F32).matrices().iter().all(|own| own.rank.is_none_or(|r| r == 50))
    );
    assert!(plan(&large, Format::F32).matrices().iter().any(|own| own.rank.is_none()));
}

#[test]
fn a_file_holds_both_factors_and_a_damaged_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let policy = Policy::init(&spec("independent"), 1).unwrap();
    policy.save(&path, json!({})).unwrap();
    let length = std::fs::metadata(&path).unwrap().len() as f64;
    let small = products(&policy, |_| Some(8));
    small.save(&path, json!({"step": 3})).unwrap();
    assert_eq!(checkpoint::manifest(&path).unwrap().version, 4);
    let bytes = std::fs::metadata(&path).unwrap().len() as f64;
    assert!(bytes < 0.4 * length, "{bytes} of {length}");
    let loaded = Policy::load(&path).unwrap();
    assert_eq!(all(&loaded), all(&small));
    let file = checkpoint::load(&path).unwrap();
    assert_eq!(all(&Policy::from_checkpoint(file.manifest, file.weights).unwrap()), all(&small));
    assert_eq!(all(&loaded.copy_on(&Device::Cpu).unwrap()), all(&small));
    let learns = loaded.trainable(None).unwrap();
    assert!(all(&learns).iter().all(|(_, factors, _)| factors.is_none()));
    let (_, weights) =
        small.snapshot(json!({}), Default::default()).unwrap().into_weights().unwrap();
    assert_eq!(all(&Policy::from_weights(small.spec(), weights).unwrap()), all(&small));

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
    // Without a digest, other ranks and names do not fit, and infinities are named.
    let bytes = unsigned(&whole);
    std::fs::write(&path, &bytes).unwrap();
    assert!(Policy::load(&path).is_ok());
    for (from, to) in [
        (r#"weight_ih_l0\":8"#, r#"weight_ih_l0\":9"#),
        (r#"weight_ih_l0\":8"#, r#"weight_ih_l0\":0"#),
        (r#"weight_ih_l0\":8"#, r#"weight_ih_l0\":4"#),
        (r#"weight_ih_l0\":8"#, r#"weight_ih_l1\":8"#),
        (r#"weight_ih_l0.left"#, r#"weight_ih_l0.lift"#),
        (r#"weight_hh_l0.right"#, r#"weight_ih_l1.right"#),
    ] {
        let text = String::from_utf8_lossy(&bytes[8..header(&bytes)]).into_owned();
        let other = text.replacen(from, to, 1);
        assert_ne!(text, other, "{from}");
        let mut wrong = bytes.clone();
        wrong[8..8 + other.len()].copy_from_slice(other.as_bytes());
        refused(&wrong);
    }
    let mut wrong = bytes.clone();
    let at = wrong.len() - 4;
    wrong[at..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let error = refused(&wrong);
    assert_eq!(error.kind(), Kind::NonFinite, "{error}");
}

fn header(bytes: &[u8]) -> usize {
    8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
}

/// The bytes of a file without its digest.
fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let end = header(&bytes);
    let text = String::from_utf8(bytes[8..end].to_vec()).unwrap();
    let from = text.find(r#",\"sha256\""#).unwrap();
    let to = from + text[from..].find('}').unwrap();
    let older = format!("{}{}", &text[..from], &text[to..]);
    bytes[8..end].copy_from_slice(format!("{older:<0$}", text.len()).as_bytes());
    bytes
}

#[test]
fn packed_products_may_be_a_small_part_of_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let policy = Policy::init(&spec_of("independent", 1200), 1).unwrap();
    let small = products(&policy, |_| Some(1));
    for (format, alone) in [(Format::F32, true), (Format::Int4(1.0), false)] {
        let packed = plan(&small, format);
        assert!(packed.bytes() < policy.num_weights() / 16, "{} bytes", packed.bytes());
        packed.save(&small, &path, json!({}), alone).unwrap();
        let mapped = PackedPolicy::open(&path).unwrap().unwrap();
        let frames = frames();
        let [one, other] = [&packed, mapped.plan()].map(|of| stepped(of, &frames[..3], 1));
        assert_eq!(one, other);
    }
}

#[test]
fn mapped_products_have_the_bits_of_packed_ones() {
    let (dir, frames) = (tempfile::tempdir().unwrap(), frames());
    let path = dir.path().join("policy.safetensors");
    for kind in ["independent", "autoregressive"] {
        let policy = Policy::init(&spec(kind), 1).unwrap();
        let small = products(&policy, |name| Some(if name.contains("heads") { 9 } else { 17 }));
        for format in [Format::F32, Format::Int8(1.0), Format::Int4(1.0)] {
            for alone in [false, true] {
                let packed = plan(&small, format);
                packed.save(&small, &path, json!({}), alone).unwrap();
                let mapped = PackedPolicy::open(&path).unwrap().unwrap();
                assert_eq!(mapped.plan().matrices(), packed.matrices());
                let [one, other] = [&packed, mapped.plan()].map(|of| stepped(of, &frames, 3));
                assert_eq!(one, other, "{kind}, {format:?}");
                if !alone {
                    assert_eq!(all(&Policy::load(Path::new(&path)).unwrap()), all(&small));
                }
            }
        }
    }
}
