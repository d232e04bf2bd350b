use sconce_data::Sampling;
use sconce_nn::spec::MAX_DELAY;
use sconce_tensor::{Error, Precision};

use super::bounds::BOUNDS;
use super::*;
use crate::objective::teacher::Direction;
use crate::optimiser::{Kind, OptimiserConfig};

#[test]
fn options_of_runs_before_there_were_other_optimisers_are_adamw() {
    let text = r#"{"batch_size": 8, "lr_schedule": "linear", "weight_decay": 0.03}"#;
    let options: TrainOptions = serde_json::from_str(text).unwrap();
    let adamw = OptimiserConfig { weight_decay: 0.03, ..OptimiserConfig::new(Kind::AdamW) };
    assert_eq!(options.optimiser().unwrap(), adamw);
    assert_eq!((options.accumulation_steps, options.ema_decay), (1, None));
    // A run that was told of no minutes goes on without any.
    let options: TrainOptions = serde_json::from_str(r#"{"save_minutes": null}"#).unwrap();
    assert_eq!((options.save_minutes, TrainOptions::default().save_minutes), (None, Some(5.0)));
}

#[test]
fn a_number_that_the_optimizer_does_not_have_is_named() {
    let options = TrainOptions { momentum: Some(0.5), ..TrainOptions::default() };
    let error = options.optimiser().unwrap_err().to_string();
    assert_eq!(error, "momentum: expected an optimizer that has one, got adamw");
    let sgd = TrainOptions { optimizer: Kind::Sgd, nesterov: true, ..options };
    let config = sgd.optimiser().unwrap();
    assert_eq!((config.momentum, config.nesterov), (Some(0.5), Some(true)));
}

#[test]
fn an_option_that_means_nothing_beside_the_others_is_named() {
    let own = TrainOptions::default;
    let exponential = || TrainOptions { lr_schedule: LrSchedule::Exponential, ..own() };
    let constant = || TrainOptions { lr_schedule: LrSchedule::Constant, ..own() };
    let restarts = || TrainOptions { lr_schedule: LrSchedule::CosineRestarts, ..own() };
    let refused = [
        ("decay_steps", TrainOptions { decay_steps: Some(5), ..constant() }),
        ("decay_steps", TrainOptions { decay_steps: Some(5), ..restarts() }),
        ("decay_rate", TrainOptions { decay_rate: 0.5, ..own() }),
        ("restart_period", TrainOptions { restart_period: 5, ..own() }),
        ("restart_mult", TrainOptions { restart_mult: 3, ..exponential() }),
        ("weights", TrainOptions { weights: vec![1.0], ..own() }),
        ("action_oversample", TrainOptions { action_oversample: 2.0, ..own() }),
        ("noise_scale", TrainOptions { noise_scale: 0.5, ..own() }),
        ("force_precision", TrainOptions { force_precision: true, ..own() }),
        ("teacher_weight", TrainOptions { teacher_weight: 0.5, ..own() }),
        ("teacher_direction", TrainOptions { teacher_direction: Direction::Reverse, ..own() }),
    ];
    for (field, options) in refused {
        let error = options.validate().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{field}: expected ")), "{error}");
    }
    let (weighted, transitions) = (Sampling::Weighted, Sampling::Transitions);
    let meant = [
        TrainOptions { decay_steps: Some(5), ..own() },
        TrainOptions { decay_steps: Some(5), decay_rate: 0.5, ..exponential() },
        TrainOptions { restart_period: 5, restart_mult: 3, ..restarts() },
        TrainOptions { weights: vec![1.0], sampling: weighted, ..own() },
        TrainOptions { action_oversample: 2.0, sampling: transitions, ..own() },
        TrainOptions { noise_scale: 0.5, noise: 0.1, ..own() },
        TrainOptions { force_precision: true, precision: Precision::Bf16, ..own() },
    ];
    assert!(meant.iter().all(|options| options.validate().is_ok()));
}

#[test]
fn a_precision_that_gains_nothing_is_that_of_f32_unless_it_is_forced() {
    let here = |precision, force_precision| {
        TrainOptions { precision, force_precision, ..TrainOptions::default() }.precision_here()
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
fn what_only_a_cpu_has_is_refused_by_its_name_on_another_device() {
    let on = |name: &str| TrainOptions { device: name.into(), ..TrainOptions::default() };
    let limited = |name| TrainOptions { memory_limit: Some(1 << 30), ..on(name) };
    assert!(limited("cpu").open_device().is_ok());
    let error = limited("cuda:1").open_device().unwrap_err();
    assert_eq!(error.kind(), sconce_tensor::Kind::Unavailable);
    assert!(error.to_string().starts_with("memory_limit on cuda:1: "), "{error}");
    let again = TrainOptions { gradient_checkpoint: true, ..on("cuda:1") };
    assert!(matches!(again.open_device(), Err(Error::NoDevice { .. })));
    // A card gains by each.
    let card = TrainOptions { precision: Precision::F16, ..on("cuda:1") };
    assert_eq!(card.precision_here(), Precision::F16);
    assert!(matches!(card.open_device(), Err(Error::NoDevice { .. })));
}

#[test]
fn cards_that_cannot_share_a_batch_alike_are_refused_before_any_is_looked_for() {
    let on = |name: &str| TrainOptions { device: name.into(), ..TrainOptions::default() };
    let odd = TrainOptions { batch_size: 63, ..on("cuda:0,1") };
    let error = odd.open_devices().err().map(|error| error.to_string());
    let said = "batch_size: expected a multiple of 2, the cards of cuda:0,1, got 63";
    assert_eq!(error.as_deref(), Some(said));
    assert!(matches!(on("cuda:0,1").open_devices(), Err(Error::NoDevice { .. })));
    assert!(on("cpu").open_devices().is_ok_and(|devices| devices.all.len() == 1));
    // What has one device alone.
    assert!(matches!(on("cuda:0,1").open_device(), Err(Error::Mismatch { .. })));
}

#[test]
fn every_number_has_bounds_and_both_ends_of_them_are_refused_by_name() {
    let own = TrainOptions::default();
    let named: Vec<_> = own.numbers().into_iter().map(|(option, _)| option).collect();
    assert_eq!(named, BOUNDS.iter().map(|(option, ..)| *option).collect::<Vec<_>>());
    let all = serde_json::to_value(&own).unwrap();
    let numbers = all.as_object().unwrap().iter().filter(|(_, value)| value.is_number());
    // `seed` may be any; `max_grad_norm` has no largest.
    let unbounded = ["seed", "max_grad_norm"];
    for (option, _) in numbers.filter(|(option, _)| !unbounded.contains(&option.as_str())) {
        assert!(named.contains(&option.as_str()), "{option}");
    }
    for &(option, _, max) in BOUNDS {
        let beyond = if max.fract() == 0.0 { serde_json::json!(max as u64 + 1) } else { 1.into() };
        let mut options = all.clone();
        options[option] = beyond;
        let options: TrainOptions = serde_json::from_value(options).unwrap();
        let error = options.validate().unwrap_err();
        assert_eq!(error.kind(), sconce_tensor::Kind::OutOfRange, "{option}");
        assert!(error.to_string().starts_with(option), "{error}");
    }
    assert_eq!(
        BOUNDS.iter().find(|(name, ..)| *name == "frame_delay").unwrap().2,
        MAX_DELAY as f64
    );
    let long = TrainOptions { epochs: 1_000_000, ..own };
    assert!(long.check_steps(1000).is_ok());
    assert!(long.check_steps(u64::MAX).unwrap_err().to_string().starts_with("steps: "));
}

#[test]
fn numbers_of_the_optimizer_have_bounds() {
    let forgetful = TrainOptions { beta2: Some(1.0), ..TrainOptions::default() };
    let error = forgetful.validate().unwrap_err().to_string();
    assert!(error.starts_with("beta2: 1 is outside 0.."), "{error}");
    let sudden = TrainOptions { eps: Some(0.0), ..TrainOptions::default() };
    assert!(sudden.validate().unwrap_err().to_string().starts_with("eps: 0 is outside"));
}

#[test]
fn a_run_without_any_time_is_refused() {
    let none = TrainOptions { max_minutes: Some(0.0), ..TrainOptions::default() };
    let error = none.validate().unwrap_err().to_string();
    assert!(error.starts_with("max_minutes: 0 is outside 0.001.."), "{error}");
}
