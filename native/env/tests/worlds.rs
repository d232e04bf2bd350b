//! Comparison of the vectorised worlds with single transitions of the reference simulators, and their start states.
#![allow(clippy::disallowed_methods)]

mod support;

use std::f64::consts::{PI, TAU};
use std::path::Path;

use safetensors::SafeTensors;
use support::Run;

/// A table of transitions in f64.
struct Table {
    bytes: Vec<u8>,
}

impl Table {
    fn read(name: &str) -> Table {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/golden");
        Table { bytes: std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap() }
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        let words = tensor.data().chunks(8).map(|b| b.try_into().unwrap());
        match tensor.dtype() {
            safetensors::Dtype::F64 => words.map(f64::from_le_bytes).collect(),
            safetensors::Dtype::I64 => words.map(|b| i64::from_le_bytes(b) as f64).collect(),
            _ => tensor.data().iter().map(|flag| f64::from(*flag)).collect(),
        }
    }
}

/// The difference of two angles up to full turns.
fn turn(a: f64, b: f64) -> f64 {
    (a - b + PI).rem_euclid(TAU) - PI
}

/// Steps `env` from each state of a table. `ranges` are the ranges of the state's numbers, `margin` is the distance of a
/// next state from the threshold of termination, and `angles` is the number of leading state numbers that are angles.
fn compare(env: &str, file: &str, ranges: &[f64], angles: usize, margin: impl Fn(&[f64]) -> f64) {
    let table = Table::read(file);
    let (states, actions) = (table.numbers("input.state"), table.numbers("input.action"));
    let (next, rewards) = (table.numbers("output.next_state"), table.numbers("output.reward"));
    let ended = table.numbers("output.terminated");
    let (rows, width) = (actions.len(), ranges.len());
    assert_eq!((rows, states.len(), ended.len()), (200, rows * width, rows));

    let mut run = Run::new(&sconce_env::EnvOptions {
        autoreset: sconce_env::Autoreset::Disabled,
        ..support::options(env, rows)
    });
    for (i, state) in states.chunks(width).enumerate() {
        let state: Vec<f32> = state.iter().map(|v| *v as f32).collect();
        run.envs.set_state(i, &state).unwrap();
    }
    run.step(&actions.iter().map(|v| *v as f32).collect::<Vec<_>>());
    let scale = rewards.iter().fold(1.0f64, |most, reward| most.max(reward.abs()));
    for i in 0..rows {
        let want = &next[i * width..][..width];
        for (k, (got, want)) in run.envs.state(i).into_iter().zip(want).enumerate() {
            let got = f64::from(got);
            let error = if k < angles { turn(got, *want) } else { got - want };
            assert!(error.abs() <= 1e-5 * ranges[k], "row {i}, number {k}: {got} {want}");
        }
        if margin(want).abs() > 1e-5 {
            assert_eq!(f64::from(run.terminated[i]), ended[i], "row {i}");
            let error = (f64::from(run.rewards[i]) - rewards[i]).abs();
            assert!(error <= 1e-5 * scale, "row {i}: {} {}", run.rewards[i], rewards[i]);
        }
    }
}

#[test]
fn cart_pole_reproduces_the_transitions_of_the_reference() {
    let bound = 12.0 * TAU / 360.0;
    let margin = |s: &[f64]| (s[0].abs() - 2.4).abs().min((s[2].abs() - bound).abs());
    for env in ["cart_pole", "cart_pole_velocity_less"] {
        compare(env, "env_cartpole", &[4.8, 6.0, 0.42, 6.0], 0, margin);
    }
}

#[test]
fn mountain_car_reproduces_the_transitions_of_the_reference() {
    // The velocity of the car is 0.07 at most, and that of one at the wall becomes 0.
    let margin = |s: &[f64]| s[0] - 0.5;
    compare("mountain_car", "env_mountain_car", &[1.8, 0.14], 0, margin);
}

#[test]
fn mountain_car_continuous_reproduces_the_transitions_of_the_reference() {
    let margin = |s: &[f64]| (s[0] - 0.45).abs().min(s[1].abs());
    compare("mountain_car_continuous", "env_mountain_car_continuous", &[1.8, 0.14], 0, margin);
}

#[test]
fn pendulum_reproduces_the_transitions_of_the_reference() {
    compare("pendulum", "env_pendulum", &[TAU, 16.0], 0, |_| 1.0);
}

#[test]
fn acrobot_reproduces_the_transitions_of_the_reference() {
    let margin = |s: &[f64]| -s[0].cos() - (s[1] + s[0]).cos() - 1.0;
    compare("acrobot", "env_acrobot", &[TAU, TAU, 8.0 * PI, 18.0 * PI], 2, margin);
    let table = Table::read("env_acrobot");
    let (next, seen) =
        (table.numbers("output.next_state"), table.numbers("output.next_observation"));
    let mut run = Run::of("acrobot", 200);
    for (i, state) in next.chunks(4).enumerate() {
        run.envs.set_state(i, &state.iter().map(|v| *v as f32).collect::<Vec<_>>()).unwrap();
    }
    let mut observations = vec![0.0; 1200];
    run.envs.observe(&mut observations);
    for (got, want) in observations.iter().zip(&seen) {
        assert!((f64::from(*got) - want).abs() <= 1e-5 * want.abs().max(1.0), "{got} {want}");
    }
}

#[test]
fn start_states_fill_the_ranges_of_the_reference() {
    let ranges: [(&str, &[(f32, f32)]); 6] = [
        ("cart_pole", &[(-0.05, 0.05); 4]),
        ("cart_pole_velocity_less", &[(-0.05, 0.05); 4]),
        ("mountain_car", &[(-0.6, -0.4), (0.0, 0.0)]),
        ("mountain_car_continuous", &[(-0.6, -0.4), (0.0, 0.0)]),
        ("acrobot", &[(-0.1, 0.1); 4]),
        ("pendulum", &[(-std::f32::consts::PI, std::f32::consts::PI), (-1.0, 1.0)]),
    ];
    for (env, ranges) in ranges {
        let run = Run::of(env, 1000);
        for (k, (low, high)) in ranges.iter().enumerate() {
            let values: Vec<f32> = (0..1000).map(|i| run.envs.state(i)[k]).collect();
            let mean = values.iter().sum::<f32>() / 1000.0;
            let edge = 0.01 * (high - low);
            assert!(values.iter().all(|v| (low..=high).contains(&v)), "{env} {k}");
            assert!(values.iter().any(|v| *v <= low + edge), "{env} {k}");
            assert!(values.iter().any(|v| *v >= high - edge), "{env} {k}");
            assert!((mean - (low + high) / 2.0).abs() <= 0.05 * (high - low), "{env} {k}");
        }
    }
}

#[test]
fn worlds_have_the_reference_s_time_limits_and_sizes() {
    let sizes = [
        ("cart_pole", 4, 500),
        ("cart_pole_velocity_less", 2, 500),
        ("mountain_car", 2, 200),
        ("mountain_car_continuous", 2, 999),
        ("acrobot", 6, 500),
        ("pendulum", 3, 200),
    ];
    for (env, observation_size, time_limit) in sizes {
        let spec = sconce_env::spec(&support::options(env, 1)).unwrap();
        assert_eq!((spec.observation_size, spec.time_limit), (observation_size, time_limit));
        assert!(sconce_env::names().contains(&env));
    }
}

#[test]
fn the_observations_of_a_state_have_the_bits_that_its_step_showed() {
    for env in sconce_env::names() {
        let mut run = Run::of(env, 37);
        for t in 0..20 {
            run.step(&run.random(t));
            let mut seen = vec![0.0; run.observations.len()];
            run.envs.observe(&mut seen);
            let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&seen), bits(&run.observations), "{env}, step {t}");
        }
    }
}

#[test]
fn observations_hide_the_velocities_of_the_velocity_less_cart_pole() {
    let mut run = Run::of("cart_pole_velocity_less", 1);
    run.envs.set_state(0, &[1.0, 2.0, 0.1, -3.0]).unwrap();
    let mut seen = [0.0; 2];
    run.envs.observe(&mut seen);
    assert_eq!(seen, [1.0, 0.1]);
}

#[test]
fn pendulum_shows_cosine_sine_and_velocity_and_pays_for_the_state_before_the_step() {
    let mut run = Run::of("pendulum", 1);
    run.envs.set_state(0, &[2.0 + 4.0 * std::f32::consts::PI, 1.5]).unwrap();
    let mut seen = [0.0; 3];
    run.envs.observe(&mut seen);
    for (got, want) in seen.iter().zip([2f32.cos(), 2f32.sin(), 1.5]) {
        assert!((got - want).abs() < 1e-5);
    }
    run.step_all(3.0);
    assert!((run.rewards[0] + 4.0 + 0.225 + 0.004).abs() < 1e-4, "{}", run.rewards[0]);
}
