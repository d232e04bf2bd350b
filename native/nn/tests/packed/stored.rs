//! Packed weights in files: mapped, cut, damaged, and changed while they are mapped.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::Path;

use sconce_nn::checkpoint;
use sconce_nn::packed::PackedPolicy;
use sconce_nn::spec::MlpConfig;
use sconce_tensor::Error;
use serde_json::json;

use super::*;

/// Decisions and states of `steps` steps, in bits.
fn steps(plan: &Plan, spec: &Spec, seed: u64, steps: u64) -> Result<Vec<u32>> {
    let n = &mut Numbers::new(seed);
    let (mut scratch, mut state) = (Scratch::default(), plan.zero_state().to_vec());
    let (sampling, mut decision) = (Sampling::default(), plan.blank());
    let mut all = vec![];
    for t in 0..steps {
        let (frames, rng) = (frame(spec, n), Rng::new(seed, "act", t));
        let mut game = Game::new(view(&frames), &mut state, &sampling, rng, &mut decision);
        plan.step(std::slice::from_mut(&mut game), &mut scratch);
        game.outcome?;
        let numbers = decision.logits.iter().chain(&decision.choices).chain(&state);
        all.extend(numbers.map(|v| v.to_bits()));
    }
    Ok(all)
}

fn open(path: &Path) -> Result<PackedPolicy> {
    PackedPolicy::open(path)?.ok_or_else(|| Error::not_found("packed weights"))
}

#[test]
fn a_mapped_plan_has_the_bits_of_the_one_that_was_packed() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    for seed in 0..6 * BACKBONES.len() as u64 {
        let n = &mut Numbers::new(7000 + seed);
        let format = [Format::F32, Format::Bf16, Format::Int8(1.0), Format::Int4(1.0)][n.below(4)];
        let spec = spec(seed, n, Format::Int8(1.0));
        // A stored initial state is not zero.
        let policy = policy(&spec, n, Format::F32)?;
        let plan = Plan::of(&policy, format)?.expect("a plan");
        let alone = n.flag();
        plan.save(&policy, &path, json!({ "seed": seed }), alone)?;
        let found = open(&path)?;
        let about = format!("spec {seed}, {format:?}: {spec:?}");
        assert_eq!(found.plan().matrices(), plan.matrices(), "{about}");
        assert_eq!(found.plan().bytes(), plan.bytes(), "{about}");
        assert_eq!(found.plan().zero_state(), plan.zero_state(), "{about}");
        let [got, want] = [found.plan(), &plan].map(|plan| steps(plan, &spec, seed, 5));
        assert_eq!(got?, want?, "{about}");
        let outline = found.outline();
        assert_eq!((outline.spec(), outline.notes()), (&spec, &json!({ "seed": seed })));
        assert_eq!(outline.num_weights(), policy.num_weights(), "{about}");
        match (alone, found.whole()) {
            (true, whole) => assert_eq!(whole.err().map(|e| e.kind()), Some(Kind::Unavailable)),
            (false, whole) => {
                for (name, weight) in whole?.weights() {
                    assert_eq!(to_vec(weight)?, to_vec(&policy.weights()[name])?, "{about} {name}");
                }
            }
        }
    }
    Ok(())
}

fn small() -> Result<(Spec, Policy, Plan)> {
    let n = &mut Numbers::new(1);
    let config = MlpConfig {
        hidden_sizes: vec![33],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let embedding = Embedding::vector(40);
    let heads = heads(n, &embedding);
    let spec = Spec { embedding, backbone: Backbone::Mlp(config), heads, critic: None };
    let policy = Policy::init(&spec, 1)?;
    let plan = Plan::of(&policy, Format::Int8(1.0))?.expect("a plan");
    Ok((spec, policy, plan))
}

/// The bytes of a file, the end of its header, and the end of its packed weights.
fn saved(
    policy: &Policy,
    plan: &Plan,
    path: &Path,
    alone: bool,
) -> Result<(Vec<u8>, usize, usize)> {
    plan.save(policy, path, json!({ "step": 10 }), alone)?;
    let bytes = fs::read(path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    assert!(header.is_multiple_of(64));
    Ok((bytes, header, header + plan.bytes()))
}

#[test]
fn a_file_that_is_cut_anywhere_is_an_error_that_names_it() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let (_, policy, plan) = small()?;
    for alone in [false, true] {
        let (whole, header, end) = saved(&policy, &plan, &path, alone)?;
        assert_eq!(end == whole.len(), alone);
        let near = |at: usize| at.saturating_sub(2)..(at + 3).min(whole.len());
        let borders = [0, 8, header, header + 64, end, whole.len()].into_iter().flat_map(near);
        for length in borders.chain((0..whole.len()).step_by(61)) {
            fs::write(&path, &whole[..length]).unwrap();
            let opened = open(&path).err();
            match length == whole.len() {
                true => assert!(opened.is_none()),
                false => {
                    let error = opened.unwrap();
                    assert_eq!(error.kind(), Kind::Corrupt, "{length}: {error}");
                    assert!(error.to_string().contains("policy.safetensors"), "{error}");
                    assert!(Policy::load(&path).is_err(), "{length}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_no_decision() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let (spec, policy, plan) = small()?;
    let want = steps(&plan, &spec, 1, 3)?;
    for alone in [false, true] {
        let (whole, header, end) = saved(&policy, &plan, &path, alone)?;
        let (mut refused, mut mapped) = (0, 0);
        for at in (0..header).chain((header..end).step_by(13)).chain((end..whole.len()).step_by(97))
        {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            match PackedPolicy::open(&path) {
                Err(_) => refused += 1,
                // No packed weights, or those of another CPU or version: a reader goes on to the other weights.
                Ok(None) => assert!(!alone || Policy::load(&path).is_err(), "{at}"),
                Ok(Some(found)) => {
                    mapped += 1;
                    assert!(!(header..end).contains(&at), "{at}");
                    assert_eq!(steps(found.plan(), &spec, 1, 3)?, want, "{at}");
                    assert!(found.whole().is_err(), "{at}");
                }
            }
            // A file whose digest has another name is one without a digest, and its weights are right.
            for weights in [
                Policy::load(&path).map(|own| own.weights().clone()),
                checkpoint::load(&path).map(|own| own.weights),
            ] {
                let Ok(weights) = weights else { continue };
                for (name, weight) in policy.weights() {
                    assert_eq!(to_vec(&weights[name])?, to_vec(weight)?, "{at}: {name}");
                }
            }
        }
        // Mapped: files with a wrong digest of the other weights, or damage there.
        assert!(refused > header / 2 && mapped > 0, "{refused} refused, {mapped} mapped");
    }
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_file_that_changes_while_it_is_mapped_is_an_error_of_each_step() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let (spec, policy, plan) = small()?;
    let (whole, header, _) = saved(&policy, &plan, &path, true)?;
    let pause = || std::thread::sleep(std::time::Duration::from_millis(50));
    let refused = |plan: &Plan| {
        let error = steps(plan, &spec, 1, 1).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("policy.safetensors"), "{error}");
        error.to_string()
    };

    // Cut to nothing, to its header, and by a byte. Earlier steps have read all pages, or none.
    for (length, warm) in [(0, false), (0, true), (header, false), (whole.len() - 1, true)] {
        fs::write(&path, &whole).unwrap();
        let found = open(&path)?;
        if warm {
            steps(found.plan(), &spec, 1, 1)?;
        }
        fs::File::options().write(true).open(&path).unwrap().set_len(length as u64).unwrap();
        assert!(refused(found.plan()).contains("cut while it was read"));
        // It stays an error at the old length, also when several games step at once.
        fs::write(&path, &whole).unwrap();
        let frames = frame(&spec, &mut Numbers::new(1));
        let sampling = Sampling::default();
        let mut games = vec![(found.plan().zero_state().to_vec(), found.plan().blank()); 70];
        let game = |(state, decision)| {
            Game::new(view(&frames), state, &sampling, Rng::new(1, "act", 0), decision)
        };
        let mut games: Vec<Game<'_>> = games.iter_mut().map(|(s, d)| game((s, d))).collect();
        found.plan().step(&mut games, &mut Scratch::default());
        assert!(games.iter().all(|game| game.outcome.is_err()));
    }

    // Overwritten at its length.
    fs::write(&path, &whole).unwrap();
    let found = open(&path)?;
    pause();
    fs::write(&path, &whole).unwrap();
    assert!(refused(found.plan()).contains("changed while it was read"));

    // Replaced: the map keeps the old bytes, and the weights beside are no longer those of the policy.
    saved(&policy, &plan, &path, false)?;
    let (found, want) = (open(&path)?, steps(&plan, &spec, 1, 3)?);
    assert!(found.whole().is_ok());
    let other = Policy::init(&spec, 2)?;
    Plan::of(&other, Format::Int8(1.0))?.expect("a plan").save(&other, &path, json!(1), false)?;
    assert_eq!(steps(found.plan(), &spec, 1, 3)?, want);
    assert_eq!(found.whole().err().map(|error| error.kind()), Some(Kind::Mismatch));
    assert_ne!(steps(open(&path)?.plan(), &spec, 1, 3)?, want);
    fs::remove_file(&path).unwrap();
    assert_eq!(steps(found.plan(), &spec, 1, 3)?, want);
    Ok(())
}

#[test]
fn packed_weights_alone_refuse_what_needs_the_others() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.safetensors");
    let (spec, policy, plan) = small()?;
    saved(&policy, &plan, &path, true)?;
    let found = open(&path)?;
    let outline = found.outline();
    let frames = frame(&spec, &mut Numbers::new(1));
    let pass = outline.forward(&frames, None, &outline.zero_state(1)?, &Context::default());
    let errors = [
        pass.err(),
        outline.trainable(None).err(),
        outline.copy_on(outline.device()).err(),
        outline.save(&path, json!(null)).err(),
        Plan::of(outline, Format::F32).err(),
        Policy::load(&path).err(),
    ];
    for error in errors {
        assert_eq!(error.map(|error| error.kind()), Some(Kind::Unavailable));
    }
    Ok(())
}
