//! Resets, ends, options, threads and errors of vectorised environments.

mod support;

use sconce_env::{Autoreset, EnvOptions, Envs, names};
use sconce_tensor::{Error, Kind, pool};
use support::{Run, options};

fn with(env: &str, count: usize, change: impl FnOnce(&mut EnvOptions)) -> Run {
    let mut options = options(env, count);
    change(&mut options);
    Run::new(&options)
}

#[test]
fn a_step_that_ends_an_episode_also_begins_the_next_one() {
    let mut run = Run::of("cart_pole", 3);
    let mut length = [0; 3];
    for _ in 0..100 {
        let before: Vec<_> = (0..3).map(|env| run.envs.state(env)).collect();
        run.step_all(1.0);
        for env in 0..3 {
            length[env] += 1;
            let at = run.ended.iter().position(|row| *row == env as u32);
            assert_eq!(at.is_some(), run.terminated[env] == 1);
            assert_eq!((run.rewards[env], run.truncated[env]), (1.0, 0));
            if let Some(at) = at {
                let last = &run.finals[4 * at..][..4];
                // The cart and the pole are where the step took them, and then at a start.
                assert!((last[0] - before[env][0] - 0.02 * before[env][1]).abs() < 1e-6);
                assert!(last[2].abs() > 0.2 && run.row(env).iter().all(|v| v.abs() <= 0.05));
                assert_eq!(run.row(env), run.envs.state(env));
                let mut episodes = vec![];
                run.envs.episodes(&mut episodes);
                let episode = episodes.iter().find(|episode| episode.env == env as u32).unwrap();
                assert_eq!((episode.length, episode.ret), (length[env], length[env] as f32));
                assert!(episode.terminated && episode.seat == 0);
                length[env] = 0;
                if episodes.len() > 1 {
                    return;
                }
            }
        }
    }
}

#[test]
fn in_next_step_mode_the_step_after_an_end_resets_without_a_reward() {
    let mut run = with("cart_pole", 1, |o| o.autoreset = Autoreset::NextStep);
    let mut same = Run::of("cart_pole", 1);
    for _ in 0..5 {
        while run.terminated[0] != 1 {
            run.step_all(1.0);
            same.step_all(1.0);
            assert_eq!(run.rewards, [1.0]);
        }
        // Both modes show the same final observation and the same next start.
        assert_eq!((&run.ended, &run.finals), (&vec![0], &same.finals));
        assert_eq!(run.row(0), &run.finals);
        run.step_all(1.0);
        assert_eq!((run.rewards[0], run.terminated[0], run.truncated[0]), (0.0, 0, 0));
        assert!(run.ended.is_empty() && run.finals.is_empty());
        assert_eq!(run.observations, same.observations);
    }
}

#[test]
fn without_autoreset_an_ended_environment_refuses_steps_until_it_is_reset() {
    let mut run = with("cart_pole", 20, |o| o.autoreset = Autoreset::Disabled);
    let mut inputs = vec![0.0; 20];
    for t in 0.. {
        // Environment 17 is pushed to one side only, and ends first.
        inputs.fill((t % 2) as f32);
        inputs[17] = 1.0;
        run.step(&inputs);
        if run.terminated[17] == 1 {
            break;
        }
    }
    assert_eq!((run.ended.as_slice(), run.finals.as_slice()), ([17].as_slice(), run.row(17)));
    let before = run.envs.snapshot();
    let error = run.try_step(&inputs).unwrap_err();
    let text = "environment 17: expected a running episode, got one that has ended";
    assert_eq!((error.kind(), error.to_string()), (Kind::Mismatch, text.into()));
    assert_eq!(run.envs.snapshot(), before);
    let mask: Vec<bool> = (0..20).map(|env| env == 17).collect();
    let mut seen = vec![0.0; 80];
    run.envs.reset_rows(&mask, &mut seen).unwrap();
    assert_eq!(seen[..68], run.observations[..68]);
    assert!(seen[68..72].iter().all(|v| v.abs() <= 0.05) && seen[68..72] != *run.row(17));
    run.step(&inputs);
}

#[test]
fn the_time_limit_truncates_and_a_fall_terminates() {
    let mut run = with("pendulum", 2, |o| o.time_limit = Some(3));
    for t in 1..=6 {
        run.step_all(0.5);
        let last = u8::from(t % 3 == 0);
        assert_eq!((run.truncated[0], run.terminated[0]), (last, 0));
        assert_eq!(run.ended.len(), 2 * usize::from(last));
    }
    let mut episodes = vec![];
    run.envs.episodes(&mut episodes);
    let of: Vec<_> = episodes.iter().map(|e| (e.env, e.length, e.terminated)).collect();
    assert_eq!(of, [(0, 3, false), (0, 3, false), (1, 3, false), (1, 3, false)]);
    // A fall at the time limit sets both flags.
    let mut run = with("cart_pole", 1, |o| o.time_limit = Some(1));
    run.envs.set_state(0, &[2.39, 5.0, 0.0, 0.0]).unwrap();
    run.step_all(0.0);
    assert_eq!((run.terminated[0], run.truncated[0]), (1, 1));
}

#[test]
fn every_world_ends_at_its_own_time_limit() {
    for (env, limit) in [("mountain_car", 200), ("mountain_car_continuous", 999), ("pendulum", 200)]
    {
        let mut run = Run::of(env, 1);
        for t in 1..=limit {
            run.step_all(0.0);
            assert_eq!((run.truncated[0], run.terminated[0]), (u8::from(t == limit), 0), "{env}");
        }
    }
}

#[test]
fn a_repeated_action_sums_rewards_and_stops_at_an_end() {
    let mut run = with("cart_pole", 17, |o| o.action_repeat = 4);
    let mut single = with("cart_pole", 17, |o| o.autoreset = Autoreset::NextStep);
    let mut short = 0;
    for _ in 0..6 {
        run.step_all(1.0);
        // The steps of each environment one by one, up to its end. All begin from the same states.
        let (mut sums, mut ended) = ([0.0; 17], [false; 17]);
        let mut finals = vec![vec![]; 17];
        for _ in 0..4 {
            single.step_all(1.0);
            for env in (0..17).filter(|env| !ended[*env]) {
                sums[env] += single.rewards[env];
                finals[env] = single.row(env).to_vec();
            }
            single.ended.iter().for_each(|row| ended[*row as usize] = true);
        }
        short += ended.iter().filter(|ended| **ended).count();
        assert_eq!(run.rewards, sums);
        let at: Vec<u32> = (0..17).filter(|env| ended[*env as usize]).collect();
        assert_eq!(run.ended, at);
        assert_eq!(
            run.finals,
            at.iter().flat_map(|e| finals[*e as usize].clone()).collect::<Vec<_>>()
        );
        single.envs.restore(&run.envs.snapshot()).unwrap();
    }
    assert!(short > 10);
    let mut episodes = vec![];
    run.envs.episodes(&mut episodes);
    assert!(episodes.iter().all(|e| e.ret == e.length as f32));
    assert!(episodes.iter().any(|e| e.length % 4 != 0));
}

#[test]
fn stacked_observations_are_the_last_ones_oldest_first() {
    let mut run = with("cart_pole", 3, |o| o.frame_stack = 3);
    let mut plain = Run::of("cart_pole", 3);
    assert_eq!(run.envs.spec().observation_size, 12);
    let first = plain.row(1).to_vec();
    assert_eq!(run.row(1), [&first[..], &first, &first].concat());
    let mut recent = vec![first.clone(), first.clone(), first];
    for _ in 0..60 {
        run.step_all(1.0);
        plain.step_all(1.0);
        assert_eq!(run.ended, plain.ended);
        if let Some(at) = run.ended.iter().position(|row| *row == 1) {
            recent.push(plain.finals[4 * at..][..4].to_vec());
            assert_eq!(run.finals[12 * at..][..12], recent[recent.len() - 3..].concat());
            recent = vec![plain.row(1).to_vec(); 3];
        } else {
            recent.push(plain.row(1).to_vec());
        }
        assert_eq!(run.row(1), recent[recent.len() - 3..].concat());
    }
}

#[test]
fn weights_scale_reward_terms_and_sums_of_terms_are_unweighted() {
    let weights = vec![("control".to_string(), 0.0), ("angle".to_string(), 2.0)];
    let mut run = with("pendulum", 40, |o| o.reward_weights = weights);
    let mut plain = Run::of("pendulum", 40);
    run.step(&plain.random(0));
    plain.step(&plain.random(0));
    let terms = run.envs.take_terms();
    assert_eq!(terms, plain.envs.take_terms());
    let sum = |run: &Run| run.rewards.iter().map(|r| f64::from(*r)).sum::<f64>();
    assert!((sum(&plain) - terms.iter().sum::<f64>()).abs() < 1e-3);
    assert!((sum(&run) - 2.0 * terms[0] - terms[1]).abs() < 1e-3);
    assert_eq!(run.envs.take_terms(), [0.0; 3]);
}

/// Steps that a test takes in a world. A shot of billiards takes as long as thousands of other steps.
fn steps(env: &str, steps: u64) -> u64 {
    if env.starts_with("billiards") { 4 } else { steps }
}

/// The bits of random steps.
fn play(run: &mut Run) -> Vec<support::Bits> {
    (0..steps(&run.envs.spec().name, 60))
        .map(|t| {
            run.step(&run.random(t));
            run.bits()
        })
        .collect()
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for env in names() {
        let all = || {
            let count = if env.starts_with("billiards") { 2100 } else { 9000 };
            let mut run = Run::of(env, count);
            let bits = play(&mut run);
            let (terms, mut episodes) = (run.envs.take_terms(), vec![]);
            run.envs.episodes(&mut episodes);
            (bits, terms, episodes)
        };
        let alone = pool::serial(all);
        for threads in [1, 2, 5] {
            pool::set_threads(threads).unwrap();
            assert!(all() == alone, "{env} on {threads} threads");
        }
    }
}

#[test]
fn an_environment_does_not_depend_on_the_number_of_environments() {
    for env in names() {
        let (mut few, mut many) = (Run::of(env, 5), Run::of(env, 1100));
        let (rows, width) = (few.envs.rows(), few.observations.len());
        assert_eq!(few.observations, many.observations[..width]);
        for t in 0..steps(env, 250) {
            let inputs = many.random(t);
            few.step(&inputs[..inputs.len() / 1100 * 5]);
            many.step(&inputs);
            assert_eq!(few.observations, many.observations[..width], "{env}");
            assert_eq!(few.rewards, many.rewards[..rows]);
            assert_eq!(few.ended, many.ended[..few.ended.len()]);
            assert_eq!(few.finals, many.finals[..few.finals.len()]);
        }
    }
}

#[test]
fn environments_restored_from_a_snapshot_continue_with_the_same_bits() {
    for env in names() {
        for autoreset in [Autoreset::SameStep, Autoreset::NextStep] {
            let change = |o: &mut EnvOptions| {
                (o.autoreset, o.frame_stack, o.time_limit) = (autoreset, 2, Some(30));
            };
            let mut run = with(env, 19, change);
            play(&mut run);
            let snapshot = run.envs.snapshot();
            let json = serde_json::to_string(&snapshot).unwrap();
            let mut other = with(env, 19, |o| {
                change(o);
                o.seed = 99;
            });
            other.envs.restore(&serde_json::from_str(&json).unwrap()).unwrap();
            assert_eq!(other.envs.snapshot(), snapshot);
            assert_eq!(play(&mut other), play(&mut run), "{env}");
        }
    }
}

#[test]
fn a_snapshot_that_does_not_fit_is_refused() {
    let mut run = Run::of("cart_pole", 3);
    let good = run.envs.snapshot();
    let changes: [fn(&mut sconce_env::EnvSnapshot); 8] = [
        |s| s.env = "pendulum".into(),
        |s| _ = s.states.pop(),
        |s| s.steps.push(0),
        |s| s.stack.push(0.0),
        |s| s.states[0] = f32::NAN,
        |s| s.returns[0] = f32::NAN,
        |s| s.ended[1] = 2,
        |s| s.steps[2] = 501,
    ];
    for change in changes {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(run.envs.restore(&bad).is_err(), "{bad:?}");
        assert_eq!(run.envs.snapshot(), good);
    }
}

#[test]
fn equal_seeds_give_equal_episodes_and_other_seeds_others() {
    let (mut a, mut b) = (Run::of("cart_pole", 4), Run::of("cart_pole", 4));
    assert_eq!(play(&mut a), play(&mut b));
    let mut first = vec![0.0; 16];
    a.envs.reset(Some(5), &mut first).unwrap();
    assert_eq!(first, Run::of("cart_pole", 4).observations);
    let mut next = vec![0.0; 16];
    a.envs.reset(None, &mut next).unwrap();
    assert!(first.iter().zip(&next).all(|(a, b)| a != b));
    a.envs.reset(Some(6), &mut next).unwrap();
    assert!(first.iter().zip(&next).all(|(a, b)| a != b));
    let starts: Vec<_> = (0..4).map(|env| a.envs.state(env)).collect();
    assert!((1..4).all(|env| starts[env] != starts[0]));
}

#[test]
fn unknown_names_are_refused_with_the_nearest_name() {
    let error = |change: fn(&mut EnvOptions)| {
        let mut options = options("pendulum", 1);
        change(&mut options);
        let error = Envs::new(&options).err().unwrap();
        assert_eq!(error.kind(), Kind::NotFound);
        error.to_string()
    };
    let text = error(|o| o.env = "CartPole".into());
    assert_eq!(text, r#"environment "CartPole" (the nearest name is "cart_pole") not found"#);
    let text = error(|o| o.reward_weights = vec![("angles".into(), 1.0)]);
    assert_eq!(text, r#"reward term "angles" (the nearest name is "angle") not found"#);
}

#[test]
fn options_outside_their_bounds_are_refused() {
    let refused = |change: fn(&mut EnvOptions)| {
        let mut options = options("pendulum", 1);
        change(&mut options);
        Envs::new(&options).err().unwrap().kind()
    };
    assert_eq!(refused(|o| o.count = 0), Kind::OutOfRange);
    assert_eq!(refused(|o| o.count = 1_048_577), Kind::OutOfRange);
    assert_eq!(refused(|o| o.action_repeat = 0), Kind::OutOfRange);
    assert_eq!(refused(|o| o.frame_stack = 0), Kind::OutOfRange);
    assert_eq!(refused(|o| o.time_limit = Some(0)), Kind::OutOfRange);
    assert_eq!(refused(|o| (o.count, o.frame_stack) = (1 << 20, 256)), Kind::OutOfRange);
    let heavy = |o: &mut EnvOptions| o.reward_weights = vec![("angle".into(), 1e7)];
    assert_eq!(refused(heavy), Kind::OutOfRange);
    assert_eq!(refused(|o| o.opponent = Some("idle".into())), Kind::Mismatch);
    assert_eq!(refused(|o| o.reward_weights = vec![("angle".into(), f32::NAN)]), Kind::NonFinite);
    assert!(serde_json::from_str::<EnvOptions>(r#"{"counts": 3}"#).is_err());
    let given = r#"{"env": "acrobot", "autoreset": "next_step"}"#;
    let options: EnvOptions = serde_json::from_str(given).unwrap();
    assert_eq!((options.autoreset, options.count), (Autoreset::NextStep, 1));
}

#[test]
fn bad_inputs_are_refused_before_anything_changes() {
    let mut run = Run::of("mountain_car", 40);
    let before = run.envs.snapshot();
    for bad in [f32::NAN, -1.0, 3.0, 0.5, f32::INFINITY, -0.5, 1e30] {
        let mut inputs = vec![2.0; 40];
        inputs[33] = bad;
        let error = run.try_step(&inputs).unwrap_err();
        assert!(matches!(&error, Error::OutOfRange { field, .. } if field == "action of row 33"));
    }
    let mut pendulum = Run::of("pendulum", 1);
    assert!(
        pendulum.try_step(&[f32::NAN]).is_err() && pendulum.try_step(&[-f32::INFINITY]).is_err()
    );
    pendulum.step(&[f32::MAX]);
    assert_eq!(run.try_step(&[0.0; 39]).unwrap_err().kind(), Kind::Mismatch);
    run.rewards.pop();
    assert_eq!(run.try_step(&[0.0; 40]).unwrap_err().kind(), Kind::Mismatch);
    assert_eq!(run.envs.snapshot(), before);
    assert!(run.envs.reset(None, &mut [0.0; 3]).is_err());
    assert!(run.envs.reset_rows(&[true; 39], &mut [0.0; 80]).is_err());
    assert!(run.envs.set_state(40, &[0.0; 2]).is_err());
    assert!(run.envs.set_state(0, &[0.0; 3]).is_err());
    assert!(run.envs.set_state(0, &[0.0, f32::NAN]).is_err());
    assert!(run.envs.state(40).is_empty());
}

#[test]
fn at_most_a_fixed_number_of_episodes_is_kept() {
    let mut run = with("pendulum", 64, |o| o.time_limit = Some(1));
    (0..300).for_each(|_| run.step_all(0.0));
    let mut episodes = vec![];
    run.envs.episodes(&mut episodes);
    assert_eq!(episodes.len(), 16_384);
    run.step_all(0.0);
    episodes.clear();
    run.envs.episodes(&mut episodes);
    assert_eq!(episodes.len(), 64);
}
