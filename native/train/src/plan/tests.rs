use std::sync::atomic::AtomicBool;

use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, Melee, RecurrentConfig};
use sconce_tensor::Kind;

use super::*;
use crate::objective::imitation::LossOptions;
use crate::options::{
    DataOptions, MachineOptions, ObjectiveOptions, OptimiserOptions, ScheduleOptions,
};
use crate::stop::NEVER;
use crate::tune::{Reason, TuneOptions, tune};
use crate::weights::pruning::Pattern;

fn spec() -> Spec {
    let config = RecurrentConfig {
        hidden_size: 32,
        num_layers: 2,
        layer_norm: true,
        input_norm: true,
        dropout: 0.1,
        input_dropout: 0.0,
        ..Default::default()
    };
    Spec {
        embedding: Embedding::melee(Melee::packed()),
        backbone: Backbone::Gru(config),
        heads: Heads::controller(HeadsKind::Autoregressive),
        critic: None,
    }
}

fn options() -> TrainOptions {
    // A validation would take more memory than these steps.
    TrainOptions {
        data: DataOptions {
            batch_size: 80,
            window_size: 12,
            val_split: 0.0,
            ..DataOptions::default()
        },
        schedule: ScheduleOptions { steps: Some(10), ..ScheduleOptions::default() },
        loss: LossOptions::default(),
        ..TrainOptions::default()
    }
}

#[test]
fn the_memory_of_a_larger_step_lies_on_the_line_through_two_small_ones() {
    let (spec, own) = (spec(), options());
    let cut = TrainOptions {
        optimiser: OptimiserOptions { truncate_bptt: Some(5), ..own.clone().optimiser },
        machine: MachineOptions { gradient_checkpoint: true, ..own.clone().machine },
        ..own.clone()
    };
    for options in [own, cut] {
        let memory = Memory::measure(&spec, &options, &NEVER).unwrap();
        for windows in [20, 80, 160] {
            let measured = apart(|| {
                let mut probe = Probe::new(&spec, &options, &NEVER)?;
                probe.learn(windows)?;
                Ok(probe.bytes())
            });
            let measured = measured.unwrap() as f64;
            let planned = memory.owners(windows).activations as f64;
            assert!((planned / measured - 1.0).abs() < 0.03, "{windows}: {planned} for {measured}");
        }
    }
}

#[test]
fn the_memory_that_stays_is_counted_from_the_number_of_weights() {
    let own = options();
    let planned = plan(&spec(), &own, None, &NEVER).unwrap();
    let each = 4 * planned.num_weights as u64;
    let Owners { weights, gradients, moments, average, checkpoints, .. } = planned.owners.clone();
    assert_eq!([weights, gradients, moments, average], [each, each, 2 * each, 0]);
    assert_eq!(checkpoints, 6 * each);
    assert_eq!((planned.steps, planned.epoch_steps, planned.micro_batch), (Some(10), None, 80));
    assert!(planned.step_seconds > 0.0);
    assert_eq!(planned.seconds, Some(10.0 * planned.step_seconds));

    let kind = crate::optimiser::Kind::Sgd;
    let other = TrainOptions {
        optimiser: OptimiserOptions {
            optimizer: kind,
            ema_decay: Some(0.9),
            accumulation_steps: 3,
            ..own.optimiser
        },
        ..own
    };
    let planned = plan(&spec(), &other, None, &NEVER).unwrap().owners;
    assert_eq!([planned.moments, planned.average, planned.validation], [each, each, 0]);
    let validated = TrainOptions { data: DataOptions { val_split: 0.1, ..other.data }, ..other };
    let validated = plan(&spec(), &validated, None, &NEVER).unwrap().owners;
    assert!(validated.validation > each);
    let either = validated.activations.max(validated.validation);
    assert_eq!(validated.total(), validated.lasting() + either);
}

#[test]
fn teachers_take_memory_and_so_do_their_frames() {
    let (dir, own) = (tempfile::tempdir().unwrap(), options());
    let other = Spec { embedding: Embedding::melee(Melee::default()), ..spec() };
    let path = |name: &str, spec: &Spec| {
        let path = dir.path().join(name);
        Policy::init(spec, 3).unwrap().save(&path, serde_json::json!({})).unwrap();
        path
    };
    let (same, other) = (path("same", &spec()), path("other", &other));
    let planned = |paths: &[&std::path::PathBuf]| {
        let teacher = paths.iter().map(|path| (*path).clone()).collect::<Vec<_>>().try_into().ok();
        let objective = ObjectiveOptions { teacher, ..own.objective.clone() };
        let options = TrainOptions { objective, ..own.clone() };
        (Memory::measure(&spec(), &options, &NEVER).unwrap().owners(80), options)
    };
    let (alone, _) = planned(&[]);
    assert_eq!(alone.teacher, 0);
    let (one, _) = planned(&[&same]);
    // Buffers below 1 KiB are not counted.
    let each = alone.weights;
    assert!((each * 9 / 10..2 * each).contains(&one.teacher), "{one:?}");
    assert!(one.batches == alone.batches && one.activations > alone.activations, "{one:?}");
    let (three, options) = planned(&[&same, &other, &other]);
    assert!(three.teacher > 5 * one.teacher / 2, "{three:?}");
    // Both others read the same frames.
    assert!(three.batches > one.batches && three.batches < 5 * one.batches, "{three:?}");
    let whole = plan(&spec(), &options, None, &NEVER).unwrap();
    assert_eq!((whole.owners.teacher, whole.bytes), (three.teacher, whole.owners.total()));
    assert!(whole.bytes > three.teacher + whole.owners.activations);
}

#[test]
fn weights_of_a_pruned_run_are_planned_as_they_learn_and_as_they_are_read() {
    let own = options();
    let pruned = TrainOptions {
        optimiser: OptimiserOptions { prune: Some(Pattern::TwoFour), ..own.optimiser.clone() },
        ..own.clone()
    };
    let plain = plan(&spec(), &own, None, &NEVER).unwrap();
    let planned = plan(&spec(), &pruned, None, &NEVER).unwrap();
    assert_eq!(planned.owners.weights, 2 * plain.owners.weights);
    assert!(planned.owners.activations >= plain.owners.activations);
}

#[test]
fn a_limit_halves_the_micro_batch_down_to_one_window() {
    let (spec, own) = (spec(), options());
    let whole = plan(&spec, &own, None, &NEVER).unwrap();
    let limited = |limit| TrainOptions {
        machine: MachineOptions { memory_limit: Some(limit), ..own.clone().machine },
        ..own.clone()
    };
    assert_eq!(plan(&spec, &limited(whole.bytes), None, &NEVER).unwrap().micro_batch, 80);
    let half = plan(&spec, &limited(whole.bytes - 1), None, &NEVER).unwrap();
    assert_eq!(half.micro_batch, 40);
    assert!(half.bytes < whole.bytes);
    match plan(&spec, &limited(whole.owners.lasting()), None, &NEVER).unwrap_err() {
        error @ Error::OverLimit { bytes, limit, .. } => {
            assert!(bytes > limit && error.kind() == Kind::OutOfMemory);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn tuning_doubles_until_memory_or_the_largest_batch_ends_it() {
    let (spec, own) = (spec(), options());
    let never = AtomicBool::new(false);
    let small = TuneOptions { initial: 2, max: 7, backoff: 1.0 };
    let tuned = tune(&spec, &own, &small, &never).unwrap();
    let sizes: Vec<usize> = tuned.rows.iter().map(|row| row.batch_size).collect();
    assert!(sizes.contains(&tuned.batch_size) && [2, 4].starts_with(&sizes), "{sizes:?}");
    assert!(tuned.rows.iter().all(|row| row.frames_per_second > 0.0 && row.bytes > 0));

    // The limit fits 6 windows, so the first batch of 24 windows is halved to 6.
    let first =
        TrainOptions { data: DataOptions { batch_size: 24, ..own.clone().data }, ..own.clone() };
    let mut memory = Memory::measure(&spec, &first, &NEVER).unwrap();
    memory.validates(false);
    let limit = memory.of_batch(6).total();
    let limited = TrainOptions {
        machine: MachineOptions { memory_limit: Some(limit), ..own.machine },
        ..own
    };
    let tuned = tune(&spec, &limited, &TuneOptions { initial: 24, max: 24, backoff: 1.0 }, &never);
    let tuned = tuned.unwrap();
    assert_eq!(tuned.rows[0].batch_size, 6);
    assert!(matches!(tuned.stopped, Reason::Memory | Reason::Throughput));

    let stopped = tune(&spec, &limited, &small, &AtomicBool::new(true));
    assert!(matches!(stopped, Err(Error::Cancelled)));
}
