//! Loads a checkpoint and lets its policy act.

use std::path::Path;
use std::sync::Arc;

use sconce_nn::packed::{PackedPolicy, Plan};
use sconce_nn::sampling::Sampling;
use sconce_nn::{Policy, checkpoint};
use sconce_ops::weights::{Factors, Weight};
use sconce_serve::session::{Mode, Options, Overrides};
use sconce_serve::{Format, Model, Session};
use sconce_tensor::{Result, fs};
use serde_json::json;

use super::specs;
use crate::rng::Rng;
use crate::safetensors::{self, File};
use crate::scratch;

pub fn seeds() -> Vec<Vec<u8>> {
    let dir = scratch::folder("packed");
    let path = dir.join("packed");
    let packed = [(Format::F32, true), (Format::Int8(1.0), false), (Format::Int4(1.0), true)];
    let packed = packed.iter().zip(specs::BACKBONES).map(|((format, alone), backbone)| {
        let policy = Policy::init(&specs::of_vectors(backbone), 1).expect("a policy");
        let plan = Plan::of(&policy, *format).expect("finite weights").expect("a plan");
        plan.save(&policy, &path, json!({ "frame_delay": 1 }), *alone).expect("a file");
        fs::read(&path, u64::MAX).expect("a file")
    });
    let seeing = Policy::init(&specs::of_images("gru"), 1).expect("a policy");
    let plan = Plan::of(&seeing, Format::F32).expect("finite weights").expect("a plan");
    plan.save(&seeing, &path, json!({}), true).expect("a file");
    let seeing = fs::read(&path, u64::MAX).expect("a file");
    let product = products();
    let plan = Plan::of(&product, Format::F32).expect("finite weights").expect("a plan");
    let both = [false, true].map(|is_packed| {
        let saved = match is_packed {
            true => plan.save(&product, &path, json!({}), true),
            false => product.save(&path, json!({})),
        };
        saved.and_then(|()| fs::read(&path, u64::MAX)).expect("a file")
    });
    let seeds = whole().into_iter().chain(packed).chain(both).chain([seeing]).collect();
    scratch::remove(&dir);
    seeds
}

/// A policy whose matrices are products.
fn products() -> Policy {
    let policy = Policy::init(&specs::of_vectors("gru"), 1).expect("a policy");
    let own = |(name, weight): (&String, &Weight)| match weight.dims() {
        [outputs, inputs] => {
            let factors = Factors::new(1, vec![0.5; *outputs], vec![0.5; *inputs]);
            (name.clone(), factors.and_then(Weight::factored).expect("a product"))
        }
        _ => (name.clone(), weight.clone()),
    };
    let weights = policy.weights().iter().map(own).collect();
    Policy::from_weights(policy.spec(), weights).expect("a policy")
}

/// Files without packed weights.
fn whole() -> Vec<Vec<u8>> {
    let of_vectors = specs::BACKBONES.map(specs::of_vectors);
    let of_melee = ["gru", "mlp", "sliding_window"].map(specs::of_melee);
    of_vectors
        .into_iter()
        .chain(of_melee)
        .chain([specs::of_images("gru")])
        .map(|spec| {
            let policy = Policy::init(&spec, 1).expect("a policy");
            let notes =
                json!({ "step": 3, "frame_delay": 1, "window_size": 5, "precision": "f32" });
            let optimiser = [("count".to_string(), vec![1.0])].into();
            policy.snapshot(notes, optimiser).and_then(|s| s.encode()).expect("a checkpoint")
        })
        .collect()
}

pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    safetensors::mutate(rng, bytes);
    // Most mutants get a valid digest.
    if let (false, Some(mut file)) = (rng.one_in(6), File::parse(bytes)) {
        file.sign();
        *bytes = file.encode();
    }
}

pub fn run(bytes: &[u8], dir: &Path) -> Result<()> {
    let path = super::write(dir, "policy.safetensors", bytes)?;
    if let Some(packed) = PackedPolicy::open(&path)? {
        checkpoint::manifest(&path)?;
        let (outline, plan) = (packed.outline().clone(), packed.plan().clone());
        play_over(Model::of_plan(outline, plan)?, packed.layout().format)?;
        return if packed.layout().alone { Ok(()) } else { packed.whole().map(drop) };
    }
    let head = checkpoint::manifest(&path);
    let whole = checkpoint::load(&path);
    let policy = Policy::load(&path)?;
    // The other readers, which ignore some values of the file, must accept what `Policy::load` accepts.
    head?;
    whole?;
    play(Arc::new(policy), Format::F32)
}

/// Takes decisions in each mode.
pub fn play(policy: Arc<Policy>, weights: Format) -> Result<()> {
    play_over(Model::new(policy, weights)?, weights)
}

fn play_over(model: Model, weights: Format) -> Result<()> {
    let (raw, model) = (frame(model.policy()), Arc::new(model));
    for mode in [Mode::Carry, Mode::Window] {
        let mut session = Session::over(model.clone(), Options { weights, ..options(mode) })?;
        session.act(&raw, &Overrides::default())?;
        session.act(&raw, &Overrides::default())?;
        session.snapshot()?;
    }
    Ok(())
}

pub fn options(mode: Mode) -> Options {
    Options {
        mode,
        window_size: 4,
        sampling: Sampling::default(),
        seed: 1,
        lane: None,
        frame_delay: Some(1),
        project_out: None,
        weights: Format::F32,
        rollback: 2,
    }
}

/// A frame that the policy accepts.
pub fn frame(policy: &Policy) -> Vec<f32> {
    vec![0.0; policy.spec().embedding.raw_width()]
}
