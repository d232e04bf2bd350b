//! Frozen weights, and weights that are transformed before forward passes.

use std::collections::BTreeMap;

use sconce_nn::Policy;
use sconce_nn::backbone::Context;
use sconce_nn::checkpoint;
use sconce_nn::spec::{
    Backbone, Embedding, Heads, HeadsKind, Layout, Melee, RecurrentConfig, Spec,
};
use sconce_tensor::{Result, Tensor, tensor};
use sconce_train::bench::examples;
use sconce_train::objective::Objectives;
use sconce_train::objective::imitation::{Imitation, LossOptions};
use sconce_train::optimiser::{Kind, OptimiserConfig};
use sconce_train::step::Stepper;
use sconce_train::weights::{WeightTransform, WeightTransforms};
use serde_json::Value;

/// A norm that no gradient reaches.
const NO_CLIP: f64 = 1e9;

fn spec() -> Spec {
    let config = RecurrentConfig {
        hidden_size: 8,
        num_layers: 1,
        layer_norm: true,
        input_norm: true,
        dropout: 0.0,
        input_dropout: 0.0,
        ..Default::default()
    };
    let melee = Melee { layout: Layout::Learned, num_projectiles: 0, ..Melee::default() };
    let heads = Heads::controller(HeadsKind::Autoregressive);
    Spec {
        embedding: Embedding::melee(melee),
        backbone: Backbone::Gru(config),
        heads,
        critic: None,
    }
}

fn stepper(
    policy: &Policy,
    kind: Kind,
    transform: Option<Box<dyn WeightTransform>>,
) -> Stepper<'static> {
    let imitation = Imitation::new(&policy.spec().heads, &LossOptions::plain()).unwrap();
    let objectives = Objectives::new(vec![Box::new(imitation)]);
    let transforms = WeightTransforms::new(transform.into_iter().collect());
    let config = OptimiserConfig { weight_decay: 0.1, ..OptimiserConfig::new(kind) };
    Stepper::new(policy, objectives, transforms, config, NO_CLIP, 3).unwrap()
}

fn numbers(policy: &Policy) -> BTreeMap<String, Vec<f32>> {
    let weights = policy.weights().iter();
    weights.map(|(name, weight)| (name.clone(), tensor::to_vec(weight).unwrap())).collect()
}

#[test]
fn a_stored_initial_state_is_a_constant_of_training() {
    let mut spec = spec();
    let Backbone::Gru(config) = &mut spec.backbone else { panic!("a GRU") };
    config.initial_state = true;
    let policy = Policy::init(&spec, 1).unwrap();
    let name = "backbone.initial_state.h";
    tensor::update(&policy.weights()[name], |v| v.fill(0.5)).unwrap();
    let batch = examples(&spec, 3, 5, 2);
    for kind in [Kind::AdamW, Kind::Sgd] {
        let mut run = stepper(&policy, kind, None).averaging(Some(0.5));
        for step in 0..2 {
            run.step(&batch, step, 0.01).unwrap();
        }
        let (before, after) = (numbers(&policy), numbers(run.policy()));
        for (weight, before) in &before {
            assert_eq!(&after[weight] == before, weight == name, "{weight}");
        }
        assert_eq!(numbers(&run.averaged().unwrap())[name], before[name]);
        assert!(run.moments().unwrap().keys().all(|moment| !moment.contains("initial_state")));
        // The state of a new game, in training too.
        assert_eq!(run.policy().zero_state(2).unwrap().to_vec().unwrap(), [0.5; 16]);
    }
}

/// Freezes the backbone.
struct Frozen;

impl WeightTransform for Frozen {
    fn covers(&self, name: &str) -> bool {
        name.starts_with("backbone.")
    }

    fn learns(&self) -> bool {
        false
    }
}

#[test]
fn frozen_weights_keep_their_bits_and_the_others_learn_as_before() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 3, 5, 2));
    let before = numbers(&policy);
    let mut all = stepper(&policy, Kind::AdamW, None);
    let mut some = stepper(&policy, Kind::AdamW, Some(Box::new(Frozen)));
    let whole = all.step(&batch, 0, 0.01).unwrap();
    let part = some.step(&batch, 0, 0.01).unwrap();
    assert_eq!(part.figures, whole.figures);
    assert!(part.grad_norm > 0.0 && part.grad_norm < whole.grad_norm);
    let (whole, part) = (numbers(all.policy()), numbers(some.policy()));
    for (name, before) in &before {
        assert_ne!(&whole[name], before, "{name}");
        let want = if Frozen.covers(name) { before } else { &whole[name] };
        assert_eq!(&part[name], want, "{name}");
    }
    for step in 1..5 {
        some.step(&batch, step, 0.01).unwrap();
    }
    let after = numbers(some.policy());
    assert!(before.iter().all(|(name, before)| !Frozen.covers(name) || after[name] == *before));
    // They have no moments, and the policy that is played has them.
    let kept = some.optimiser().state().unwrap();
    assert!(kept.iter().all(|(name, _)| !name.contains("backbone.")) && !kept.is_empty());
    assert_eq!(numbers(&some.averaged().unwrap()), after);
}

/// Rounds weights of heads to eighths; gradients pass unchanged.
struct Eighths;

impl WeightTransform for Eighths {
    fn covers(&self, name: &str) -> bool {
        name.starts_with("heads.")
    }

    fn forward(&self, weight: &Tensor) -> Result<Tensor> {
        Ok(((weight * 8.0)?.round()? / 8.0)?)
    }
}

#[test]
fn master_weights_learn_beside_the_shown_ones_and_a_resumed_run_continues_from_them() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 3, 5, 2));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("last.safetensors");
    let new = |policy: &Policy| stepper(policy, Kind::AdamW, Some(Box::new(Eighths)));
    let mut straight = new(&policy);
    for step in 0..3 {
        straight.step(&batch, step, 1e-3).unwrap();
    }
    let moments = straight.optimiser().state().unwrap().into_iter();
    let moments: checkpoint::Optimiser = moments.map(|(n, v)| (n, v.into_owned())).collect();
    straight.snapshot(Value::Null, moments).unwrap().save(&path).unwrap();

    let eighths = |x: &f32| (x * 8.0).fract() == 0.0;
    let saved = Policy::load(&path).unwrap();
    for (name, shown) in numbers(straight.policy()) {
        let own = &numbers(&saved)[&name];
        let rounds = Eighths.covers(&name);
        assert_eq!(shown.iter().all(eighths) && !own.iter().all(eighths), rounds, "{name}");
        assert_eq!(*own == shown, !rounds, "{name}");
    }
    assert_eq!(numbers(&straight.averaged().unwrap()), numbers(straight.policy()));
    assert_eq!(numbers(&straight.frozen().unwrap()), numbers(straight.policy()));

    let mut resumed = new(&saved);
    let moments = checkpoint::load(&path).unwrap().optimiser;
    resumed.load_moments(3, &moments).unwrap();
    for step in 3..6 {
        let want = straight.step(&batch, step, 1e-3).unwrap();
        assert_eq!(resumed.step(&batch, step, 1e-3).unwrap(), want);
    }
    assert_eq!(numbers(resumed.policy()), numbers(straight.policy()));
    // Small steps add up that rounding would lose one by one.
    straight.snapshot(Value::Null, checkpoint::Optimiser::new()).unwrap().save(&path).unwrap();
    assert_ne!(numbers(&Policy::load(&path).unwrap()), numbers(&saved));
}

/// Doubles each weight, with the matching gradient.
struct Twice;

impl WeightTransform for Twice {
    fn covers(&self, name: &str) -> bool {
        !name.contains("norm")
    }

    fn forward(&self, weight: &Tensor) -> Result<Tensor> {
        Ok((weight * 2.0)?)
    }

    fn backward(&self, _weight: &Tensor, gradient: Tensor) -> Result<Tensor> {
        Ok((gradient * 2.0)?)
    }
}

#[test]
fn a_gradient_is_that_of_the_transformed_weight_through_the_transform() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 3, 5, 2));
    let doubled = policy.weights().iter().map(|(name, weight)| {
        let weight =
            if Twice.covers(name) { Twice.forward(weight).unwrap() } else { (**weight).clone() };
        (name.clone(), weight.into())
    });
    let doubled = Policy::from_weights(&spec(), doubled.collect()).unwrap();
    let (mut through, mut plain) =
        (stepper(&policy, Kind::Sgd, Some(Box::new(Twice))), stepper(&doubled, Kind::Sgd, None));
    assert_eq!(numbers(through.policy()), numbers(plain.policy()));
    let zero = policy.zero_state(3).unwrap();
    let logits = |policy: &Policy| {
        let labels = Some(&batch.labels[..]);
        let (logits, _) =
            policy.forward(&batch.frames, labels, &zero, &Context::default()).unwrap();
        tensor::to_vec(&logits).unwrap()
    };
    assert_eq!(logits(&through.frozen().unwrap()), logits(&doubled));
    // w - lr (2 g + decay w), doubled, is 2 w - 4 lr g - lr decay 2 w: four times the rate, except for the decay.
    let (before, rate) = (numbers(&doubled), 1e-3f32);
    through.step(&batch, 0, rate.into()).unwrap();
    plain.step(&batch, 0, rate.into()).unwrap();
    let (through, plain) = (numbers(through.policy()), numbers(plain.policy()));
    for (name, before) in before.iter().filter(|(name, _)| Twice.covers(name)) {
        let decay = if policy.weights()[name].rank() >= 2 { 0.1 } else { 0.0 };
        for ((w, plain), through) in before.iter().zip(&plain[name]).zip(&through[name]) {
            let pulled = rate * decay * w;
            let want = w - 4.0 * (w - pulled - plain) - pulled;
            assert!(
                (through - want).abs() < 2e-6 * want.abs().max(1.0),
                "{name}: {through}, not {want}"
            );
        }
    }
}

/// [`Twice`], blended in.
struct Blended;

impl WeightTransform for Blended {
    fn covers(&self, name: &str) -> bool {
        Twice.covers(name)
    }

    fn anneals(&self) -> bool {
        true
    }

    fn forward(&self, weight: &Tensor) -> Result<Tensor> {
        Twice.forward(weight)
    }

    fn backward(&self, weight: &Tensor, gradient: Tensor) -> Result<Tensor> {
        Twice.backward(weight, gradient)
    }
}

#[test]
fn the_gradient_of_a_blended_weight_is_that_through_the_blend() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 3, 5, 2));
    // Half of the way from w to 2 w is 1.5 w.
    let mut through = stepper(&policy, Kind::Sgd, Some(Box::new(Blended)));
    through.anneal(0.5).unwrap();
    let (before, shown) = (numbers(&policy), numbers(through.policy()));
    let mut plain = stepper(&through.frozen().unwrap(), Kind::Sgd, None);
    let rate = 0.1f32;
    through.step(&batch, 0, rate.into()).unwrap();
    plain.step(&batch, 0, rate.into()).unwrap();
    let (learned, plain) = (through.learned_weights(), numbers(plain.policy()));
    for (name, before) in before.iter().filter(|(name, _)| Blended.covers(name)) {
        let decay = if policy.weights()[name].rank() >= 2 { 0.1 } else { 0.0 };
        let learned = tensor::to_vec(&learned[name]).unwrap();
        for (i, w) in before.iter().enumerate() {
            assert_eq!(shown[name][i], 1.5 * w);
            let gradient = 1.5 * w - plain[name][i] - rate * decay * 1.5 * w;
            let want = w - 1.5 * gradient - rate * decay * w;
            assert!((learned[i] - want).abs() < 2e-6 * want.abs().max(1.0), "{name}");
        }
    }
}

/// Fails to transform gradients of some weights while the flag is set.
struct Refuses(std::sync::Arc<std::sync::atomic::AtomicBool>);

impl WeightTransform for Refuses {
    fn covers(&self, name: &str) -> bool {
        Eighths.covers(name)
    }

    fn forward(&self, weight: &Tensor) -> Result<Tensor> {
        Eighths.forward(weight)
    }

    fn backward(&self, weight: &Tensor, gradient: Tensor) -> Result<Tensor> {
        match self.0.load(std::sync::atomic::Ordering::Relaxed) && weight.rank() == 2 {
            true => Err(sconce_tensor::Error::not_found("a gradient")),
            false => Ok(gradient),
        }
    }
}

#[test]
fn an_update_that_fails_changes_neither_shown_nor_master_weights() {
    let (policy, batch) = (Policy::init(&spec(), 1).unwrap(), examples(&spec(), 3, 5, 2));
    let refuses = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let mut failed = stepper(&policy, Kind::AdamW, Some(Box::new(Refuses(refuses.clone()))));
    let before = numbers(failed.policy());
    assert!(failed.step(&batch, 0, 1e-3).is_err());
    assert_eq!(numbers(failed.policy()), before);
    refuses.store(false, std::sync::atomic::Ordering::Relaxed);
    let mut straight = stepper(&policy, Kind::AdamW, Some(Box::new(Eighths)));
    let again = failed.step(&batch, 0, 1e-3).unwrap();
    assert_eq!(again, straight.step(&batch, 0, 1e-3).unwrap());
    assert_eq!(numbers(failed.policy()), numbers(straight.policy()));
}
