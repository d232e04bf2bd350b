use std::ops::Range;
use std::sync::atomic::AtomicBool;

use sconce_data::Batch;
use sconce_nn::backbone::Context;
use sconce_nn::heads::NONE;
use sconce_nn::policy::Frames;
use sconce_nn::spec::{self, HeadKind, RecurrentConfig};
use sconce_nn::{Policy, Spec};
use sconce_ops::weights::Weights;
use sconce_tensor::candle::Var;
use sconce_tensor::rng::Rng;
use sconce_tensor::tape::{self, Gradients};
use sconce_tensor::{Device, Error, Tensor, tensor};

use super::learn::census;
use super::*;
use crate::objective::imitation::LossOptions;
use crate::objective::{Figures, Outputs, Total};
use crate::optimiser::OptimiserConfig;
use crate::states::States;

#[test]
fn a_weight_that_no_gradient_reaches_is_named() {
    let variable = || Var::ones(2, sconce_tensor::DType::F32, &Device::Cpu).unwrap().into_inner();
    let (used, forgotten) = (variable(), variable());
    let _tape = tape::record();
    let store = tape::backward(&used, used.ones_like().unwrap()).unwrap();
    let weights =
        Weights::from([("used".into(), used.into()), ("forgotten".into(), forgotten.into())]);
    let Err(Error::NoGradient { weights }) = census(&weights, &store) else { panic!("no error") };
    assert_eq!(weights, ["forgotten"]);
}

const BATCH: usize = 3;
const TIME: usize = 10;

fn spec() -> Spec {
    let config = RecurrentConfig {
        hidden_size: 9,
        num_layers: 2,
        layer_norm: true,
        input_norm: true,
        dropout: 0.3,
        input_dropout: 0.2,
        ..Default::default()
    };
    let part = |name: &str, kind| spec::Head { name: name.into(), kind, hidden_size: 6 };
    let parts = vec![part("go", HeadKind::Bernoulli(2)), part("to", HeadKind::Categorical(3))];
    let kind = spec::HeadsKind::Autoregressive;
    let heads = spec::Heads { kind, parts, stream_size: 5, prior: false };
    let (embedding, backbone) = (spec::Embedding::vector(4), spec::Backbone::Gru(config));
    Spec { embedding, backbone, heads, critic: None }
}

fn examples() -> Batch {
    let (rng, n) = (Rng::new(2, "examples", 0), BATCH * TIME);
    let continuous = (0..4 * n as u64).map(|i| rng.normal(i)).collect();
    let previous = vec![NONE; 3 * n];
    let frames = Frames { batch: BATCH, time: TIME, continuous, ids: vec![], previous };
    let labels = (0..n as u64)
        .flat_map(|i| [rng.below(3 * i, 2), rng.below(3 * i + 1, 2), rng.below(3 * i + 2, 3)])
        .map(|label| label as f32)
        .collect();
    // A burn-in of two frames, and some frames of larger weights.
    let weights = (0..n).map(|i| if i % TIME < 2 { 0.0 } else { 1.0 + (i % 3) as f32 }).collect();
    Batch { frames, labels, weights, ..Batch::default() }
}

fn stepper(loss: &LossOptions, unroll: Unroll) -> Stepper<'static> {
    let policy = Policy::init(&spec(), 4).unwrap();
    Stepper::imitating(&policy, loss, OptimiserConfig::default(), 1.0, 7).unwrap().unrolling(unroll)
}

fn gathered(stepper: &Stepper, store: &Gradients) -> Vec<(String, Vec<f32>)> {
    let weights = stepper.policy.weights().iter();
    let all = weights.map(|(name, weight)| {
        weight.gather(store).unwrap();
        let gradient = weight.gradient(|g| g.to_vec());
        weight.forget();
        (name.clone(), gradient)
    });
    all.collect()
}

/// Loss and gradients of a step in these parts.
fn learned(loss: &LossOptions, unroll: Unroll) -> (f64, Vec<(String, Vec<f32>)>) {
    let stepper = stepper(loss, unroll);
    let x = examples();
    let zero = stepper.policy.zero_state(BATCH).unwrap();
    let (learned, store) = stepper.backward(Task::new(&x, &zero, 5)).unwrap();
    (learned.figures.total, gathered(&stepper, &store))
}

/// The results of [`learned`] from one graph over the whole window, with detached states between chunks.
fn reference(loss: &LossOptions, chunk: usize) -> (f64, Vec<(String, Vec<f32>)>) {
    let stepper = stepper(loss, Unroll::default());
    let x = examples();
    let mut state = stepper.policy.zero_state(BATCH).unwrap();
    let (_tape, mut logits) = (tape::record(), vec![]);
    for from in (0..TIME).step_by(chunk) {
        let range = from..(from + chunk).min(TIME);
        let context = Context::training(7, 5).chunk(TIME, from, range.len());
        let Batch { frames, labels, .. } = x.part(&(0..BATCH), &range);
        let (part, next) =
            stepper.policy.forward(&frames, Some(&labels), &state, &context).unwrap();
        logits.push(part.reshape((BATCH, range.len(), part.dim(1).unwrap())).unwrap());
        state = next.detach();
    }
    let logits = Tensor::cat(&logits, 1).unwrap().flatten(0, 1).unwrap();
    let denominators = stepper.after_first_pass(&logits, &x).unwrap();
    let (outputs, mut total) = (Outputs { logits, companions: vec![] }, Total::default());
    let objectives = &stepper.objectives;
    let gradient = objectives.gradient(&outputs, &x, &denominators, &mut total).unwrap();
    let store = tape::backward(&outputs.logits, gradient).unwrap();
    let loss = objectives.finish(&total, &denominators).unwrap().total;
    (loss, gathered(&stepper, &store))
}

fn losses() -> [LossOptions; 2] {
    let full = LossOptions { head_normalize: true, ..LossOptions::default() };
    [LossOptions::plain(), full.with_press_rates(&[0.3, 0.6])]
}

#[test]
fn chunks_have_the_gradients_of_the_window_without_the_paths_between_chunks() {
    for loss in losses() {
        for chunk in [1, 2, 4, 10] {
            let truncated = Unroll { truncate_bptt: Some(chunk), ..Unroll::default() };
            let (got, want) = (learned(&loss, truncated), reference(&loss, chunk));
            assert!((got.0 - want.0).abs() < 1e-6, "{} is not {}", got.0, want.0);
            for ((name, got), (_, want)) in got.1.iter().zip(&want.1) {
                let scale = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
                for (got, want) in got.iter().zip(want) {
                    let error = (got - want).abs() / scale;
                    assert!(error < 1e-5, "{name}, chunks of {chunk}: {got} is not {want}");
                }
            }
        }
    }
}

fn unroll(truncate_bptt: Option<usize>, recompute: Option<usize>) -> Unroll {
    Unroll { truncate_bptt, recompute, ..Unroll::default() }
}

#[test]
fn micro_batches_have_the_gradients_and_the_states_of_the_batch() {
    for loss in losses() {
        for truncate_bptt in [None, Some(4)] {
            let after = |micro_batch| {
                let unroll = Unroll { micro_batch, carry: true, ..unroll(truncate_bptt, None) };
                let stepper = stepper(&loss, unroll);
                let x = examples();
                let zero = stepper.policy.zero_state(BATCH).unwrap();
                let task = Task { share: 0.5, ..Task::new(&x, &zero, 5) };
                let (learned, store) = stepper.backward(task).unwrap();
                let state =
                    ("state".to_string(), learned.states.unwrap().learner.to_vec().unwrap());
                (learned.figures.total, [gathered(&stepper, &store), vec![state]].concat())
            };
            let want = after(None);
            assert!(after(Some(BATCH)) == want);
            for micro_batch in [1, 2] {
                let got = after(Some(micro_batch));
                assert!((got.0 - want.0).abs() < 1e-6, "{} is not {}", got.0, want.0);
                for ((name, got), (_, want)) in got.1.iter().zip(&want.1) {
                    let scale = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
                    for (got, want) in got.iter().zip(want) {
                        let error = (got - want).abs() / scale;
                        assert!(error < 1e-5, "{name}, {micro_batch}: {got} is not {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_chunk_as_long_as_the_window_and_recomputed_blocks_change_no_bit() {
    for loss in losses() {
        let whole = learned(&loss, Unroll::default());
        for truncate_bptt in [None, Some(TIME), Some(TIME + 1)] {
            for recompute in [None, Some(1), Some(2)] {
                assert!(whole == learned(&loss, unroll(truncate_bptt, recompute)));
            }
        }
        let cut = |recompute| learned(&loss, unroll(Some(3), recompute));
        assert!(cut(None) == cut(Some(1)));
        assert!(cut(None) != whole);
    }
}

#[test]
fn accumulated_batches_have_the_gradient_of_one_batch_of_all_their_rows() {
    let mut without_dropout = spec();
    if let spec::Backbone::Gru(config) = &mut without_dropout.backbone {
        (config.dropout, config.input_dropout) = (0.0, 0.0);
    }
    let policy = Policy::init(&without_dropout, 4).unwrap();
    let kept = |parts: &[Range<usize>]| {
        let config = OptimiserConfig::default();
        let mut stepper =
            Stepper::imitating(&policy, &LossOptions::plain(), config, 0.1, 7).unwrap();
        for rows in parts {
            let mut x = examples().part(rows, &(0..TIME));
            // The rows of the first batch have larger weights.
            let first = x.weights.iter_mut().zip(rows.start * TIME..);
            first.filter(|(_, i)| *i < TIME).for_each(|(w, _)| *w *= 3.0);
            let zero = stepper.policy.zero_state(rows.len()).unwrap();
            stepper.learn(Task { share: x.mean_weight(), ..Task::new(&x, &zero, 0) }).unwrap();
        }
        let gradients = stepper.policy.weights().iter();
        let gradients = gradients.map(|(name, weight)| {
            let mean = |g: &f32| f64::from(*g) / stepper.learned;
            (name.clone(), weight.gradient(|g| g.iter().map(mean).collect::<Vec<_>>()))
        });
        let gradients: Vec<_> = gradients.collect();
        let norm = stepper.update(1e-3).unwrap();
        (gradients, norm)
    };
    let (want, norm) = kept(std::slice::from_ref(&(0..BATCH)));
    let (got, other_norm) = kept(&[0..1, 1..2, 2..3]);
    assert!((norm - other_norm).abs() < 1e-6 * norm, "{norm} is not {other_norm}");
    for ((name, want), (_, got)) in want.iter().zip(&got) {
        let scale = want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
        for (want, got) in want.iter().zip(got) {
            assert!((want - got).abs() < 2e-6 * scale, "{name}: {got} is not {want}");
        }
    }
}

fn numbers(policy: &Policy) -> Vec<f32> {
    policy.weights().values().flat_map(|w| tensor::to_vec(w).unwrap()).collect()
}

#[test]
fn a_batch_of_frames_of_weight_0_adds_no_gradient_and_carries_its_state() {
    let x = examples();
    let empty = Batch { weights: vec![0.0; x.weights.len()], ..x.clone() };
    let (x, empty) = (&x, &empty);
    let numbers_of = |states: &Option<States>| states.as_ref().unwrap().learner.to_vec().unwrap();
    for unroll in [unroll(None, None), unroll(Some(3), None)] {
        let unroll = Unroll { carry: true, ..unroll };
        let after = |all: &[&Batch]| {
            let mut stepper = stepper(&LossOptions::plain(), unroll);
            let zero = stepper.policy.zero_state(BATCH).unwrap();
            let mut states = vec![];
            for x in all {
                let task = Task { share: x.mean_weight(), ..Task::new(x, &zero, 2) };
                states.push(stepper.learn(task).unwrap());
            }
            let norm = stepper.update(1e-2).unwrap();
            (states, norm, numbers(&stepper.policy), stepper.optimiser.updates())
        };
        let (alone, norm, changed, updates) = after(&[x]);
        for all in [[empty, x], [x, empty]] {
            let (both, other, weights, _) = after(&all);
            assert_eq!((other, &weights), (norm, &changed));
            let silent = &both[usize::from(all[0].weights[TIME - 1] != 0.0)];
            assert_eq!(silent.figures, Figures::default());
            assert_eq!(numbers_of(&silent.states), numbers_of(&alone[0].states));
        }

        // A step with only such batches: no decay, no moments, no update.
        let first = numbers(&stepper(&LossOptions::plain(), unroll).policy);
        let (_, norm, same, none) = after(&[empty, empty]);
        assert_eq!((norm, none, updates), (0.0, 0, 1));
        assert!(same == first && changed != first);
    }
}

#[test]
fn the_plain_losses_of_the_heads_add_up_to_the_loss() {
    let mut x = examples();
    x.weights.iter_mut().for_each(|w| *w = w.min(1.0));
    for truncate_bptt in [None, Some(3)] {
        let losses = stepper(&LossOptions::plain(), unroll(truncate_bptt, None))
            .step(&x, 0, 1e-2)
            .unwrap()
            .figures;
        assert_eq!(losses.heads.len(), 2);
        assert!((losses.heads.iter().sum::<f64>() - losses.total).abs() < 1e-9, "{losses:?}");
    }
}

#[test]
fn a_cancelled_step_computes_no_further_part() {
    let x = examples();
    let cut =
        |micro_batch, truncate_bptt| Unroll { micro_batch, truncate_bptt, ..unroll(None, None) };
    for unroll in [cut(Some(1), None), cut(None, Some(3))] {
        let cancel = AtomicBool::new(false);
        let stepper = stepper(&LossOptions::plain(), unroll).stopped_by(&cancel);
        let zero = stepper.policy.zero_state(BATCH).unwrap();
        let mut parts = 0;
        let passed = stepper.pass(Task::new(&x, &zero, 0), true, |_, _| {
            parts += 1;
            cancel.store(true, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        });
        assert!(matches!(passed, Err(Error::Cancelled)));
        assert_eq!(parts, 1);
    }
}

#[test]
fn a_batch_that_fails_does_not_affect_the_next_update() {
    let x = examples();
    let after = |fail: bool| {
        let mut stepper = stepper(&LossOptions::plain(), Unroll::default());
        let zero = stepper.policy.zero_state(BATCH).unwrap();
        if fail {
            stepper.learn(Task::new(&x, &zero, 0)).unwrap();
            let wild = Batch { weights: vec![f32::NAN; x.weights.len()], ..x.clone() };
            assert!(stepper.learn(Task::new(&wild, &zero, 1)).is_err());
        }
        stepper.step(&x, 2, 1e-2).unwrap().grad_norm
    };
    assert_eq!(after(true), after(false));
}

#[test]
fn the_averaged_policy_has_the_mean_of_the_weights_so_far() {
    let x = examples();
    let mut stepper = stepper(&LossOptions::plain(), Unroll::default()).averaging(Some(0.5));
    assert_eq!(numbers(&stepper.averaged().unwrap()), numbers(&stepper.policy));
    let after: Vec<Vec<f32>> = (0..3)
        .map(|step| {
            stepper.step(&x, step, 1e-2).unwrap();
            numbers(&stepper.policy)
        })
        .collect();
    for (i, got) in numbers(&stepper.averaged().unwrap()).iter().enumerate() {
        let want = (after[0][i] + 2.0 * after[1][i] + 4.0 * after[2][i]) / 7.0;
        assert!((got - want).abs() < 1e-6, "{got} is not {want}");
    }
}
