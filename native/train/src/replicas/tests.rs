//! Tests with several CPU replicas instead of several devices that share a batch.

use std::time::{Duration, Instant};

use sconce_nn::Policy;
use sconce_nn::checkpoint::Optimiser;
use sconce_nn::spec::{
    Backbone, Embedding, Heads, HeadsKind, Layout, Melee, RecurrentConfig, Spec,
};
use sconce_tensor::{Kind, Tensor, tensor};

use super::*;
use crate::bench::examples;
use crate::objective::Objectives;
use crate::objective::imitation::{LossOptions, PosWeight};
use crate::optimiser::{self, OptimiserConfig};
use crate::options::{ObjectiveOptions, TrainOptions};
use crate::step::{Learned, Unroll};
use crate::weights::WeightTransforms;
use crate::{objective, transform};

/// Adds the gradients in the order of the devices.
pub(crate) struct InOrder;

impl AllReduce for InOrder {
    fn sum(&self, parts: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut sum = parts[0].clone();
        for part in &parts[1..] {
            sum = (sum + part)?;
        }
        Ok(vec![sum; parts.len()])
    }
}

const WINDOWS: usize = 4;
const TIME: usize = 8;

fn spec() -> Spec {
    let config = RecurrentConfig {
        hidden_size: 8,
        num_layers: 1,
        layer_norm: true,
        input_norm: true,
        dropout: 0.3,
        input_dropout: 0.2,
        ..Default::default()
    };
    let melee = Melee { layout: Layout::Packed, queue_depth: 2, ..Melee::default() };
    let heads = Heads { prior: true, ..Heads::controller(HeadsKind::Autoregressive) };
    Spec {
        embedding: Embedding::melee(melee),
        backbone: Backbone::Gru(config),
        heads,
        critic: None,
    }
}

/// Windows of weight 0, of weight 1, of larger weights, and of weight 0 in the first two frames.
fn loaded(draw: u64, carry: bool) -> Loaded {
    let mut batch = examples(&spec(), WINDOWS, TIME, draw);
    let weight = |i: usize| match (i / TIME, i % TIME) {
        (0, _) | (3, 0..2) => 0.0,
        (2, t) => 2.0 + t as f32,
        _ => 1.0,
    };
    // The third track takes another game with the second batch.
    let fresh = |track: usize| draw == 0 || (draw == 1 && track == 2);
    batch.weights = (0..WINDOWS * TIME).map(weight).collect();
    let fresh = (0..if carry { WINDOWS } else { 0 }).map(fresh).collect();
    Loaded { batch, fresh, frames: WINDOWS * TIME }
}

struct Case {
    loss: LossOptions,
    unroll: Unroll,
    scheduled: f32,
    taught: bool,
}

fn plain() -> Case {
    let (loss, unroll) = (LossOptions::plain(), Unroll::default());
    Case { loss, unroll, scheduled: 0.0, taught: false }
}

fn replicas(case: &Case, count: usize, sum: impl AllReduce + 'static) -> Replicas<'static> {
    let policy = Policy::init(&spec(), 4).unwrap();
    let sgd = OptimiserConfig::new(optimiser::Kind::Sgd);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("teacher.safetensors");
    Policy::init(&spec(), 5).unwrap().save(&path, serde_json::json!({})).unwrap();
    let options = TrainOptions {
        objective: ObjectiveOptions {
            teacher: case.taught.then(|| path.into()),
            teacher_weight: 0.7,
            scheduled_sampling: case.scheduled,
            ..ObjectiveOptions::default()
        },
        loss: case.loss.clone(),
        ..TrainOptions::default()
    };
    let replica = |_| {
        let setup = objective::Setup {
            options: &options,
            spec: &spec(),
            press_rates: &[],
            device: &Device::Cpu,
            prior: None,
        };
        let objectives = Objectives::of(&setup).unwrap();
        let stepper =
            Stepper::new(&policy, objectives, WeightTransforms::default(), sgd, 1.0, 7).unwrap();
        Replica::new(stepper.unrolling(case.unroll))
    };
    let sum: Option<Box<dyn AllReduce>> = (count > 1).then(|| Box::new(sum) as _);
    let transforms = transform::Setup { options: &options, spec: &spec(), companions: &[] };
    Replicas::new((0..count).map(replica).collect(), sum, Transforms::of(&transforms).unwrap())
}

fn kl(told: &Figures) -> f64 {
    told.named.get("teacher_kl").copied().unwrap_or(0.0)
}

fn numbers(replica: &Replica) -> Vec<f32> {
    replica.weights().values().flat_map(|w| tensor::to_vec(w).unwrap()).collect()
}

/// Results of some steps of two batches each. The values of one result have the same scale.
fn steps(case: &Case, count: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut all = replicas(case, count, InOrder);
    let (mut losses, mut norms) = (vec![], vec![]);
    for draw in 0..6 {
        let batch = loaded(draw, case.unroll.carry);
        let (told, counts) = all.learn(batch, draw / 2, draw, false).unwrap();
        losses.extend([told.total, counts, kl(&told)].map(|v| v as f32));
        losses.extend(told.heads.iter().map(|&loss| loss as f32));
        if draw % 2 == 1 {
            norms.push(all.update(0.1, false).unwrap().0 as f32);
            all.check().unwrap();
        }
    }
    let mut states = Optimiser::new();
    all.save(&mut states).unwrap();
    assert_eq!(states.len(), usize::from(case.unroll.carry) * (1 + usize::from(case.taught)));
    let states = states.into_values().flatten().collect();
    let weights = numbers(&all.all[0]);
    all.learn(loaded(6, case.unroll.carry), 3, 6, true).unwrap();
    all.add_up().unwrap();
    let gradient = tensor::to_vec(&all.all[0].gradient().unwrap()).unwrap();
    let named = [("losses", losses), ("norms", norms), ("weights", weights)];
    named.into_iter().chain([("states", states), ("gradient", gradient)]).collect()
}

fn assert_alike(case: &Case, what: &str) {
    let want = steps(case, 1);
    for count in [2, 4] {
        for ((name, want), (_, got)) in want.iter().zip(steps(case, count)) {
            assert_eq!(want.len(), got.len(), "{name}");
            let scale = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
            for (got, want) in got.iter().zip(want) {
                let near = (got - want).abs() <= 1e-5 * scale;
                assert!(near, "{what}, {count} devices, {name}: {got} is not {want} of {scale}");
            }
        }
    }
}

fn full() -> LossOptions {
    LossOptions { head_normalize: true, pos_weight: PosWeight::None, ..LossOptions::default() }
}

#[test]
fn several_devices_learn_from_a_batch_what_one_device_learns() {
    assert_alike(&plain(), "plain");
    assert_alike(&Case { loss: full(), ..plain() }, "heads by their means");
    let unroll = Unroll { truncate_bptt: Some(3), micro_batch: Some(1), ..Unroll::default() };
    assert_alike(&Case { unroll, loss: full(), ..plain() }, "chunks");
}

#[test]
fn carried_states_teachers_and_scheduled_inputs_are_those_of_one_device() {
    let unroll = Unroll { carry: true, ..Unroll::default() };
    assert_alike(&Case { unroll, taught: true, ..plain() }, "carried");
    assert_alike(&Case { unroll, loss: full(), scheduled: 0.5, ..plain() }, "scheduled");
}

#[test]
fn saved_tracks_continue_on_another_number_of_devices() {
    let unroll = Unroll { carry: true, ..Unroll::default() };
    let case = Case { unroll, taught: true, ..plain() };
    let mut two = replicas(&case, 2, InOrder);
    two.learn(loaded(0, true), 0, 0, true).unwrap();
    let mut saved = Optimiser::new();
    two.save(&mut saved).unwrap();
    for count in [1, 2, 4] {
        let mut others = replicas(&case, count, InOrder);
        others.load(&saved, WINDOWS).unwrap();
        let mut again = Optimiser::new();
        others.save(&mut again).unwrap();
        assert_eq!(again, saved);
    }
    saved.remove("carried.teacher").unwrap();
    let missing = two.load(&saved, WINDOWS).unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
}

#[test]
fn a_failure_of_one_device_ends_the_step_of_all_and_leaves_no_trace_in_the_next() {
    let after = |fail: Option<fn() -> Result<Learned>>| {
        let learn: Learn = Box::new(move |stepper, task| {
            match fail.filter(|_| task.draw == 1 && task.first == 2) {
                Some(fail) => fail(),
                None => stepper.learn(task),
            }
        });
        let mut all = replicas(&plain(), 4, InOrder).learning(learn);
        all.learn(loaded(0, false), 0, 0, true).unwrap();
        all.update(0.1, false).unwrap();
        let before = Instant::now();
        let failed = all.learn(loaded(1, false), 1, 1, true).err();
        assert!(before.elapsed() < Duration::from_secs(10));
        all.forget();
        all.learn(loaded(2, false), 1, 2, true).unwrap();
        all.update(0.1, false).unwrap();
        all.check().unwrap();
        (failed.map(|error| error.to_string()), numbers(&all.all[3]))
    };
    let (none, want) = after(None);
    let (cancelled, got) = after(Some(|| Err(Error::Cancelled)));
    assert_eq!((none, cancelled.as_deref()), (None, Some("cancelled")));
    assert_eq!(got, want);
    let (panicked, got) = after(Some(|| panic!("on a thread of its own")));
    assert_eq!(panicked.as_deref(), Some("panic: on a thread of its own"));
    assert_eq!(got, want);
}

/// Gives the last device a different sum than the others.
struct Other(f64);

impl AllReduce for Other {
    fn sum(&self, parts: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut sums = InOrder.sum(parts)?;
        let last = sums.pop().unwrap();
        sums.push((last * self.0)?);
        Ok(sums)
    }
}

#[test]
fn replicas_that_differ_are_refused_and_not_saved() {
    let mut all = replicas(&plain(), 2, Other(-1.0));
    all.learn(loaded(0, false), 0, 0, true).unwrap();
    all.update(0.1, false).unwrap();
    assert!(!all.torn());
    let said = "weights on device 1 of the run: expected those on device 0 of the run, got others";
    assert_eq!(all.check().unwrap_err().to_string(), said);
    assert!(all.torn());

    let mut all = replicas(&plain(), 2, Other(f64::NAN));
    all.learn(loaded(0, false), 0, 0, true).unwrap();
    assert_eq!(all.update(0.1, false).unwrap_err().kind(), Kind::NonFinite);
    assert!(all.torn());
}
