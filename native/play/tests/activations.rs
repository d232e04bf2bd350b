//! Training with rounded inputs of products, beside the packed steps that round them.
#![allow(clippy::disallowed_methods)]

#[allow(dead_code)]
#[path = "../../nn/tests/packed/backbones.rs"]
mod backbones;

use std::sync::atomic::AtomicBool;

use backbones::{BACKBONES, Numbers};
use sconce_data::Batch;
use sconce_nn::backbone::Context;
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, Melee};
use sconce_nn::{Policy, Spec};
use sconce_realtime::{Encoding, Format as Packing, Scratch};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::to_vec;
use sconce_train::bench::examples;
use sconce_train::objective::Objectives;
use sconce_train::objective::imitation::{Imitation, LossOptions};
use sconce_train::optimiser::OptimiserConfig;
use sconce_train::step::Stepper;
use sconce_train::weights::WeightTransforms;
use sconce_train::weights::quantisation::{Format, Quantisation, Steps};

const TIME: usize = 6;
static NEVER: AtomicBool = AtomicBool::new(false);

fn quantisation(format: Format, activations: bool) -> Quantisation {
    Quantisation { format, group: None, after: 0.0, ramp: 0.0, steps: Steps::Learned, activations }
}

fn spec(backbone: Backbone, kind: HeadsKind) -> Spec {
    let heads = Heads { prior: true, ..Heads::controller(kind) };
    Spec { embedding: Embedding::melee(Melee::packed()), backbone, heads, critic: None }
}

/// A stepper after some steps, so that its grids are not those of its first weights.
fn trained(spec: &Spec, own: Quantisation) -> Stepper<'static> {
    let policy = Policy::init(spec, 1).unwrap();
    let imitation = Imitation::new(&spec.heads, &LossOptions::plain()).unwrap();
    let transform = own.transform(policy.weights(), |_| true).unwrap();
    let transforms = WeightTransforms::new(vec![transform]);
    let objectives = Objectives::new(vec![Box::new(imitation)]);
    let config = OptimiserConfig::default();
    let stepper = Stepper::new(&policy, objectives, transforms, config, 1.0, 3).unwrap();
    let mut stepper = stepper.stopped_by(&NEVER);
    for step in 0..3 {
        stepper.step(&examples(spec, 3, TIME, step), step, 3e-3).unwrap();
    }
    stepper
}

/// The logits of each frame of a window by steps of codes.
fn played(plan: &Plan, spec: &Spec, batch: &Batch) -> Vec<f32> {
    let (mut scratch, mut state) = (Scratch::default(), plan.zero_state().to_vec());
    let (sampling, mut all) = (Sampling::default(), vec![]);
    let width = |all: usize| all / TIME;
    let (frames, labels) = (&batch.frames, spec.heads.num_labels());
    for t in 0..TIME {
        let of = |numbers: usize| t * width(numbers)..(t + 1) * width(numbers);
        let frame = Frame {
            continuous: &frames.continuous[of(frames.continuous.len())],
            ids: &frames.ids[of(frames.ids.len())],
            previous: &frames.previous[of(frames.previous.len())],
        };
        let mut decision = plan.blank();
        let rng = Rng::new(1, "act", 0);
        let mut game = Game::new(frame, &mut state, &sampling, rng, &mut decision);
        game.given = Some(&batch.labels[t * labels..(t + 1) * labels]);
        plan.step(std::slice::from_mut(&mut game), &mut scratch);
        game.outcome.unwrap();
        all.extend(decision.logits);
    }
    all
}

/// Differences between the logits of a window in the forward pass of training and in steps, in units of the largest
/// logit.
struct Apart {
    most: f32,
    median: f32,
}

fn apart(stepper: &Stepper<'_>, plan: &Plan, spec: &Spec, seed: u64) -> Apart {
    let batch = examples(spec, 1, TIME, seed);
    let (policy, context) = (stepper.policy(), Context::default());
    let zero = policy.zero_state(1).unwrap();
    let (logits, _) = policy.forward(&batch.frames, Some(&batch.labels), &zero, &context).unwrap();
    let (learned, played) = (to_vec(&logits).unwrap(), played(plan, spec, &batch));
    let largest = learned.iter().fold(1.0f32, |most, v| most.max(v.abs()));
    let pairs = learned.iter().zip(&played);
    let mut all: Vec<f32> = pairs.map(|(a, b)| (a - b).abs() / largest).collect();
    all.sort_by(f32::total_cmp);
    Apart { most: all[all.len() - 1], median: all[all.len() / 2] }
}

/// Steps of the codes; `None` on a CPU that reads them in f32.
fn plan(stepper: &Stepper<'_>) -> Option<Plan> {
    let plan = Plan::of(&stepper.averaged().unwrap(), Packing::Stored).unwrap()?;
    (plan.encoding() != Encoding::F32).then_some(plan)
}

#[test]
fn a_forward_pass_of_training_reads_what_the_steps_of_a_session_read() {
    let backbone = |name: &str| {
        let known =
            (0..40).flat_map(|seed| BACKBONES.iter().map(move |of| of(&mut Numbers::new(seed))));
        known.into_iter().find(|of| of.name() == name && of.output_size(100) >= 32).unwrap()
    };
    for name in ["mlp", "gru", "lstm", "sliding_window"] {
        for kind in [HeadsKind::Independent, HeadsKind::Autoregressive] {
            for format in [Format::Int8, Format::Int4] {
                let spec = spec(backbone(name), kind);
                let near = |activations: bool| {
                    let stepper = trained(&spec, quantisation(format, activations));
                    let plan = plan(&stepper)?;
                    let all = (10..18).map(|seed| apart(&stepper, &plan, &spec, seed));
                    Some(all.collect::<Vec<Apart>>())
                };
                let (Some(rounded), Some(plain)) = (near(true), near(false)) else { continue };
                let sorted = |all: &[Apart], of: fn(&Apart) -> f32| {
                    let mut all: Vec<f32> = all.iter().map(of).collect();
                    all.sort_by(f32::total_cmp);
                    all
                };
                let case = format!("{name} {kind:?} {format:?}");
                // Where a sum in another order decides between two codes of an input, logits differ by a step of its
                // grid. The grid of 16 bits is so fine that this happens in most windows, and rarely to all logits of
                // one.
                let least = [&rounded, &plain].map(|all| sorted(all, |apart| apart.median)[0]);
                // Attention has more such sums between its products.
                let part =
                    if (name, format) == ("sliding_window", Format::Int8) { 0.9 } else { 0.5 };
                assert!(least[0] < part * least[1], "{case}: {least:?}");
                if format == Format::Int4 {
                    let most = sorted(&rounded, |apart| apart.most);
                    assert!(most[5] < 2e-6, "{case}: {most:?}");
                    let most = sorted(&plain, |apart| apart.most);
                    assert!(most[0] > 1e-4, "{case}: {most:?}");
                }
            }
        }
    }
}

#[test]
fn every_backbone_rounds_the_inputs_of_all_its_matrices() {
    for of in BACKBONES {
        for seed in [3, 4] {
            let spec = spec(of(&mut Numbers::new(seed)), HeadsKind::Independent);
            for format in [Format::Int8, Format::Int4] {
                // A weight whose inputs were not rounded would be refused by the first step.
                let stepper = trained(&spec, quantisation(format, true));
                let Some(plan) = plan(&stepper) else { continue };
                let all = (7..10).map(|seed| apart(&stepper, &plan, &spec, seed).most);
                let least = all.fold(f32::INFINITY, f32::min);
                let within = if format == Format::Int4 { 2e-6 } else { 2e-4 };
                assert!(least < within, "{} {format:?}: {least}", spec.backbone.name());
            }
        }
    }
}
