use sconce_data::Sampling;
use sconce_nn::spec::MAX_DELAY;
use sconce_tensor::{Error, Precision};

use super::*;
use crate::optimiser::{Kind, OptimiserConfig};
use sconce_nn::head::Direction;

#[test]
fn options_of_older_runs_without_an_optimiser_are_adamw() {
    let text = r#"{"batch_size": 8, "lr_schedule": "linear", "weight_decay": 0.03}"#;
    let options: TrainOptions = serde_json::from_str(text).unwrap();
    let adamw = OptimiserConfig { weight_decay: 0.03, ..OptimiserConfig::new(Kind::AdamW) };
    assert_eq!(options.optimiser().unwrap(), adamw);
    assert_eq!((options.optimiser.accumulation_steps, options.optimiser.ema_decay), (1, None));
    // A recorded null stays `None`: the run saves at no interval of minutes.
    let options: TrainOptions = serde_json::from_str(r#"{"save_minutes": null}"#).unwrap();
    assert_eq!(
        (options.saving.save_minutes, TrainOptions::default().saving.save_minutes),
        (None, Some(5.0))
    );
}

#[test]
fn a_number_that_the_optimizer_does_not_have_is_named() {
    let options = TrainOptions {
        optimiser: OptimiserOptions { momentum: Some(0.5), ..OptimiserOptions::default() },
        ..TrainOptions::default()
    };
    let error = options.optimiser().unwrap_err().to_string();
    assert_eq!(error, "momentum: expected an optimizer that has one, got adamw");
    let sgd = TrainOptions {
        optimiser: OptimiserOptions { optimizer: Kind::Sgd, nesterov: true, ..options.optimiser },
        ..options
    };
    let config = sgd.optimiser().unwrap();
    assert_eq!((config.momentum, config.nesterov), (Some(0.5), Some(true)));
}

#[test]
fn an_option_without_effect_beside_the_others_is_named() {
    let own = TrainOptions::default;
    let exponential = || TrainOptions {
        schedule: ScheduleOptions { lr_schedule: LrSchedule::Exponential, ..own().schedule },
        ..own()
    };
    let constant = || TrainOptions {
        schedule: ScheduleOptions { lr_schedule: LrSchedule::Constant, ..own().schedule },
        ..own()
    };
    let restarts = || TrainOptions {
        schedule: ScheduleOptions { lr_schedule: LrSchedule::CosineRestarts, ..own().schedule },
        ..own()
    };
    let refused = [
        (
            "decay_steps",
            TrainOptions {
                schedule: ScheduleOptions { decay_steps: Some(5), ..constant().schedule },
                ..constant()
            },
        ),
        (
            "decay_steps",
            TrainOptions {
                schedule: ScheduleOptions { decay_steps: Some(5), ..restarts().schedule },
                ..restarts()
            },
        ),
        (
            "decay_rate",
            TrainOptions {
                schedule: ScheduleOptions { decay_rate: 0.5, ..own().schedule },
                ..own()
            },
        ),
        (
            "restart_period",
            TrainOptions {
                schedule: ScheduleOptions { restart_period: 5, ..own().schedule },
                ..own()
            },
        ),
        (
            "restart_mult",
            TrainOptions {
                schedule: ScheduleOptions { restart_mult: 3, ..exponential().schedule },
                ..exponential()
            },
        ),
        (
            "weights",
            TrainOptions { data: DataOptions { weights: vec![1.0], ..own().data }, ..own() },
        ),
        (
            "action_oversample",
            TrainOptions { data: DataOptions { action_oversample: 2.0, ..own().data }, ..own() },
        ),
        (
            "noise_scale",
            TrainOptions { data: DataOptions { noise_scale: 0.5, ..own().data }, ..own() },
        ),
        (
            "force_precision",
            TrainOptions {
                machine: MachineOptions { force_precision: true, ..own().machine },
                ..own()
            },
        ),
        (
            "teacher_weight",
            TrainOptions {
                objective: ObjectiveOptions { teacher_weight: 0.5, ..own().objective },
                ..own()
            },
        ),
        (
            "teacher_direction",
            TrainOptions {
                objective: ObjectiveOptions {
                    teacher_direction: Direction::Reverse,
                    ..own().objective
                },
                ..own()
            },
        ),
    ];
    for (field, options) in refused {
        let error = options.validate().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{field}: expected ")), "{error}");
    }
    let (weighted, transitions) = (Sampling::Weighted, Sampling::Transitions);
    let meant = [
        TrainOptions {
            schedule: ScheduleOptions { decay_steps: Some(5), ..own().schedule },
            ..own()
        },
        TrainOptions {
            schedule: ScheduleOptions {
                decay_steps: Some(5),
                decay_rate: 0.5,
                ..exponential().schedule
            },
            ..exponential()
        },
        TrainOptions {
            schedule: ScheduleOptions { restart_period: 5, restart_mult: 3, ..restarts().schedule },
            ..restarts()
        },
        TrainOptions {
            data: DataOptions { weights: vec![1.0], sampling: weighted, ..own().data },
            ..own()
        },
        TrainOptions {
            data: DataOptions { action_oversample: 2.0, sampling: transitions, ..own().data },
            ..own()
        },
        TrainOptions { data: DataOptions { noise_scale: 0.5, noise: 0.1, ..own().data }, ..own() },
        TrainOptions {
            machine: MachineOptions {
                force_precision: true,
                precision: Precision::Bf16,
                ..own().machine
            },
            ..own()
        },
    ];
    assert!(meant.iter().all(|options| options.validate().is_ok()));
}

#[test]
fn a_precision_that_is_not_faster_becomes_f32_unless_it_is_forced() {
    let here = |precision, force_precision| {
        TrainOptions {
            machine: MachineOptions { precision, force_precision, ..MachineOptions::default() },
            ..TrainOptions::default()
        }
        .precision_here()
    };
    let unit = sconce_ops::matmul::has_unit();
    let bf16 = if unit { Precision::Bf16 } else { Precision::F32 };
    assert_eq!(here(Precision::F16, false), Precision::F32);
    assert_eq!(here(Precision::Bf16, false), bf16);
    for precision in [Precision::Bf16, Precision::F16] {
        assert_eq!(here(precision, true), precision);
    }
}

#[test]
fn an_option_that_only_a_cpu_has_is_refused_by_name_on_another_device() {
    let on = |name: &str| TrainOptions {
        machine: MachineOptions { device: name.into(), ..MachineOptions::default() },
        ..TrainOptions::default()
    };
    let limited = |name| TrainOptions {
        machine: MachineOptions { memory_limit: Some(1 << 30), ..on(name).machine },
        ..on(name)
    };
    assert!(limited("cpu").open_device().is_ok());
    let error = limited("cuda:1").open_device().unwrap_err();
    assert_eq!(error.kind(), sconce_tensor::Kind::Unavailable);
    assert!(error.to_string().starts_with("memory_limit on cuda:1: "), "{error}");
    let again = TrainOptions {
        machine: MachineOptions { gradient_checkpoint: true, ..on("cuda:1").machine },
        ..on("cuda:1")
    };
    assert!(matches!(again.open_device(), Err(Error::NoDevice { .. })));
    // On a card every precision is faster than f32.
    let card = TrainOptions {
        machine: MachineOptions { precision: Precision::F16, ..on("cuda:1").machine },
        ..on("cuda:1")
    };
    assert_eq!(card.precision_here(), Precision::F16);
    assert!(matches!(card.open_device(), Err(Error::NoDevice { .. })));
}

#[test]
fn cards_that_cannot_share_a_batch_equally_are_refused_before_any_is_opened() {
    let on = |name: &str| TrainOptions {
        machine: MachineOptions { device: name.into(), ..MachineOptions::default() },
        ..TrainOptions::default()
    };
    let odd = TrainOptions {
        data: DataOptions { batch_size: 63, ..on("cuda:0,1").data },
        ..on("cuda:0,1")
    };
    let error = odd.open_devices().err().map(|error| error.to_string());
    let said = "batch_size: expected a multiple of 2, the cards of cuda:0,1, got 63";
    assert_eq!(error.as_deref(), Some(said));
    assert!(matches!(on("cuda:0,1").open_devices(), Err(Error::NoDevice { .. })));
    assert!(on("cpu").open_devices().is_ok_and(|devices| devices.all.len() == 1));
    // A measurement has exactly one device.
    assert!(matches!(on("cuda:0,1").open_device(), Err(Error::Mismatch { .. })));
}

#[test]
fn every_number_has_bounds_and_a_number_beyond_them_is_refused_by_name() {
    let own = TrainOptions::default();
    let all = serde_json::to_value(&own).unwrap();
    for row in rows().unwrap() {
        let value = &all[&row.group][&row.name];
        // `seed` may be any number, so it has no bounds.
        assert!(!value.is_number() || row.bounds().is_some(), "{}", row.name);
        let Some((min, max)) = row.bounds().filter(|_| row.is_flat()) else { continue };
        let whole = |number: f64| number.fract() == 0.0;
        let beyond = if whole(max) { serde_json::json!(max as u64 + 1) } else { 1.into() };
        let mut refused = vec![beyond];
        if min > 0.0 {
            refused.push(if whole(min) { serde_json::json!(min as u64 - 1) } else { 0.into() });
        }
        for number in refused.into_iter().filter(|_| max < f64::MAX) {
            let mut options = all.clone();
            options[&row.group][&row.name] = number;
            let options: TrainOptions = serde_json::from_value(options).unwrap();
            let error = options.validate().unwrap_err();
            assert_eq!(error.kind(), sconce_tensor::Kind::OutOfRange, "{}", row.name);
            assert!(error.to_string().starts_with(&row.name), "{error}");
        }
    }
    let delay = rows().unwrap().iter().find(|row| row.name == "frame_delay").unwrap();
    assert_eq!(delay.bounds().unwrap().1, MAX_DELAY as f64);
    let long =
        TrainOptions { schedule: ScheduleOptions { epochs: 1_000_000, ..own.schedule }, ..own };
    assert!(long.check_steps(1000).is_ok());
    assert!(long.check_steps(u64::MAX).unwrap_err().to_string().starts_with("steps: "));
}

#[test]
fn numbers_of_the_optimizer_have_bounds() {
    let forgetful = TrainOptions {
        optimiser: OptimiserOptions { beta2: Some(1.0), ..OptimiserOptions::default() },
        ..TrainOptions::default()
    };
    let error = forgetful.validate().unwrap_err().to_string();
    assert!(error.starts_with("beta2: 1 is outside 0.."), "{error}");
    let sudden = TrainOptions {
        optimiser: OptimiserOptions { eps: Some(0.0), ..OptimiserOptions::default() },
        ..TrainOptions::default()
    };
    assert!(sudden.validate().unwrap_err().to_string().starts_with("eps: 0 is outside"));
}

#[test]
fn a_run_without_any_time_is_refused() {
    let none = TrainOptions {
        schedule: ScheduleOptions { max_minutes: Some(0.0), ..ScheduleOptions::default() },
        ..TrainOptions::default()
    };
    let error = none.validate().unwrap_err().to_string();
    assert!(error.starts_with("max_minutes: 0 is outside 0.001.."), "{error}");
}

#[test]
fn the_table_has_a_row_of_each_field_with_its_default() {
    let values = serde_json::to_value(TrainOptions::default()).unwrap();
    let mut known = 0;
    for (group, options) in values.as_object().unwrap() {
        for (name, value) in options.as_object().unwrap() {
            let rows = rows().unwrap().iter();
            let row = rows.filter(|row| row.name == *name).find(|row| row.group == *group).unwrap();
            let same = match (value.as_f64(), row.default().as_f64()) {
                (Some(a), Some(b)) => a as f32 == b as f32,
                _ => *value == row.default(),
            };
            assert!(same, "{name}: {value} is not {}", row.default());
            known += 1;
        }
    }
    assert_eq!(known, rows().unwrap().len());
    for need in rows().unwrap().iter().flat_map(|row| row.needs()) {
        assert!(rows().unwrap().iter().any(|row| row.name == need.other), "{}", need.other);
    }
}

#[test]
fn options_are_read_by_their_groups_by_their_names_and_by_both() {
    let read = |text: &str| serde_json::from_str::<TrainOptions>(text).map_err(|e| e.to_string());
    let flat = read(r#"{"batch_size": 3, "steps": 7, "loss": {"clamp": 9.0}}"#).unwrap();
    let groups = r#"{"data": {"batch_size": 3}, "schedule": {"steps": 7}, "loss": {"clamp": 9.0}}"#;
    assert_eq!(read(groups).unwrap(), flat);
    assert_eq!(
        read(r#"{"data": {"batch_size": 3}, "steps": 7, "loss": {"clamp": 9}}"#),
        Ok(flat.clone())
    );
    assert_eq!((flat.data.batch_size, flat.schedule.steps, flat.loss.clamp), (3, Some(7), 9.0));
    assert_eq!(read(&serde_json::to_string(&flat).unwrap()), Ok(flat));
    assert_eq!(read(r#"{"bacth_size": 3}"#).unwrap_err(), "unknown option bacth_size");
    assert_eq!(read(r#"{"clamp": 3}"#).unwrap_err(), "unknown option clamp");
    assert!(read(r#"{"data": {"bacth_size": 3}}"#).unwrap_err().starts_with("unknown field"));
    let unknown = read(r#"{"data": {"steps": 3}}"#).unwrap_err();
    assert!(unknown.starts_with("unknown field `steps`"), "{unknown}");
}
