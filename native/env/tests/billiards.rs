//! The billiards worlds as environments: rewards, ends, observations and traces of shots.
#![allow(clippy::disallowed_methods)]

mod support;

use sconce_env::{Autoreset, EnvOptions, ShotEventKind, shot};
use sconce_tensor::pool;
use support::Run;

const AIM: usize = 23;
const MOVED: usize = 26;
const FALLEN: usize = 27;
const SCRATCH: usize = 28;

/// A state with balls at these places, the others fallen.
fn state(places: &[(usize, [f32; 2])]) -> Vec<f32> {
    let mut state = vec![0.0; 33];
    for (ball, [x, y]) in places {
        (state[*ball], state[8 + ball]) = (*x, *y);
        if *ball > 0 {
            state[15 + ball] = 1.0;
        }
    }
    state
}

/// One table in a state.
fn table(env: &str, state: &[f32]) -> Run {
    let options = EnvOptions { autoreset: Autoreset::Disabled, ..support::options(env, 1) };
    let mut run = Run::new(&options);
    run.envs.set_state(0, state).unwrap();
    run
}

/// The reward terms of the last step.
fn terms(run: &mut Run) -> Vec<f64> {
    run.envs.take_terms()
}

#[test]
fn the_aim_pots_the_target() {
    for env in ["billiards", "billiards_published"] {
        let mut run = table(env, &state(&[(0, [0.3, 0.0]), (1, [0.9, 0.4]), (4, [-0.9, 0.0])]));
        let mut seen = vec![0.0; 29];
        run.envs.observe(&mut seen);
        assert!(seen[AIM + 1] > 0.9, "a straight shot: {}", seen[AIM + 1]);
        run.step(&[seen[AIM], if env == "billiards" { 0.3 } else { 0.01 }, 0.0, 0.0]);
        let terms = terms(&mut run);
        if env == "billiards" {
            assert_eq!((terms[0], terms[1], terms[3]), (20.0, 0.0, 0.0));
            assert!((run.observations[FALLEN] - 6.0 / 7.0).abs() < 1e-6);
        }
    }
}

#[test]
fn another_ball_pays_less_than_the_target_and_a_miss_costs() {
    let balls = [(0, [0.9, 0.3]), (1, [-0.9, 0.0]), (4, [1.2, 0.56])];
    let mut run = table("billiards", &state(&balls));
    let angle = (0.26f32).atan2(0.3) / std::f32::consts::PI;
    run.step(&[angle, 0.1, -0.5, 0.0]);
    assert_eq!(terms(&mut run)[..2], [0.0, 10.0]);
    let mut run = table("billiards", &state(&balls));
    run.step(&[1.0, 0.0, 0.0, 0.0]);
    let terms = terms(&mut run);
    assert_eq!(terms[..4], [0.0, 0.0, 0.0, -3.0]);
    let centre = 5.0 * (1.0 - (0.9f64.hypot(0.3) / 1.27f64.hypot(0.635)));
    assert!((terms[4] - centre).abs() < 1e-5, "{} {centre}", terms[4]);
    assert_eq!(run.observations[MOVED], 0.0);
}

#[test]
fn a_cue_ball_that_falls_costs_and_returns_to_a_free_place() {
    let balls = [(0, [1.1, 0.5]), (1, [-0.64, 0.1])];
    let mut run = table("billiards", &state(&balls));
    let angle = (0.135f32).atan2(0.17) / std::f32::consts::PI;
    run.step(&[angle, 0.1, 0.0, 0.0]);
    let terms = terms(&mut run);
    assert_eq!(terms, [0.0, 0.0, -15.0, -3.0, 0.0]);
    assert_eq!(run.observations[SCRATCH], 1.0);
    let state = run.envs.state(0);
    assert_eq!((state[0], state[8]), (-0.64, -0.1));
    assert_eq!((state[1], state[9]), (-0.64, 0.1));
}

#[test]
fn an_episode_ends_after_three_shots_or_with_the_last_ball() {
    let mut run = table("billiards", &state(&[(0, [0.9, 0.3]), (1, [-0.9, 0.0])]));
    for shot in 0..3 {
        assert!(run.truncated[0] != 1, "before shot {shot}");
        run.step(&[1.0, 0.0, 0.0, 0.0]);
    }
    assert_eq!((run.terminated[0], run.truncated[0]), (0, 1));
    let mut run = table("billiards", &state(&[(0, [0.9, 0.3]), (7, [1.2, 0.56])]));
    run.step(&[(0.26f32).atan2(0.3) / std::f32::consts::PI, 0.1, -0.5, 0.0]);
    assert_eq!((run.terminated[0], run.truncated[0]), (1, 0));
    assert_eq!(run.observations[AIM], 0.0);
}

#[test]
fn spin_changes_the_way_of_the_cue_ball() {
    // Where the cue ball is half a second after it touched ball 1.
    let place = |top: f32| {
        let start = state(&[(0, [-0.3, 0.1]), (1, [0.3, 0.1])]);
        let trace = shot(&start, &[0.0, 0.2, top, 0.0], 0.01).unwrap();
        let touch = trace.events[0].time;
        trace.frames.iter().find(|frame| frame[0] >= touch + 0.5).unwrap()[1]
    };
    assert!(place(-1.0) < place(0.0) && place(0.0) < place(1.0));
    let bounce = |side: f32| {
        let mut run = table("billiards", &state(&[(0, [0.3, 0.1]), (1, [-1.2, 0.5])]));
        run.step(&[0.0, 0.2, 0.0, side]);
        run.envs.state(0)[8]
    };
    assert!(bounce(1.0) < 0.09 && bounce(-1.0) > 0.11, "{} {}", bounce(1.0), bounce(-1.0));
}

#[test]
fn start_states_are_spots_with_changes_and_no_overlap() {
    let run = Run::of("billiards", 300);
    for env in 0..300 {
        let state = run.envs.state(env);
        for i in 0..8 {
            for j in 0..i {
                let distance = (state[i] - state[j]).hypot(state[8 + i] - state[8 + j]);
                assert!(distance > 0.054, "table {env}, balls {j} and {i}: {distance} m");
            }
        }
    }
    assert_ne!(run.envs.state(0), run.envs.state(1));
}

#[test]
fn a_trace_ends_in_the_state_of_the_environment() {
    let mut run = Run::new(&EnvOptions {
        autoreset: Autoreset::Disabled,
        ..support::options("billiards", 20)
    });
    let inputs = run.random(3);
    let before: Vec<_> = (0..20).map(|env| run.envs.state(env)).collect();
    run.step(&inputs);
    for (env, before) in before.iter().enumerate() {
        let trace = shot(before, &inputs[4 * env..][..4], 0.05).unwrap();
        let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&trace.state), bits(&run.envs.state(env)), "table {env}");
        assert_eq!(trace.frames[0][1], before[0]);
        assert!(trace.frames.windows(2).all(|pair| pair[0][0] < pair[1][0]));
        assert!(trace.events.windows(2).all(|pair| pair[0].time <= pair[1].time));
        let fell = trace.events.iter().filter(|e| e.kind == ShotEventKind::Pocket).count();
        let on = |state: &[f32]| state[16..23].iter().sum::<f32>();
        let lost = on(before) - on(&trace.state) + trace.state[32];
        assert_eq!(fell as f32, lost, "table {env}");
    }
}

#[test]
fn a_ball_that_spins_in_place_is_the_same_beside_others() {
    // Ball 1 returns to the cue ball, which may have stopped with spin where it hit it, and sends it to a cushion.
    let start = state(&[(0, [-1.1, 0.1]), (1, [-0.9, 0.1])]);
    let other = state(&[(0, [0.0, 0.0]), (1, [0.5, 0.3])]);
    let options = EnvOptions { autoreset: Autoreset::Disabled, ..support::options("billiards", 2) };
    for power in [0.3, 0.4, 0.5, 0.6] {
        for top in 0..100 {
            let input = [0.0, power, -0.005 * top as f32, 0.8];
            let mut run = Run::new(&options);
            run.envs.set_state(0, &start).unwrap();
            run.envs.set_state(1, &other).unwrap();
            run.step(&[input, [0.3, 1.0, 0.0, 0.0]].concat());
            let alone = shot(&start, &input, 0.1).unwrap().state;
            assert_eq!(alone, run.envs.state(0), "{input:?}");
        }
    }
}

#[test]
fn a_trace_refuses_bad_numbers() {
    let start = state(&[(0, [0.0, 0.0])]);
    for (state, input, interval, kind) in [
        (&start[..32], vec![0.0; 4], 0.1, "mismatch"),
        (&start[..], vec![0.0; 3], 0.1, "mismatch"),
        (&start[..], vec![f32::NAN, 0.0, 0.0, 0.0], 0.1, "out_of_range"),
        (&start[..], vec![0.0; 4], 0.0, "out_of_range"),
        (&[f32::NAN; 33][..], vec![0.0; 4], 0.1, "non_finite"),
    ] {
        assert_eq!(shot(state, &input, interval).unwrap_err().kind().name(), kind);
    }
}

#[test]
fn threads_and_neighbours_do_not_change_a_table() {
    let mut many = Run::of("billiards", 2100);
    let inputs = many.random(1);
    many.step(&inputs);
    let mut serial = Run::of("billiards", 2100);
    pool::serial(|| serial.step(&inputs));
    assert_eq!(many.bits(), serial.bits());
    let mut few = Run::of("billiards", 5);
    few.step(&inputs[..20]);
    assert_eq!(few.observations[..], many.observations[..5 * 29]);
}
